"""int8 of a cross-encoder: in the checkpoint where it ranks as well as fp32, by the same figures as an encoder's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.store.artifacts import Artifact
from services.trainer.jobs.files import JobFiles
from services.trainer.train.encoder import prepare_torch
from services.trainer.train.export import quantization
from services.trainer.train.inputs import open_checkpoint
from services.trainer.train.job import load_task
from services.trainer.train.ranks import Rank
from support.worlds.trainer_world import VALIDATION, MakeJob, Space, result_of

CROSS = {"mode": "CROSS_ENCODER", "loss": "REGRESSION", "hard_negatives": 4, "epochs": 1}
INT8_FILES = {"model.int8.onnx", "probes.int8.npy"}


def checkpoint(space: Space, files: JobFiles) -> Artifact:
    prepare_torch(1)
    return open_checkpoint(space.store, str(result_of(files)["version"]))


def scores_of(artifact: Artifact, file: str, files: JobFiles, pairs: list[tuple[str, str]]) -> Any:
    """Each pair alone."""
    import onnxruntime

    batches = load_task(files, Rank()).batches  # type: ignore[union-attr]
    session = onnxruntime.InferenceSession(artifact.file(file), providers=["CPUExecutionProvider"])
    each = [batches.inputs([pair]) for pair in pairs]
    return np.array([session.run(["score"], feeds)[0][0] for feeds in each])


def test_a_model_that_passes_is_in_the_checkpoint_with_its_probes_and_figures(space: Space, make_job: MakeJob):
    files = make_job(**CROSS)
    artifact = checkpoint(space, files)
    meta = artifact.meta["int8"]
    assert (meta["passed"], meta["queries"], meta["reason"], meta["cosine_mean"]) == (True, len(VALIDATION), "", None)
    assert set(artifact.files) >= INT8_FILES
    pairs = [(query, premise) for query, premise in json.loads(artifact.file("probes.json").read_bytes())["pairs"]]
    int8, fp32 = (scores_of(artifact, name, files, pairs) for name in ("model.int8.onnx", "model.onnx"))
    assert np.load(artifact.file("probes.int8.npy"), allow_pickle=False) == pytest.approx(int8, abs=1e-5)
    assert not np.array_equal(int8, fp32)
    assert np.corrcoef(int8, fp32)[0, 1] > 0.99


@pytest.fixture
def tried(monkeypatch) -> list[tuple[float, Any]]:
    """What the gate is asked: fp32's MAP, and how it measures scores."""
    seen: list[tuple[float, Any]] = []
    gate = quantization.int8_gate
    monkeypatch.setattr(
        quantization,
        "int8_gate",
        lambda trial, *outputs: seen.append((trial.fp32_map, trial.map_of)) or gate(trial, *outputs),
    )
    return seen


def test_the_gate_measures_the_order_that_scores_give(space: Space, make_job: MakeJob, tried):
    artifact = checkpoint(space, make_job(**CROSS))
    ((fp32_map, map_of), *_) = tried
    after = json.loads(artifact.file("metrics.json").read_bytes())["after"]["strict"]["MAP"]
    assert fp32_map == pytest.approx(after)
    count = 20 * len(VALIDATION)
    assert map_of(np.zeros(count, np.float32)) != map_of(np.arange(count, dtype=np.float32))


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        (lambda count: np.full(count, np.nan, np.float32), "not finite"),
        (lambda count: 9 * np.cos(np.arange(count, dtype=np.float32)), "MAP falls by"),
    ],
)
def test_a_model_that_fails_is_left_out_and_the_manifest_says_why(
    space: Space, make_job: MakeJob, monkeypatch, spoiled: Callable[[int], Any], words: str
):
    gate = quantization.int8_gate
    monkeypatch.setattr(quantization, "int8_gate", lambda trial, found, known: gate(trial, spoiled(len(found)), known))
    artifact = checkpoint(space, make_job(**CROSS))
    assert artifact.meta["int8"]["passed"] is False
    assert words in artifact.meta["int8"]["reason"]
    assert not INT8_FILES & set(artifact.files)


def test_int8_can_be_switched_off_and_needs_queries(space: Space, make_job: MakeJob, monkeypatch):
    monkeypatch.setattr(quantization, "quantize", None)  # would be called, and fail
    files = make_job(**CROSS)
    files.write_plan(replace(files.plan(), means=replace(files.plan().means, int8=False)))
    assert "int8" not in checkpoint(space, files).meta
    assert "int8" not in checkpoint(space, make_job(validation=[], **CROSS)).meta
