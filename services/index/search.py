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
ALWAYS_SCAN = 2**31 - 1
_ALWAYS_BLAS = 1
FAISS: Any = faiss  # its stubs lack keyword arguments, views and parameters of HNSW
_UNIT_ROUNDOFF = 2.0**-24  # of float32


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

    `largest_norm` of a row bounds FAISS's rounding error; where it is not known, all rows are read for it.
    """

    exact = True

    def __init__(
        self, vectors: NDArray[np.float32] | NDArray[np.float16], *, largest_norm: float | None = None
    ) -> None:
        self.vectors: NDArray[Any] = np.ascontiguousarray(vectors)  # no copy of a memory map
        self.rows, self.dim = self.vectors.shape
        self._halves = flat_over(self.vectors) if self.vectors.dtype == np.float16 else None
        norms = (float(norms_of(block).max()) for _, block in _blocks(self.vectors))
        self.largest_norm = max(norms, default=0.0) if largest_norm is None else largest_norm

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
        pending = list(range(len(queries)))
        width = wanted + SLACK
        while pending and width < available and width <= WIDEST:
            raw, ordinals = self._propose(queries[pending], width, allowed)
            for position, row in enumerate(pending):
                found = self.rescore(queries[row], ordinals[position], wanted)
                if self._is_final(queries[row], float(raw[position, -1]), found):
                    results[row] = found
            pending = [row for row in pending if row not in results]
            width *= 4
        everything = None if not pending else _ordinals_of(self.rows, allowed)
        for row in pending:
            assert everything is not None
            results[row] = self.rescore(queries[row], everything, wanted)
        return [results[row] for row in range(len(queries))]

    def _propose(
        self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """FAISS's `width` best rows of each query, unordered among near ties. Sets a process-wide FAISS variable."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        selector = selector_of(allowed)
        if self._halves is not None:
            parameters = None if selector is None else FAISS.SearchParameters(sel=selector)
            return tuple(self._halves.search(queries, width, params=parameters))
        raw = np.empty((len(queries), width), dtype=np.float32)
        ordinals = np.empty((len(queries), width), dtype=np.int64)
        faiss.cvar.distance_compute_blas_threshold = ALWAYS_SCAN if len(queries) <= SCAN_UP_TO else _ALWAYS_BLAS
        pointers = [faiss.swig_ptr(array) for array in (queries, self.vectors, raw, ordinals)]
        sizes = (self.dim, len(queries), self.rows, width)
        FAISS.knn_inner_product(*pointers[:2], *sizes, *pointers[2:], *(() if selector is None else (selector,)))
        return raw, ordinals

    def rescore(self, query: NDArray[np.float32], ordinals: NDArray[np.int64], wanted: int) -> Found:
        """The `wanted` best of some rows by their exact scores; ties to the lower ordinal."""
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


def flat_over(vectors: NDArray[Any]) -> Any:
    """A flat FAISS index over `vectors` (n, dim), float32 or float16, read where they lie: keep them as long as it."""
    rows, dim = vectors.shape
    index = (
        FAISS.IndexScalarQuantizer(dim, FAISS.ScalarQuantizer.QT_fp16, FAISS.METRIC_INNER_PRODUCT)
        if vectors.dtype == np.float16
        else FAISS.IndexFlatIP(dim)
    )
    start = FAISS.swig_ptr(vectors.view(np.uint8))
    index.codes = FAISS.MaybeOwnedVectorUInt8.create_view(start, vectors.nbytes, index.codes.owner)
    index.ntotal = rows
    return index


def selector_of(allowed: NDArray[np.bool_] | None) -> Any:
    """A FAISS selector of the rows `allowed` (rows,); None for all."""
    return None if allowed is None else FAISS.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


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


def _blocks(vectors: NDArray[Any]) -> Sequence[tuple[int, NDArray[np.float32]]]:
    return [(start, vectors[start : start + BLOCK_ROWS]) for start in range(0, len(vectors), BLOCK_ROWS)]


def _ordinals_of(rows: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    return np.arange(rows, dtype=np.int64) if allowed is None else np.flatnonzero(allowed).astype(np.int64)
