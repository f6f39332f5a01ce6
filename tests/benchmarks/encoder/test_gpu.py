"""The benchmark of GPUs, tried on the CPU with small models: each part ends, and what ran on a card is kept."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from benchmarks.encoder import gpu, gpu_index, gpu_stages
from benchmarks.encoder.gpu_encoders import by_turns, ours, plain_torch
from benchmarks.encoder.gpu_setting import NotMeasured, Setting, make_model, make_texts
from benchmarks.harness import rows
from services.index.dense import card

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
Run = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), SMALL)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path) -> Run:
    """Runs the command with options, and returns its rows and exit status."""
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(gpu, "make_model", lambda _: model)

    def run(*options: str, ends: int = 0) -> dict[str, dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["gpu", *options])
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        assert ended.value.code == ends
        written = max(tmp_path.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        return {row["row"]: row for row in json.loads(written.read_text())}

    return run


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three parts on a card that stands in for one, of which the second fails; those that ran."""
    ran = list[str]()

    def part(name: str) -> gpu.Part:
        async def measure(found: rows.Rows, setting: Setting) -> None:
            ran.append(name)
            found.at_most(f"{name}: figure", 1.0, "s", 2)
            if name == "broken":
                raise RuntimeError("CUDA error: out of memory")

        return measure

    async def lacking(found: rows.Rows, setting: Setting) -> None:
        raise NotMeasured("this onnxruntime has no CUDA")

    monkeypatch.setattr(
        gpu, "PARTS", {"first": part("first"), "broken": part("broken"), "lacking": lacking, "last": part("last")}
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    return ran


async def test_each_encoder_gives_the_vectors_of_the_texts_in_their_order(model: Path):
    texts = [text for some in make_texts(0.002).values() for text in some]
    expected = await ours(model, "cpu", half=False)(texts)
    assert len(np.unique(expected.round(4), axis=0)) == len(texts)
    for encode in (ours(model, "cpu"), plain_torch(model, "cpu")):
        np.testing.assert_allclose(await encode(texts), expected, atol=5e-3)


async def test_an_encoder_that_computes_something_else_is_no_rival(model: Path):
    texts = make_texts(0.001)["facts"]
    right = ours(model, "cpu", half=False)

    async def wrong(texts: list[str]) -> np.ndarray:
        return (await right(texts))[::-1]

    with pytest.raises(ValueError, match="wrong computes other vectors than ours"):
        await by_turns({"ours": right, "wrong": wrong}, texts, 1)


def test_without_a_gpu_every_part_is_named_as_owed(monkeypatch: pytest.MonkeyPatch, measured: Run):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    *found, owed = measured().values()
    assert [row["row"] for row in found] == list(gpu.PARTS)
    assert all("not measured: torch finds no GPU" in row["value"] for row in found)
    assert owed["value"] == ", ".join(gpu.PARTS)


def test_a_trial_on_a_cpu_ends_with_the_rows_of_all_parts_and_keeps_none(
    monkeypatch: pytest.MonkeyPatch, measured: Run, tmp_path: Path
):
    monkeypatch.delenv("ORT_CUDA_GEMM_OPTIONS", raising=False)
    monkeypatch.setattr(gpu, "PREMISES", 64)
    monkeypatch.setattr(gpu_stages, "BERT_LARGE", SMALL)
    for module in (card, gpu_index):  # several parts and slices
        monkeypatch.setattr(module, "PART_ROWS", 900)
    monkeypatch.setattr(gpu_index, "SLICE", 700)
    found = measured("--device", "cpu", "--share", ".001", "--side", "32", "--rounds", "1")
    ended = [part for part in gpu.PARTS if f"{part}: the whole part" in found]
    assert ended == [part for part in gpu.PARTS if part != "faiss-gpu"]
    assert found["faiss-gpu"]["value"] == "not measured: this faiss has no GPU"
    assert all(
        row["value"] > 0 for row in found.values() if row["unit"] in {"texts/s", "x", "ms", "ms a step", "TFLOP/s"}
    )
    stages = [row["value"] for name, row in found.items() if name.startswith("facts: share of ")]
    assert len(stages) == 5
    assert all(0 <= share <= 1 for share in stages)
    assert found["2,000 x 384: share left to the CPU"]["baseline"] == 2, "the two among the near-equal rows alone"
    assert found["owed: parts that never ran on a card as a whole"]["value"] == ", ".join(gpu.PARTS)
    assert "ORT_CUDA_GEMM_OPTIONS" not in os.environ, "other parts measure as if alone"
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert not (tmp_path / "kept").exists()


def test_a_part_that_ran_on_a_card_is_kept_and_one_that_fails_or_lacks_something_leaves_the_others(
    measured: Run, parts: list[str], tmp_path: Path
):
    found = measured("--commit", "abc1234", ends=1)
    assert found["broken"]["value"] == "failed: RuntimeError: CUDA error: out of memory"
    assert found["lacking"]["value"] == "not measured: this onnxruntime has no CUDA"
    assert [row for row, of in found.items() if not of["ok"]] == ["broken"]
    assert list(found.values())[-1]["value"] == "broken, lacking"
    assert {path.stem for path in (tmp_path / "kept" / "gpu").iterdir()} == {"first", "last"}
    kept = json.loads((tmp_path / "kept" / "gpu" / "last.json").read_text())
    assert (kept["measured"]["card"], kept["measured"]["commit"]) == ("a card", "abc1234")
    assert {"day", "torch", "driver", "cuda", "onnxruntime"} <= kept["measured"].keys()
    assert [row["row"] for row in kept["rows"]] == ["last: figure", "last: the whole part"]
    again = measured(ends=1)
    assert parts == ["first", "broken", "last", "broken"], "what is kept is not measured again"
    assert again["first"]["value"].startswith("kept: a card, ")
    assert again["first: figure"] == found["first: figure"]
    measured("--only", "first", "--again")
    measured("--only", "first", "--again", "--share", ".5")
    assert parts[4:] == ["first", "first"]
    assert json.loads((tmp_path / "kept" / "gpu" / "first.json").read_text())["measured"]["commit"] != "abc1234"


@pytest.mark.parametrize("option", ["--share=.5", "--side=32", "--rounds=1", "--model=elsewhere"])
def test_a_trial_on_a_card_is_not_kept(measured: Run, parts: list[str], tmp_path: Path, option: str):
    assert measured("--only", "first", option)["first: figure"]["ok"]
    assert not (tmp_path / "kept").exists()


def test_proposals_of_faiss_gpu_are_measured_where_it_is(monkeypatch: pytest.MonkeyPatch, measured: Run):
    class OnCard(faiss.IndexFlatIP):
        """A flat index that ignores masks, as those on cards may."""

        def __init__(self, resources: object, dim: int, config: SimpleNamespace) -> None:
            assert (config.useFloat16, config.device) == (True, 0)
            super().__init__(dim)

        def search(self, queries: np.ndarray, width: int, params: object = None) -> Any:
            return super().search(queries, width)

    given = {"StandardGpuResources": object, "GpuIndexFlatConfig": SimpleNamespace, "GpuIndexFlatIP": OnCard}
    for name, value in given.items():
        monkeypatch.setattr(faiss, name, value, raising=False)
    found = measured("--only", "faiss-gpu", "--device", "cpu", "--share", ".001")
    assert found["queries of 64 whose 10 best are not all among 42"]["value"] == 0
    assert found["rows that a mask forbids, of 2688"]["value"] > 0
    assert {name.split()[0] for name, row in found.items() if row["unit"] == "ms"} == {"faiss-gpu", "torch"}
