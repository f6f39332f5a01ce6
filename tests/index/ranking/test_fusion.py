"""The arithmetic of ranking where numbers are equal, or nothing is left of them."""

from __future__ import annotations

import numpy as np

from services.index.ranking.fusion import rocchio_feedback
from services.index.values import SearchHits


def test_scores_that_are_equal_as_they_are_told_stand_by_their_ordinals() -> None:
    found = SearchHits.best(np.array([0, 1, 2]), np.array([0.5, 0.5 + 1e-12, 0.7]), 2)
    assert (found.ordinals.tolist(), found.scores.dtype) == ([2, 0], np.float32)


def test_a_query_of_which_feedback_leaves_nothing_keeps_its_vector() -> None:
    vectors = np.array([[0.6, 0.8], [0.6, 0.8], [1.0, 0.0]], np.float32)
    nearly = np.array([[0.6, 0.8 + 1e-6]], np.float32)  # what is left is the rounding of float32
    turned = rocchio_feedback(vectors, [vectors[:1], nearly, np.array([[0.0, 1.0]], np.float32)], 1.0)
    assert turned[:2].tolist() == vectors[:2].tolist()
    np.testing.assert_allclose(turned[2], np.array([1.0, -1.0]) / np.sqrt(2), rtol=1e-6)
