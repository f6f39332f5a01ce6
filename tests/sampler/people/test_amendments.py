"""Second thoughts after a run has gone on: the pairs that replace others, whatever happens beside, and the trees."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

import aeenc
from aeenc import errors, trees, values
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Answer, Candidate, Task, Verdict
from aeenc.values import Collect, RunConfig, RunProgress
from services.sampler.people import gateway, steps
from services.sampler.people.queue import TaskQueue, corrected_pairs
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from services.sampler.records.keys import RunKeys
from services.sampler.records.runs import Run
from support.waiting import eventually
from support.worlds.people_world import sent
from support.worlds.sampler_world import NEVER, SamplerWorld, at_work, pairs, staffed, take, tasks

RUN = Run(
    "run",
    RunConfig(corpus="science", oracle="team"),
    "SUCCEEDED",
    "",
    "v1",
    "g1",
    RunProgress(),
    datetime.now(UTC),
    datetime.now(UTC),
)
TEXTS = ("iron is a metal", "irons are metals", "ice is cold", "salt is white")
TASK = Task(
    "0-0", "run", "q", (), (), tuple(Candidate(f"p{n}", t, n, 1 - n / 10) for n, t in enumerate(TEXTS, start=1))
)


Said = dict[str, Verdict | int]


def amended(collect: Collect, first: Said, then: Said) -> dict[str, tuple[str, str, float]]:
    """Sign, reason and grade by premise of the pairs that replace what a person said at first."""
    record = steps.lease(TaskRecord("run", TASK, 1, "majority"), "ann", "run.0-0.l", 0.0, 60.0).record
    record = steps.submit(record, "run.0-0.l", sent(first.items(), 4, 1.0, note="so"), 1, 1.0).record
    record = steps.settle(record, 2.0, 0.0, "0-0").record
    record = steps.amend(record, "run.0-0.1", sent(then.items()), "bob", 3.0).record
    run = replace(RUN, config=replace(RUN.config, collect=collect))
    found = corrected_pairs(run, record, "bob")
    assert all(pair.amended and (pair.annotator, pair.note) == ("bob", "so") for pair in found)
    return {pair.premise_id: (pair.sign, pair.reason, pair.grade) for pair in found}


@pytest.mark.parametrize(
    ("collect", "first", "then", "expected"),
    [
        (Collect.BOTH, {"p1": EXPLAINS}, {"p1": ABSTAINS}, {"p1": ("SKIPPED", "undecided", 0.0)}),
        (
            Collect.BOTH,
            {"p1": EXPLAINS},
            {"p1": REFUSES, "p3": EXPLAINS},
            {"p1": ("NEGATIVE", "", 0.0), "p3": ("POSITIVE", "", 0.0)},
        ),
        (Collect.POSITIVES_ONLY, {"p1": EXPLAINS}, {"p1": REFUSES}, {"p1": ("SKIPPED", "refused", 0.0)}),
        (Collect.BOTH, {"p1": EXPLAINS}, {"p1": EXPLAINS}, {}),
        (
            Collect.BOTH,
            {"p1": Verdict(EXPLAINS, grade=2.0)},
            {"p1": Verdict(EXPLAINS, grade=6.0)},
            {"p1": ("POSITIVE", "", 6.0)},
        ),
    ],
)
def test_an_amended_pair_says_what_holds_now_and_why_it_is_skipped(collect, first, then, expected):
    assert amended(collect, first, then) == expected


async def settled(people: aeenc.PeopleClient, sampler: aeenc.SamplerClient, run_id: str) -> tuple[str, list[str]]:
    """A run whose only task has one accepted premise: the answer, and the premises by rank."""
    lease = await take(people, "ann")
    ids = [c.premise.id for c in lease.task.candidates]
    answer = await people.submit(lease, [ids[0]])
    await asyncio.wait_for(sampler.wait(run_id), 40)
    return answer.answer_id, ids


async def test_of_two_amendments_at_once_the_slower_is_refused_and_leaves_no_pair(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    write, held, go_on = TaskStore.write, asyncio.Event(), asyncio.Event()

    async def write_later(store: TaskStore, change: steps.Change, *rest: Any) -> bool:
        if change.corrects == "bob" and not held.is_set():
            held.set()
            await go_on.wait()
        return await write(store, change, *rest)

    monkeypatch.setattr(TaskStore, "write", write_later)
    async with at_work(world, 1) as (people, sampler, run_id):
        answer_id, ids = await settled(people, sampler, run_id)
        first = asyncio.create_task(people.amend(answer_id, {ids[1]: EXPLAINS}, "bob"))
        await held.wait()
        await people.amend(answer_id, {ids[1]: ABSTAINS}, "cem")
        go_on.set()
        with pytest.raises(errors.FailedPrecondition, match="no longer holds"):
            await first
        told = [" +-?"[pair.sign] for pair in await pairs(sampler, run_id) if pair.premise_id == ids[1]]
        assert told == ["-", "?"]


async def test_what_an_amendment_takes_back_is_in_no_exported_tree_and_what_it_adds_is(world: SamplerWorld):
    async with at_work(world, 1) as (people, sampler, run_id):
        answer_id, ids = await settled(people, sampler, run_id)

        async def explaining() -> set[str]:
            found = [trees.tree_from_record(json.loads(record)) async for _, record in sampler.export_trees(run_id)]
            return {tree.texts[label] for tree in found for label in tree.leaves}

        texts = {c.premise.id: c.premise.text for t in await tasks(people, run_id) for c in t.task.candidates}
        assert await explaining() == {texts[ids[0]]}
        answer_id = await people.amend(answer_id, {ids[0]: REFUSES, ids[2]: EXPLAINS}, "bob")
        assert await explaining() == {texts[ids[2]]}
        answer_id = await people.amend(answer_id, {ids[2]: ABSTAINS}, "bob")
        assert await explaining() == set()
        await people.amend(answer_id, {ids[0]: EXPLAINS}, "bob")
        assert await explaining() == {texts[ids[0]]}


async def test_a_refusal_that_was_amended_is_no_negative_of_another_tree_later(world: SamplerWorld):
    """`fact 35` is asked below `fact 16`, its nearest premise, which takes the only place; later elsewhere."""
    async with staffed(world) as (people, sampler):
        roots = [("early", "fact 16"), ("late", "hypothesis 5")]
        limits = {"k": 4, "max_depth": 1, "max_negatives_per_query": 1}
        run = await sampler.start_run(roots, corpus="science", oracle="team", **limits)

        async def answered(tree: str, query: str, accepted: str) -> values.SubmittedVerdicts:
            lease = await take(people, "ann", run.id, tree)
            assert lease.task.query == query
            return await people.submit(
                lease, [c.premise.id for c in lease.task.candidates if c.premise.text == accepted]
            )

        await answered("early", "fact 16", "fact 35")
        sent = await answered("early", "fact 35", "")
        [asked] = [task.task.candidates async for task in people.list_tasks(run.id) if task.task.query == "fact 35"]
        await eventually(lambda: sampler.get_run(run.id), is_so=lambda run: run.progress.nodes_judged == 2)
        await people.amend(sent.answer_id, {asked[0].premise.id: EXPLAINS}, "bob")
        await answered("late", "hypothesis 5", "fact 35")
        await answered("late", "fact 35", "fact 16")
        ended = await asyncio.wait_for(sampler.wait(run.id), 20)
        found = [pair for pair in await pairs(sampler, run.id) if pair.query == "fact 35"]
        assert [pair.sign.name for pair in found if pair.premise_id == asked[0].premise.id] == ["NEGATIVE", "POSITIVE"]
        assert len({pair.premise_id for pair in found if pair.sign.name == "NEGATIVE"} - {asked[0].premise.id}) == 1
        logged = [pair.sign.name for pair in await pairs(sampler, run.id)]
        assert ended.progress.positives == logged.count("POSITIVE")


async def test_an_answer_whose_run_ended_before_it_was_recorded_is_amended_once_the_run_is_resumed(
    world: SamplerWorld, redis: Any, keys: RunKeys
):
    async with at_work(world, 1, undo_s=NEVER) as (people, sampler, run_id):
        lease = await take(people, "ann")
        ids = [c.premise.id for c in lease.task.candidates]
        answer = await people.submit(lease, [ids[0]])
        await sampler.cancel(run_id)
        store = TaskStore(redis, keys)
        record, at = await store.read(run_id, lease.task.task_id)
        assert record is not None
        assert await store.write(steps.settle(record, at, 0.0, "0-0"), at)  # and then it died
        with pytest.raises(errors.FailedPrecondition, match=f"aeenc resume {run_id}"):
            await people.amend(answer.answer_id, {ids[0]: REFUSES}, "ann")
        await sampler.resume(run_id)
        await asyncio.wait_for(sampler.wait(run_id), 40)
        await people.amend(answer.answer_id, {ids[0]: REFUSES}, "ann")
        told = [" +-?"[pair.sign] for pair in await pairs(sampler, run_id) if pair.premise_id == ids[0]]
        assert told == ["+", "-"]


async def test_all_that_is_said_of_a_node_can_be_amended_and_what_is_left_out_stays(world: SamplerWorld):
    async with at_work(world, 1, undo_s=NEVER) as (people, _, run_id):
        lease = await take(people, "ann")
        one, two, three = [c.premise.id for c in lease.task.candidates][:3]
        given = await people.submit(lease, Answer([one, two], note="old", inference="stays", written=["a fact"]))
        said = {"note": "new", "written": ["another"], "node_verdict": "complete"}
        ways = [[one, two], [one, three]]
        await people.amend(
            given.answer_id, Answer({three: EXPLAINS}, alternatives=ways, intermediates=["so"], **said), "ann"
        )
        assert "so" in [found.text for found in (await people.get_tree(run_id, "tree-0")).nodes[0].accepted]
        [task] = [task async for task in people.list_tasks(run_id, answered_by="ann")]
        [answer] = task.answers
        assert (answer.note, answer.inference, answer.node_verdict.name) == ("new", "stays", "COMPLETE")
        assert answer.written == ("a fact", "another")
        assert [set(way.premise_ids) for way in answer.alternatives] == [{one, two}, {one, three}]
        assert {v.premise_id for v in answer.verdicts if v.judgement.name == "EXPLAINS"} == {one, two, three}


async def test_a_run_counts_what_is_disputed_while_it_lasts_and_after_its_end(world: SamplerWorld):
    async with at_work(world, 2, overlap=2, policy="adjudicate") as (people, sampler, run_id):

        async def disputed() -> int:
            return (await sampler.get_run(run_id)).progress.disputed

        for name in ("ann", "bob"):
            lease = await take(people, name, run_id, "tree-0")
            first = [c.premise.id for c in lease.task.candidates][name == "bob"]
            await people.submit(lease, [first])
        assert await disputed() == 1
        both = {c.premise.id: ABSTAINS for c in lease.task.candidates}
        await people.adjudicate(run_id, lease.task.task_id, both, "lea")
        assert await disputed() == 0
        for name in ("ann", "bob"):
            lease = await take(people, name, run_id, "tree-1")
            agreed = lease.task.candidates[0].premise.id
            answer = await people.submit(lease, [agreed])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        await people.amend(answer.answer_id, {agreed: REFUSES}, "bob")
        assert await disputed() == 1
        await people.adjudicate(run_id, lease.task.task_id, {agreed: EXPLAINS}, "lea")
        assert [run.progress.disputed async for run in sampler.list_runs()] == [0]


async def test_a_persons_remark_stands_in_the_task_and_in_the_pairs(world: SamplerWorld):
    async with at_work(world, 2, overlap=2) as (people, sampler, run_id):
        for name, note in (("ann", "the second is badly put"), ("bob", "x" * 2000)):
            for hypothesis, remark in (("tree-0", note), ("tree-1", note if name == "ann" else "")):
                await people.submit(await take(people, name, run_id, hypothesis), Answer([], note=remark))
        await asyncio.wait_for(sampler.wait(run_id), 40)
        listed = {t.task.query: t async for t in people.list_tasks(run_id)}
        first, second = listed["hypothesis 0"], listed["hypothesis 1"]
        assert [len(answer.note) for answer in first.answers] == [23, 1024]
        assert [answer.note for answer in second.answers] == ["the second is badly put", ""]
        notes = {pair.query: pair.provenance.note for pair in await pairs(sampler, run_id)}
        assert notes[second.task.query] == "ann: the second is badly put"
        assert notes[first.task.query].startswith("ann: the second is badly put; bob: xxx")
        assert len(notes[first.task.query]) == 1024


async def test_an_adjudicator_takes_a_decision_back_before_and_after_it_became_pairs(world: SamplerWorld):
    async with at_work(world, 1, overlap=2) as (people, sampler, run_id):
        ids: list[str] = []
        for name, ticked in (("ann", 0), ("bob", 1)):
            lease = await take(people, name)
            ids = [c.premise.id for c in lease.task.candidates]
            await people.submit(lease, [ids[ticked]])
        [task] = await tasks(people, run_id)
        task_id, answer_id = task.task.task_id, task.answers[0].answer_id
        await people.adjudicate(run_id, task_id, {ids[0]: EXPLAINS, ids[1]: REFUSES}, "judge")
        await asyncio.wait_for(sampler.wait(run_id), 40)
        with pytest.raises(errors.FailedPrecondition, match="adjudicate the task again") as decided:
            await people.amend(answer_id, {ids[0]: REFUSES}, "ann")
        assert decided.value.reason == "ADJUDICATED"
        await people.adjudicate(run_id, task_id, {ids[0]: ABSTAINS}, "judge")
        told = [(" +-?"[p.sign], p.provenance.annotator) for p in await pairs(sampler, run_id) if p.premise_id in ids]
        assert told == [("+", "judge"), ("-", "judge"), ("-", "ann, bob"), ("-", "ann, bob"), ("?", "judge")]


async def test_agreement_is_that_of_peoples_own_answers_whatever_a_lead_amends(world: SamplerWorld):
    async with at_work(world, 1, overlap=2, undo_s=NEVER) as (people, _, run_id):
        lease, other = await take(people, "ann"), await take(people, "bob")
        one, two = (candidate.premise.id for candidate in lease.task.candidates[:2])
        sent = await people.submit(lease, [one])
        await people.submit(other, [one, two])

        async def agreement() -> tuple[float, float]:
            told = await people.get_agreement(run_id)
            return told.positive_agreement, told.edge_f1

        assert await agreement() == (2 / 3, 2 / 3)
        amended = await people.amend(sent.answer_id, [two], "lead")
        await people.amend(amended, {one: Verdict(REFUSES)}, "lead")
        assert await agreement() == (2 / 3, 2 / 3)


async def test_an_amendment_is_stored_with_its_pairs_or_not_at_all_wherever_its_sampler_dies(
    world: SamplerWorld, dies_after
):
    async with at_work(world, 1) as (people, sampler, run_id):
        answer_id, ids = await settled(people, sampler, run_id)
        for moment in itertools.count():
            dies_after(TaskQueue, "amend", moment)
            with contextlib.suppress(errors.DataLoss):
                await people.amend(answer_id, {ids[0]: REFUSES}, "lead")
                break
            [task] = await tasks(people, run_id)
            assert task.answers[0].answer_id == answer_id, f"it died after {moment} commands"
            assert not [one for one in await pairs(sampler, run_id) if one.provenance.amended]
        [last] = [one for one in await pairs(sampler, run_id) if one.provenance.amended]
        assert (last.premise_id, " +-?"[last.sign], last.provenance.annotator) == (ids[0], "-", "lead")


async def test_amended_refusals_beyond_the_cap_say_that_they_are_no_negatives(world: SamplerWorld):
    async with at_work(world, 1, run={"max_negatives_per_query": 1}) as (people, sampler, run_id):
        lease = await take(people, "ann")
        ids = [c.premise.id for c in lease.task.candidates]
        answer = await people.submit(lease, dict.fromkeys(ids, EXPLAINS))
        await asyncio.wait_for(sampler.wait(run_id), 40)
        await people.amend(answer.answer_id, dict.fromkeys(ids[:3], REFUSES), "ann")
        latest = {one.premise_id: (one.sign.name, one.reason) for one in await pairs(sampler, run_id)}
        beyond = dict.fromkeys(ids[1:3], ("SKIPPED", "cap"))
        assert latest == {ids[0]: ("NEGATIVE", ""), ids[3]: ("POSITIVE", ""), **beyond}


async def test_amendments_that_could_not_be_read_are_read_again_at_the_next_look(monkeypatch: pytest.MonkeyPatch):
    class Tasks:
        asked = 0

        async def amended(self, _run_id: str) -> list[TaskRecord]:
            self.asked += 1
            if self.asked == 1:
                raise errors.Unavailable("Redis is away")
            return []

    tasks: Any = Tasks()
    queue = gateway.PeopleGateway("team", gateway.QueueSettings(), tasks, None)  # type: ignore[arg-type]
    monkeypatch.setitem(queue._asking, "r1", gateway._Asking())
    with pytest.raises(errors.Unavailable):
        await queue.amended("r1")
    assert [await queue.amended("r1"), await queue.amended("r1"), tasks.asked] == [[], [], 2]
