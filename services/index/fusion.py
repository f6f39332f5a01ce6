"""Two rankings into one. Pure functions over the same candidates: cosines and BM25 scores, higher is better.

Weighted min-max scores are the default; reciprocal ranks (Cormack et al. 2009) ignore how far apart scores are, which
costs quality here (docs/evaluation.md).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Method = Literal["min_max", "reciprocal_rank"]
LEXICAL_WEIGHT = 0.2
RANK_OFFSET = 60  # of reciprocal ranks, as in the paper


def fuse(
    dense: NDArray[np.float32], lexical: NDArray[np.float32], lexical_weight: float, method: Method = "min_max"
) -> NDArray[np.float32]:
    """One score for each candidate from its `dense` and its `lexical` one (n,); `lexical_weight` lies in [0, 1]."""
    normalise = scaled if method == "min_max" else _by_rank
    both = (1.0 - lexical_weight) * normalise(dense) + lexical_weight * normalise(lexical)
    return both.astype(np.float32)


def scaled(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scores (n,) from 0 for the least to 1 for the best; all 0 where all are equal."""
    exact = scores.astype(np.float64)
    span = float(np.ptp(exact)) if len(exact) else 0.0
    return (exact - exact.min()) / span if span else np.zeros(len(exact))


def _by_rank(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Reciprocal ranks; equal scores share the best rank of theirs."""
    ordered = np.sort(-scores)
    ranks = np.searchsorted(ordered, -scores, side="left") + 1
    return 1.0 / (RANK_OFFSET + ranks)
