"""A run that asks in steps: what an oracle says of a node ends it, asks the next candidates, or retrieves again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import aeenc
from aeenc.oracle import EXPLAINS, REFUSES, Answer, NodeVerdictName, Task, Verdict
from aeenc.trees import Accessible
from aeenc.v1 import sampler_pb2
from support.worlds.sampler_world import (
    HYPOTHESES,
    SamplerWorld,
    answered_by,
    at_work,
    explains,
    finish,
    pair_set,
    take,
)

K, STEP = 20, 5
TREES = HYPOTHESES[:4]


class Stepping(aeenc.Oracle):
    """Accepts as the definition does, each as a leaf. Of a node it says `ends` once two premises are accepted."""

    name = "stepping"

    def __init__(self, ends: NodeVerdictName | None, goes_on: NodeVerdictName | None = None) -> None:
        self.ends, self.goes_on = ends, goes_on
        self.asked: list[tuple[str, str]] = []
        self.sizes: Counter[int] = Counter()

    def judge(self, task: Task) -> Answer[Any]:
        self.sizes[len(task.candidates)] += 1
        self.asked += [(task.query, one.text) for one in task.candidates]
        found = [one.text for one in (*task.candidates, *task.accepted) if explains(task.query, one.text)]
        verdicts = {
            one.id: Verdict(EXPLAINS, leaf=True) if one.text in found else Verdict(REFUSES) for one in task.candidates
        }
        return Answer(verdicts, node_verdict=self.ends if len(found) >= 2 else self.goes_on)


async def run(world: SamplerWorld, oracle: Stepping, **config: Any) -> set[tuple[str, str, str]]:
    async with answered_by(world, oracle) as sampler:
        ended = await finish(sampler, hypotheses=TREES, k=K, max_depth=0, **config)
        assert ended.state.name == "SUCCEEDED", ended.error
        assert (ended.progress.nodes_judged, ended.progress.judgements) == (len(TREES), len(oracle.asked))
        found = await pair_set(sampler, ended.id)
    assert len(oracle.asked) == len(set(oracle.asked)), "nothing is asked twice"
    return found


def first(pairs: list[tuple[str, str]], until: int) -> list[tuple[str, str]]:
    """The questions of each query up to the end of the step in which so many premises of it were accepted."""
    found = []
    for query in dict.fromkeys(query for query, _ in pairs):
        own = [pair for pair in pairs if pair[0] == query]
        places = [place for place, pair in enumerate(own, start=1) if explains(*pair)]
        end = places[until - 1] if len(places) >= until else len(own)
        found += own[: -(-end // STEP) * STEP]
    return found


@pytest.mark.parametrize("verdict", ["complete", "not_explainable"])
async def test_a_node_that_is_settled_is_asked_no_further(world: SamplerWorld, verdict: NodeVerdictName):
    whole, stepping = Stepping(verdict), Stepping(verdict)
    plain = await run(world, whole)
    assert set(whole.sizes) == {K}, "without a step, all are asked at once, whatever it says"
    pairs = await run(world, stepping, step=STEP)
    assert set(stepping.sizes) == {STEP}
    assert sorted(stepping.asked) == sorted(first(whole.asked, 2))
    assert len(stepping.asked) < len(whole.asked)
    assert pairs == {pair for pair in plain if pair[:2] in set(stepping.asked)}


async def test_an_oracle_that_says_nothing_of_nodes_is_asked_all_in_steps(world: SamplerWorld):
    whole, stepping = Stepping(None), Stepping(None)
    assert await run(world, stepping, step=STEP) == await run(world, whole)
    assert sorted(stepping.asked) == sorted(whole.asked)


async def test_what_is_missing_is_retrieved_given_what_is_accepted(world: SamplerWorld):
    whole, stepping = Stepping(None), Stepping("premise_missing", "premise_missing")
    plain = await run(world, whole, conditioned=True)
    pairs = await run(world, stepping, step=K)
    assert sorted(stepping.asked) == sorted(whole.asked)
    assert pairs == plain
    assert len(stepping.asked) > K * len(TREES)


async def test_people_end_a_node_by_what_they_say_of_it(world: SamplerWorld):
    async with at_work(world, 1, run={"step": 2}, undo_s=0.0) as (people, sampler, run_id):
        lease = await take(people, "ann")
        assert len(lease.task.candidates) == 2
        await people.submit(lease, Answer([lease.task.candidates[0].premise.id], node_verdict="complete"))
        ended = await sampler.wait(run_id)
        assert (ended.state.name, ended.progress.judgements) == ("SUCCEEDED", 2)


class Missing(aeenc.Oracle):
    """Accepts the best of the candidates asked about, and says of the node what it is told to, by round."""

    name = "missing"

    def __init__(self, *says: NodeVerdictName | None) -> None:
        self.says = says
        self.asked: list[tuple[str, ...]] = []

    def judge(self, task: Task) -> Answer[Any]:
        self.asked.append(tuple(one.id for one in task.candidates))
        best = task.candidates[0].id
        verdicts = {one.id: Verdict(EXPLAINS if one.id == best else REFUSES, leaf=True) for one in task.candidates}
        return Answer(verdicts, node_verdict=self.says[min(len(self.asked), len(self.says)) - 1])


async def accepted_in(sampler: aeenc.SamplerClient, run_id: str, *trees: str) -> list[list[str]]:
    """The premises that explain each root."""
    people = aeenc.PeopleClient(sampler.channel)
    roots = [(await people.get_tree(run_id, tree)).nodes[0] for tree in trees]
    return [[one.premise_id for one in root.accepted] for root in roots]


TWICE = [("a", "hypothesis 0"), ("b", "hypothesis 0")]


async def test_a_node_that_is_settled_in_another_tree_takes_over_all_that_explains_it(world: SamplerWorld):
    oracle = Missing("premise_missing", "complete")
    async with answered_by(world, oracle) as sampler:
        ended = await finish(sampler, hypotheses=TWICE, k=4, step=4, max_depth=0)
        found, taken_over = await accepted_in(sampler, ended.id, "a", "b")
    assert (len(oracle.asked), len(found)) == (2, 2)
    assert taken_over == found


async def test_a_verdict_on_a_node_ends_it_only_where_the_same_was_accessible(world: SamplerWorld):
    one, other = Accessible(only_ids=("p1", "p2")), Accessible(only_ids=("p3", "p4"))
    oracle = Missing("not_explainable")
    async with answered_by(world, oracle) as sampler:
        hypotheses = [
            sampler_pb2.Hypothesis(id=name, text=TWICE[0][1], only_ids=within.only_ids)
            for name, within in (("a", one), ("b", other), ("c", other))
        ]
        ended = await finish(sampler, hypotheses=hypotheses, k=4, step=4, max_depth=0)
        found = await accepted_in(sampler, ended.id, "a", "b", "c")
    assert [sorted(asked) for asked in oracle.asked] == [["p1", "p2"], ["p3", "p4"]]
    assert found == [[oracle.asked[0][0]], [oracle.asked[1][0]], [oracle.asked[1][0]]]


async def test_a_node_that_a_spent_budget_leaves_in_the_middle_keeps_what_was_accepted(world: SamplerWorld):
    oracle = Missing(None)
    async with answered_by(world, oracle) as sampler:
        ended = await finish(sampler, hypotheses=TREES, k=K, step=STEP, max_depth=0, max_judgements=2 * STEP)
        found = await accepted_in(sampler, ended.id, *(name for name, _ in TREES))
    assert ended.state.name == "SUCCEEDED"
    asked = sorted(one[0] for one in oracle.asked)
    assert (ended.progress.judgements, sorted(one for root in found for one in root)) == (2 * STEP, asked)
    assert ended.progress.nodes_judged == sum(map(bool, found)) > 0


async def test_a_run_that_is_taken_over_pays_for_the_next_step(world: SamplerWorld):
    oracle = Missing(None)
    async with answered_by(world, oracle, max_judgements=STEP) as sampler:
        ended = await finish(sampler, hypotheses=TREES[:1], k=K, step=STEP, max_depth=0)
        assert (ended.state.name, len(oracle.asked)) == ("FAILED", 1)
        await sampler.resume(ended.id)
        ended = await sampler.wait(ended.id)
    assert (ended.state.name, [len(one) for one in oracle.asked]) == ("FAILED", [STEP])
