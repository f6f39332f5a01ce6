"""Ranks of gold premises in the full ranking, without sorting it: a rank is one plus the number of better candidates.

Scores are computed in blocks of queries, which bounds memory. Ties go to the premise inserted first. Equal rows tie to
the bit, as in the index; BLAS alone may score them differently, depending on their place in the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.corpus.inner_products import exact_scores

BLOCK_QUERIES = 128
CLOSE = 1e-5  # of a gold premise's score: far more than float32 products of unit vectors err


def gold_ranks(
    queries: NDArray[np.float32],
    premises: NDArray[np.float32],
    gold: Sequence[NDArray[np.int64]],
    dropped: Sequence[int | None],
) -> list[NDArray[np.int64]]:
    """Ranks each query's gold premises, from 1, in their order.

    `queries` (q, dim) and `premises` (n, dim) are unit vectors; `gold[i]` holds ordinals of premises; `dropped[i]` is
    an ordinal left out of query i's ranking, or None. A dropped premise has no rank: leave it out of `gold`.
    """
    ranks: list[NDArray[np.int64]] = []
    for start in range(0, len(queries), BLOCK_QUERIES):
        scores = queries[start : start + BLOCK_QUERIES] @ premises.T  # (block, n)
        for row, own in zip(scores, range(start, start + len(scores)), strict=True):
            _rescore_close(row, gold[own], queries[own], premises)
            if (left_out := dropped[own]) is not None:
                row[left_out] = -np.inf
            ranks.append(_ranks_in_row(row, gold[own]))
    return ranks


def _rescore_close(
    scores: NDArray[np.float32], gold: NDArray[np.int64], query: NDArray[np.float32], premises: NDArray[np.float32]
) -> None:
    """Replaces the scores (n,) on which a gold premise's rank may depend by exact ones, rounded to float32."""
    close = np.zeros(len(scores), dtype=bool)
    for wanted in scores[gold]:
        close |= np.abs(scores - wanted) <= CLOSE
    scores[close] = exact_scores(premises[close], query.astype(np.float64))


def _ranks_in_row(scores: NDArray[np.float32], gold: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranks the ordinals `gold` among the scores (n,) of one query, from 1, in their order."""
    wanted = scores[gold][:, None]  # (g, 1)
    better = (scores[None, :] > wanted).sum(axis=1)
    ordinals = np.arange(len(scores))
    earlier = ((scores[None, :] == wanted) & (ordinals[None, :] < gold[:, None])).sum(axis=1)
    ranks: NDArray[np.int64] = (better + earlier + 1).astype(np.int64)
    return ranks
