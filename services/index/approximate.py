"""Search in large corpora: a FAISS index proposes candidates, which are scored exactly by the generation's own vectors.

Premises may be overlooked, as seldom as the manifest says; scores and their order are those of an exact search. Queries
are searched one at a time: in a batch FAISS sums in another order, and near ties would decide which lists are visited.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import Generation
from services.index.codes import CodesProposer
from services.index.plan import INDEX_FILE, Plan
from services.index.proposals import ALWAYS_SCAN, FAISS, flat_over, selector_of
from services.index.search import USUAL, Effort, FlatIndex, Found
from services.store.artifacts import sha256_of

CODES_FROM = 1_000  # rows; of fewer a scan takes no time
SCAN_ROWS = 20_000  # allowed rows up to which scanning them is as fast as any index
WIDEST_SEARCH = 4096  # most breadth of HNSW; beyond, a scan is as fast


class ApproximateIndex:
    """Searches by a FAISS index over the vectors of `flat`, which answers where a scan is asked for or cheaper."""

    exact = False

    def __init__(self, flat: FlatIndex, proposer: Any, plan: Plan) -> None:
        self.flat = flat
        self.vectors, self.rows, self.dim = flat.vectors, flat.rows, flat.dim
        self.plan = plan
        self._proposer = proposer
        self._widest = min(plan.lists or WIDEST_SEARCH, self.rows)

    def nearest(
        self,
        queries: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        effort: Effort = USUAL,
    ) -> list[Found]:
        """The k nearest rows of each query (n, dim), as far as found; never fewer than are `allowed` (rows,)."""
        available = self.rows if allowed is None else int(np.count_nonzero(allowed))
        is_selective = allowed is not None and available <= SCAN_ROWS
        if effort.exact or is_selective or available <= k:
            return self.flat.nearest(queries, k, allowed)
        asked = (effort.nprobe if self.plan.lists else effort.ef_search) or self.plan.breadth
        breadth = min(asked * self.rows // available, self._widest)  # the fewer are allowed, the farther they lie apart
        selector = selector_of(allowed)
        FAISS.cvar.distance_compute_blas_threshold = ALWAYS_SCAN  # of the centroids, whatever was searched before
        return [self._nearest(query, k, breadth, selector, allowed) for query in queries]

    def _nearest(
        self,
        query: NDArray[np.float32],
        k: int,
        breadth: int,
        selector: Any,
        allowed: NDArray[np.bool_] | None,
    ) -> Found:
        width = min(2 * k + self.plan.candidates, self.rows)
        while True:
            _, (proposed,) = self._proposer.search(query[None], width, params=self._parameters(breadth, selector))
            ordinals = proposed[(proposed >= 0) & (proposed < self.rows)]
            if len(ordinals) >= k:
                return replace(self.flat.rescore(query, ordinals, k), exact=False)
            if breadth >= self._widest:
                return self.flat.nearest(query[None], k, allowed)[0]
            breadth = min(breadth * 4, self._widest)

    def _parameters(self, breadth: int, selector: Any) -> Any:
        if self.plan.lists:
            return FAISS.SearchParametersIVF(nprobe=breadth, sel=selector)
        return FAISS.SearchParametersHNSW(efSearch=breadth, sel=selector)


SearchIndex = FlatIndex | ApproximateIndex


def open_index(generation: Generation) -> SearchIndex:
    """The index of a generation. Raises DataLoss naming the file that is not as its manifest says."""
    artifact = generation.artifact
    try:
        largest_norm = artifact.meta.get("largest_norm")
        if artifact.meta["engine"] == "flat":
            coarse = CodesProposer(generation.vectors) if len(generation.vectors) >= CODES_FROM else None
            return FlatIndex(generation.vectors, largest_norm=largest_norm, coarse=coarse)
        flat = FlatIndex(generation.vectors, largest_norm=largest_norm)
        plan = Plan.of(artifact.meta)
    except (KeyError, TypeError, ValueError) as error:
        raise errors.DataLoss(f"{artifact.path} names no engine ({error}); build the generation again") from error
    path = artifact.file(INDEX_FILE)
    if sha256_of(path) != artifact.files[INDEX_FILE].sha256:  # at every opening: FAISS trusts what it reads
        raise errors.DataLoss(f"{path} does not have the sha256 of its manifest; build the generation again")
    return ApproximateIndex(flat, read_proposer(path, flat, plan), plan)


def read_proposer(path: Path, flat: FlatIndex, plan: Plan) -> Any:
    """Reads a FAISS index over the vectors of `flat`. Raises DataLoss when the file holds anything else."""
    FAISS.set_deserialization_vector_byte_limit(path.stat().st_size)
    try:
        index = FAISS.read_index(str(path), FAISS.IO_FLAG_SKIP_STORAGE)
    except RuntimeError as error:
        raise errors.DataLoss(f"{path} is no FAISS index ({error}); build the generation again") from error
    found = (type(index).__name__, index.d, index.ntotal, index.metric_type, index.is_trained)
    halves = flat.vectors.dtype == np.float16
    kind = "IndexIVFPQFastScan" if plan.engine == "ivf" else "IndexHNSWSQ" if halves else "IndexHNSWFlat"
    wanted = (kind, flat.dim, flat.rows, FAISS.METRIC_INNER_PRODUCT, True)
    if found != wanted or plan.lists != getattr(index, "nlist", 0):
        raise errors.DataLoss(f"{path} holds {found}, its manifest says {wanted}; build the generation again")
    if plan.engine == "hnsw":
        storage = flat_over(flat.vectors)
        index.storage, index.own_fields = storage, False
        index.referenced_objects = [storage]  # lives as long as the index
    return index
