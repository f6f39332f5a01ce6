"""Exact search over a matrix of premise vectors, the same to the bit whatever the batch, the threads or the back end.

FAISS proposes candidates by float32 inner products, whose last bits depend on the batch; every candidate is scored
again in float64 by a kernel that sees one row at a time, rounded to float32, and ordered by (score descending, ordinal
ascending). A list is final once nothing outside the candidates can reach it. No locks and no threads: see engine.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

SLACK = 32  # candidates beyond k at the first try
WIDEST = 4096  # beyond it, scoring all rows in float64 is cheaper than FAISS's heaps
SCAN_UP_TO = 12  # queries; above, FAISS's matrix product beats its scan (measured at 16k x 384, one thread)
BLOCK_ROWS = 8192
_ALWAYS_SCAN = 2**31 - 1
_ALWAYS_BLAS = 1
_UNIT_ROUNDOFF = 2.0**-24  # of float32


@dataclass(frozen=True)
class Found:
    """The nearest rows of one query, best first: `ordinals` (int64) and `scores` (float32)."""

    ordinals: NDArray[np.int64]
    scores: NDArray[np.float32]


class FlatIndex:
    """Searches `vectors` (n, dim) float32 without copying them; a memory map stays on disk.

    Reads all rows once, for the largest norm, which bounds FAISS's rounding error.
    """

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self.vectors: NDArray[np.float32] = np.ascontiguousarray(vectors, dtype=np.float32)  # no copy of a memory map
        self.rows, self.dim = self.vectors.shape
        norms = [float(norms_of(block).max()) for _, block in _blocks(self.vectors)]
        self.largest_norm = max(norms, default=0.0)

    def nearest(self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None = None) -> list[Found]:
        """The k nearest rows of each query (n, dim) by inner product, fewer when fewer are `allowed` (rows,)."""
        available = self.rows if allowed is None else int(allowed.sum())
        wanted = min(k, available)
        if wanted == 0:
            return [Found(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        results: dict[int, Found] = {}
        pending = list(range(len(queries)))
        width = wanted + SLACK
        while pending and width < available and width <= WIDEST:
            raw, ordinals = self._propose(queries[pending], width, allowed)
            for position, row in enumerate(pending):
                found = self._rescore(queries[row], ordinals[position], wanted)
                if self._is_final(queries[row], float(raw[position, -1]), found):
                    results[row] = found
            pending = [row for row in pending if row not in results]
            width *= 4
        everything = None if not pending else _ordinals_of(self.rows, allowed)
        for row in pending:
            assert everything is not None
            results[row] = self._rescore(queries[row], everything, wanted)
        return [results[row] for row in range(len(queries))]

    def _propose(
        self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """FAISS's `width` best rows of each query, unordered among near ties. Sets a process-wide FAISS variable."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        raw = np.empty((len(queries), width), dtype=np.float32)
        ordinals = np.empty((len(queries), width), dtype=np.int64)
        faiss.cvar.distance_compute_blas_threshold = _ALWAYS_SCAN if len(queries) <= SCAN_UP_TO else _ALWAYS_BLAS
        scan: Any = faiss.knn_inner_product  # an overload takes a selector; its stub does not know
        pointers = [faiss.swig_ptr(array) for array in (queries, self.vectors, raw, ordinals)]
        sizes = (self.dim, len(queries), self.rows, width)
        if allowed is None:
            scan(*pointers[:2], *sizes, *pointers[2:])
        else:
            bits = np.packbits(allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(self.rows, faiss.swig_ptr(bits))
            scan(*pointers[:2], *sizes, *pointers[2:], selector)
        return raw, ordinals

    def _rescore(self, query: NDArray[np.float32], ordinals: NDArray[np.int64], wanted: int) -> Found:
        scores = np.empty(len(ordinals), dtype=np.float32)
        exact_query = query.astype(np.float64)
        for start in range(0, len(ordinals), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            scores[part] = exact_scores(self.vectors[ordinals[part]], exact_query)
        order = np.lexsort((ordinals, -scores))[:wanted]
        return Found(ordinals[order], scores[order])

    def _is_final(self, query: NDArray[np.float32], worst_raw: float, found: Found) -> bool:
        """Whether no row outside the candidates can have a score as high as the last one found.

        Such a row has a raw score of at most `worst_raw`, and an exact one of at most that plus the error bound of a
        float32 inner product in any order of summation: dim x unit roundoff x product of the norms (Higham 2002, 3.1).
        """
        norm = float(np.sqrt(np.sum(query.astype(np.float64) ** 2)))
        error = 1.01 * (self.dim + 4) * _UNIT_ROUNDOFF * norm * self.largest_norm
        return bool(worst_raw + error < float(np.nextafter(found.scores[-1], np.float32(-np.inf))))


def exact_scores(rows: NDArray[np.float32], query: NDArray[np.float64]) -> NDArray[np.float32]:
    """Inner products of `rows` (n, dim) with `query` (dim,), in float64, rounded to float32."""
    return exact_products(rows, query).astype(np.float32)


def exact_products(rows: NDArray[np.float32], query: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inner products of `rows` (n, dim) with `query` (dim,); a row's does not depend on the rows beside it.

    einsum and not `@`: BLAS sums a row in an order that depends on how many rows there are.
    """
    products: NDArray[np.float64] = np.einsum("ij,j->i", rows.astype(np.float64), query)
    return products


def norms_of(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """The length of each row (n, dim), in float64."""
    exact = rows.astype(np.float64)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
    return norms


def _blocks(vectors: NDArray[np.float32]) -> Sequence[tuple[int, NDArray[np.float32]]]:
    return [(start, vectors[start : start + BLOCK_ROWS]) for start in range(0, len(vectors), BLOCK_ROWS)]


def _ordinals_of(rows: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    return np.arange(rows, dtype=np.int64) if allowed is None else np.flatnonzero(allowed).astype(np.int64)
