"""The benchmark of GPUs, tried on the CPU with a small model: each encoder gives the same vectors in the same order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.encoder import gpu
from benchmarks.encoder.gpu import make_model, make_texts
from benchmarks.encoder.gpu_encoders import ours, plain_torch
from benchmarks.harness import rows

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), SMALL)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    return tmp_path / "gpu.json"


async def test_each_encoder_gives_the_vectors_of_the_texts_in_their_order(model: Path):
    texts = [text for some in make_texts(0.002).values() for text in some]
    expected = await ours(model, "cpu", half=False)(texts)
    assert len(np.unique(expected.round(4), axis=0)) == len(texts)
    for encode in (ours(model, "cpu"), plain_torch(model, "cpu")):
        np.testing.assert_allclose(await encode(texts), expected, atol=5e-3)


def test_without_a_gpu_every_row_says_that_it_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, written: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 0
    found = json.loads(written.read_text())
    assert {row["row"] for row in found} == set(gpu.PARTS)
    assert all("not measured: torch finds no GPU" in row["value"] for row in found)


def test_all_rows_are_measured_with_what_is_there(
    monkeypatch: pytest.MonkeyPatch, written: Path, model: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(gpu, "PREMISES", 64)
    size = ["--share", ".0125", "--side", "32", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--model", str(model), *size])
    with pytest.raises(SystemExit):
        gpu.main()
    found = {row["row"]: row for row in json.loads(written.read_text())}
    assert found["float32 on cpu: 1 - cosine to the CPU's"]["value"] <= gpu.FARTHEST
    assert any(name.startswith("facts: ours") for name in found)
    measured = [row for row in found.values() if row["unit"] in {"texts/s", "x", "ms a step", "TFLOP/s"}]
    assert all(row["value"] > 0 for row in measured)
    assert sum(name.startswith("training on cpu") for name in found) == 2


async def test_an_encoder_that_computes_something_else_is_no_rival(model: Path):
    texts = make_texts(0.001)["facts"]
    right = ours(model, "cpu", half=False)

    async def wrong(texts: list[str]) -> np.ndarray:
        return (await right(texts))[::-1]

    with pytest.raises(SystemExit, match="wrong computes other vectors than ours"):
        await gpu.by_turns({"ours": right, "wrong": wrong}, texts, 1)
