"""`make bench NAME=quality`: significance by groups of trees, not by queries, which are not independent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from aeenc.evaluation import paired_randomisation_test
from aeenc.trees import Dataset
from benchmarks.tables.quality import Measured, p_by_tree, retrieval_of, share_of_whole_trees
from services.index.ranking.tuning import Weights
from services.index.values import SearchHits


def _dataset(path: Path) -> Dataset:
    """One tree of ten inner nodes, each the premise of the next."""
    context = " ".join(f"sent{n}: leaf {n}" for n in range(1, 12))
    steps = ["sent1 & sent2 -> int1: node 1"]
    steps += [f"int{n - 1} & sent{n + 1} -> int{n}: node {n}" for n in range(2, 10)]
    steps.append("int9 & sent11 -> hypothesis")
    record = {"id": "one", "hypothesis": "the top", "context": context, "proof": "; ".join(steps) + "; "}
    folder = path / "dataset" / "task_1"
    folder.mkdir(parents=True)
    (folder / "dev.jsonl").write_text(json.dumps(record) + "\n")
    return Dataset.load(path)


def test_ten_queries_of_one_tree_are_one_observation(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path)
    unseen = np.ones(10, bool)
    better, worse = Measured(np.full(10, 0.9), unseen), Measured(np.full(10, 0.1), unseen)
    assert paired_randomisation_test(better.average_precisions, worse.average_precisions) < 0.01
    assert p_by_tree(dataset, "dev", better, worse) == 1.0


def test_weights_and_features_become_options_of_retrieve() -> None:
    made = retrieval_of(Weights(0.2, 0.1, 0.3), {"rank": 1.0})
    assert (made.mode, made.prior, made.negative_feedback) == ("hybrid", 0.1, 0.3)
    assert made.fusion is not None
    assert (made.fusion.lexical_weight, made.fusion.features) == (0.2, {"rank": 1.0})


def test_a_tree_is_whole_if_all_its_leaves_are_among_the_first_25_of_its_hypothesis(tmp_path: Path) -> None:
    trees = _dataset(tmp_path).trees("dev")
    texts = [f"leaf {n}" for n in range(1, 12)] + [f"other {n}" for n in range(20)]
    in_order = np.arange(len(texts))
    scores = np.linspace(1.0, 0.0, len(texts), dtype=np.float32)
    found, missed = SearchHits(in_order, scores), SearchHits(in_order[::-1].copy(), scores)
    assert share_of_whole_trees(trees, {"the top": found}, texts) == 1.0
    assert share_of_whole_trees(trees, {"the top": missed}, texts) == 0.0
