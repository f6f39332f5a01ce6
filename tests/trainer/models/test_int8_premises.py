"""A space of int8 premises: another space than float32's, with the int8 model that encodes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aeenc.errors import FailedPrecondition
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.batches import Batches, outputs_of
from services.trainer.models.space import SpaceSpec
from services.trainer.train.encoder import prepare_torch
from services.trainer.train.export import quantization
from services.trainer.train.export.checkpoint import export_pretrained
from services.trainer.train.export.writer import PROBES
from services.trainer.train.inputs import EncoderTask, JobInputs
from services.trainer.train.ranks import Rank
from support.worlds.trainer_world import MakeJob, Space, result_of


def exported(space: Space, root: Path) -> Artifact:
    store = ArtifactStore(root)
    return store.open("checkpoints", export_pretrained(store, {**space.request, "premise_precision": "int8"}))


def test_the_space_is_another_one_and_has_the_model_that_encodes_its_premises(space: Space, tmp_path: Path):
    artifact, usual = exported(space, tmp_path), space.store.open("checkpoints", space.version)
    assert artifact.meta["space_id"] != space.space_id
    assert artifact.meta["premise_precision"] == "int8"
    assert "premise_precision" not in usual.meta, "or the spaces of earlier releases would have other ids"
    assert "model.int8.onnx" not in usual.files
    assert artifact.meta["int8"]["passed"]
    assert artifact.meta["int8"]["map_loss"] is None
    batches = Batches.of(artifact.path, SpaceSpec.of_meta(artifact.meta), artifact.meta["pad_id"])
    probes = np.load(artifact.file("probes.int8.npy"), allow_pickle=False)
    assert np.array_equal(probes, outputs_of(artifact.file("model.int8.onnx"), batches, PROBES))
    assert SpaceSpec.of_meta(artifact.meta).premise_precision == "int8"
    assert SpaceSpec.of_meta(usual.meta).premise_precision == "float32"


def test_a_model_whose_int8_is_far_from_float32_has_no_such_space(space: Space, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(quantization, "MIN_COSINE_MEAN", 1.1)
    with pytest.raises(FailedPrecondition, match=r"premises cannot be int8 .* below 1.1; unset AEENC_TRAINER_PREMISE"):
        exported(space, tmp_path)
    assert list(ArtifactStore(tmp_path).list("checkpoints")) == []


def test_a_job_encodes_premises_that_the_corpus_lacks_as_the_space_does(
    space: Space, make_job: MakeJob, tmp_path: Path
):
    prepare_torch(1)
    artifact = exported(space, tmp_path)
    inputs = JobInputs.load(make_job(), Rank())  # over the vectors of the usual space
    generation = replace(inputs.generation, premise_version=artifact.id)
    spec = SpaceSpec.of_meta(artifact.meta)
    task = EncoderTask(replace(inputs, store=ArtifactStore(tmp_path), spec=spec, generation=generation))
    assert np.array_equal(task._outside(PROBES[:4]), np.load(artifact.file("probes.int8.npy"))[:4])


@pytest.mark.parametrize(("mode", "precision"), [("SINGLE", "int8"), ("SIAMESE", "float32")])
def test_a_trained_query_encoder_stays_in_the_space_and_trained_premises_leave_it_in_float32(
    space: Space, make_job: MakeJob, monkeypatch, mode: str, precision: str
):
    of_meta = SpaceSpec.of_meta
    monkeypatch.setattr(SpaceSpec, "of_meta", lambda meta: of_meta({**meta, "premise_precision": "int8"}))
    prepare_torch(1)
    files = make_job(mode=mode, loss="MULTIPLE_NEGATIVES_RANKING", epochs=1, validation=[])
    result = result_of(files)
    meta = space.store.open("checkpoints", str(result["version"])).meta
    assert meta.get("premise_precision", "float32") == precision
    assert (meta["space_id"] == space.space_id) == (mode == "SINGLE")
