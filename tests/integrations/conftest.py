"""An encoder on tiny models and an index with the corpus `science`, over real sockets, in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aeenc import AsyncClient
from services.encoder.__main__ import build as build_encoder
from services.encoder.settings import EncoderSettings
from services.index.__main__ import build as build_index
from services.index.settings import IndexSettings
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import TinyCheckpoint, register, write_tiny_cross_encoder_checkpoint
from support.waiting import until
from support.worlds.index_world import facts


@pytest.fixture
async def fleet(
    artifact_store: ArtifactStore,
    tiny_checkpoint: TinyCheckpoint,
    registry: Registry,
    redis_url: str,
    namespace: str,
    tmp_path: Path,
) -> AsyncIterator[dict[str, str]]:
    """Serves both; yields the variables that lead to them. Sampler and trainer are away."""
    await register(registry, tiny_checkpoint, label="stable")
    await register(registry, write_tiny_cross_encoder_checkpoint(artifact_store), label="stable")
    place = {"port": 0, "artifacts_dir": artifact_store.root}
    shared = {"redis_url": redis_url, "namespace": namespace, "poll_s": 0.2, "state_dir": tmp_path / "state"}
    with capture_logs():  # a failure shows the output of the distribution's own tests
        async with serving(EncoderSettings(**place, **shared, workers=1), place) as variables:
            yield variables


@asynccontextmanager
async def serving(settings: EncoderSettings, place: dict[str, Any]) -> AsyncIterator[dict[str, str]]:
    async with build_encoder(settings) as encoder:
        await until(lambda: encoder.readiness.healthy)
        encoder_target = f"127.0.0.1:{encoder.port}"
        async with build_index(IndexSettings(**place, encoder_target=encoder_target)) as index:
            await until(lambda: index.readiness.answers)
            index_target = f"127.0.0.1:{index.port}"
            async with AsyncClient(index=index_target) as client:
                await client.index.build("science", facts(), request_id="facts")
            yield {
                "AEENC_ENCODER": encoder_target,
                "AEENC_INDEX": index_target,
                "AEENC_SAMPLER": "127.0.0.1:1",
                "AEENC_TRAINER": "127.0.0.1:1",
            }
