"""Metrics by strata: fixed bands of overlap, depth and split, beside a small case done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from aeenc.evaluation import by_depth, by_overlap, by_split, metrics_by, metrics_of, word_overlap
from aeenc.trees import Dataset
from support.small_trees import write_small_trees

QUERY = "the nail moves"
PAIRS = [
    (QUERY, ["the nail", "iron is magnetic", "the nail moves fast and far away now then"]),
    ("ice floats", ["ice"]),
]
RANKS = [np.array([4, 1, 2]), np.array([0])]  # 0: not found


@pytest.mark.parametrize(
    ("premise", "overlap", "band"),
    [
        ("iron is magnetic", 0, "no shared word"),
        ("a b c d e f g h i j k l m n o p q NAIL", 1 / 20, "up to .1"),
        ("a b c d e f nail", 1 / 9, "up to .25"),
        ("the nail", 2 / 3, "over .25"),
        ("", 0, "no shared word"),
    ],
)
def test_a_pair_is_in_the_band_of_its_shared_words(premise: str, overlap: float, band: str):
    assert word_overlap(QUERY, premise) == pytest.approx(overlap)
    assert by_overlap().band_of(QUERY, premise) == band


def test_in_a_band_only_its_own_gold_counts_and_the_rest_is_taken_out_of_the_ranking():
    found = {one.name: one for one in metrics_by(by_overlap(), PAIRS, RANKS)}
    assert {name: (one.queries, one.pairs) for name, one in found.items()} == {
        "no shared word": (1, 1),
        "over .25": (2, 3),
    }
    assert found["no shared word"].metrics == metrics_of([np.array([1])])
    # without the gold premise on rank 1, the others stand on 1 and 3; the query whose premise was not found has 0
    assert found["over .25"].metrics.map == pytest.approx(((1 / 1 + 2 / 3) / 2 + 0) / 2)


def test_all_pairs_of_a_report_are_in_one_band_each():
    for strata in (by_overlap(), by_split([]), by_depth([])):
        assert sum(one.pairs for one in metrics_by(strata, PAIRS, RANKS)) == 4


def test_queries_are_told_apart_by_the_steps_below_them_and_premises_by_their_first_split(tmp_path):
    dataset = Dataset.load(write_small_trees(tmp_path / "trees"))
    depth, split = by_depth(dataset.trees("train")), by_split(dataset.candidates())
    assert depth.band_of("the nail moves", "") == "2 steps"  # in another tree it is one step
    assert depth.band_of("the magnet pulls the nail", "") == "1 step"
    assert (split.names, split.band_of("", "iron is magnetic")) == (["train", "dev"], "train")
    assert split.band_of("", "ice is light") == "dev"
