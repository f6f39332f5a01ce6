"""Runs that wait: for people or for an oracle that is away. They say so, and take nobody else's place."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest
import structlog
from redis.exceptions import ResponseError

import aeenc
from aeenc import errors
from aeenc.v1 import types_pb2
from services.sampler.people import task_store
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from services.sampler.records.keys import RunKeys
from services.store.life_cycles import LifeCycles
from support.waiting import eventually, until
from support.worlds.sampler_world import (
    HYPOTHESES,
    NEVER,
    QUEUE,
    SamplerWorld,
    at_work,
    brute_force,
    finish,
    pair_set,
    staffed,
    take,
    tasks,
)

CONFIG = {"corpus": "science", "k": 4}


async def waits(sampler: aeenc.SamplerClient) -> dict[str, str]:
    return {run.run_id: run.reason for run in (await sampler.info()).waiting_runs}


async def test_runs_that_wait_for_people_take_no_place_and_say_what_they_wait_for(world: SamplerWorld):
    settings = {"queues": {"team": {**QUEUE, "undo_s": NEVER}}, "max_active_runs": 1, "max_people_runs": 2}
    async with world.sampler(**settings) as sampler:
        people = [await sampler.start_run(HYPOTHESES[n : n + 1], oracle="team", **CONFIG) for n in range(3)]

        waiting = await eventually(lambda: waits(sampler), is_so=lambda found: len(found) == 2)
        assert set(waiting.values()) == {"1 task before the people of queue 'team'"}
        run = await finish(sampler)  # the only place for others is free
        assert await pair_set(sampler, run.id) == brute_force()
        states = sorted([(await sampler.get_run(one.id)).state for one in people])
        running, pending = types_pb2.WORK_STATE_RUNNING, types_pb2.WORK_STATE_PENDING
        assert states == sorted([running, running, pending])


async def test_a_sampler_without_a_queue_leaves_its_runs_to_those_that_have_it_and_says_so(world: SamplerWorld):
    queues = {"queues": {"team": {**QUEUE, "undo_s": 0.0}}}
    async with world.sampler() as other:
        async with world.sampler(**queues) as sampler:
            run = await sampler.start_run(HYPOTHESES[:1], oracle="team", max_depth=0, **CONFIG)

            waiting = await eventually(lambda: waits(other), is_so=lambda found: run.id in found)
            assert "has no oracle or queue 'team'" in waiting[run.id]
        assert (await finish(other)).state == types_pb2.WORK_STATE_SUCCEEDED  # time enough to take the run, and room
        live = (types_pb2.WORK_STATE_PENDING, types_pb2.WORK_STATE_RUNNING)  # the first may end before it begins
        assert (await other.get_run(run.id)).state in live
        async with world.sampler(**queues) as sampler:
            people = aeenc.PeopleClient(sampler.channel)
            await people.submit(await take(people, "ann", run.id), [])
            ended = await asyncio.wait_for(sampler.wait(run.id), 20)
            assert ended.state == types_pb2.WORK_STATE_SUCCEEDED


async def test_a_look_for_runs_that_fails_is_not_the_last_one(client, monkeypatch: pytest.MonkeyPatch):
    active, failures = LifeCycles.active, 0

    async def broken(cycles: LifeCycles) -> list[str]:
        nonlocal failures
        failures += 1
        if 1 < failures < 4:
            raise ResponseError("Error running script: @user_script:1: a bug")
        return await active(cycles)

    monkeypatch.setattr(LifeCycles, "active", broken)
    run = await finish(client)
    assert run.state == types_pb2.WORK_STATE_SUCCEEDED
    assert failures >= 4


async def test_of_the_events_of_all_queues_the_last_are_kept_and_who_wants_others_is_told(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch, redis: Any, keys: RunKeys
):
    monkeypatch.setattr(task_store, "EVENTS_KEPT", 50)
    async with at_work(world, 1, undo_s=NEVER) as (people, _, run_id):
        lease = await take(people, "ann")
        await redis.hset(keys.record("other"), "state", "RUNNING")
        store = TaskStore(redis, keys)
        record, _ = await store.read(run_id, lease.task.task_id)
        assert record is not None
        more = [TaskRecord("other", aeenc.Task(f"t{n}", "other", "q", (), (), ()), 1, "majority") for n in range(400)]
        await store.put(more)
        kept = await store.events("", 0)
        assert [event.seq for event in kept] == list(range(kept[0].seq, 403))  # 400, QUEUED and LEASED
        assert 50 <= len(kept) < 200
        assert (await anext(people.watch())).seq == kept[0].seq
        assert (await anext(people.watch(from_seq=kept[0].seq))).seq == kept[0].seq
        with pytest.raises(errors.FailedPrecondition, match=f"the first one is {kept[0].seq}") as gone:
            await anext(people.watch(from_seq=7))
        assert gone.value.reason == "EVENTS_GONE"
        assert (await anext(people.watch(run_id, from_seq=2))).seq == 2
        assert len(await store.events("other", 0)) == 400


async def test_a_task_is_read_when_it_is_queued_and_when_it_has_ended_not_for_what_happens_between(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    read, listed, roots = TaskStore.read_many, list[str](), [(f"more-{n}", f"a further one {n}") for n in range(30)]

    async def reading(store: TaskStore, run_id: str, task_ids: list[str], **how: Any) -> tuple[list[TaskRecord], float]:
        listed.extend(task_ids)
        return await read(store, run_id, task_ids, **how)

    async with at_work(world, 1, undo_s=NEVER) as (people, sampler, _):  # the sampler listens from now on
        await asyncio.sleep(0.5)
        monkeypatch.setattr(TaskStore, "read_many", reading)
        run = await sampler.start_run(roots, oracle="team", **CONFIG)

        await eventually(people.list_queues, is_so=lambda queues: queues[0].total.waiting == len(roots) + 1)
        await asyncio.sleep(0.5)  # events are gathered for a tenth of it
        assert sorted(Counter(listed).values()) == [1] * len(roots)
        held = await take(people, "ann", run.id)
        await asyncio.sleep(0.5)
        listed.clear()
        await people.release(held.lease_id)
        await asyncio.sleep(0.5)
        assert len(listed) == 1, "the call reads it"


async def test_a_person_who_is_alone_answers_more_tasks_than_a_wave_has(world: SamplerWorld):
    async with at_work(world, 5, overlap=2, undo_s=NEVER, changes={"wave_nodes": 2}) as (people, _, _):
        for _ in range(5):
            await people.submit(await take(people, "ann"), [])
        assert await people.lease("ann") == []


async def test_no_more_tasks_of_a_run_than_its_queue_allows_are_open_at_once(world: SamplerWorld):
    async with staffed(world, open_tasks=3) as (people, sampler):
        run = await sampler.start_run(HYPOTHESES[:5], oracle="team", max_depth=0, **CONFIG)

        await eventually(lambda: tasks(people, run.id), is_so=lambda found: len(found) == 3)
        await people.submit(await take(people, "ann"), [])
        await eventually(lambda: tasks(people, run.id), is_so=lambda found: len(found) == 4)
        await asyncio.sleep(0.3)
        assert len(await tasks(people, run.id)) == 4


@pytest.mark.parametrize("when", ["waits for a place", "is worked on"])
async def test_a_run_that_a_newer_release_rewrites_is_let_go_once(
    world: SamplerWorld, caplog: pytest.LogCaptureFixture, when: str, redis: Any, keys: RunKeys
):
    changes = {"max_people_runs": 1 if when == "waits for a place" else 2, "lease_s": 0.3}
    async with at_work(world, 1, changes=changes, undo_s=NEVER) as (_, sampler, first):
        run = await sampler.start_run(HYPOTHESES[1:2], oracle="team", **CONFIG)
        expected = {first} if when == "waits for a place" else {first, run.id}

        await eventually(lambda: waits(sampler), is_so=lambda found: set(found) == expected)
        await asyncio.sleep(0.2)  # the sampler has read a record that finds no place, too
        with structlog.testing.capture_logs() as logs:
            await redis.hset(keys.record(run.id), "format_version", 99)
            await sampler.cancel(first)  # its place is free
            await until(lambda: any(line["log_level"] in {"warning", "error"} for line in logs))
            await asyncio.sleep(0.5)  # ten polls
            assert run.id not in await waits(sampler)
        told = Counter(line["event"] for line in logs if line.get("run") == run.id)
        assert set(told) == {"run is left alone"}, "it is not taken again"
        assert told.total() <= 2  # the look and the work may both meet it
        gc.collect()
        assert "never retrieved" not in caplog.text, "no task has failed unseen"


async def test_a_run_that_is_cancelled_through_another_sampler_is_let_go_without_a_warning(world: SamplerWorld):
    changes = {"lease_s": 0.3}
    async with at_work(world, 1, changes=changes, undo_s=NEVER) as (_, sampler, run_id), world.sampler() as other:
        with structlog.testing.capture_logs() as logs:
            await other.cancel(run_id)
            await until(lambda: any(line["event"] == "run was stopped" for line in logs))
        told = {(line["event"], line["log_level"]) for line in logs if line.get("run") == run_id}
        assert told == {("run was stopped", "info")}
        assert run_id not in (await sampler.info()).active_runs
