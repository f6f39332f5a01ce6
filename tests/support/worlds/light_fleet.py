"""All four services in this process, over a tiny space that was made without torch: up in less than a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import aeenc
from aeenc.v1 import oracle_pb2_grpc
from services.index.__main__ import build as build_index
from services.index.settings import IndexSettings
from services.kit.server import GrpcServer
from services.sampler.__main__ import build as build_sampler
from services.sampler.settings import SamplerSettings
from services.store.artifacts import ArtifactStore
from support.models.tiny_checkpoints import TinyCheckpoint
from support.worlds.sampler_world import FakeOracle, serving
from support.worlds.trainer_world import serve_encoder, serve_trainer, untouched_space


@dataclass(frozen=True)
class LightFleet:
    """A client of all, the servers by service, and the pre-trained checkpoint. The oracle is called `mine`."""

    client: aeenc.AsyncClient
    servers: dict[str, GrpcServer]
    oracle: FakeOracle
    store: ArtifactStore
    base: TinyCheckpoint


@pytest.fixture
async def light_fleet(
    tiny_checkpoint: TinyCheckpoint, artifact_store: ArtifactStore, redis_url: str, namespace: str, tmp_path: Path
) -> AsyncIterator[LightFleet]:
    """The fleet, with a port of metrics each."""
    oracle, space = FakeOracle(), untouched_space(tiny_checkpoint, artifact_store, tmp_path / "base")
    everywhere = {"metrics_port": 0}
    place = {"port": 0, "artifacts_dir": artifact_store.root, **everywhere}
    common = {"redis_url": redis_url, "namespace": namespace}
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(oracle_pb2_grpc.add_OracleServiceServicer_to_server, oracle))
        encoder, _ = await stack.enter_async_context(
            serve_encoder(space, redis_url, namespace, tmp_path / "encoder", **everywhere)
        )
        index = await stack.enter_async_context(
            build_index(IndexSettings(**place, encoder_target=f"127.0.0.1:{encoder.port}"))
        )
        targets = {"index_target": f"127.0.0.1:{index.port}"}
        oracles = {"mine": {"target": f"127.0.0.1:{port}", "max_attempts": 1}}
        sampler = await stack.enter_async_context(
            build_sampler(SamplerSettings(**place, **common, **targets, oracles=oracles, poll_s=0.1))
        )
        targets |= {"encoder_target": f"127.0.0.1:{encoder.port}", "sampler_target": f"127.0.0.1:{sampler.port}"}
        trainer, _ = await stack.enter_async_context(
            serve_trainer(space, redis_url, namespace, tmp_path / "trainer", **targets, **everywhere)
        )
        servers = {"encoder": encoder, "index": index, "sampler": sampler, "trainer": trainer}
        addresses = {name: f"127.0.0.1:{server.port}" for name, server in servers.items()}
        client = aeenc.AsyncClient(**addresses, retry=aeenc.PATIENT)
        stack.push_async_callback(client.close)
        yield LightFleet(client, servers, oracle, artifact_store, tiny_checkpoint)
