"""Deletions of jobs and checkpoints, and the collection of garbage, through the RPCs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from operator import not_
from pathlib import Path
from typing import Any

import pytest

from aeenc import Channel, TrainerClient, errors
from services.store.redis import connect
from services.store.registry import Registry
from services.store.requests import Request
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs import garbage as collection
from services.trainer.jobs.garbage import Deletion
from services.trainer.jobs.job import LIVE, JobStore
from support.models.tiny_checkpoints import write_tiny_checkpoint
from support.waiting import eventually, until
from support.worlds.tandem_world import TandemCheckpoints, TandemWorld, pairs, tandem_space, world
from support.worlds.trainer_world import serve_trainer

__all__ = ["pairs", "tandem_space", "world"]


@dataclass
class Trainer:
    """A trainer beside that of the world, with settings of its own; its files are in `state`."""

    client: TrainerClient
    state: Path
    jobs: JobStore

    async def ended(self, job: Any, state: Any = "SUCCEEDED") -> str:
        """Stores a job that has ended, with a directory."""
        assert await self.jobs.create(job, [EvaluationQuery("q", ("p",))]) == job.id
        assert await self.jobs.transition(job.id, LIVE, state) == "OK"
        directory = self.state / "jobs" / job.id
        directory.mkdir(parents=True)
        (directory / "epoch.safetensors").write_bytes(bytes(1000))
        return str(job.id)


@pytest.fixture
def second(world: TandemWorld, redis_url: str, namespace: str, tmp_path: Path) -> Any:
    """Starts a trainer with the given settings."""

    @asynccontextmanager
    async def start(**fields: Any) -> AsyncIterator[Trainer]:
        redis, state = connect(redis_url), tmp_path / "second"
        targets = {"index_target": world.index.channel.target, "poll_s": 30.0, **fields}
        async with serve_trainer(world.space, redis_url, namespace, state, **targets) as (_, client):
            yield Trainer(client, state, JobStore(redis, namespace))
        await redis.aclose()

    return start


def pending(world: TandemWorld, **fields: Any) -> Any:
    return world.job(state="PENDING", **fields)


async def other(world: TandemWorld, seed: int) -> str:
    """A further checkpoint of the space that serves."""
    made = write_tiny_checkpoint(world.space.store, seed=seed, base_version=world.space.version)
    await world.checkpoints.register(made.version)
    return made.version


async def test_a_deleted_job_is_gone_with_its_files_and_its_idempotency_key(world: TandemWorld, second: Any):
    async with second() as trainer:
        job = pending(world)
        job = replace(job, config=replace(job.config, idempotency_key="once"))
        job_id = await trainer.ended(job, "CANCELLED")
        await trainer.client.delete(job_id, request_id="d")
        await trainer.client.delete(job_id, request_id="d")
        assert [one.id async for one in trainer.client.list_jobs()] == []
        with pytest.raises(errors.NotFound, match="ListJobs"):
            await trainer.client.get_job(job_id)
        with pytest.raises(errors.NotFound):
            await trainer.client.delete(job_id)
        with pytest.raises(errors.AlreadyExists, match=f"job_id '{job_id}', now with 'another'"):
            await trainer.client.delete("another", request_id="d")
        assert list((trainer.state / "jobs").iterdir()) == []
        assert await trainer.jobs.cycles.started_by("once") is None
        left = [key async for key in trainer.jobs._redis.scan_iter(f"*:job:{job_id}:*")]
        assert left == []


async def test_a_deletion_of_a_job_that_broke_off_is_finished_by_the_next_start(world: TandemWorld, second: Any):
    async with second() as trainer:
        job_id = await trainer.ended(pending(world), "FAILED")
        await eventually(lambda: deleted(trainer, job_id))
        assert (trainer.state / "jobs" / job_id).exists()
    async with second() as trainer:
        await until(lambda: not (trainer.state / "jobs" / job_id).exists())
        await eventually(trainer.jobs.cycles.deleted, is_so=not_)


async def deleted(trainer: Trainer, job_id: str) -> bool:
    """Deletes a job's record alone, once nobody holds it, as a trainer does that dies there."""
    with contextlib.suppress(errors.Unavailable):
        await trainer.jobs.delete(job_id, Request("", "DeleteJob", {}))
        return True
    return False


async def test_a_checkpoint_that_anybody_needs_is_not_deleted_and_the_refusal_names_who(
    world: TandemWorld, pairs: list[TandemCheckpoints], second: Any
):
    async def refused(version: str, why: str) -> None:
        with pytest.raises(errors.FailedPrecondition, match=why) as caught:
            await world.trainer.delete_checkpoint(version)
        assert caught.value.reason == "IN_USE"
        assert (await world.trainer.get_checkpoint(version)).version == version

    await refused(world.space.version, "label 'stable' of space .* names it")
    one, two = await other(world, 11), await other(world, 12)
    await world.registry.publish(one, force=True)
    await refused(world.space.version, "goes back to it|encodes the premises|serves premises")
    await world.registry.set_label("trial", two)
    await refused(two, "label 'trial' of space .* names it")
    await world.registry.delete_label("trial")
    tandem = await world.tandem(pairs[0])
    await refused(tandem.premise_version, f"it encodes the premises of {tandem.version}'s tandem")
    for version in (pairs[1].premise_version, pairs[1].version):
        await world.checkpoints.register(version)
    await world.rows.checkpoints.set_space(pairs[1].space_id, pairs[1].premise_version)
    async with second() as trainer:
        for base_version, needed in ((two, two), (pairs[1].version, pairs[1].premise_version)):
            job = pending(world)
            job = replace(job, config=replace(job.config, base_version=base_version))
            await trainer.jobs.cycles.lease(job.id, "another", 60.0).renew()
            await trainer.jobs.create(job, [])
            await refused(needed, f"job {job.id} is (PENDING|RUNNING) and learns with it")
            await trainer.client.cancel(job.id)
    await world.trainer.delete_checkpoint(two)


async def test_no_label_can_name_a_deleted_checkpoint_whatever_was_read_before(world: TandemWorld):
    version = await other(world, 11)
    row = await world.checkpoints.get(version)
    await world.trainer.delete_checkpoint(version, request_id="d")
    await world.trainer.delete_checkpoint(version, request_id="d")
    for call in (world.registry.publish(version), world.registry.set_label("trial", version)):
        with pytest.raises(errors.NotFound):
            await call
    with pytest.raises(errors.NotFound, match=f"checkpoint {version} is deleted"):  # as a publication under way
        await world.rows.set_label(row.space_id, "trial", version)
    assert world.space.store.open("checkpoints", version), "its files stay for a while"
    assert version not in [one.version async for one in world.trainer.list_checkpoints()]
    await world.checkpoints.register(version)  # a job has made the same one again
    assert (await world.registry.set_label("trial", version)).versions == (version,)


async def test_checkpoints_deleted_while_they_are_listed_hide_no_others(world: TandemWorld, second: Any):
    made = {await other(world, seed) for seed in (12, 13, 14)}
    seen: list[str] = []
    async with second() as trainer:
        async for one in trainer.client.list_checkpoints(page_size=1):
            seen.append(one.version)
            if one.version in made:
                await trainer.client.delete_checkpoint(one.version)
        assert sorted(seen) == sorted({*made, *seen})
        assert made.isdisjoint([one.version async for one in trainer.client.list_checkpoints()])


async def test_of_a_label_and_a_deletion_at_the_same_time_one_is_refused(world: TandemWorld, registry: Registry):
    """Either the label stands and the checkpoint too, or neither; whoever is first."""
    version = await other(world, 11)
    await world.rows.set_label(world.space.space_id, "trial", version)
    with pytest.raises(errors.FailedPrecondition, match=r"label 'trial' of space .* names it"):
        await world.rows.checkpoints.bury(version)  # its check of who needs it came before the label
    assert (await world.checkpoints.get(version)).version == version


async def test_files_of_a_deleted_checkpoint_go_after_the_grace_period_also_after_a_restart(
    world: TandemWorld, second: Any
):
    version = await other(world, 11)
    store = world.space.store
    async with second(grace_s=3600) as trainer:
        await trainer.client.delete_checkpoint(version)
        await trainer.client.collect_garbage()
        assert version in store.list("checkpoints")
    async with second(grace_s=0):
        await until(lambda: version not in store.list("checkpoints"))
        rows = world.rows
        await eventually(lambda: rows._redis.zscore(rows._keys.buried, version), is_so=not_)


async def test_a_version_whose_files_are_just_being_removed_is_not_registered(world: TandemWorld):
    version = await other(world, 11)
    await world.rows.checkpoints.bury(version)
    assert await world.rows.checkpoints.claim_buried(0) == [version]
    assert await world.rows.checkpoints.claim_buried(0) == [version], "a trainer that died left it so"
    with pytest.raises(errors.Unavailable, match=f"the files of checkpoint {version} are being removed"):
        await world.checkpoints.register(version)


async def test_a_collection_removes_what_the_settings_no_longer_keep_and_a_dry_run_only_lists_it(
    world: TandemWorld, second: Any
):
    await world.registry.publish(await other(world, 10), force=True)
    async with second(jobs_kept=1, checkpoints_kept=2, grace_s=0) as trainer:
        jobs = [await trainer.ended(pending(world), "FAILED") for _ in range(2)]
        await trainer.jobs._redis.hincrby(trainer.jobs._keys.record(jobs[0]), "ended_s", -10)
        versions = [await other(world, seed) for seed in (11, 12, 13)]
        forgotten = trainer.state / "jobs" / "forgotten"
        forgotten.mkdir()
        (forgotten / "pairs.jsonl").write_bytes(bytes(10))
        for path in (forgotten / "pairs.jsonl", forgotten):
            os.utime(path, (0, 0))
        rests = [world.space.store.root / "checkpoints" / name for name in (".deleted-1", ".tmp-dead")]
        for rest in rests:
            rest.mkdir()
            (rest / "model.onnx").write_bytes(bytes(10))
        expected = [("job", jobs[0]), ("checkpoint", versions[0]), ("job directory", "forgotten")]
        planned = await trainer.client.collect_garbage(dry_run=True)
        expected += [("unfinished checkpoint", name) for name in (".tmp-dead", ".deleted-1")]
        assert [(one.kind, one.id) for one in planned] == expected
        assert planned[0].bytes > 1000
        assert planned[0].reason == "not among the 1 that ended last"
        assert all(rest.exists() for rest in (*rests, forgotten))
        done = await trainer.client.collect_garbage(request_id="c")
        assert done == planned
        assert await trainer.client.collect_garbage(request_id="c") == done
        assert not any(rest.exists() for rest in (*rests, forgotten))
        assert [one.id async for one in trainer.client.list_jobs()] == [jobs[1]]
        kept = {one.version async for one in trainer.client.list_checkpoints()}
        assert versions[0] not in kept
        assert {*versions[1:], world.space.version} <= kept, "what serves and its way back stay, however old"
        assert versions[0] not in world.space.store.list("checkpoints")
        assert await trainer.client.collect_garbage(dry_run=True) == []
        await other(world, 14)
        live = pending(world)
        await trainer.jobs.cycles.lease(live.id, "another", 60.0).renew()
        await trainer.jobs.create(live, [])
        await trainer.jobs._redis.hset(trainer.jobs._keys.record(live.id), "format_version", "damaged")
        await trainer.ended(pending(world), "FAILED")
        damaged = {"created_at": "damaged", "ended_s": "1"}
        await trainer.jobs._redis.hset(trainer.jobs._keys.record(jobs[1]), mapping=damaged)
        rests[0].mkdir()
        assert [one.id for one in await trainer.client.collect_garbage()] == [rests[0].name]
        with pytest.raises(errors.DataLoss, match=f"job {live.id} has no format_version"):
            await world.trainer.delete_checkpoint(versions[1])
        await trainer.client.delete(jobs[1])
        with pytest.raises(errors.NotFound):
            await trainer.client.get_job(jobs[1])


async def test_a_label_that_a_killed_build_has_left_goes_in_the_round_after_its_job_has_ended(
    world: TandemWorld, pairs: list[TandemCheckpoints], second: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(collection, "ROUND_S", 0.1)
    space_id, job = pairs[0].space_id, pending(world)
    for version in (pairs[0].premise_version, pairs[0].version):
        await world.checkpoints.register(version)
    await world.rows.checkpoints.set_space(space_id, pairs[0].premise_version)
    async with second() as trainer:
        await trainer.jobs.create(job, [])
        await world.rows.set_label(space_id, f"job-{job.id}-0a1b2c3d", pairs[0].version)
        await world.building.sweep()
        assert await world.rows.labels(space_id), "its job is live"
        await trainer.client.cancel(job.id)
        await eventually(lambda: world.rows.labels(space_id), is_so=not_)


async def test_one_trainer_collects_at_a_time_and_by_default_nothing(world: TandemWorld, second: Any):
    async with second() as trainer:
        job_id, version = await trainer.ended(pending(world), "FAILED"), await other(world, 11)
        lease = f"{trainer.jobs._keys.prefix}trainer-garbage"
        await trainer.jobs._redis.set(lease, "another", px=60_000)
        channel = Channel(trainer.client.channel.target, retry=False)
        with pytest.raises(errors.Unavailable, match="another trainer is collecting") as refused:
            await TrainerClient(channel).collect_garbage()
        assert refused.value.retry_after_s == 1.0
        await channel.close()
        await trainer.jobs._redis.delete(lease)
        of_the_sampler = Request("g", "CollectGarbage", {"dry_run": False})
        await trainer.jobs.cycles.requests.record(of_the_sampler, {"garbage": "[]"})
        with pytest.raises(errors.AlreadyExists, match="was used with rpc 'CollectGarbage'"):
            await trainer.client.collect_garbage(request_id="g")
        assert await trainer.client.collect_garbage() == []
        assert (await trainer.client.get_job(job_id)).id == job_id
        assert (await trainer.client.get_checkpoint(version)).version == version


async def test_a_collection_keeps_its_turn_as_long_as_it_lasts_and_a_killed_one_loses_it_soon(
    world: TandemWorld, second: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(collection, "LEASE_S", 3.0)
    may_end = asyncio.Event()

    async def lasts(_self: Any) -> None:
        await may_end.wait()

    async with second() as trainer:
        lease = f"{trainer.jobs._keys.prefix}trainer-garbage"
        redis: Any = trainer.jobs._redis
        await redis.set(lease, "a killed trainer", px=500)
        monkeypatch.setattr(Deletion, "finish", lasts)
        collecting = asyncio.create_task(trainer.client.collect_garbage())
        await eventually(lambda: redis.get(lease), is_so=lambda owner: owner not in {None, "a killed trainer"})
        owner = await redis.get(lease)
        left_ms = [await redis.pttl(lease)]
        while left_ms[-1] <= min(left_ms):  # a renewal is seen as more time
            left_ms.append(await redis.pttl(lease))
            assert left_ms[-1] > 0, "it has lost its turn"
        assert await redis.get(lease) == owner
        may_end.set()
        assert await collecting == []
        assert await redis.get(lease) is None
