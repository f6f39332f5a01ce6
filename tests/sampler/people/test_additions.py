"""What people add to a task: premises that the candidates lacked, and facts in their own words."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

import aeenc
from aeenc import errors, values
from aeenc.oracle import EXPLAINS, REFUSES, Answer, Candidate, Task, Verdict
from services.sampler.acs.algorithm import ADDED, AcceptedPremise, Node, NodeAnswer, NodeRound, Tree, explains
from services.sampler.people import steps
from services.sampler.people.tasks import SentAnswer, TaskRecord, corrections
from support.worlds.people_world import sent, verdict
from support.worlds.sampler_world import FACTS, NEVER, SamplerWorld, at_work, pairs, splits_of, take, tasks

TASK = Task("0-0", "run", "q", (), (), (Candidate("p1", "t1", 1, 0.9), Candidate("p2", "t2", 2, 0.8)))
FOUND = sent([("p1", EXPLAINS)], 2, 1.0, additions=(verdict("p9", EXPLAINS, "t9"),))
PLAIN = sent([("p1", EXPLAINS)], 2, 1.0)


def answered(record: TaskRecord, who: str, given: SentAnswer) -> TaskRecord:
    record = steps.lease(record, who, f"run.0-0.{who}", 0.0, 60.0).record
    return steps.submit(record, f"run.0-0.{who}", given, 1, 1.0).record


def missing(lease: Any, *, split: str = "") -> str:
    """A premise that is not among a lease's candidates, and that a run of this split may use."""
    shown = {candidate.premise.id for candidate in lease.task.candidates}
    allowed = {"facts", split} if split else set()
    for number in range(FACTS):
        stands_in = set(splits_of(number))
        if f"p{number}" not in shown and (not allowed or not stands_in or allowed & stands_in):
            return f"p{number}"
    raise AssertionError("every premise is a candidate")


def test_what_one_person_adds_is_unseen_by_the_others_and_accepted():
    record = answered(answered(TaskRecord("run", TASK, 2, "adjudicate"), "ann", FOUND), "bob", PLAIN)
    assert record.state is values.TaskState.DECIDED
    assert explains(record.decision["p9"])
    assert [one.id for one in record.candidates] == ["p1", "p2", "p9"]


def test_an_adjudicator_may_refuse_an_addition_and_an_amendment_may_add_one_later():
    record = answered(TaskRecord("run", TASK, 1, "majority"), "ann", PLAIN)
    settled = steps.settle(record, 2.0, 0.0, "0-0").record
    assert corrections(settled) == {}
    later = sent(additions=FOUND.answer.additions)
    amended = steps.amend(settled, "run.0-0.1", later, "ann", 3.0).record
    assert {name: explains(one) for name, one in corrections(amended).items()} == {"p9": True}
    refused = steps.amend(amended, "run.0-0.2", sent([("p9", REFUSES)]), "ann", 4.0).record
    assert {name: explains(one) for name, one in corrections(refused).items()} == {"p9": False}


@pytest.mark.parametrize("is_written", [False, True])
def test_what_is_added_or_concluded_is_accepted_in_every_tree_that_asks_the_query_except_below_itself(
    is_written: bool,
):
    found = [Candidate("p1", "t1", 1, 0.9), Candidate("p2", "t2", 2, 0.8)]
    said = {"p1": EXPLAINS, "p2": REFUSES} if is_written else {"p1": EXPLAINS, "p2": REFUSES, "p9": EXPLAINS}
    verdicts = {name: verdict(name, one) for name, one in said.items()}
    extra = AcceptedPremise("" if is_written else "p9", "t9", ADDED, leaf=False, author="ann" if is_written else "")
    more = {"written": (extra,)} if is_written else {"added": (Candidate("p9", "t9", ADDED, 0.0),)}

    def accepted(round_: NodeRound, answer: NodeAnswer | None = None) -> list[tuple[str, str, str]]:
        return [(one.id, one.text, one.author) for one in round_.outcome(answer).result.accepted]

    first = NodeRound(Tree(0, "h", [Node(0, "q")]), Node(0, "q")).with_nearest(found, 2)
    answer = NodeAnswer("0-0", verdicts, "ann", **more)
    both = [("p1", "t1", ""), (extra.id, extra.text, extra.author)]
    assert accepted(first, answer) == both
    outcome = first.outcome(answer)
    assert [one.id for one in outcome.judged] == [*said]
    again = NodeRound(Tree(1, "g", [Node(0, "q")]), Node(0, "q"), outcome.known).with_nearest(found, 2)
    assert (again.asked, accepted(again)) == ([], both)
    below = Tree(2, "f", [Node(0, "t9"), Node(1, "q", "p5", 0, 1)])
    assert accepted(NodeRound(below, below.nodes[1], outcome.known).with_nearest(found, 2)) == both[:1]


async def test_an_added_premise_becomes_a_pair_and_a_node_of_the_tree(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 1}, undo_s=0.0) as (people, sampler, run_id):
        lease = await take(people, "ann")
        extra = missing(lease)
        answer = Answer([], additions=[extra], inference="because of it, this")
        once = partial(people.submit, lease, answer, client_seq=5)
        assert await once() == await once()
        below = await take(people, "bob")
        assert below.task.query == f"fact {extra.removeprefix('p')}"
        await people.submit(below, [below.task.candidates[0].premise.id])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        [pair] = [one for one in await pairs(sampler, run_id) if one.premise_id == extra]
        assert (pair.query, pair.sign) == ("hypothesis 0", aeenc.values.PairSign.POSITIVE)
        origin = pair.provenance
        assert (origin.rank, origin.annotator, bool(origin.node_id)) == (0, "ann", True)
        assert all(one.provenance.rank for one in await pairs(sampler, run_id) if one.premise_id != extra)
        [tree] = [json.loads(record) async for _, record in sampler.export_trees(run_id)]
        assert below.task.query in json.dumps(tree)
        [task] = [one for one in await tasks(people, run_id) if one.task.query == "hypothesis 0"]
        assert [one.premise_id for one in task.answers[0].additions] == [extra]
        assert task.answers[0].inference == "because of it, this"


async def test_what_may_not_be_added_is_refused_by_name(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 1, "split": "dev"}, undo_s=0.0) as (people, _, _):
        lease = await take(people, "ann")
        shown = lease.task.candidates[0].premise.id
        train = next(f"p{n}" for n in range(FACTS) if splits_of(n) == ("train",))
        for additions, problem in (
            ([shown], "is a candidate of the task"),
            ([train], "belongs to train, and run"),
            ({missing(lease, split="dev"): REFUSES}, "only premises that explain"),
            ([f"p{n}" for n in range(65)], "has 65 items"),
        ):
            with pytest.raises(errors.InvalidArgument, match=problem):
                await people.submit(lease, Answer([], additions=additions))
        with pytest.raises(errors.NotFound, match="nowhere"):
            await people.submit(lease, Answer([], additions=["nowhere"]))
        for written, problem in (([" "], "is empty"), (["w" * 1025], "1025 characters"), (["w"] * 65, "65 items")):
            with pytest.raises(errors.InvalidArgument, match=problem):
                await people.submit(lease, Answer([], written=written))
        await people.submit(lease, [shown])
        below = await take(people, "ann")
        assert below.task.path == ("hypothesis 0",)
        with pytest.raises(errors.InvalidArgument, match="may not lead back to itself"):
            await people.submit(below, Answer([], additions=[shown]))


async def test_written_facts_are_kept_with_their_author_and_are_no_part_of_the_run(world: SamplerWorld):
    async with at_work(world, 1, undo_s=0.0) as (people, sampler, run_id):
        lease = await take(people, "ann")
        fact = "a fact that the corpus lacks"
        await people.submit(
            lease, Answer([lease.task.candidates[0].premise.id], written=[fact], node_verdict="premise_missing")
        )
        await asyncio.wait_for(sampler.wait(run_id), 40)
        [task] = await tasks(people, run_id)
        [answer] = task.answers
        assert (answer.annotator, answer.written) == ("ann", (fact,))
        assert answer.node_verdict == aeenc.values.NodeVerdict.PREMISE_MISSING
        assert fact not in {pair.premise for pair in await pairs(sampler, run_id)}
        trees = [record async for _, record in sampler.export_trees(run_id)]
        assert trees
        assert not any(fact in tree for tree in trees)


INTERMEDIATE = "what a person concludes on the way"


async def test_a_written_intermediate_is_retrieved_for_and_stands_in_the_tree_with_its_author(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 1}, undo_s=0.0) as (people, sampler, run_id):
        lease = await take(people, "ann")
        await people.submit(lease, Answer([], intermediates=[INTERMEDIATE, "an intermediate that nothing explains"]))
        below = await take(people, "bob")
        assert (below.task.query, below.task.path) == (INTERMEDIATE, ("hypothesis 0",))
        await people.submit(below, {below.task.candidates[0].premise.id: Verdict(EXPLAINS, leaf=True)})
        await people.submit(await take(people, "bob"), [])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        root, node, _ = (await people.get_tree(run_id, "tree-0")).nodes
        assert [(one.premise_id, one.text, one.annotator) for one in root.accepted][:1] == [("", INTERMEDIATE, "ann")]
        assert (node.premise_id, node.text, node.author, node.parent_id) == ("", INTERMEDIATE, "ann", root.node_id)
        recorded = await pairs(sampler, run_id)
        assert {INTERMEDIATE, "hypothesis 0"} <= {pair.query for pair in recorded}
        assert all(pair.premise_id and pair.premise != INTERMEDIATE for pair in recorded)
        [tree] = [json.loads(record) async for _, record in sampler.export_trees(run_id)]
        assert tree["proof"].count(f"int1: {INTERMEDIATE}") == 1
        assert tree["authors"] == {"int1": "ann"}
        assert "nothing explains" not in json.dumps(tree)
        [task] = [one for one in await tasks(people, run_id) if one.task.query == "hypothesis 0"]
        assert task.answers[0].intermediates[0] == INTERMEDIATE


async def test_a_decided_node_shows_its_intermediates_and_an_undone_answer_takes_them_back(world: SamplerWorld):
    async with at_work(world, 1, run={"max_depth": 1}, undo_s=NEVER) as (people, _, run_id):
        lease = await take(people, "ann")
        with pytest.raises(errors.InvalidArgument, match="may not lead back to itself"):
            await people.submit(lease, Answer([], intermediates=["hypothesis 0"]))
        with pytest.raises(errors.InvalidArgument, match="is the candidate"):
            await people.submit(lease, Answer([], intermediates=[lease.task.candidates[0].premise.text]))
        await people.submit(lease, Answer([], intermediates=[INTERMEDIATE]), seen_upto=0)
        [root] = (await people.get_tree(run_id, "tree-0")).nodes
        assert [one.text for one in root.accepted] == [INTERMEDIATE]
        await people.undo("ann", run_id)
        [root] = (await people.get_tree(run_id, "tree-0")).nodes
        assert root.accepted == ()


def ways(*some: list[str]) -> tuple[values.PremiseSet, ...]:
    """Several ways to explain a query."""
    return tuple(values.PremiseSet(premise_ids=tuple(way)) for way in some)


def test_several_ways_to_explain_a_query_stay_with_the_answer_as_long_as_their_premises_are_accepted():
    given = sent([("p1", EXPLAINS)], 2, additions=FOUND.answer.additions, alternatives=ways(["p1"], ["p1", "p9"]))
    record = answered(TaskRecord("run", TASK, 1, "majority"), "ann", given)
    assert record.answers[0].answer.alternatives == ways(["p1"], ["p1", "p9"])
    amended = steps.amend(record, "run.0-0.1", sent([("p9", REFUSES)]), "ann", 2.0).record
    assert amended.answers[0].answer.alternatives == ways(["p1"])


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ([[]], "is empty"),
        ([["nobody"]], "'nobody', which this answer does not accept"),
        ([["p2"]], "names 'p2', which this answer does not accept"),
        ([["p1"]] * 17, "has 17 items"),
    ],
)
def test_a_way_names_accepted_premises_alone(named: list[list[str]], why: str):
    with pytest.raises(errors.InvalidArgument, match=why):
        answered(TaskRecord("run", TASK, 1, "majority"), "ann", sent([("p1", EXPLAINS)], 2, alternatives=ways(*named)))
