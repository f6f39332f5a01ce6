"""The sampler's small world as a fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aeenc.v1 import index_pb2_grpc, oracle_pb2_grpc
from support.worlds.sampler_world import FakeIndex, FakeOracle, SamplerWorld, serving


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
