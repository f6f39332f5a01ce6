"""Candidates of an exact search by FAISS: float32 inner products, by a scan or by matrix products.

Their last bits depend on the batch, so they only propose; search.py scores what is proposed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from services.corpus.inner_products import norms_of

SCAN_UP_TO = 12  # queries; above, FAISS's matrix product beats its scan (measured at 16k x 384, one thread)
ALWAYS_SCAN = 2**31 - 1
_ALWAYS_BLAS = 1
FAISS: Any = faiss  # its stubs lack keyword arguments, views and parameters of HNSW
UNIT_ROUNDOFF = 2.0**-24  # of float32


@dataclass(frozen=True)
class Proposed:
    """Rows that may be the nearest: `ordinals` (n, width), in no order.

    No other row has an exact score over `ceiling` (n,).
    """

    ordinals: NDArray[np.int64]
    ceiling: NDArray[np.floating]


class Proposer(Protocol):
    """Proposes candidates."""

    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposed:
        """`width` rows for each query (n, dim), fewer than are `allowed` (rows,)."""
        ...


class FaissProposer:
    """Proposes by FAISS over `vectors` (rows, dim), float32 or float16, read where they lie."""

    def __init__(self, vectors: NDArray[Any], largest_norm: float) -> None:
        self._vectors, self._largest_norm = vectors, largest_norm
        self._halves = flat_over(vectors) if vectors.dtype == np.float16 else None

    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposed:
        """As the protocol says. Sets a process-wide FAISS variable.

        The bound is that of a float32 inner product in any order of summation: dim x unit roundoff x product of the
        norms (Higham 2002, 3.1).
        """
        raw, ordinals = self._search(np.ascontiguousarray(queries, dtype=np.float32), width, selector_of(allowed))
        error = 1.01 * (self._vectors.shape[1] + 4) * UNIT_ROUNDOFF * self._largest_norm * norms_of(queries)
        return Proposed(ordinals, raw[:, -1] + error)

    def _search(
        self, queries: NDArray[np.float32], width: int, selector: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        if self._halves is not None:
            parameters = None if selector is None else FAISS.SearchParameters(sel=selector)
            return tuple(self._halves.search(queries, width, params=parameters))
        rows, dim = self._vectors.shape
        raw = np.empty((len(queries), width), dtype=np.float32)
        ordinals = np.empty((len(queries), width), dtype=np.int64)
        faiss.cvar.distance_compute_blas_threshold = ALWAYS_SCAN if len(queries) <= SCAN_UP_TO else _ALWAYS_BLAS
        pointers = [faiss.swig_ptr(array) for array in (queries, self._vectors, raw, ordinals)]
        sizes = (dim, len(queries), rows, width)
        FAISS.knn_inner_product(*pointers[:2], *sizes, *pointers[2:], *(() if selector is None else (selector,)))
        return raw, ordinals


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
