"""`aeenc tune-retrieval` from folds to options, beside all four services."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aeenc.trees import HELD_OUT, Dataset
from services.index.values import FEATURES, WIDE_FEATURES
from support.worlds.light_fleet import LightFleet, light_fleet

__all__ = ["light_fleet"]


def _result(stdout: str) -> Any:
    """The result among what the services of this process log."""
    [line] = [line for line in stdout.splitlines() if line.startswith("{")]
    return json.loads(line)


async def test_weights_are_tuned_on_the_held_out_queries_of_all_folds(aeenc, light_fleet: LightFleet, tmp_path, trees):
    pytest.importorskip("optuna")
    client = light_fleet.client
    targets = [
        word
        for name in ("encoder", "index", "sampler", "trainer")
        for word in (f"--{name}", getattr(client, name).channel.target)
    ]
    written = await aeenc.json("export", "folds", "--data", trees, "--to", tmp_path / "folds", "--folds", 2)
    tune = (*targets, "--json", "tune-retrieval", tmp_path / "folds", "--pretrained", "--trials", 3)
    ended = await aeenc(*tune)
    assert ended.code == 0, ended.stderr
    assert "queries are few" in ended.stderr
    result = _result(ended.stdout)
    folds = [Dataset.load(path) for path in written["folds"].values()]
    assert result["queries"] == sum(len(fold.queries(HELD_OUT)) for fold in folds)
    assert result["map"]["tuned"] >= max(result["map"]["alone"], result["map"]["published"])
    assert set(result["weights"]) == {"lexical_weight", "prior", "negative_feedback"}
    assert set(result["features"]) == set(FEATURES) - set(WIDE_FEATURES)
    wide = await aeenc(*tune, "--wide")
    assert set(_result(wide.stdout)["features"]) == set(FEATURES)
    assert result["map"][result["best"]] == max(result["map"].values())
    assert ("--features" in result["options"]) == (result["best"] == "with features")
    assert "fold" not in [label.name async for label in client.registry.list_labels()]

    async def measured(**features: float) -> float:
        words = ("--data", trees, "--split", "train", "--mode", "hybrid", "--protocol", "strict", "--no-trees")
        ended = await aeenc(*targets, "--json", "evaluate", *words, "--features", json.dumps(features))
        assert ended.code == 0, ended.stderr
        return float(_result(ended.stdout)["strict"]["MAP"])

    as_it_was, reversed_ = await measured(rank=1.0), await measured(rank=-1.0)
    assert as_it_was == await measured() > reversed_


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--pretrained", "--cross-epochs", 1), "--cross-epochs 1 trains"),
        (("--cross-base-model", "mpnet"), "add --cross-epochs"),
        (("--cross-learning-rate", 5e-5), "add --cross-epochs"),
    ],
)
async def test_options_of_a_cross_encoder_that_is_not_trained_are_refused(aeenc, tmp_path, options, told):
    for name in ("one", "two"):
        folder = tmp_path / name / "dataset" / "task_1"
        folder.mkdir(parents=True)
        (folder / f"{HELD_OUT}.jsonl").touch()
    ended = await aeenc("--json", "tune-retrieval", tmp_path, *options)
    assert (ended.code, told in ended.error["message"]) == (2, True)
