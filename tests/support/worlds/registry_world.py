"""A trainer over the tiny space, its registry, and checkpoints of nothing but their metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from aeenc import RegistryClient, TrainerClient
from services.store.registry import Registry
from services.trainer.registry.checkpoints import Checkpoints
from support.worlds.trainer_world import Space, serve_trainer


@dataclass
class World:
    """The trainer with its clients, and what lies behind it."""

    registry: RegistryClient
    trainer: TrainerClient
    rows: Registry
    space: Space
    checkpoints: Checkpoints

    async def checkpoint(
        self,
        name: str,
        precisions: list[float] | None,
        base_version: str = "",
        reranks: str = "",
        space_id: str = "",
        queries: str = "x",
        measured: dict[str, list[float]] | None = None,
        files: Sequence[str] = (),
    ) -> str:
        """Registers a checkpoint of nothing but its metrics; the registry looks no further."""
        meta = {
            "space_id": space_id or self.space.space_id,
            "pretrained": False,
            "base_version": base_version,
            "job_id": name,
            "validation_map": float(np.mean(precisions)) if precisions else 0.0,
            "dim": 32,
        }
        with self.checkpoints.store.writer("checkpoint", "checkpoints") as writer:
            if precisions is not None:
                metrics = {"format_version": 1, "average_precisions": precisions, "measured": measured or {}}
                metrics |= {"generation": "g", "queries_sha256": queries, "reranks": reranks}
                (writer.path / "metrics.json").write_text(json.dumps(metrics))
            for file in files:
                (writer.path / file).write_bytes(b"weights")
            version = writer.commit(meta, id_prefix="q").id
        await self.checkpoints.register(version)
        return version


@pytest.fixture
async def world(
    space: Space, redis_url: str, namespace: str, tmp_path: Path, registry: Registry
) -> AsyncIterator[World]:
    """A trainer that serves; `registry` is what it keeps in Redis."""
    async with serve_trainer(space, redis_url, namespace, tmp_path) as (_, trainer):
        client = RegistryClient(trainer.channel)
        yield World(client, trainer, registry, space, Checkpoints(space.store, registry))


GOOD = [0.8, 0.7, 0.9, 0.6, 0.8, 0.9, 0.7, 0.8, 0.75, 0.85]
BAD = [value - 0.3 - 0.01 * n for n, value in enumerate(GOOD)]
