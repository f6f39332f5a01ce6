"""Networks that lose, delay and cut: calls end in time with the right status, and everything recovers by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

import aeenc
from aeenc import errors, values
from support.relay import Relay
from support.worlds.sampler_world import HYPOTHESES, SamplerWorld, brute_force, pair_set

CONFIG = {"corpus": "science", "oracle": "fake", "k": 6}
CALL_S, LATE_S = 0.3, 4.0  # a deadline, and how much later a call may end on a busy machine


@pytest.fixture
async def to_redis(world: SamplerWorld) -> AsyncIterator[Relay]:
    """A network between the samplers and their Redis."""
    user, _, path = world.settings["redis_url"].removeprefix("unix://").partition("@")
    async with Relay(path) as relay:
        world.settings["redis_url"] = f"redis://{user}@{relay.address}/0"
        yield relay


async def _fails_in_time(call: object) -> errors.AeencError:
    """The error of a call that must end within its deadline."""
    begun = time.monotonic()
    with pytest.raises((errors.DeadlineExceeded, errors.Unavailable)) as failed:
        await call  # type: ignore[misc]
    assert time.monotonic() - begun < CALL_S + LATE_S
    return failed.value


async def test_a_run_outlives_a_partition_from_redis_and_calls_end_in_time(
    world: SamplerWorld, to_redis: Relay, until_progress
) -> None:
    world.oracle.delay_s = 0.02
    async with world.sampler(wave_nodes=4) as client:
        run = await client.start_run(HYPOTHESES, **CONFIG)
        await until_progress(client, run.id, nodes_judged=4)
        short = client.channel.with_options(timeout_s=CALL_S, retry=False)
        asking = aeenc.SamplerClient(short)
        to_redis.silence()
        await _fails_in_time(asking.get_run(run.id))
        await _fails_in_time(asking.start_run(HYPOTHESES, **CONFIG, idempotency_key="once"))
        to_redis.heal()
        again = await client.start_run(HYPOTHESES, **CONFIG, idempotency_key="once")
        assert (await asyncio.wait_for(client.wait(run.id), 20)).state == values.WorkState.SUCCEEDED
        assert await pair_set(client, run.id) == brute_force()
        assert {one.id async for one in client.list_runs()} == {run.id, again.id}


async def test_a_run_survives_connections_to_redis_that_are_reset_again_and_again(
    world: SamplerWorld, to_redis: Relay
) -> None:
    world.oracle.delay_s = 0.02
    async with world.sampler(wave_nodes=4, lease_s=5.0) as client:
        run = await client.start_run(HYPOTHESES, **CONFIG)
        waiting = asyncio.create_task(client.wait(run.id))
        resets = 0
        while not waiting.done() and resets < 5:
            to_redis.reset()
            resets += 1
            await asyncio.wait([waiting], timeout=0.1)
        assert resets > 1
        assert (await waiting).state == values.WorkState.SUCCEEDED
        assert await pair_set(client, run.id) == brute_force()


@pytest.mark.crash
async def test_a_slow_link_to_redis_slows_calls_and_fails_none(client, to_redis: Relay) -> None:
    to_redis.delay_s = 0.01
    begun = time.monotonic()
    run = await client.start_run(HYPOTHESES[:1], **CONFIG)
    assert time.monotonic() - begun > 0.02
    assert (await asyncio.wait_for(client.wait(run.id), 20)).state == values.WorkState.SUCCEEDED


async def test_a_partition_from_a_service_ends_calls_at_their_deadline_and_heals(world: SamplerWorld) -> None:
    async with world.sampler() as direct, Relay(direct.channel.target) as relay:
        client = aeenc.SamplerClient(aeenc.Channel(relay.address))
        asking = aeenc.SamplerClient(client.channel.with_options(timeout_s=CALL_S))
        [run async for run in client.list_runs()]
        relay.silence()
        assert isinstance(await _fails_in_time(asking.get_run("none")), errors.DeadlineExceeded)
        relay.heal()
        with pytest.raises(errors.NotFound):
            await client.get_run("none")
        relay.reset()
        with pytest.raises(errors.NotFound):  # the SDK connects again and repeats the call
            await client.get_run("none")
        relay.delay_s = 0.05
        with pytest.raises(errors.NotFound):
            await client.get_run("none")
        await client.channel.close()


@pytest.mark.crash
async def test_a_run_waits_for_an_index_and_an_oracle_behind_a_partition(world: SamplerWorld) -> None:
    index, oracle = world.settings["index_target"], world.settings["oracles"]["fake"]
    async with Relay(index) as to_index, Relay(oracle["target"]) as to_oracle:
        own = {"target": to_oracle.address, "timeout_s": 0.3, "patience_s": 30.0}
        async with world.sampler(oracle=own, index_target=to_index.address) as client:
            world.oracle.delay_s = 0.02
            for relay in (to_index, to_oracle):
                run = await client.start_run(HYPOTHESES, **CONFIG, idempotency_key=relay.address)
                relay.silence()
                await asyncio.sleep(0.2)  # what was under way has ended
                before = (await client.get_run(run.id)).progress.nodes_judged
                await asyncio.sleep(0.2)
                now = await client.get_run(run.id)
                assert (now.state, now.progress.nodes_judged) == (values.WorkState.RUNNING, before)
                relay.heal()
                assert (await asyncio.wait_for(client.wait(run.id), 20)).state == values.WorkState.SUCCEEDED
                assert await pair_set(client, run.id) == brute_force()
