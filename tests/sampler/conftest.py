"""The sampler's small world as a fixture, and what several rooms do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import aeenc
from aeenc.v1 import index_pb2_grpc, oracle_pb2_grpc, sampler_pb2
from support.worlds.sampler_world import FakeIndex, FakeOracle, SamplerWorld, finish, pair_set, serving


@pytest.fixture
async def world(redis_url: str, namespace: str) -> AsyncIterator[SamplerWorld]:
    index, oracle = FakeIndex(), FakeOracle()
    async with (
        serving(index_pb2_grpc.add_IndexServiceServicer_to_server, index) as index_port,
        serving(oracle_pb2_grpc.add_OracleServiceServicer_to_server, oracle) as oracle_port,
    ):
        yield SamplerWorld(
            index,
            oracle,
            {
                "port": 0,
                "redis_url": redis_url,
                "namespace": namespace,
                "index_target": f"127.0.0.1:{index_port}",
                "poll_s": 0.05,
                "lease_s": 1.0,
                "oracles": {
                    "fake": {
                        "target": f"127.0.0.1:{oracle_port}",
                        "timeout_s": 5.0,
                        "max_attempts": 3,
                        "backoff_s": 0.02,
                        "patience_s": 0.0,
                    }
                },
            },
        )


@pytest.fixture
def by_wave_nodes(world: SamplerWorld) -> Callable[..., Awaitable[list[tuple[sampler_pb2.Run, set]]]]:
    """Runs one configuration with several values of `wave_nodes`, each alone; gives the runs and their pairs."""

    async def runs(*sizes: int, **config: object) -> list[tuple[sampler_pb2.Run, set]]:
        found = []
        for size in sizes:
            async with world.sampler(wave_nodes=size, namespace=f"{world.settings['namespace']}-{size}") as client:
                run = await finish(client, **config)
                found.append((run, await pair_set(client, run.id)))
        return found

    return runs


@pytest.fixture
def until_progress() -> Callable[..., Awaitable[sampler_pb2.RunProgress]]:
    """Watches a run until a counter of its progress has reached a number; gives the progress."""

    async def wait(client: aeenc.SamplerClient, run_id: str, **least: int) -> sampler_pb2.RunProgress:
        async for _, seen in client.watch(run_id):
            if all(getattr(seen.progress, name) >= number for name, number in least.items()):
                break
        return seen.progress

    return wait
