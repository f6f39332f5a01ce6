"""Deleting runs: nothing is left, nobody sees half of one, and what the settings no longer keep goes by itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import AsyncMock

import pytest

import aeenc
from aeenc import errors
from aeenc.v1 import registry_pb2_grpc, sampler_pb2, types_pb2
from services.sampler.execution import retention
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from services.sampler.records.keys import RunKeys
from services.sampler.records.run_store import RunStore
from services.store.life_cycles import LifeCycles
from services.store.requests import Request, Requests
from support.waiting import eventually, until
from support.worlds.sampler_world import QUEUE, FakeRegistry, SamplerWorld, finish, serving, staffed, take

# What belongs to no run: the newest number, the pace of a queue, the events of all queues, and what is known for a day.
NOT_OF_A_RUN = {"runs:number", "queue:team:pace", "task-events"}
FOR_A_DAY = ("request-done:", "task-request:", "run-request:")
ONE = types_pb2.Pair(query="q", premise="fact 1", premise_id="p1", sign=types_pb2.PAIR_SIGN_POSITIVE)


async def left(redis: Any, world: SamplerWorld) -> set[str]:
    prefix = RunKeys(world.settings["namespace"]).prefix
    found = {key.removeprefix(prefix) async for key in redis.scan_iter(f"{prefix}*")}
    return {key for key in found - NOT_OF_A_RUN if not key.startswith(FOR_A_DAY)}


async def _unavailable() -> None:
    raise errors.Unavailable("the registry is away")


async def kept(client: aeenc.SamplerClient) -> list[str]:
    """The runs that there are, by id."""
    return sorted([run.id async for run in client.list_runs()])


async def gone(client: aeenc.SamplerClient, run_id: str) -> None:
    """Checks that no call knows the run."""
    assert run_id not in await kept(client)
    for call in (client.get_run(run_id), client.resume(run_id), client.wait(run_id), anext(client.list_pairs(run_id))):
        with pytest.raises(errors.NotFound):
            await call


async def test_nothing_is_left_of_a_deleted_run_and_its_idempotency_key_starts_a_new_one(
    world: SamplerWorld, redis: Any
) -> None:
    async with world.sampler(oracle={"max_judgements": 10_000}) as client:
        run = await finish(client, idempotency_key="k")
        await client.delete(run.id, request_id="d1")
        await gone(client, run.id)
        assert {key for key in await left(redis, world) if not key.startswith("oracle:")} == set()
        again = await finish(client, idempotency_key="k")
        assert again.id != run.id
    async with world.sampler() as client:  # another process
        await client.delete(run.id, request_id="d1")
        with pytest.raises(errors.AlreadyExists, match="was used with run_id"):
            await client.delete(again.id, request_id="d1")
        with pytest.raises(errors.NotFound, match=run.id):
            await client.delete(run.id)
        assert await client.get_run(again.id)


async def test_a_live_run_is_not_deleted_and_a_cancelled_one_is_with_all_that_people_did(
    world: SamplerWorld, redis: Any, keys: RunKeys
) -> None:
    async with staffed(world, overlap=2) as (people, client):
        run = await client.start_run([("t", "hypothesis 1")], corpus="science", oracle="team", k=4)
        await take(people, "ann", run.id)
        lease = await take(people, "ben", run.id)
        answer = await people.submit(lease, [lease.task.candidates[0].premise.id])
        await people.amend(answer.answer_id, [lease.task.candidates[1].premise.id], "cem")
        await TaskStore(redis, keys).qualify(run.id, "team", "dan", passed=False)
        with pytest.raises(errors.FailedPrecondition, match=f"run {run.id} is RUNNING; cancel it first"):
            await client.delete(run.id)
        await client.cancel(run.id)
        await client.delete(run.id)
        await gone(client, run.id)
        with pytest.raises(errors.NotFound):
            await people.submit(lease, [])
        assert await left(redis, world) == set()


async def test_a_sampler_that_was_paused_while_its_run_was_deleted_leaves_nothing_behind(
    world: SamplerWorld, client, redis: Any, keys: RunKeys
) -> None:
    runs, queue = RunStore(redis, keys), TaskStore(redis, keys)

    async def writes(run_id: str) -> tuple[bool, list[bool], list[str]]:
        task = aeenc.Task("task", run_id, "q", (), (), ())
        await queue.put([TaskRecord(run_id, task, 1, "majority")])
        suspected = [await runs.suspect(run_id, ["0-0"]) for _ in range(2)]
        return suspected[1], await runs.reserve("o", 10, run_id, [("0-0:0", 6)]), await queue.task_ids(run_id, 0, 2)

    run = await finish(client)
    assert await writes(run.id) == (True, [True], ["task"])
    await client.delete(run.id)
    before = await left(redis, world)
    assert await writes(run.id) == (False, [False], [])
    await queue.qualify(run.id, "team", "ann", passed=False)
    assert await left(redis, world) == before == {key for key in before if key.startswith("oracle:")}


async def test_an_import_that_never_came_leaves_nothing_and_an_import_is_known_for_good(
    world: SamplerWorld, client, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    key = Requests(redis, world.settings["namespace"]).key(Request("i1", "ImportPairs", {}))
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "create", dies)
        with pytest.raises(errors.AeencError):
            await client.import_pairs("science", [ONE], request_id="i1")
    assert await left(redis, world) == set()
    first = await client.import_pairs("science", [ONE], request_id="i1")
    assert await redis.ttl(key) == -1
    assert await client.import_pairs("science", [ONE], run_id=first.run_id, request_id="i1") == first
    other = await client.import_pairs("science", [ONE], run_id=first.run_id, request_id="i2")
    assert (await client.get_run(first.run_id)).progress.positives == 2
    third = await client.import_pairs("science", [ONE], request_id="i3")
    with pytest.raises(errors.AlreadyExists, match=f"'i2' was used with run_id '{other.run_id}', now with"):
        await client.import_pairs("science", [ONE], run_id=third.run_id, request_id="i2")
    await client.delete(third.run_id)
    assert (await client.import_pairs("science", [ONE], request_id="i1")).run_id == first.run_id
    await client.delete(first.run_id)
    assert await left(redis, world) == set()


async def test_an_import_that_was_deleted_can_be_made_again_under_its_request_id(
    world: SamplerWorld, client, redis: Any
) -> None:
    first = await client.import_pairs("science", [ONE] * 1500, request_id="i1")
    other = await client.import_pairs("science", [ONE], request_id="i2")
    await client.delete(first.run_id)
    assert not {key for key in await left(redis, world) if first.run_id in key}
    second = await client.import_pairs("science", [ONE] * 1500, request_id="i1")
    assert second.run_id != first.run_id
    assert (second.added, (await client.get_run(second.run_id)).progress.positives) == (1500, 1500)
    assert await client.import_pairs("science", [ONE], request_id="i2") == other
    for run_id in (second.run_id, other.run_id):
        await client.delete(run_id)
    assert await left(redis, world) == set()


async def test_a_deletion_that_a_kill_interrupts_is_seen_whole_and_carried_on_at_the_next_start(
    world: SamplerWorld, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []

    async def dies(_self: RunStore, keys: list[str]) -> None:
        removed.extend(keys)
        if len(removed) > 1:
            raise RuntimeError("killed")
        await redis.unlink(*keys)

    async with world.sampler() as client:
        run = await finish(client)
        with monkeypatch.context() as patch:
            patch.setattr(RunStore, "remove", dies)
            with pytest.raises(errors.AeencError):
                await client.channel.unary(
                    client._admin.DeleteRun, sampler_pb2.DeleteRunRequest(run_id=run.id, request_id="d1"), retry=False
                )
        await gone(client, run.id)
        assert await left(redis, world)
    async with world.sampler() as client:
        await client.delete(run.id, request_id="d1")
        await eventually(lambda: left(redis, world), is_so=lambda keys: not keys)


async def test_what_the_settings_no_longer_keep_goes_at_the_next_look_and_a_dry_run_says_it_before(
    world: SamplerWorld, redis: Any, monkeypatch: pytest.MonkeyPatch, keys: RunKeys
) -> None:
    async with world.sampler() as client:
        runs = [await finish(client, hypotheses=[("t", f"hypothesis {n}")]) for n in range(4)]
        assert await client.collect_garbage(dry_run=True) == []
    for age_s, run in zip((5000, 40, 30, 20), runs, strict=True):
        seconds, _ = await redis.time()
        await redis.hset(keys.record(run.id), "ended_s", seconds - age_s)

    monkeypatch.setattr("services.sampler.__main__.LOOK_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(retention.Retention, "look", AsyncMock())
        async with world.sampler(run_keep_s=1000, runs_kept=2) as client:
            would_go = await client.collect_garbage(dry_run=True, request_id="g1")
            assert [(one.kind, one.id) for one in would_go] == [("run", runs[0].id), ("run", runs[1].id)]
            assert "kept for 1,000 s" in would_go[0].reason
            assert "2 that ended last" in would_go[1].reason
            assert min(one.bytes for one in would_go) > 1000
            assert len(await kept(client)) == 4
            with pytest.raises(errors.AlreadyExists, match="dry_run True, now with False"):
                await client.collect_garbage(request_id="g1")
            assert [one.id for one in await client.collect_garbage(request_id="g2")] == [runs[0].id, runs[1].id]
            assert await kept(client) == sorted([runs[2].id, runs[3].id])
            answer = Requests(redis, keys.namespace).key(Request("g2", "", {}))
            rows = [
                {**row, "further": "of a later minor release"}
                for row in json.loads(await redis.hget(answer, "garbage"))
            ]
            await redis.hset(answer, "garbage", json.dumps(rows))
            assert [one.id for one in await client.collect_garbage(request_id="g2")] == [runs[0].id, runs[1].id]
    async with world.sampler(runs_kept=1) as client:
        await eventually(lambda: kept(client), is_so=[runs[3].id].__eq__)


async def test_a_run_holds_its_version_by_a_label_while_it_lives_and_none_once_it_is_deleted(
    world: SamplerWorld,
) -> None:
    registry = FakeRegistry()
    async with (
        serving(registry_pb2_grpc.add_RegistryAdminServiceServicer_to_server, registry) as port,
        world.sampler(trainer_target=f"127.0.0.1:{port}") as client,
    ):
        run = await finish(client)
        name = f"run-{run.id}"
        await until(lambda: registry.moves == [(name, "version-1"), (name, "")])
        await client.delete(run.id)
        assert registry.moves[2:] == [(name, "")]


async def test_a_label_that_its_run_could_not_drop_goes_at_a_later_look_and_those_of_others_stay(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = FakeRegistry()
    others = {"stable": "v1", "run-of-the-mill": "v1", "run-0123456789abcdef": "v1"}
    registry.moves.extend(others.items())
    registry.out_of_order = True
    monkeypatch.setattr("services.sampler.__main__.LOOK_S", 0.05)
    async with (
        serving(registry_pb2_grpc.add_RegistryAdminServiceServicer_to_server, registry) as port,
        world.sampler(trainer_target=f"127.0.0.1:{port}", queues={"team": QUEUE}) as client,
    ):
        ended = await finish(client)
        live = await client.start_run([("t", "hypothesis 1")], corpus="science", oracle="team")
        await until(lambda: registry.labels.keys() == {f"run-{ended.id}", f"run-{live.id}", *others})
        registry.out_of_order = False
        await until(lambda: registry.labels.keys() == {f"run-{live.id}", *others})
        await asyncio.sleep(0.2)  # several looks later
        assert registry.labels.keys() == {f"run-{live.id}", *others}


@pytest.mark.parametrize("field", ["created_at", "config", "format_version"])
async def test_a_damaged_run_keeps_no_other_from_being_removed_and_is_removed_by_name_alone(
    world: SamplerWorld, redis: Any, monkeypatch: pytest.MonkeyPatch, keys: RunKeys, field: str
) -> None:
    async with world.sampler() as client:
        damaged, old, new = [(await finish(client, idempotency_key=key)).id for key in ("damaged", "old", "new")]
    for ended_s, run_id in enumerate((damaged, old, new), start=1):
        await redis.hset(keys.record(run_id), "ended_s", ended_s)
    await redis.hset(keys.record(damaged), field, "damaged")
    with monkeypatch.context() as patch:
        patch.setattr(retention.Retention, "look", AsyncMock())
        async with world.sampler(runs_kept=2) as client:
            assert await client.collect_garbage(request_id="g1") == []
    monkeypatch.setattr("services.sampler.__main__.LOOK_S", 0.05)
    async with world.sampler(runs_kept=1) as client:
        await eventually(lambda: kept(client), is_so=lambda ids: {*ids} - {damaged} == {new})
        with pytest.raises(errors.DataLoss, match=f"run {damaged} .*restore it from a backup"):
            await client.get_run(damaged)
        await redis.hset(keys.record(damaged), "trees", "damaged")
        await client.delete(damaged)
        await gone(client, damaged)
        assert not [key for key in await left(redis, world) if damaged in key]
        again = await finish(client, idempotency_key="damaged")
        assert (again.id != damaged, (await finish(client, idempotency_key="damaged")).id) == (True, again.id)


async def test_a_run_whose_deletion_is_stuck_keeps_neither_others_nor_old_runs_from_theirs(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, cleared = LifeCycles.clear, list[str]()

    async def stuck(cycles: LifeCycles, run_id: str, remove: Any) -> None:
        if run_id == first:
            await _unavailable()
        await clear(cycles, run_id, remove)
        cleared.append(run_id)

    async with world.sampler() as client:
        first, second, _ = sorted([(await finish(client)).id for _ in range(3)])
        with monkeypatch.context() as patch:
            patch.setattr(LifeCycles, "clear", lambda *_: _unavailable())
            for run_id in (first, second):
                await client.delete(run_id)
        await finish(client)
    monkeypatch.setattr(LifeCycles, "clear", stuck)
    monkeypatch.setattr("services.sampler.__main__.LOOK_S", 0.05)
    async with world.sampler(runs_kept=1):
        await until(lambda: len(cleared) >= 2)
    assert second in cleared
