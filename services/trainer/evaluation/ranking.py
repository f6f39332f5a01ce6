"""The exact ranking of all premises, without sorting it: ranks of gold premises, and the nearest premises.

A rank is one plus the number of better candidates.

Scores are computed in blocks of premises and queries, which bounds memory whatever the size of the corpus. Ties go to
the premise inserted first. Equal rows tie to the bit, as in the index; BLAS alone may score them differently, depending
on their place in the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.corpus.arrays import exact_scores

BLOCK_QUERIES = 128
BLOCK_PREMISES = 32_768
CLOSE = 1e-5  # of a gold premise's score: far more than float32 products of unit vectors err

Matrix = NDArray[np.float32] | NDArray[np.float16]


@dataclass(frozen=True, eq=False)  # an array has no one answer to ==
class AccessibleOrdinals:
    """The premises that may be found for a query, by ordinal: those before one, and those of a list; None: all."""

    before: int | None = None
    only: NDArray[np.int64] | None = None

    def has(self, ordinals: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Marks those that may be found."""
        found = np.ones(len(ordinals), dtype=bool) if self.before is None else ordinals < self.before
        return found if self.only is None else found & np.isin(ordinals, self.only)


def gold_ranks(
    queries: NDArray[np.float32],
    premises: Matrix,
    gold: Sequence[NDArray[np.int64]],
    accessible: Sequence[AccessibleOrdinals] = (),
) -> list[NDArray[np.int64]]:
    """Ranks each query's gold premises, from 1, in their order, among those that are accessible to it (none: all).

    `queries` (q, dim) and `premises` (n, dim) are unit vectors; `gold[i]` holds ordinals of accessible premises.
    """
    wanted = [exact(premises, ordinals, query) for ordinals, query in zip(gold, queries, strict=True)]
    ranks = [np.ones(len(ordinals), dtype=np.int64) for ordinals in gold]
    for begin, block, n, scores in _scored_blocks(queries, premises):
        if accessible:
            scores[~accessible[n].has(np.arange(begin, begin + len(scores)))] = -np.inf
        _rescore_close(scores, wanted[n], queries[n], block)
        ranks[n] += _better(scores, wanted[n], gold[n] - begin)
    return ranks


def nearest(
    queries: NDArray[np.float32], premises: Matrix, k: int, dropped: Sequence[int | None] = ()
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Finds ordinals and scores (q, k) of the premises nearest to each query, best first, without the `dropped` one.

    k is at most the number of premises that are left.
    """
    k = min(k, len(premises) - bool(dropped))
    ordinals = [np.empty(0, dtype=np.int64) for _ in queries]
    found = [np.empty(0, dtype=np.float32) for _ in queries]
    for begin, block, n, scores in _scored_blocks(queries, premises) if k else ():
        if dropped and (left_out := dropped[n]) is not None and begin <= left_out < begin + len(block):
            scores[left_out - begin] = -np.inf
        worst = len(scores) - min(k, len(scores))
        near = np.flatnonzero(scores >= np.partition(scores, worst)[worst] - CLOSE)  # all that BLAS may have misordered
        exactly = np.where(np.isneginf(scores[near]), -np.inf, exact(block, near, queries[n])).astype(np.float32)
        ordinals[n], found[n] = np.append(ordinals[n], near + begin), np.append(found[n], exactly)
        best = np.lexsort((ordinals[n], -found[n]))[:k]
        ordinals[n], found[n] = ordinals[n][best], found[n][best]
    return np.array(ordinals).reshape(len(queries), k), np.array(found).reshape(len(queries), k)


def ranks_in(gold: NDArray[np.int64], listed: NDArray[np.int64], beyond: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Ranks gold premises (g,) in a list of ordinals, from 1; those that it lacks have the rank `beyond`."""
    if not len(listed):
        return np.broadcast_to(beyond, gold.shape)
    is_at = listed[None, :] == gold[:, None]  # (g, k)
    return np.where(is_at.any(axis=1), is_at.argmax(axis=1) + 1, beyond)


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


def _scored_blocks(
    queries: NDArray[np.float32], premises: Matrix
) -> Iterator[tuple[int, NDArray[np.float32], int, NDArray[np.float32]]]:
    """Yields the ordinal at which a block of premises begins, the block, the number of a query, and its scores."""
    for begin in range(0, len(premises), BLOCK_PREMISES):
        block = np.asarray(premises[begin : begin + BLOCK_PREMISES], dtype=np.float32)
        for start in range(0, len(queries), BLOCK_QUERIES):
            scores = queries[start : start + BLOCK_QUERIES] @ block.T  # (queries, premises)
            for n, row in enumerate(scores, start):
                yield begin, block, n, row


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
