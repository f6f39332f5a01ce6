"""Only what stands before a hypothesis, or in its list, may explain it; below it, what stands before each premise."""

from __future__ import annotations

from typing import Any

import pytest

import aeenc
from aeenc import errors
from aeenc.oracle import EXPLAINS, Answer, Task, Verdict
from aeenc.trees import Accessible
from aeenc.v1 import sampler_pb2
from support.worlds.sampler_world import (
    FACTS,
    HYPOTHESES,
    SamplerWorld,
    answered_by,
    at_work,
    brute_force,
    finish,
    nearest,
    pair_set,
    staffed,
    take,
)

BEFORE = {text: Accessible(f"p{20 + 4 * n}") for n, (_, text) in enumerate(HYPOTHESES[:8])}


def stands_before(query: str, number: int) -> bool:
    """Whether premise `number` stands before a query: before what a hypothesis names, before a fact itself."""
    limit = BEFORE[query].before_id.removeprefix("p") if query in BEFORE else query.removeprefix("fact ")
    return number < int(limit)


async def test_a_run_records_what_the_definition_says_of_accessible_premises(client):
    run = await finish(client, hypotheses=HYPOTHESES[:8], k=6, accessible=BEFORE)
    assert run.state.name == "SUCCEEDED", run.error
    recorded = await pair_set(client, run.id)
    assert recorded == brute_force(HYPOTHESES[:8], k=6, may=stands_before)
    assert any(query.startswith("fact ") for query, _, _ in recorded), "accepted premises were asked about, too"
    late = [pair for pair in recorded if not stands_before(pair[0], int(pair[1].removeprefix("fact ")))]
    assert (late, len(recorded) > 100) == ([], True)


async def test_a_list_holds_for_a_whole_tree(client):
    listed = tuple(f"p{n}" for n in range(0, FACTS, 3))
    accessible = {"hypothesis 0": Accessible(only_ids=listed)}
    run = await finish(client, hypotheses=HYPOTHESES[:1], k=6, accessible=accessible)
    recorded = await pair_set(client, run.id)
    assert recorded == brute_force(HYPOTHESES[:1], k=6, may=lambda query, number: number % 3 == 0)
    assert len({query for query, _, _ in recorded}) > 1


async def test_unknown_premises_and_long_lists_are_refused_at_the_start(client):
    with pytest.raises(errors.NotFound, match="p99"):
        await finish(client, accessible={"hypothesis 1": Accessible("p99")})
    with pytest.raises(errors.InvalidArgument, match=r"hypotheses\[1\].only_ids"):
        await finish(client, accessible={"hypothesis 1": Accessible(only_ids=("p1",) * 1025)})
    message = sampler_pb2.Hypothesis(id="a", text="hypothesis 1")
    for roots, text in ((HYPOTHESES, "hypothesis  1"), ([message], "hypothesis 1")):
        with pytest.raises(errors.InvalidArgument, match=f"'{text}', which is none of the hypotheses"):
            await finish(client, hypotheses=roots, accessible={text: Accessible("p1")})


class Adding(aeenc.Oracle):
    """Adds premises before and after the query; concludes something on the way, and adds the same to that."""

    name = "adding"

    def judge(self, task: Task) -> Answer[Any]:
        added = {"p4": Verdict(EXPLAINS, leaf=True), "p40": Verdict(EXPLAINS, leaf=True)}
        return Answer((), additions=added, intermediates=["on the way"] if not task.path else ())


async def test_what_an_oracle_adds_must_be_accessible(world: SamplerWorld):
    async with answered_by(world, Adding()) as sampler:
        options: dict[str, Any] = {"hypotheses": HYPOTHESES[:1], "k": 1}
        run = await finish(sampler, accessible={"hypothesis 0": Accessible("p20")}, **options)
        positive = await pair_set(sampler, run.id, "+")
        free = await pair_set(sampler, (await finish(sampler, **options)).id, "+")
    queries = ("hypothesis 0", "on the way")
    assert positive == {(query, "fact 4", "+") for query in queries}
    assert free == {(query, text, "+") for query in queries for text in ("fact 4", "fact 40")}


async def test_what_a_person_adds_must_be_accessible(world: SamplerWorld):
    accessible = {"hypothesis 0": Accessible("p20", tuple(f"p{n}" for n in range(0, FACTS, 2)))}
    async with at_work(world, 1, run={"accessible": accessible}) as (people, _, _):
        lease = await take(people, "ann")
        shown = {one.premise.id for one in lease.task.candidates}
        for late in ("p40", "p3"):
            with pytest.raises(errors.InvalidArgument, match=f"'{late}' is not accessible here"):
                await people.submit(lease, Answer([], additions=[late]))
        await people.submit(
            lease, Answer([], additions=[next(f"p{n}" for n in range(0, 20, 2) if f"p{n}" not in shown)])
        )


@pytest.mark.parametrize("step", [0, 4])
async def test_what_an_oracle_adds_in_one_tree_explains_nothing_in_another_where_it_is_not_accessible(
    world: SamplerWorld, step: int
):
    lists = {"a": ("p1", "p4"), "b": ("p1",), "c": ("p1", "p4", "p40")}
    roots = [sampler_pb2.Hypothesis(id=name, text="hypothesis 0", only_ids=only) for name, only in lists.items()]
    async with answered_by(world, Adding()) as sampler:
        run = await finish(sampler, hypotheses=roots, k=1, max_depth=0, step=step)
        people = aeenc.PeopleClient(sampler.channel)
        found = {name: (await people.get_tree(run.id, name)).nodes[0].accepted for name in lists}
    assert {name: {one.premise_id for one in accepted} - {""} for name, accepted in found.items()} == {
        "a": {"p4"},
        "b": set(),
        "c": {"p4"},
    }


async def test_what_a_person_accepts_later_explains_nothing_in_a_tree_where_it_is_not_accessible(world: SamplerWorld):
    best, new, later = [one for one, _, _ in nearest("hypothesis 0", 3)]
    lists = {"a": (best, new, later), "b": (best,)}
    roots = [sampler_pb2.Hypothesis(id=name, text="hypothesis 0", only_ids=only) for name, only in lists.items()]
    async with staffed(world) as (people, sampler):
        run = await sampler.start_run(roots, corpus="science", oracle="team", k=1, max_depth=0)
        lease = await take(people, "ann")
        answer = await people.submit(lease, Answer([best], additions=[new]))
        await sampler.wait(run.id)
        await people.amend(answer.answer_id, Answer({}, additions=[later]), "ann")
        await sampler.resume(run.id)
        await sampler.wait(run.id)
        found = {name: (await people.get_tree(run.id, name)).nodes[0].accepted for name in lists}
    assert {name: {one.premise_id for one in accepted} for name, accepted in found.items()} == {
        "a": {best, new, later},
        "b": {best},
    }
