"""The arithmetic of ranking: two rankings into one, and feedback on query vectors. Pure functions; higher is better.

Weighted min-max scores are the default fusion. Reciprocal ranks (Cormack et al. 2009) ignore how far apart scores are,
which costs quality here (docs/evaluation.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.index.values import FusionMethod, SearchHits

POOL = 1000  # premises of each first ranking that are fused, and scored by the prior
FEEDBACK = 5  # premises of a first ranking that negative feedback looks at
EXPLAINED = 0.5  # share of the premises' mean that a query loses to what is accepted (docs/experiments/retrieval.md)
LEAST_LEFT = 1e-3  # length of what feedback leaves of a query
RANK_OFFSET = 60  # of reciprocal ranks, as in the paper


def fuse(
    dense: NDArray[np.float32], lexical: NDArray[np.float32], lexical_weight: float, method: FusionMethod = "min_max"
) -> NDArray[np.float32]:
    """Combines the `dense` and `lexical` scores of the same candidates (n,); `lexical_weight` lies in [0, 1]."""
    normalise = scaled if method == "min_max" else _by_rank
    both = (1.0 - lexical_weight) * normalise(dense) + lexical_weight * normalise(lexical)
    return both.astype(np.float32)


def with_pair_scores(hits: SearchHits, scores: NDArray[np.float32], weight: float, k: int) -> SearchHits:
    """Ranks hits by their own score plus `weight` times a cross-encoder's (n,); keeps the best k."""
    both = (hits.scores + weight * scores.astype(np.float64)).astype(np.float32)
    return SearchHits.best(hits.ordinals, both, k, exact=hits.exact)


def fuse_hits(
    near: SearchHits,
    by_words: SearchHits,
    lexical: NDArray[np.float32],
    cosines_of: Callable[[NDArray[np.int64]], NDArray[np.float32]],
    lexical_weight: float,
    method: FusionMethod,
    k: int,
) -> SearchHits:
    """Combines the best premises by vectors and by words; `lexical` are the word scores of all premises (rows,).

    `cosines_of` scores the premises that only the words have found.
    """
    added = np.setdiff1d(by_words.ordinals, near.ordinals)
    ordinals = np.concatenate([near.ordinals, added])
    cosines = np.concatenate([near.scores, cosines_of(added)])
    fused = fuse(cosines, lexical[ordinals], lexical_weight, method)
    return SearchHits.best(ordinals, fused, k, exact=near.exact)


def scaled(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scales scores (n,) from 0 for the least to 1 for the best; all become 0 where all are equal."""
    exact = scores.astype(np.float64)
    span = float(np.ptp(exact)) if len(exact) else 0.0
    return (exact - exact.min()) / span if span else np.zeros(len(exact))


def _by_rank(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Reciprocal ranks; equal scores share the best of their ranks."""
    ordered = np.sort(-scores)
    ranks = np.searchsorted(ordered, -scores, side="left") + 1
    return 1.0 / (RANK_OFFSET + ranks)


def rocchio_feedback(
    vectors: NDArray[np.float32], premises: Sequence[NDArray[Any]], share: float
) -> NDArray[np.float32]:
    """Takes a share of the mean of some premises' vectors off each query; the result has unit length.

    A query of which nothing would be left but the rounding keeps its vector.

    `premises` has one array (premises, dim) for each query: the premises accepted for it, whose words its text holds as
    well, or the best of a first ranking. This is Rocchio's feedback (1971) with a negative weight.
    """
    changed = vectors.copy()
    for row, own in enumerate(premises):
        if len(own):
            left = changed[row] - np.float32(share) * own.mean(axis=0, dtype=np.float32)
            length = np.linalg.norm(left)
            if length > LEAST_LEFT:
                changed[row] = left / length
    return changed
