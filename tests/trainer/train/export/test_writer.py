"""What is checked before a checkpoint is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.store.artifacts import ArtifactStore
from services.trainer.models.batches import Batches
from services.trainer.models.space import SpaceSpec
from services.trainer.train.encoder import load_encoder
from services.trainer.train.export.checkpoint import exported_encoder
from services.trainer.train.export.writer import write_checkpoint
from support.worlds.trainer_world import Space


@pytest.mark.parametrize(
    ("place", "off", "told"), [(0, 0.01, r"0\.01"), (-1, 0.01, r"0\.01"), (3, float("nan"), "nan")]
)
def test_a_model_that_computes_other_vectors_than_torch_is_not_published(
    space: Space, tmp_path: Path, place: int, off: float, told: str
):
    artifact = space.store.open("checkpoints", space.version)
    spec = SpaceSpec.of_meta(artifact.meta)
    batches = Batches.of(artifact.path, spec, artifact.meta["pad_id"])
    model = exported_encoder(load_encoder(artifact.path, spec), batches, artifact.path)
    model.expected[place] += off
    with pytest.raises(ValueError, match=rf"differs from the trained one by {told}; it is not published"):
        write_checkpoint(ArtifactStore(tmp_path), model, {})
    assert not list(tmp_path.rglob("model.onnx"))
