"""The gate of int8: its arithmetic, the files it lets into a checkpoint, and what it keeps out."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from services.corpus.generation import open_generation
from services.encoder.runtime.onnx_session import check_onnx, open_session
from services.encoder.runtime.runners import PaddedRunner, Tokens
from services.onnx_devices import CPU, Placement
from services.store.artifacts import Artifact
from services.trainer.evaluation.protocol import EvaluationQuery, evaluate
from services.trainer.jobs.files import ComputeOptions, JobFiles
from services.trainer.models.batches import Batches, outputs_of
from services.trainer.models.space import SpaceSpec
from services.trainer.train.export import quantization
from services.trainer.train.export.quantization import Int8Trial, Recipe, add_int8, int8_gate, quantize
from services.trainer.train.export.writer import PROBES
from services.trainer.train.job import run_job
from support.torn_disk import full_disk
from support.worlds.trainer_world import FACTS, VALIDATION, MakeJob, Space, killed_after, load, maps_of, result_of

DIM = 8
PREMISES = np.eye(DIM, dtype=np.float32)
ORDINALS = {f"p{n}": n for n in range(DIM)}
INT8_FILES = {"model.int8.onnx", "probes.int8.npy"}
FIGURES = ("map_loss", "cosine_mean", "cosine_min")
CROSS = {"mode": "CROSS_ENCODER", "loss": "REGRESSION", "hard_negatives": 4, "epochs": 1}


def turned(angle_cosine: float, towards: int = 5) -> np.ndarray:
    """The unit vector at a cosine to premise 0, the rest of it along another premise."""
    vector = np.zeros(DIM, dtype=np.float32)
    vector[0], vector[towards] = angle_cosine, np.sqrt(1 - angle_cosine**2)
    return vector


def trial_of(queries: list[EvaluationQuery], premises: np.ndarray, ordinals: dict[str, int]) -> Int8Trial:
    texts = [query.text for query in queries]
    return Int8Trial(texts, len(texts), lambda found: evaluate(queries, found, premises, ordinals).strict.map)


def at(*cosines: float) -> list[np.ndarray]:
    return [turned(one) for one in cosines]


NEAR, FAR = 0.72, 0.70  # the gold premise falls from the first rank to the second


@pytest.mark.parametrize(
    ("fp32", "int8", "map_loss", "told"),
    [
        (at(*[1.0] * 10), at(0.951, *[0.998] * 9), 0.0, ""),
        (at(*[1.0] * 10), at(*[0.985] * 10), 0.0, "the mean cosine to fp32 is 0.9850, below 0.99"),
        (at(*[1.0] * 10), at(0.949, *[0.9999] * 9), 0.0, "the least cosine to fp32 is 0.9490, below 0.95"),
        (at(*[NEAR] * 251), at(FAR, *[NEAR] * 250), 0.5 / 251, ""),
        (at(*[NEAR] * 249), at(FAR, *[NEAR] * 248), 0.5 / 249, "MAP falls by 0.0020, more than 0.002"),
        (at(*[FAR] * 3), at(*[NEAR] * 3), -0.5, ""),
        (at(1.0, 1.0), at(1.0, np.nan), None, "not finite"),  # it does not end the job
    ],
)
def test_figures_within_their_bounds_pass_and_others_fail_by_name(
    fp32: list[np.ndarray], int8: list[np.ndarray], map_loss: float | None, told: str
):
    queries = [EvaluationQuery(f"q{n}", ("p0",)) for n in range(len(fp32))]
    found = int8_gate(trial_of(queries, PREMISES, ORDINALS), np.stack(int8), np.stack(fp32))
    assert (found.passed, found.queries, bool(found.reason)) == (not told, len(fp32), bool(told))
    assert told in found.reason
    assert found.map_loss == (map_loss if map_loss is None else pytest.approx(map_loss))
    cosines = [float(one @ other) for one, other in zip(fp32, int8, strict=True)]
    if map_loss is not None:
        assert (found.cosine_mean, found.cosine_min) == pytest.approx((np.mean(cosines), min(cosines)), abs=1e-6)


@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_quantising_twice_gives_the_same_bytes_and_leaves_nothing_else(space: Space, tmp_path: Path, recipe: Recipe):
    source = space.store.open("checkpoints", space.version).file("model.onnx")
    for name in ("a", "b"):
        quantize(source, tmp_path / name, recipe)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "b").read_bytes()
    check_onnx(memoryview(data), "a")
    operators = {node.op_type for node in onnx.load_from_string(data).graph.node}
    assert operators & {"MatMulIntegerToFloat", "MatMulNBits"}


@pytest.mark.parametrize("recipe", ["rowwise", "blockwise"])
def test_neighbours_and_padding_do_not_change_a_vector(space: Space, tmp_path: Path, recipe: Recipe):
    artifact = space.store.open("checkpoints", space.version)
    quantize(artifact.file("model.onnx"), tmp_path / "int8", recipe)
    batches = Batches.of(artifact.path, SpaceSpec.of_meta(artifact.meta), 0)
    runner = PaddedRunner(open_session(tmp_path / "int8", Placement([CPU]), "sentence_embedding"), pad_id=0, dim=32)
    together = runner.run([Tokens(one) for one in batches.ids(PROBES)])
    assert np.abs(together - outputs_of(tmp_path / "int8", batches, PROBES)).max() <= 1e-5


def test_no_pair_of_products_leaves_16_bits_so_processors_without_vnni_do_not_saturate(space: Space, tmp_path: Path):
    quantize(space.store.open("checkpoints", space.version).file("model.onnx"), tmp_path / "int8")
    model = onnx.load(tmp_path / "int8")
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMulIntegerToFloat"]
    assert products
    for node in products:
        weight = tensors[node.input[1]].astype(np.int32)
        assert 255 * np.abs(weight).max() * 2 <= np.iinfo(np.int16).max


def checkpoint(space: Space, files: JobFiles) -> Artifact:
    return space.store.open("checkpoints", result_of(files)["version"], verify="full")


def spoil(*recipes: Recipe) -> Callable[[Path, Path, Recipe], None]:
    """A `quantize` that loses the meaning of all words with some recipes."""

    def spoiled(fp32_path: Path, int8_path: Path, recipe: Recipe) -> None:
        quantize(fp32_path, int8_path, recipe)
        if recipe in recipes:
            model = onnx.load(int8_path)
            (table,) = [t for t in model.graph.initializer if t.name.endswith("word_embeddings.weight")]
            noise = np.random.default_rng(0).normal(size=tuple(table.dims)).astype(np.float32)
            table.CopyFrom(onnx.numpy_helper.from_array(noise, table.name))
            onnx.save(model, int8_path)

    return spoiled


def test_a_model_that_passes_is_in_the_checkpoint_with_its_probes_and_figures(space: Space, make_job: MakeJob):
    files = make_job(epochs=2)
    artifact = checkpoint(space, files)
    meta = artifact.meta["int8"]
    assert set(meta) == {"passed", "map_loss", "cosine_mean", "cosine_min", "queries", "reason", "recipe"}
    assert (meta["passed"], meta["queries"], meta["reason"], meta["recipe"]) == (True, 8, "", "rowwise")
    assert set(artifact.files) >= INT8_FILES
    spec = SpaceSpec.of_meta(artifact.meta)
    batches = Batches.of(artifact.path, spec, 0)
    probes = np.load(artifact.file("probes.int8.npy"), allow_pickle=False)
    assert probes.shape == (16, 32)
    assert np.array_equal(probes, outputs_of(artifact.file("model.int8.onnx"), batches, PROBES))
    assert not np.array_equal(probes, np.load(artifact.file("probes.npy"), allow_pickle=False))

    generation = open_generation(space.store, files.plan().config.corpus, files.plan().generation)
    texts = [query.text for query in VALIDATION]
    fp32, int8 = (outputs_of(artifact.file(name), batches, texts) for name in ("model.onnx", "model.int8.onnx"))
    maps = [
        evaluate(VALIDATION, vectors, generation.vectors, generation.premises.ordinal_by_text).strict.map
        for vectors in (fp32, int8)
    ]
    cosines = (fp32 * int8).sum(axis=1)
    expected = [maps[0] - maps[1], cosines.mean(), cosines.min()]
    assert [meta[name] for name in FIGURES] == pytest.approx(expected, abs=2e-6)
    assert not np.array_equal(fp32, int8)


def test_a_model_that_fails_is_left_out_and_the_manifest_says_why(space: Space, make_job: MakeJob, monkeypatch):
    monkeypatch.setattr(quantization, "quantize", spoil("rowwise", "blockwise"))
    artifact = checkpoint(space, make_job(epochs=1))
    meta = artifact.meta["int8"]
    assert meta["passed"] is False
    assert meta["cosine_mean"] < 0.99
    assert "the mean cosine to fp32" in meta["reason"]
    assert not INT8_FILES & set(artifact.files)


@pytest.fixture
def tried(space: Space, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Tries the pre-trained model in `tmp_path` and returns what goes into the manifest."""
    artifact = space.store.open("checkpoints", space.version)
    (tmp_path / "model.onnx").write_bytes(artifact.file("model.onnx").read_bytes())
    batches = Batches.of(artifact.path, SpaceSpec.of_meta(artifact.meta), 0)
    trial = trial_of(VALIDATION, space.encode(FACTS), {text: n for n, text in enumerate(FACTS)})
    return lambda: add_int8(tmp_path, batches, trial.items[:3], trial)


def test_where_the_fast_recipe_fails_the_finer_one_is_tried(tried, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(quantization, "quantize", spoil("rowwise"))
    meta = tried()
    assert (meta["passed"], meta["reason"], meta["recipe"]) == (True, "", "blockwise")
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", *INT8_FILES}
    assert "MatMulNBits" in {node.op_type for node in onnx.load(tmp_path / "model.int8.onnx").graph.node}


def broken(fp32_path: Path, int8_path: Path, recipe: Recipe) -> None:
    int8_path.write_bytes(b"half a model")
    raise RuntimeError("no kernel")


@pytest.mark.parametrize("kind", ["RuntimeError", "OSError"])
def test_a_quantisation_that_breaks_or_has_no_room_leaves_fp32_alone_and_a_reason(
    tried, tmp_path: Path, monkeypatch, kind: str
):
    if kind == "RuntimeError":
        monkeypatch.setattr(quantization, "quantize", broken)
    with full_disk(4_096) if kind == "OSError" else nullcontext():
        meta = tried()
    assert (meta["passed"], meta["map_loss"]) == (False, None)
    assert meta["reason"] == f"the quantisation failed ({kind}); the trainer's log has it"
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}


def test_a_failed_quantisation_leaves_no_file_of_its_own(tmp_path: Path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(Exception, match="onnx"):
        quantize(tmp_path / "model.onnx", tmp_path / "model.int8.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}


@pytest.mark.parametrize("options", [{"epochs": 1}, CROSS], ids=["encoder", "pairs"])
def test_int8_can_be_switched_off_and_needs_queries_without_which_the_last_epoch_is_kept(
    space: Space, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
):
    monkeypatch.setattr(quantization, "quantize", None)  # would be called, and fail
    off = checkpoint(space, make_job(means=ComputeOptions(int8=False), **options))
    unmeasured = checkpoint(space, make_job(validation=[], **{**options, "epochs": 2}))
    for artifact in (off, unmeasured):
        assert "int8" not in artifact.meta
        assert not INT8_FILES & set(artifact.files)
    assert (unmeasured.meta["lineage"]["best_epoch"], "metrics.json" in unmeasured.files) == (2, False)


@pytest.mark.slow
def test_a_job_that_was_killed_ends_with_the_same_version_int8_included(space: Space, make_job: MakeJob):
    files = make_job(epochs=2)
    whole = checkpoint(space, files)
    assert whole.meta["int8"]["passed"]
    # The content decides the version: the first checkpoint must be gone, or it would be found instead of written.
    whole.path.rename(files.directory / "whole")
    for name in ("result.json", "epoch.safetensors"):
        (files.directory / name).unlink()
    with killed_after(1):
        run_job(files)
    resumed = checkpoint(space, files)
    assert (resumed.id, resumed.files) == (whole.id, whole.files)


def scores_of(artifact: Artifact, file: str, files: JobFiles, pairs: list[tuple[str, str]]) -> Any:
    """Each pair alone."""
    import onnxruntime

    batches = load(files).batches
    session = onnxruntime.InferenceSession(artifact.file(file), providers=["CPUExecutionProvider"])
    each = [batches.inputs([pair]) for pair in pairs]
    return np.array([session.run(["score"], feeds)[0][0] for feeds in each])


def test_a_model_of_pairs_that_passes_is_in_the_checkpoint_with_its_probes_and_figures(space: Space, make_job: MakeJob):
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
def asked(monkeypatch) -> list[tuple[float, Any]]:
    """What the gate is asked: fp32's MAP, and how it measures scores."""
    seen: list[tuple[float, Any]] = []
    gate = quantization.int8_gate
    monkeypatch.setattr(
        quantization,
        "int8_gate",
        lambda trial, *outputs: seen.append((trial.fp32_map, trial.map_of)) or gate(trial, *outputs),
    )
    return seen


def test_the_gate_measures_the_order_that_scores_give(space: Space, make_job: MakeJob, asked):
    artifact = checkpoint(space, make_job(**CROSS))
    ((fp32_map, map_of), *_) = asked
    assert fp32_map == pytest.approx(maps_of(artifact)[1])
    count = 20 * len(VALIDATION)
    assert map_of(np.zeros(count, np.float32)) != map_of(np.arange(count, dtype=np.float32))
