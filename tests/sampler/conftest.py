"""The sampler's small world as a fixture, and what several rooms do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import aeenc
from aeenc.v1 import sampler_pb2
from services.store.redis import connect
from support.worlds.sampler_world import SamplerWorld, finish, pair_set, small_world


@pytest.fixture
async def world(redis_url: str, namespace: str) -> AsyncIterator[SamplerWorld]:
    async with small_world(redis_url, namespace) as made:
        yield made


@pytest.fixture
def by_wave_nodes(world: SamplerWorld) -> Callable[..., Awaitable[list[tuple[sampler_pb2.Run, set]]]]:
    """Runs one configuration with several values of `wave_nodes`, each alone; gives the runs and their pairs."""

    async def runs(*sizes: int, signs: str = "+-", **config: object) -> list[tuple[sampler_pb2.Run, set]]:
        found = []
        for size in sizes:
            async with world.sampler(wave_nodes=size, namespace=f"{world.settings['namespace']}-{size}") as client:
                run = await finish(client, **config)
                found.append((run, await pair_set(client, run.id, signs)))
        return found

    return runs


@pytest.fixture
async def sent_by_redis(redis_url: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """How many bytes Redis has sent so far: what a service has had in its memory to answer a call."""
    redis = connect(redis_url)

    async def sent() -> int:
        return int((await redis.info("stats"))["total_net_output_bytes"])

    yield sent
    await redis.aclose()


@pytest.fixture
def until_progress() -> Callable[..., Awaitable[sampler_pb2.RunProgress]]:
    """Watches a run until a counter of its progress has reached a number; gives the progress."""

    async def wait(client: aeenc.SamplerClient, run_id: str, **least: int) -> sampler_pb2.RunProgress:
        async for _, seen in client.watch(run_id):
            if all(getattr(seen.progress, name) >= number for name, number in least.items()):
                break
        return seen.progress

    return wait
