"""Open nodes are retrieved again by a newer version, on request or by the run's rule; what was judged stays judged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

import aeenc
from aeenc import errors, values
from aeenc.oracle import Answer, Candidate, Task
from services.sampler.execution import holds
from services.sampler.people import steps
from services.sampler.people.gateway import PeopleGateway
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from services.sampler.settings import QueueSettings
from support.waiting import eventually
from support.worlds.people_world import sent
from support.worlds.sampler_world import (
    FIRST,
    NEVER,
    SamplerWorld,
    at_work,
    finish,
    nearest,
    staffed,
    take,
    tasks,
)

K = 4
SECOND = "version-2"
State = values.TaskState


def ids(query: str, version: str) -> list[str]:
    """The candidates of a query by a version."""
    return [premise_id for premise_id, _, _ in nearest(query, K, version=version)]


async def open_tasks(people: aeenc.PeopleClient, run_id: str) -> dict[str, values.JudgedTask]:
    """The tasks that wait, by query."""
    found = await tasks(people, run_id, state="waiting")
    assert len({task.task.query for task in found}) == len(found)
    return {task.task.query: task for task in found}


async def retrieved_by(people: aeenc.PeopleClient, run_id: str, wanted: dict[str, str]) -> dict[str, Any]:
    """The open tasks, once the version that each was retrieved with is as wanted; their candidates are its."""
    found = await eventually(
        lambda: open_tasks(people, run_id),
        is_so=lambda found: {query: one.task.model_version for query, one in found.items()} == wanted,
    )
    for query, one in found.items():
        assert [candidate.premise.id for candidate in one.task.candidates] == ids(query, wanted[query])
    return found


async def test_open_tasks_come_back_with_the_candidates_of_the_new_version(world: SamplerWorld):
    async with at_work(world, 2, undo_s=NEVER) as (people, sampler, run_id):
        before = await open_tasks(people, run_id)
        world.index.stable = SECOND
        asked = await people.retrieve_again(run_id, "ann", dry_run=True)
        assert (asked.model_version, len(asked.task_ids)) == (SECOND, 2)
        assert await open_tasks(people, run_id) == before
        assert (await sampler.get_run(run_id)).current_version == FIRST
        done = await people.retrieve_again(run_id, "ann")
        assert set(done.task_ids) == set(asked.task_ids) == {one.task.task_id for one in before.values()}
        await retrieved_by(people, run_id, {"hypothesis 0": SECOND, "hypothesis 1": SECOND})
        withdrawn = await tasks(people, run_id, state="withdrawn")
        assert {task.task.task_id for task in withdrawn} == set(done.task_ids)
        run = await sampler.get_run(run_id)
        assert (run.model_version, run.current_version) == (FIRST, SECOND)
        [queue] = await people.list_queues()
        assert (queue.total.tasks, queue.total.waiting) == (2, 2)
        assert (await people.retrieve_again(run_id, "ann")).task_ids == ()


@pytest.mark.parametrize("is_answered", [True, False])
async def test_what_somebody_has_begun_keeps_its_candidates_whoever_works_on_the_run(
    world: SamplerWorld, is_answered: bool
):
    queue = {"overlap": 2, "undo_s": 0.0}
    async with at_work(world, 2, **queue) as (people, _, run_id):
        begun = await take(people, "ann", run_id, "tree-0")
        if is_answered:
            await people.submit(begun, [])
        world.index.stable = SECOND
        await people.retrieve_again(run_id, "cid")
        await retrieved_by(people, run_id, {"hypothesis 0": FIRST, "hypothesis 1": SECOND})
    async with staffed(world, **queue) as (people, sampler):
        if not is_answered:
            await people.submit(begun, [])
        await retrieved_by(people, run_id, {"hypothesis 0": FIRST, "hypothesis 1": SECOND})
        leases = await people.lease("bob", run_id=run_id, max_tasks=5)
        assert sorted(one.task.query for one in leases) == ["hypothesis 0", "hypothesis 1"], "each is asked once"
        for one in leases:
            await people.submit(one, [])
        await people.submit(await take(people, "ann", run_id, "tree-1"), [])
        run = await asyncio.wait_for(sampler.wait(run_id), 40)
        assert (run.state.name, run.progress.nodes_judged) == ("SUCCEEDED", 2)
        versions = {(pair.query, pair.provenance.model_version) async for pair in sampler.list_pairs(run_id)}
        assert versions == {("hypothesis 0", FIRST), ("hypothesis 1", SECOND)}


async def test_the_holder_of_a_task_may_have_it_retrieved_again(world: SamplerWorld):
    async with at_work(world, 2, undo_s=NEVER) as (people, _, run_id):
        lease = await take(people, "ann", run_id, "tree-0")
        world.index.stable = SECOND
        with pytest.raises(errors.NotFound, match="no lease"):
            await people.retrieve_again(run_id, "ann", lease_id=f"{run_id}.{lease.task.task_id}.nobodys")
        with pytest.raises(errors.InvalidArgument, match="is not of run"):
            await people.retrieve_again(run_id, "ann", lease_id=f"other.{lease.task.task_id}.x")
        done = await people.retrieve_again(run_id, "ann", task_id=lease.task.task_id, lease_id=lease.lease_id)
        assert done.task_ids == (lease.task.task_id,)
        await retrieved_by(people, run_id, {"hypothesis 0": SECOND, "hypothesis 1": FIRST})
        with pytest.raises(errors.FailedPrecondition, match="given back"):
            await people.submit(lease, [])
        [again] = await people.lease("ann", run_id=run_id, hypothesis_id="tree-0")
        assert again.task.model_version == SECOND


async def test_a_node_that_is_retrieved_again_asks_no_more_than_its_budget_covers(world: SamplerWorld):
    async with at_work(world, 1, run={"max_judgements": 2}, undo_s=NEVER) as (people, _, run_id):
        before = (await open_tasks(people, run_id))["hypothesis 0"].task
        world.index.stable = SECOND
        await people.retrieve_again(run_id, "ann")
        found = await eventually(
            lambda: open_tasks(people, run_id),
            is_so=lambda found: [one.task.model_version for one in found.values()] == [SECOND],
        )
        after = found["hypothesis 0"].task
        assert (len(before.candidates), len(after.candidates)) == (2, 2)


async def test_a_task_sent_back_before_its_worker_has_seen_it_is_retrieved_once_more(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    async with at_work(world, 1, undo_s=NEVER) as (people, _, run_id):
        put = TaskStore.put

        async def put_and_publish(store: TaskStore, new: list[TaskRecord]) -> None:
            await put(store, new)
            if any(one.task.model_version == SECOND for one in new):
                world.index.stable = "version-3"
                await people.retrieve_again(run_id, "ann")

        monkeypatch.setattr(TaskStore, "put", put_and_publish)
        world.index.stable = SECOND
        await people.retrieve_again(run_id, "ann")
        await retrieved_by(people, run_id, {"hypothesis 0": "version-3"})


async def test_a_task_that_is_sent_back_while_its_worker_reads_it_is_retrieved_again(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    read_many, events = TaskStore.read_many, TaskStore.events
    heard, sent_back = asyncio.Event(), asyncio.Event()

    async def events_and_note(store: TaskStore, run_id: str, after_seq: int, **how: Any) -> list[values.TaskEvent]:
        if sent_back.is_set():  # the worker has taken in what it read before
            heard.set()
        found = await events(store, run_id, after_seq, **how)
        if any(one.kind is values.TaskEventKind.WITHDRAWN for one in found):
            sent_back.set()
        return found

    async def read_and_publish(
        store: TaskStore, run_id: str, task_ids: list[str], **how: Any
    ) -> tuple[list[TaskRecord], float]:
        found, at = await read_many(store, run_id, task_ids, **how)
        if found and world.index.stable == FIRST:
            world.index.stable = SECOND
            await people.retrieve_again(run_id, "ann")
            await asyncio.wait_for(heard.wait(), 20)
        return found, at

    async with staffed(world, undo_s=NEVER) as (people, sampler):
        monkeypatch.setattr(TaskStore, "events", events_and_note)
        monkeypatch.setattr(TaskStore, "read_many", read_and_publish)
        run = await sampler.start_run([("tree-0", "hypothesis 0")], corpus="science", oracle="team", k=K, max_depth=0)
        await asyncio.wait_for(heard.wait(), 20)
        await retrieved_by(people, run.id, {"hypothesis 0": SECOND})


async def test_a_version_that_finds_the_same_keeps_the_task_and_a_rollback_brings_it_back(world: SamplerWorld):
    kin = f"{FIRST}-of-kin"
    async with at_work(world, 1, undo_s=NEVER) as (people, _, run_id):
        before = (await open_tasks(people, run_id))["hypothesis 0"]
        world.index.stable = kin
        await people.retrieve_again(run_id, "ann")
        same = (await retrieved_by(people, run_id, {"hypothesis 0": kin}))["hypothesis 0"].task
        assert (same.task_id, same.candidates) == (before.task.task_id, before.task.candidates)
        assert len(await tasks(people, run_id)) == 1
        world.index.stable = SECOND
        await people.retrieve_again(run_id, "ann")
        await retrieved_by(people, run_id, {"hypothesis 0": SECOND})
        world.index.stable = FIRST
        await people.retrieve_again(run_id, "ann")
        after = (await retrieved_by(people, run_id, {"hypothesis 0": FIRST}))["hypothesis 0"]
        assert after == before
        lease = await take(people, "ann")
        assert (await people.submit(lease, [])).answer_id


async def test_a_live_run_follows_its_label_by_itself(world: SamplerWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(holds, "FOLLOW_S", 0.05)
    async with at_work(world, 2, run={"live": True}, undo_s=NEVER) as (people, sampler, run_id):
        world.index.stable = SECOND
        await retrieved_by(people, run_id, {"hypothesis 0": SECOND, "hypothesis 1": SECOND})
        assert (await sampler.get_run(run_id)).config.live


async def test_a_run_of_a_remote_oracle_retrieves_later_nodes_by_the_new_version(world: SamplerWorld, client):
    world.oracle.delay_s = 2.0
    people = aeenc.PeopleClient(client.channel)
    run = await client.start_run([("t", "hypothesis 3")], corpus="science", oracle="fake", k=K)
    await asyncio.wait_for(world.oracle.called(1), 10)
    world.index.stable = SECOND
    done = await people.retrieve_again(run.id, "ann")
    assert (done.model_version, done.task_ids) == (SECOND, ())
    world.oracle.delay_s = 0.0
    await asyncio.wait_for(client.wait(run.id), 40)
    nodes = (await people.get_tree(run.id, "t")).nodes
    assert nodes[0].model_version == FIRST
    assert {node.model_version for node in nodes[1:]} == {SECOND}
    with pytest.raises(errors.FailedPrecondition, match="has ended"):
        await people.retrieve_again(run.id, "ann")


async def test_a_run_that_names_a_version_does_not_follow_a_label(world: SamplerWorld):
    async with at_work(world, 1, run={"version": FIRST}) as (people, sampler, run_id):
        with pytest.raises(errors.FailedPrecondition, match="names version version-1"):
            await people.retrieve_again(run_id, "ann")
        with pytest.raises(errors.InvalidArgument, match=r"config\.live"):
            await finish(sampler, version=FIRST, live=True)


TASK = Task("t", "run", "q", (), (), (Candidate("p1", "t1", 1, 0.9),), FIRST)
WAITING = TaskRecord("run", TASK, 1, "majority")


def test_a_withdrawn_task_takes_no_answer_and_is_neither_closed_nor_lowered():
    leased = steps.lease(WAITING, "ann", "run.t.1", 0.0, 10.0).record
    assert steps.send_back(leased, SECOND, 5.0).record is leased
    withdrawn = steps.send_back(leased, SECOND, 11.0).record
    assert withdrawn.state is State.WITHDRAWN
    with pytest.raises(errors.FailedPrecondition, match="retrieved again") as raised:
        steps.submit(withdrawn, "run.t.1", sent(), 1, 12.0)
    assert raised.value.reason == "TASK_WITHDRAWN"
    withdrawn = steps.send_back(replace(WAITING, overlap=2), SECOND, 0.0).record
    assert steps.close(withdrawn, "lead", "", 1.0).record is withdrawn
    assert steps.lower(withdrawn, 1, 1.0).record is withdrawn


@pytest.mark.parametrize(
    "record",
    [
        steps.send_back(WAITING, SECOND, 0.0).record,
        TaskRecord("run", TASK, 1, "majority", gold={"p1": True}),
        TaskRecord("run", Task("t", "run", "q", (), (), TASK.candidates, SECOND), 1, "majority"),
    ],
    ids=["withdrawn", "control", "retrieved by it"],
)
def test_a_task_is_sent_back_once_and_controls_never(record: TaskRecord):
    assert steps.send_back(record, SECOND, 1.0).record is record


async def test_the_audit_trail_has_every_change_in_order(world: SamplerWorld):
    async with at_work(world, 2, undo_s=NEVER, overlap=2) as (people, _, run_id):
        lease = await take(people, "ann")
        await people.release(lease.lease_id, "lunch")
        lease = await take(people, "ann")
        given = await people.submit(lease, Answer([lease.task.candidates[0].premise.id], note="sure"))
        amended = await people.amend(given.answer_id, [lease.task.candidates[1].premise.id], "ann")
        await people.undo("ann", run_id)
        await people.close(run_id, lease.task.task_id, "lead", overlap=1)
        world.index.stable = SECOND
        await people.retrieve_again(run_id, "cid")
        changes = [change async for change in people.list_changes(run_id, page_size=2)]
        kind = values.TaskEventKind
        assert [(one.kind, one.person) for one in changes[:5]] == [
            (kind.RELEASED, "ann"),
            (kind.ANSWERED, "ann"),
            (kind.AMENDED, "ann"),
            (kind.UNDONE, "ann"),
            (kind.LOWERED, "lead"),
        ]
        assert {(one.kind, one.person, one.model_version) for one in changes[5:]} == {(kind.WITHDRAWN, "cid", SECOND)}
        assert [one.seq for one in changes] == list(range(1, len(changes) + 1))
        released, answered, changed, undone, lowered = changes[:5]
        assert released.reason == "lunch"
        assert answered.answer is not None
        assert (answered.answer.answer_id, answered.answer.note) == (given.answer_id, "sure")
        assert changed.answer is not None
        assert (changed.answer.answer_id, changed.former_answer_id) == (amended, given.answer_id)
        assert undone.former_answer_id == amended
        assert lowered.overlap == 1
        mine = [one async for one in people.list_changes(run_id, task_id=lease.task.task_id)]
        assert mine == [one for one in changes if one.task_id == lease.task.task_id]


async def test_what_people_were_asked_for_a_node_is_not_what_they_were_asked_for_that_of_another_tree():
    task, at_first = Task("t1", "r1", "x", (), (), (), FIRST), {"0-1": "x"}
    record = TaskRecord("r1", task, 1, "majority", node_id="1-0")
    store = AsyncMock(TaskStore)
    queue = PeopleGateway("team", QueueSettings(), store, AsyncMock())
    store.asking.return_value, store.read_many.return_value = ["t1"], ([record], [])
    assert await queue.asked("r1", at_first) == {}
    assert await queue.asked("r1", at_first | {"1-0": "x"}) == {"1-0": task}
    withdrawn = replace(record, withdrawn=True)
    store.read_many.return_value = ([withdrawn], [])
    assert await queue.asked("r1", {"1-0": "x"}) == {}
    store.read_many.return_value = ([steps.put_back(withdrawn, replace(task, task_id="0-1")).record], [])
    assert await queue.asked("r1", at_first) == {"0-1": task}
