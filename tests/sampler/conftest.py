"""The sampler's small world as a fixture, and what several rooms do with it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

import aeenc
from aeenc import errors
from aeenc.v1 import sampler_pb2
from services.sampler.records.keys import RunKeys
from services.store.redis import connect
from support.worlds.sampler_world import SamplerWorld, finish, pair_set, small_world


@pytest.fixture
async def world(redis_url: str, namespace: str) -> AsyncIterator[SamplerWorld]:
    async with small_world(redis_url, namespace) as made:
        yield made


@pytest.fixture
async def client(world: SamplerWorld) -> AsyncIterator[aeenc.SamplerClient]:
    """A client of a sampler with the world's settings."""
    async with world.sampler() as made:
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
def dies_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, int], None]:
    """Lets a call die in place of its next command to Redis, once it has sent so many."""
    left: ContextVar[Any] = ContextVar("left")  # whether the call sends its next command

    def mortal(cls: Any, name: str) -> None:
        sends = getattr(cls, name)

        async def send(self: Any, *arguments: Any, **options: Any) -> Any:
            if not next(left.get(itertools.repeat(True))):
                raise errors.DataLoss("killed")
            return await sends(self, *arguments, **options)

        monkeypatch.setattr(cls, name, send)

    mortal(Redis, "execute_command")
    mortal(Pipeline, "execute")
    calls: dict[str, Any] = {}

    def dies(cls: type, name: str, moment: int) -> None:
        call = calls.setdefault(name, getattr(cls, name))

        async def dying(self: Any, *arguments: Any, **options: Any) -> Any:
            left.set(itertools.chain([True] * moment, itertools.repeat(False)))
            return await call(self, *arguments, **options)

        monkeypatch.setattr(cls, name, dying)

    return dies


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    """A connection beside that of the world's samplers."""
    connected = connect(redis_url)
    yield connected
    await connected.aclose()


@pytest.fixture
def keys(namespace: str) -> RunKeys:
    """The keys of the world's runs."""
    return RunKeys(namespace)


@pytest.fixture
def sent_by_redis(redis: Any) -> Callable[[], Awaitable[int]]:
    """How many bytes Redis has sent so far: what a service has had in its memory to answer a call."""

    async def sent() -> int:
        return int((await redis.info("stats"))["total_net_output_bytes"])

    return sent


@pytest.fixture
def until_progress() -> Callable[..., Awaitable[sampler_pb2.RunProgress]]:
    """Watches a run until a counter of its progress has reached a number; gives the progress."""

    async def wait(client: aeenc.SamplerClient, run_id: str, **least: int) -> sampler_pb2.RunProgress:
        async for _, seen in client.watch(run_id):
            if all(getattr(seen.progress, name) >= number for name, number in least.items()):
                break
        return seen.progress

    return wait
