"""The base models of the paper's Table 1 that say little of themselves: their vectors are the published ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from aeenc.errors import DataLoss, FailedPrecondition
from services.trainer.models.batches import Batches
from services.trainer.models.space import space_id_of
from services.trainer.train.encoder import load_encoder, tensors_of
from support.models.base_model_vectors import (
    TEXTS,
    by_transformers,
    least_cosine,
    ours,
    served,
    spec_of,
    try_one_step,
)
from support.models.tiny_base_models import (
    write_dpr,
    write_modules,
    write_sentence_model,
    write_sentence_t5,
    write_simcse,
)
from support.worlds.trainer_world import MakeJob, Space, export_space, maps_of, result_of


def by_hand(directory: Path, architecture: str, vector: Callable[[Any], Any]) -> Any:
    """TEXTS one by one through a class of transformers; `vector` takes a text's from what it answers."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = getattr(transformers, architecture).from_pretrained(directory).eval()
    with torch.inference_mode():
        rows = [vector(model(**tokenizer(text, return_tensors="pt"))) for text in TEXTS]
        return torch.nn.functional.normalize(torch.stack(rows), dim=1).numpy()


@dataclass(frozen=True)
class Published:
    """One of the table's models: how it is written, and the vectors that it is published for."""

    write: Callable[[Path], Path]
    expected: Callable[[Path], Any]
    pooling: str = ""


def by_t5(directory: Path) -> Any:
    """The mean of the encoder's vectors through the linear layer."""
    from safetensors.torch import load_file

    tensors = load_file(directory / "2_Dense" / "model.safetensors")
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias", 0)
    return by_hand(directory, "T5EncoderModel", lambda out: weight @ out.last_hidden_state[0].mean(0) + bias)


MODELS = {
    "simcse": Published(
        write_simcse, lambda path: by_hand(path, "BertModel", lambda out: out.last_hidden_state[0, 0]), pooling="cls"
    ),
    "dpr": Published(write_dpr, lambda path: by_hand(path, "DPRQuestionEncoder", lambda out: out.pooler_output[0])),
    "sentence-t5": Published(write_sentence_t5, by_t5),
}


@pytest.fixture(scope="module", params=MODELS)
def published(request: pytest.FixtureRequest) -> Published:
    """Each model of the table."""
    return MODELS[request.param]


@pytest.fixture(scope="module")
def space(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Space:
    """The space of a model, which the fixtures of jobs take."""
    root = tmp_path_factory.mktemp("published")
    return export_space(root, published.write(root / "base"), published.pooling)


@pytest.mark.slow
def test_a_model_of_the_table_is_exported_and_served_by_both_runtimes(published: Published, space: Space) -> None:
    from services.encoder.runtime.torch_session import open_torch_session

    artifact = space.store.open("checkpoints", space.version)
    assert space.space_id == space_id_of(space.base, spec_of(space.base, pooling=published.pooling, max_tokens=64))
    expected = published.expected(space.base)
    model = served(artifact)
    tokens = model.tokenization.texts(TEXTS, truncate=True).tokens
    np.testing.assert_allclose(model.runners["float32"].run(tokens), expected, atol=1e-4)
    session = open_torch_session(artifact, "cpu")
    for text, vector in zip(tokens, expected, strict=True):
        feeds = {"input_ids": np.array([text.ids]), "attention_mask": np.ones((1, len(text.ids)), dtype=np.int64)}
        np.testing.assert_allclose(session.run(None, feeds)[0][0], vector, atol=1e-4)


@pytest.mark.slow
def test_a_job_learns_from_a_model_of_the_table(space: Space, make_job: MakeJob) -> None:
    files = make_job(epochs=4, learning_rate=2e-4)
    artifact = space.store.open("checkpoints", result_of(files)["version"])
    quality_before, quality = maps_of(artifact)
    assert quality > quality_before + 0.05
    assert artifact.meta["space_id"] == space.space_id
    before = load_file(space.store.open("checkpoints", space.version).file("model.safetensors"))
    after = load_file(artifact.file("model.safetensors"))
    assert before.keys() == after.keys()
    assert all("pooler" in name for name in after if np.array_equal(before[name], after[name]))
    try_one_step(artifact)


def test_an_encoder_of_contexts_gives_its_published_vectors(tmp_path: Path) -> None:
    directory = write_dpr(tmp_path, "Context")
    published = by_hand(directory, "DPRContextEncoder", lambda out: out.pooler_output[0])
    assert least_cosine(ours(directory), published) >= 0.99999


def test_a_projection_and_a_reader_of_dpr_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="a projection to 16 dimensions"):
        ours(write_dpr(tmp_path / "projected", projection_dim=16))
    with pytest.raises(DataLoss, match=r"does not fit its config.json: embeddings\.LayerNorm"):
        ours(write_dpr(tmp_path / "reader", "Reader"))


def test_an_operator_says_how_a_model_is_pooled_whatever_its_directory_says(tmp_path: Path) -> None:
    directory = write_simcse(tmp_path / "silent")
    assert least_cosine(ours(directory), by_transformers(directory, "mean")) >= 0.99999
    assert least_cosine(ours(directory, pooling="cls"), by_transformers(directory, "cls")) >= 0.99999
    spaces = {space_id_of(directory, spec_of(directory, pooling=pooling)) for pooling in ("", "mean", "cls", "max")}
    assert len(spaces) == 3
    directory = write_sentence_model(tmp_path / "says", pooling={"pooling_mode": "max"})
    assert [spec_of(directory, pooling=pooling).pooling for pooling in ("", "cls")] == ["max", "cls"]


def test_the_linear_layer_of_sentence_t5_may_have_a_bias(tmp_path: Path) -> None:
    directory = write_sentence_t5(tmp_path, bias=True)
    assert least_cosine(ours(directory), by_t5(directory)) >= 0.99999


def test_the_linear_layer_is_a_part_of_the_space(tmp_path: Path) -> None:
    directory = write_sentence_t5(tmp_path)
    before = space_id_of(directory, spec_of(directory))
    path = directory / "2_Dense" / "model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(path).items()}, path)
    assert space_id_of(directory, spec_of(directory)) != before


def test_weights_of_an_encoder_with_its_decoder_are_found(tmp_path: Path) -> None:
    from transformers import AutoConfig, T5EncoderModel, T5Model

    directory = write_sentence_t5(tmp_path)
    expected = ours(directory)
    config = AutoConfig.from_pretrained(directory)
    config.is_encoder_decoder = True
    whole = T5Model(config)
    whole.load_state_dict(T5EncoderModel.from_pretrained(directory).state_dict(), strict=False)
    whole.save_pretrained(directory)
    np.testing.assert_array_equal(ours(directory), expected)


@pytest.mark.parametrize(
    ("error", "change", "message"),
    [
        (FailedPrecondition, {"activation_function": "torch.nn.modules.activation.Tanh"}, "asks for activation Tanh"),
        (FailedPrecondition, {"out_features": None}, "has no out_features"),
        (DataLoss, {"out_features": 16}, "2_Dense/model.safetensors does not fit"),
        (
            DataLoss,
            lambda layer: save_file({"other": np.zeros(1, np.float32)}, layer / "model.safetensors"),
            "2_Dense/model.safetensors does not fit",
        ),
        (
            FailedPrecondition,
            lambda layer: (layer / "model.safetensors").rename(layer / "pytorch_model.bin"),
            "2_Dense has no model.safetensors; export it in safetensors format",
        ),
        (
            FailedPrecondition,
            lambda layer: write_modules(layer.parent, ["Pooling", "Dense", "Dense"]),
            "asks for Transformer, Pooling, Dense, Dense",
        ),
    ],
)
def test_a_linear_layer_that_cannot_be_computed_is_refused(
    tmp_path: Path, error: type[Exception], change: Any, message: str
) -> None:
    directory = write_sentence_t5(tmp_path)
    path = directory / "2_Dense" / "config.json"
    if callable(change):
        change(path.parent)
    else:
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(error, match=message):
        ours(directory)


def test_a_layer_after_the_pooling_computes_in_float32_though_the_transformer_does_not(tmp_path: Path) -> None:
    directory = write_sentence_t5(tmp_path)
    spec = spec_of(directory)
    inputs = tensors_of(Batches.of(directory, spec, 0).inputs(TEXTS))
    vectors = load_encoder(directory, spec).in_precision(**inputs, precision="bfloat16")
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)), atol=1e-6, rtol=0)
