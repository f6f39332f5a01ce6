"""`make bench NAME=quality`: significance by groups of trees, not by queries, which are not independent."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from aeenc.evaluation import paired_randomisation_test
from aeenc.trees import Dataset
from benchmarks.harness import rows
from benchmarks.tables import quality
from benchmarks.tables.by_tree import (
    BY_QUERY,
    FACTS,
    asked_of,
    by_query,
    difference,
    fact_precisions_of,
    groups_of,
    means_of,
    p_by_tree,
    precisions_of,
    whole_trees,
)
from benchmarks.tables.quality import retrieval_of
from services.tuning.out_of_fold import Weights


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
    groups = groups_of(_dataset(tmp_path), "dev")
    better, worse = np.full(10, 0.9), np.full(10, 0.1)
    assert paired_randomisation_test(better, worse) < 0.01
    assert p_by_tree(groups, better, worse) == 1.0


def _report(precisions: list[float], groups: list[int], unseen: Sequence[int] = ()) -> dict[str, object]:
    return {BY_QUERY: {"AP": precisions, "group": groups, "unseen": unseen or [1] * len(groups)}}


def test_a_query_of_train_is_seen_and_a_difference_leaves_it_out_on_demand(tmp_path: Path) -> None:
    _dataset(tmp_path)
    record = {"id": "two", "hypothesis": "node 3", "context": "sent1: leaf 20 sent2: leaf 21"}
    learned = json.dumps({**record, "proof": "sent1 & sent2 -> hypothesis; "})
    (tmp_path / "dataset" / "task_1" / "train.jsonl").write_text(learned + "\n")
    dataset = Dataset.load(tmp_path)
    asked = asked_of(dataset, "dev")
    told = by_query(dataset, "dev", [[1, 1]] * len(asked))
    assert [text for text, unseen in zip(asked, told["unseen"], strict=True) if not unseen] == ["node 3"]

    groups = [0, 0, 1, 1, 2, 2]
    for unseen, expected in (([0, 0, 1, 1, 1, 1], 0.1), ([0] * 6, None)):
        high, low = (_report([at, at, *[rest] * 4], groups, unseen) for at, rest in ((0.9, 0.3), (0.5, 0.2)))
        found = difference([high], [low], unseen=True)
        assert (found and found.mean) == (expected and pytest.approx(expected))
        whole = difference([high], [low])
        assert whole is not None
        assert whole.mean == pytest.approx(0.2)


def test_a_difference_is_that_of_the_means_over_seeds_and_its_interval_is_by_group() -> None:
    groups = [n // 2 for n in range(40)]
    low, high = [_report([at + n % 2 / 10 for n in range(40)], groups) for at in (0.2, 0.4)]
    mixed = _report([0.2 + n % 2 / 10 + 0.4 * (n // 2 % 2) for n in range(40)], groups)  # every second group is better
    found = difference([high, high], [low])
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.2, 0.2))
    assert found.p < 0.001
    found = difference([mixed], [low])
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    spread = 0.2 / np.sqrt(20)
    assert (found.low, found.high) == pytest.approx((0.2 - 1.96 * spread, 0.2 + 1.96 * spread), abs=0.03)
    found = difference([low, mixed], [mixed, low])
    assert found is not None
    assert (found.mean, found.p) == (0.0, 1.0)


def test_reports_that_keep_nothing_by_query_are_not_compared() -> None:
    report = _report([0.5], [0])
    assert difference([report, {}], [report]) is None
    assert difference([report], []) is None


def test_a_query_without_gold_has_no_precision_and_a_premise_that_is_not_ranked_adds_none() -> None:
    assert precisions_of([[1, 0], [], [2]]).tolist() == [0.5, 0.5]


def test_where_facts_alone_are_gold_the_other_gold_premises_leave_the_ranking(tmp_path: Path) -> None:
    folder = tmp_path / "supporting_data"
    folder.mkdir()
    facts = {"f1": "leaf 1", "f2": "leaf 2", "f3": "leaf 3"}
    (folder / "worldtree_corpus_sentences_extended.json").write_text(json.dumps(facts))
    dataset = _dataset(tmp_path)
    golds = [query.gold for query in dataset.queries("dev")]
    assert golds[-2:] == [("node 1", "leaf 3"), ("leaf 1", "leaf 2")]
    others = [[1, 2]] * 8
    found = fact_precisions_of(dataset, "dev", [*others, [2, 5], [1, 3]])
    assert np.isnan(found[:-2]).all()
    assert found[-2:].tolist() == [1 / 4, pytest.approx((1 + 2 / 3) / 2)]
    kept = by_query(dataset, "dev", [*others, [2, 5], [1, 3]])
    assert kept[FACTS] == [*[None] * 8, 0.25, 0.833333]
    assert means_of(kept)[FACTS] == pytest.approx((0.25 + 0.833333) / 2)
    assert fact_precisions_of(dataset, "dev", [*others, [2, 0], [0, 3]])[-2:].tolist() == [0.0, 1 / 6], "0: not ranked"


def test_weights_and_features_become_options_of_retrieve() -> None:
    made = retrieval_of(Weights(0.2, 0.1, 0.3), {"rank": 1.0})
    assert (made.mode, made.prior, made.negative_feedback) == ("hybrid", 0.1, 0.3)
    assert made.fusion is not None
    assert (made.fusion.lexical_weight, made.fusion.features) == (0.2, {"rank": 1.0})


def test_a_tree_is_whole_if_all_its_leaves_are_among_the_first_25_of_its_hypothesis(tmp_path: Path) -> None:
    trees = _dataset(tmp_path).trees("dev")
    texts = [f"leaf {n}" for n in range(1, 12)] + [f"other {n}" for n in range(20)]
    in_order = np.arange(len(texts))
    assert whole_trees(trees, {"the top": in_order}, texts).all_correct_at_25 == 1.0
    assert whole_trees(trees, {"the top": in_order[::-1]}, texts).all_correct_at_25 == 0.0


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Runs the benchmark with parts that measure nothing but their names; returns the exit status."""
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(quality, "folds", lambda: nullcontext("running"))
    for part in ("pretrained", "latency"):
        monkeypatch.setattr(quality, part, lambda to, _, name=part: to.note(name, 1.0, ""))
    monkeypatch.setattr(quality, "larger", lambda to, base, seeds: to.note(f"{base}, seeds {seeds}", 1.0, ""))

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["quality", *words])
        with pytest.raises(SystemExit) as end:
            quality.main()
        return int(str(end.value.code))

    return run


def _kept(folder: Path) -> set[str]:
    return {one["row"] for path in folder.glob("quality*.json") for one in json.loads(path.read_bytes())}


def test_a_part_keeps_the_rows_of_the_parts_that_ran_before(bench, tmp_path: Path) -> None:
    assert (bench("--only", "pretrained"), bench("--only", "latency")) == (0, 0)
    assert {"pretrained", "latency"} <= _kept(tmp_path)


def test_a_base_model_and_its_seeds_keep_the_rows_of_others(bench, tmp_path: Path) -> None:
    for base, seed in (("org/one", "0"), ("org/one", "1"), ("org/two", "0")):
        bench("--base", base, "--seeds", seed)
    assert {"org/one, seeds [0]", "org/one, seeds [1]", "org/two, seeds [0]"} <= _kept(tmp_path)
