"""All four services in this process, over a tiny space that was made without torch: up in less than a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.store.artifacts import ArtifactStore
from support.models.tiny_checkpoints import TinyCheckpoint
from support.worlds.trainer_world import Fleet, serve_fleet, untouched_space


@dataclass(frozen=True)
class LightFleet(Fleet):
    """The fleet, its store, and the pre-trained checkpoint."""

    store: ArtifactStore
    base: TinyCheckpoint


@pytest.fixture
async def light_fleet(
    tiny_checkpoint: TinyCheckpoint, artifact_store: ArtifactStore, redis_url: str, namespace: str, tmp_path: Path
) -> AsyncIterator[LightFleet]:
    """The fleet, with a port of metrics each."""
    space, ports = untouched_space(tiny_checkpoint, artifact_store, tmp_path / "base"), {"metrics_port": 0}
    async with serve_fleet(space, redis_url, namespace, tmp_path, everywhere=ports) as fleet:
        yield LightFleet(**vars(fleet), store=artifact_store, base=tiny_checkpoint)
