"""Ranks of gold premises in the full ranking, without sorting it: a rank is one plus the number of better candidates.

Scores are computed in blocks of premises and queries, which bounds memory whatever the size of the corpus. Ties go to
the premise inserted first. Equal rows tie to the bit, as in the index; BLAS alone may score them differently, depending
on their place in the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.corpus.arrays import exact_scores

BLOCK_QUERIES = 128
BLOCK_PREMISES = 32_768
CLOSE = 1e-5  # of a gold premise's score: far more than float32 products of unit vectors err

Matrix = NDArray[np.float32] | NDArray[np.float16]


def gold_ranks(
    queries: NDArray[np.float32],
    premises: Matrix,
    gold: Sequence[NDArray[np.int64]],
    dropped: Sequence[int | None],
) -> list[NDArray[np.int64]]:
    """Ranks each query's gold premises, from 1, in their order.

    `queries` (q, dim) and `premises` (n, dim) are unit vectors; `gold[i]` holds ordinals of premises; `dropped[i]` is
    an ordinal left out of query i's ranking, or None. A dropped premise has no rank: leave it out of `gold`.
    """
    wanted = [exact(premises, ordinals, query) for ordinals, query in zip(gold, queries, strict=True)]
    ranks = [np.ones(len(ordinals), dtype=np.int64) for ordinals in gold]
    for begin in range(0, len(premises), BLOCK_PREMISES):
        block = np.asarray(premises[begin : begin + BLOCK_PREMISES], dtype=np.float32)
        for start in range(0, len(queries), BLOCK_QUERIES):
            scores = queries[start : start + BLOCK_QUERIES] @ block.T  # (block, premises)
            for row, own in zip(scores, range(start, start + len(scores)), strict=True):
                _rescore_close(row, wanted[own], queries[own], block)
                if (left_out := dropped[own]) is not None and begin <= left_out < begin + len(block):
                    row[left_out - begin] = -np.inf
                ranks[own] += _better(row, wanted[own], gold[own] - begin)
    return ranks


def ranks_without(
    ranks: NDArray[np.int64],
    gold: NDArray[np.int64],
    own: int | None,
    query: NDArray[np.float32],
    premises: Matrix,
) -> NDArray[np.int64]:
    """Returns the ranks of one query's gold premises once its own text has left the ranking, and its own rank with it.

    `ranks` belong to `gold` and were counted with it, so nothing is ranked twice.
    """
    if own is None:
        return ranks
    mine, wanted = exact(premises, np.array([own]), query)[0], exact(premises, gold, query)
    outranks = (mine > wanted) | ((mine == wanted) & (own < gold))
    kept: NDArray[np.int64] = (ranks - outranks)[gold != own]
    return kept


def exact(premises: Matrix, ordinals: NDArray[np.int64], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the exact scores of some premises, rounded to float32: those by which they are ranked."""
    return exact_scores(np.asarray(premises[ordinals], dtype=np.float32), query.astype(np.float64))


def _rescore_close(
    scores: NDArray[np.float32],
    wanted: NDArray[np.float32],
    query: NDArray[np.float32],
    premises: NDArray[np.float32],
) -> None:
    """Replaces the scores (n,) on which a gold premise's rank may depend by exact ones, rounded to float32."""
    close = np.zeros(len(scores), dtype=bool)
    for one in wanted:
        close |= np.abs(scores - one) <= CLOSE
    if close.any():
        scores[close] = exact_scores(premises[close], query.astype(np.float64))


def _better(scores: NDArray[np.float32], wanted: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts the scores (n,) that outrank each gold premise; `places` are relative to the first score.

    One at a time: all at once would take n bytes for each of thousands that a query may have.
    """
    own = zip(wanted, np.maximum(places, 0).tolist(), strict=True)
    better = [np.count_nonzero(scores > one) + np.count_nonzero(scores[:place] == one) for one, place in own]
    return np.array(better, dtype=np.int64)
