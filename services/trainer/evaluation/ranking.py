"""Ranks of gold premises in the full ranking, without sorting it: a rank is one plus the number of better candidates.

Scores come in blocks of queries, so memory stays bounded; ties go to the premise inserted first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK_QUERIES = 128


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
            ranks.append(ranks_in_row(row, gold[own], dropped[own]))
    return ranks


def ranks_in_row(scores: NDArray[np.float32], gold: NDArray[np.int64], dropped: int | None) -> NDArray[np.int64]:
    """Ranks, from 1, of the ordinals `gold` among the scores (n,) of one query, in their order."""
    if dropped is not None:
        scores = scores.copy()
        scores[dropped] = -np.inf
    wanted = scores[gold][:, None]  # (g, 1)
    better = (scores[None, :] > wanted).sum(axis=1)
    ordinals = np.arange(len(scores))
    earlier = ((scores[None, :] == wanted) & (ordinals[None, :] < gold[:, None])).sum(axis=1)
    ranks: NDArray[np.int64] = (better + earlier + 1).astype(np.int64)
    return ranks
