"""A running encoder on a tiny model, through the real SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aeenc import Channel, EncoderClient
from services.encoder.__main__ import build
from services.encoder.settings import EncoderSettings
from services.kit.server import GrpcServer
from services.store.artifacts import Artifact, ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import TinyCheckpoint, register
from support.waiting import until

Serve = Callable[..., Any]
Change = Callable[[Path, dict[str, Any]], None]  # of a checkpoint's files and its manifest's facts
Copy = Callable[[Artifact, Change], TinyCheckpoint]


@pytest.fixture
async def stable(tiny_checkpoint: TinyCheckpoint, registry: Registry) -> TinyCheckpoint:
    """The pretrained checkpoint under `stable`."""
    await register(registry, tiny_checkpoint, label="stable")
    return tiny_checkpoint


@pytest.fixture
def serve(artifact_store: ArtifactStore, redis_url: str, namespace: str, tmp_path: Path) -> Serve:
    """Starts an encoder; `async with serve() as (server, client)`. Waits until it serves unless told not to."""

    @asynccontextmanager
    async def start(*, wait: bool = True, **fields: Any) -> AsyncIterator[tuple[GrpcServer, EncoderClient]]:
        options: dict[str, Any] = {
            "port": 0,
            "artifacts_dir": artifact_store.root,
            "state_dir": tmp_path / "state",
            "redis_url": redis_url,
            "namespace": namespace,
            "poll_s": 0.2,
            "workers": 2,
        }
        async with build(EncoderSettings(**{**options, **fields})) as server:
            client = EncoderClient(Channel(f"127.0.0.1:{server.port}", timeout_s=10))
            if wait:
                await until(lambda: server.readiness.healthy)
            yield server, client
            await client.channel.close()

    return start


@pytest.fixture
def copied(artifact_store: ArtifactStore) -> Copy:
    """Copies a checkpoint and changes it before its manifest is made, so every hash fits."""

    def copy(source: Artifact, change: Change) -> TinyCheckpoint:
        meta = dict(source.meta)
        with artifact_store.writer("checkpoint", "checkpoints") as writer:
            for name in source.files:
                (writer.path / name).write_bytes(source.file(name).read_bytes())
            change(writer.path, meta)
            artifact = writer.commit(meta, id_prefix=source.id[0])
        return TinyCheckpoint(artifact, artifact.id, meta["space_id"])

    return copy
