"""The arithmetic of ranking where numbers are equal, nothing is left of them, or a constant decides."""

from __future__ import annotations

import numpy as np
import pytest

from services.index.lexical.bm25 import LexicalIndex
from services.index.ranking.fusion import (
    DEPTH,
    EXPLAINED,
    LEAST_LEFT,
    NEAREST,
    WIDE_DEPTH,
    FirstWords,
    Prior,
    features_of,
    order_by,
    rocchio_feedback,
)
from services.index.values import FEATURES, Explanation, SearchHits


def test_scores_that_are_equal_as_they_are_told_stand_by_their_ordinals() -> None:
    found = SearchHits.best(np.array([0, 1, 2]), np.array([0.5, 0.5 + 1e-12, 0.7]), 2)
    assert (found.ordinals.tolist(), found.scores.dtype) == ([2, 0], np.float32)


def test_a_query_of_which_feedback_leaves_nothing_keeps_its_vector() -> None:
    vectors = np.array([[0.6, 0.8], [0.6, 0.8], [1.0, 0.0]], np.float32)
    nearly = np.array([[0.6, 0.8 + 1e-6]], np.float32)  # what is left is the rounding of float32
    turned = rocchio_feedback(vectors, [vectors[:1], nearly, np.array([[0.0, 1.0]], np.float32)], 1.0)
    assert turned[:2].tolist() == vectors[:2].tolist()
    short = np.array([[LEAST_LEFT, 0.0]], np.float32)
    assert rocchio_feedback(short, [np.zeros((1, 2), np.float32)], 1.0).tolist() == short.tolist()
    np.testing.assert_allclose(turned[2], np.array([1.0, -1.0]) / np.sqrt(2), rtol=1e-6)


def test_of_many_hypotheses_the_nearest_count_for_the_prior_and_nearer_ones_come_first() -> None:
    number = NEAREST + 5
    told = [Explanation(" ".join(["ice", *["other"] * n]), (f"f{n}",)) for n in range(1, number)]
    prior = Prior.over([*told[::-1], Explanation("frogs", ("f0",))], {f"f{n}": n for n in range(number)})
    near = prior.nearest("ice")
    assert [number - 1 - n for n, _ in near] == list(range(1, NEAREST + 1)), "by their share of the word"
    assert [similarity for _, similarity in near] == sorted((one for _, one in near), reverse=True)
    bonus = prior.bonus(near, np.arange(number))
    assert (bonus[0], bonus[1], bonus[NEAREST] > 0, bonus[NEAREST + 1 :].any()) == (0, 1, True, False)


@pytest.mark.parametrize(("kind", "given", "temperature"), [("others", 20, 0.08), ("many", 40, 0.3)])
def test_the_first_twenty_or_forty_premises_alone_count_as_given(kind: str, given: int, temperature: float) -> None:
    rows = np.random.default_rng(5).normal(size=(43, 16)).astype(np.float32)
    query, *vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    scores = np.linspace(1, 0.9, 42, dtype=np.float32)
    first = SearchHits(np.arange(42), scores)
    found = features_of(first, None, query, np.array(vectors), WIDE_DEPTH)[41, FEATURES.index(f"vectors_given_{kind}")]
    left = query - EXPLAINED * np.array(vectors[:given])
    cosines = (left @ vectors[41]) / np.linalg.norm(left, axis=1)
    weights = np.exp((scores[:given].astype(np.float64) - 1) / temperature)
    np.testing.assert_allclose(found, np.average(cosines, weights=weights), rtol=1e-5)


def test_the_share_of_a_premise_is_of_all_its_words_however_frequent_they_are() -> None:
    lexical = LexicalIndex.of(["ice melts"] * 9 + ["ice"])
    first = SearchHits(np.array([0, 9]), np.array([1.0, 0.5], np.float32))
    words = FirstWords(lexical.terms("ice"), first, lexical, None, DEPTH)
    found = features_of(first, words, np.ones(2, np.float32), np.eye(2, dtype=np.float32), DEPTH)
    rare = lexical.rarity[lexical.row(0)[0]]
    assert rare.sum() < 1, "both words stand in nearly all"
    ice = float(lexical.rarity[lexical.terms("ice").ids[0]])
    np.testing.assert_allclose(found[:, FEATURES.index("premise_covered")], [ice / rare.sum(), 1], rtol=1e-5)


def test_a_follower_as_good_as_the_least_stays_behind_what_is_ordered_anew() -> None:
    first = SearchHits(np.array([1, 3, 2, 0]), np.array([1.0, 0.9, 0.5, 0.5], np.float32))
    features = np.zeros((3, len(FEATURES)))
    features[:, 0] = [0.0, 1.0, 2.0]
    ordered = order_by(first, features, {"first": 1.0}, 4)
    assert (ordered.ordinals.tolist(), ordered.scores.tolist()) == ([2, 3, 1, 0], [1.0, 0.75, 0.5, 0.5])
    assert order_by(first, features, {"first": 1.0}, 3).ordinals.tolist() == [2, 3, 1]
