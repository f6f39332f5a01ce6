"""The arithmetic of ranking where numbers are equal, or nothing is left of them."""

from __future__ import annotations

import numpy as np

from services.index.ranking.fusion import LEAST_LEFT, NEAREST, Prior, rocchio_feedback
from services.index.values import Explanation, SearchHits


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
