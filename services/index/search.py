"""Exact search over a matrix of premise vectors, the same to the bit whatever the batch, the threads or the back end.

A proposer names candidates by numbers that are cheap and a little wrong; every candidate is scored again in float64 by
a kernel that sees one row at a time, rounded to float32, and ordered by (score descending, ordinal ascending). A list
is final once nothing outside the candidates can reach it. No locks and no threads: see engine.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.corpus.inner_products import exact_scores, norms_of
from services.index.proposals import FaissProposer, Proposer

SLACK = 32  # candidates beyond k at the first try
COARSE_UP_TO = 100  # wanted; beyond, scoring the many candidates of a coarse proposer costs more than it saves
WIDEST = 4096  # beyond it, scoring all rows in float64 is cheaper than FAISS's heaps
BLOCK_ROWS = 8192
CACHED_ROWS = 512  # rows of float64 that stay in a core's cache


@dataclass(frozen=True)
class Found:
    """The nearest rows of one query, best first: `ordinals` (int64) and `scores` (float32).

    `exact` says that no row was overlooked; scores are exact in any case.
    """

    ordinals: NDArray[np.int64]
    scores: NDArray[np.float32]
    exact: bool = True


@dataclass(frozen=True)
class Effort:
    """How hard an approximate engine tries: lists visited by IVF, breadth of HNSW; 0 is what its build has measured.

    `exact` searches exactly whatever the engine. Exact engines ignore the rest.
    """

    nprobe: int = 0
    ef_search: int = 0
    exact: bool = False


USUAL = Effort()


class FlatIndex:
    """Searches `vectors` (n, dim), float32 or float16, without copying them; a memory map stays on disk.

    `largest_norm` of a row bounds FAISS's rounding error; where it is not known, all rows are read for it. `coarse`
    proposes first; FAISS, whose errors are smaller, only where that does not settle it.
    """

    exact = True

    def __init__(
        self,
        vectors: NDArray[np.float32] | NDArray[np.float16],
        *,
        largest_norm: float | None = None,
        coarse: Proposer | None = None,
    ) -> None:
        self.vectors: NDArray[Any] = np.ascontiguousarray(vectors)  # no copy of a memory map
        self.rows, self.dim = self.vectors.shape
        norms = (float(norms_of(block).max()) for _, block in _blocks(self.vectors))
        self.largest_norm = max(norms, default=0.0) if largest_norm is None else largest_norm
        self._coarse, self._fine = coarse, FaissProposer(self.vectors, self.largest_norm)

    def nearest(
        self,
        queries: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        effort: Effort = USUAL,  # noqa: ARG002 -- always exact
    ) -> list[Found]:
        """The k nearest rows of each query (n, dim) by inner product, fewer when fewer are `allowed` (rows,)."""
        available = self.rows if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(k, available)
        if wanted == 0:
            return [Found(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        results: dict[int, Found] = {}
        pending = np.arange(len(queries))
        for proposer, width in self._tries(wanted):
            if not len(pending) or width >= available:
                continue
            proposed = proposer.propose(queries[pending], width, allowed)
            ordinals, scores = self._best(queries[pending], proposed.ordinals, wanted)
            final = proposed.ceiling < np.nextafter(scores[:, -1], np.float32(-np.inf))
            results |= {int(pending[n]): Found(ordinals[n], scores[n]) for n in np.flatnonzero(final)}
            pending = pending[~final]
        everything = _ordinals_of(self.rows, allowed) if len(pending) else np.empty(0, np.int64)
        results |= {int(row): self.rescore(queries[row], everything, wanted) for row in pending}
        return [results[row] for row in range(len(queries))]

    def _tries(self, wanted: int) -> Iterator[tuple[Proposer, int]]:
        """What proposes how many candidates, one try after the other, as long as some list is not final."""
        if self._coarse is not None and wanted <= COARSE_UP_TO:
            width = wanted + max(wanted, SLACK)
            yield from ((self._coarse, width), (self._coarse, 4 * width))
        width = wanted + SLACK
        while width <= WIDEST:
            yield self._fine, width
            width *= 4

    def rescore(self, query: NDArray[np.float32], ordinals: NDArray[np.int64], wanted: int) -> Found:
        """The `wanted` best of some rows by their exact scores; ties to the lower ordinal."""
        scores = np.empty(len(ordinals), dtype=np.float32)
        exact_query = query.astype(np.float64)
        for start in range(0, len(ordinals), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            scores[part] = exact_scores(self.vectors[ordinals[part]], exact_query)
        order = np.lexsort((ordinals, -scores))[:wanted]
        return Found(ordinals[order], scores[order])

    def _best(
        self, queries: NDArray[np.float32], candidates: NDArray[np.int64], wanted: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ordinals and exact scores (n, wanted) of the best `candidates` (n, width) of each query, as by `rescore`."""
        scores = np.empty(candidates.shape, dtype=np.float32)
        exact_queries = queries.astype(np.float64)
        step = max(1, CACHED_ROWS // candidates.shape[1])
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            scores[part] = exact_scores(self.vectors[candidates[part]], exact_queries[part])
        order = np.lexsort((candidates, -scores), axis=1)[:, :wanted]
        return np.take_along_axis(candidates, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _blocks(vectors: NDArray[Any]) -> Sequence[tuple[int, NDArray[np.float32]]]:
    return [(start, vectors[start : start + BLOCK_ROWS]) for start in range(0, len(vectors), BLOCK_ROWS)]


def _ordinals_of(rows: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    return np.arange(rows, dtype=np.int64) if allowed is None else np.flatnonzero(allowed).astype(np.int64)
