"""Ranks of gold premises in the full ranking, without sorting it: a rank is one plus the number of better candidates.

Scores come in blocks of queries, so memory stays bounded; ties go to the premise inserted first. Equal rows are ties to
the bit, as they are in the index; BLAS alone scores them unequally, by where in the matrix they stand.
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
    """Ranks, from 1, of each query's gold premises, in their order.

    `queries` (q, dim) and `premises` (n, dim) are unit vectors; `gold[i]` holds ordinals of premises; `dropped[i]` is
    an ordinal left out of query i's ranking, or None. A gold premise that is dropped has no rank: leave it out of
    `gold`.
    """
    ranks: list[NDArray[np.int64]] = []
    for start in range(0, len(queries), BLOCK_QUERIES):
        scores = queries[start : start + BLOCK_QUERIES] @ premises.T  # (block, n)
        for row, own in zip(scores, range(start, start + len(scores)), strict=True):
            _score_close_ones_alike(row, gold[own], queries[own], premises)
            if (left_out := dropped[own]) is not None:
                row[left_out] = -np.inf
            ranks.append(_ranks_in_row(row, gold[own]))
    return ranks


def _score_close_ones_alike(
    scores: NDArray[np.float32], gold: NDArray[np.int64], query: NDArray[np.float32], premises: NDArray[np.float32]
) -> None:
    """Replaces the scores (n,) on which a gold premise's rank may depend by exact ones, rounded to float32."""
    close = np.zeros(len(scores), dtype=bool)
    for wanted in scores[gold]:
        close |= np.abs(scores - wanted) <= CLOSE
    scores[close] = exact_scores(premises[close], query.astype(np.float64))


def _ranks_in_row(scores: NDArray[np.float32], gold: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranks, from 1, of the ordinals `gold` among the scores (n,) of one query, in their order."""
    wanted = scores[gold][:, None]  # (g, 1)
    better = (scores[None, :] > wanted).sum(axis=1)
    ordinals = np.arange(len(scores))
    earlier = ((scores[None, :] == wanted) & (ordinals[None, :] < gold[:, None])).sum(axis=1)
    ranks: NDArray[np.int64] = (better + earlier + 1).astype(np.int64)
    return ranks
