"""A live run holds its generation at the index, so that nobody deletes it beneath people who work for weeks."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc import errors
from services.index.__main__ import build as build_index
from services.index.catalogue.holds import Holds
from services.index.settings import IndexSettings
from services.sampler.execution.holds import RunHolds
from services.sampler.records.keys import RunKeys
from support.waiting import eventually
from support.worlds.index_world import RunningEncoder, facts, raises
from support.worlds.sampler_world import SamplerWorld, small_world


class HeldWorld(SamplerWorld):
    """A running index in place of the fake one, with one corpus."""

    async def start(self, sampler: aeenc.SamplerClient):
        return await sampler.start_run([("t", "why does ice float")], corpus="science", oracle="fake", k=3)

    async def held_by(self, generation: str) -> list[str]:
        listed = {one.id: list(one.held_by) async for one in self.index.list_generations("science")}
        return listed[generation]

    async def until_held_by(self, generation: str, *holders: str) -> None:
        await eventually(lambda: self.held_by(generation), is_so=list(holders).__eq__)


@pytest.fixture
async def world(redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[HeldWorld]:
    encoder = RunningEncoder()
    await encoder.server.start()
    settings = IndexSettings(port=0, artifacts_dir=tmp_path, encoder_target=encoder.target, build_batch=8)
    async with (
        build_index(settings) as server,
        small_world(redis_url, namespace) as made,
        aeenc.AsyncClient(index=f"127.0.0.1:{server.port}", encoder=encoder.target) as client,
    ):
        await client.index.build("science", facts()[:6])
        made.settings["index_target"] = f"127.0.0.1:{server.port}"
        made.settings["oracles"]["fake"]["timeout_s"] = 60.0
        yield HeldWorld(client.index, made.oracle, made.settings)
    await encoder.stop()


async def test_nobody_deletes_the_generation_of_a_live_run_unless_by_its_name(world: HeldWorld, client):
    world.oracle.delay_s = 60.0
    run = await world.start(client)
    assert await world.held_by(run.generation) == [f"run-{run.id}"], "from the start on"
    newer = await world.index.build("science", facts())
    refused = await raises(
        errors.FailedPrecondition, world.index.delete("science", run.generation), f"held by run-{run.id}", "cancel"
    )
    assert refused.reason == "IN_USE"
    await world.index.delete("science", run.generation, despite=[f"run-{run.id}"])
    assert [one.id async for one in world.index.list_generations("science")] == [newer.id]


@pytest.mark.parametrize("end", ["success", "cancel", "delete"])
async def test_the_hold_ends_with_the_run_and_comes_back_when_it_is_resumed(world: HeldWorld, client, end: str):
    world.oracle.delay_s = 0.0 if end == "success" else 60.0
    run = await world.start(client)
    if end == "success":
        assert (await client.wait(run.id)).state.name == "SUCCEEDED"
    else:
        await client.cancel(run.id)
        await world.until_held_by(run.generation)
        await client.resume(run.id)
        assert await world.held_by(run.generation) == [f"run-{run.id}"]
        await client.cancel(run.id)
    await world.until_held_by(run.generation)
    if end == "delete":
        await client.delete(run.id)
    await world.index.build("science", facts())
    await world.index.delete("science", run.generation)


async def test_a_run_that_is_cancelled_while_it_takes_its_hold_leaves_none(
    world: HeldWorld, client, monkeypatch: pytest.MonkeyPatch
):
    world.oracle.delay_s = 60.0
    begun, put = threading.Event(), Holds._put

    def slowly(self: Holds, *args: str) -> None:
        begun.set()
        time.sleep(0.3)
        put(self, *args)

    run = await world.start(client)
    await client.cancel(run.id)
    await world.until_held_by(run.generation)
    await client.resume(run.id)
    monkeypatch.setattr(Holds, "_put", slowly)  # the worker holds it once more when it begins
    assert await asyncio.to_thread(begun.wait, 10.0)
    await client.cancel(run.id)
    await asyncio.sleep(0.5)
    assert await world.held_by(run.generation) == []


async def test_a_run_without_its_generation_says_what_helps(world: HeldWorld, client):
    world.oracle.delay_s = 60.0
    run = await world.start(client)
    await client.cancel(run.id)
    await world.until_held_by(run.generation)
    await world.index.build("science", facts())
    await world.index.delete("science", run.generation)
    await client.resume(run.id)
    failed = await client.wait(run.id)
    assert failed.state.name == "FAILED"
    assert run.generation in failed.error
    assert "start a new run" in failed.error


@pytest.mark.parametrize("damage", ["5", '"ab"', "["])
async def test_a_hold_whose_sampler_died_goes_at_a_later_look_and_one_whose_note_is_damaged(
    world: HeldWorld, monkeypatch: pytest.MonkeyPatch, redis: Any, keys: RunKeys, damage: str
):
    monkeypatch.setattr("services.sampler.__main__.LOOK_S", 0.05)
    monkeypatch.setattr("services.sampler.execution.retention.LEASE_S", 1.0)  # it may die within a look

    async def dies(*_) -> bool:
        return False

    world.oracle.delay_s = 60.0
    with monkeypatch.context() as patched:
        patched.setattr(RunHolds, "drop", dies)
        async with world.sampler() as sampler:
            run = await world.start(sampler)
            await sampler.cancel(run.id)
            assert await world.held_by(run.generation) == [f"run-{run.id}"]
            await world.index.hold("science", run.generation, f"run-{(damaged := await world.start(sampler)).id}")
            await sampler.cancel(damaged.id)
            await redis.hset(keys.holds, damaged.id, damage)
            await sampler.delete(damaged.id)
            assert await redis.smembers(keys.deleted) == {damaged.id}
    async with world.sampler():
        await world.until_held_by(run.generation)
        await eventually(lambda: redis.smembers(keys.deleted), is_so=set().__eq__)


async def test_a_live_run_that_never_took_its_hold_gets_it_at_a_later_look(
    world: HeldWorld, monkeypatch: pytest.MonkeyPatch
):
    async def dies(*_) -> None:
        return None

    world.oracle.delay_s = 60.0
    with monkeypatch.context() as patched:
        patched.setattr(RunHolds, "hold_generation", dies)
        async with world.sampler() as sampler:
            run = await world.start(sampler)
    monkeypatch.setattr("services.sampler.__main__.LOOK_S", 0.05)
    monkeypatch.setattr(RunHolds, "hold", dies)  # of a worker that takes it up
    async with world.sampler():
        await world.until_held_by(run.generation, f"run-{run.id}")


async def test_a_hold_that_was_lost_comes_back(world: HeldWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.sampler.__main__.LOOK_S", 0.05)
    world.oracle.delay_s = 60.0
    async with world.sampler() as sampler:
        run = await world.start(sampler)
        await world.index.release("science", run.generation, f"run-{run.id}")
        await world.until_held_by(run.generation, f"run-{run.id}")
