"""Checkpoints that a rollout moves between."""

from __future__ import annotations

from typing import Any

import pytest

from services.encoder.rollout.candidates import CandidateLoader
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import TINY_SPACE, TinyCheckpoint, register, write_tiny_checkpoint


@pytest.fixture
async def tuned(
    artifact_store: ArtifactStore, tiny_checkpoint: TinyCheckpoint, registry: Registry
) -> list[TinyCheckpoint]:
    """Three checkpoints of the pretrained one's space, all known to the registry; `stable` names the first."""
    await register(registry, tiny_checkpoint)
    made = [write_tiny_checkpoint(artifact_store, seed=n, base_version=tiny_checkpoint.version) for n in (1, 2, 3)]
    for checkpoint in made:
        await register(registry, checkpoint)
    await registry.set_label(TINY_SPACE, "stable", made[0].version)
    return made


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The version of each load that begins."""
    begun: list[str] = []
    original = CandidateLoader.load

    async def load(self: CandidateLoader, space_id: str, version: str, *arguments: Any) -> Any:
        begun.append(version)
        return await original(self, space_id, version, *arguments)

    monkeypatch.setattr(CandidateLoader, "load", load)
    return begun
