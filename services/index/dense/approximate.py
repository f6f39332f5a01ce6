"""Search in large corpora: something proposes candidates, and the generation's own vectors score them exactly.

    queries ── lists, by integers, or a graph ──► FAISS: candidates ──► FlatIndex.nearest_among ──► SearchHits
    queries ── another system: more than k ordinals ──► scores of the files' vectors ──► others out of reach? ──► hits
                         ▲                                                                       │ no
                         └───────────────────────── four times as many ◄─────────────────────────┘

A search by FAISS may overlook premises, as rarely as the manifest says; scores and their order are those of an exact
search. What a query finds does not depend on the others of its batch. Of another system that compares a query with
every premise, the hits are those of FlatIndex to the bit; an approximate one is asked once, and its hits are never
exact. Asking is waiting, so the batcher does it in `threads` of the system. FAISS sums by the instructions that a
processor has: what it proposes may differ between kinds of processors, what a proposal scores does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import exact_scores
from services.corpus.generation import Generation
from services.index.dense.card import Card
from services.index.dense.exact import (
    FAISS,
    SCAN_ROWS,
    FlatIndex,
    Int8Proposer,
    flat_over,
    is_out_of_reach,
    rounding_bound,
    selector_of,
)
from services.index.values import DEFAULT_PARAMS, REMOTE_ENGINES, Engine, SearchHits, SearchParams, Selection
from services.store.files import sha256_of
from services.store.formats import damage_is_data_loss, made_of

INDEX_FILE = "index.faiss"
CODES_FROM = 1_000  # rows; a scan of fewer takes no time
SLICE_PRODUCTS = 4_000_000  # rows times queries of a slice of a large scan: about a tenth of a second at 384 dimensions
SLICE_ROWS = 500_000  # of a slice; few queries wait for the memory rather than for the products
REMOTE_SLACK = 8  # proposals beyond k in the first question: each is sent, and its vector is read
WIDEST_SEARCH = 4096  # largest breadth of HNSW; beyond, a scan is as fast


@dataclass(frozen=True)
class IndexPlan:
    """An approximate engine as its build made and measured it; the manifest keeps it.

    `lists` belong to IVF, `links` to HNSW (0 for the other). `breadth`, the lists visited or HNSW's search breadth,
    reached `recall_at_10` over `queries` queries; a search for k premises scores 2k + `candidates`.
    """

    engine: Engine
    breadth: int
    candidates: int
    recall_at_10: float
    recall_wanted: float
    queries: int
    lists: int = 0
    links: int = 0


class IvfProposer:
    """Proposes from the lists of an IVF index. Which lists a query visits, integers say, for a whole batch at once.

    FAISS would read all centroids in float32 for each query: at ten million premises 25 MB, most of a search
    (docs/experiments/retrieval.md). Integers are exact, so a query visits the same lists in any batch.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self._centroids = index.quantizer.reconstruct_n(0, index.nlist)
        self._codes = Int8Proposer(self._centroids)
        self.widest = int(index.nlist)

    def propose(
        self, queries: NDArray[np.float32], width: int, breadth: int, selector: Any
    ) -> Iterator[NDArray[np.int64]]:
        """Yields at most `width` ordinals for each query (n, dim), from the `breadth` lists that are nearest to it."""
        visited = np.ascontiguousarray(self._codes.propose(queries, breadth, None).ordinals, dtype=np.int64)
        parameters = FAISS.SearchParametersIVF(nprobe=breadth, sel=selector)
        for query, lists in zip(queries, visited, strict=True):
            scores = exact_scores(self._centroids[lists], query.astype(np.float64))  # by every processor alike
            raw, ordinals = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.int64)
            pointers = [FAISS.swig_ptr(array) for array in (query, lists, scores, raw, ordinals)]
            # one query a call: in a batch FAISS sums in another order
            self._index.search_preassigned_c(1, pointers[0], width, *pointers[1:], False, parameters)
            yield ordinals


class GraphProposer:
    """Proposes by walking the graph of an HNSW index."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.widest = WIDEST_SEARCH

    def propose(
        self, queries: NDArray[np.float32], width: int, breadth: int, selector: Any
    ) -> Iterator[NDArray[np.int64]]:
        """Yields at most `width` ordinals for each query (n, dim), found by a search of this breadth."""
        parameters = FAISS.SearchParametersHNSW(efSearch=breadth, sel=selector)
        for query in queries:
            yield self._index.search(query[None], width, params=parameters)[1][0]


class ApproximateIndex:
    """Searches by a FAISS index over the vectors of `flat`, which answers where a scan is requested or cheaper."""

    exact = is_unsure = on_card = False

    def __init__(self, flat: FlatIndex, proposer: IvfProposer | GraphProposer, plan: IndexPlan) -> None:
        self.flat = flat
        self.vectors, self.rows, self.dim = flat.vectors, flat.rows, flat.dim
        self.plan = plan
        self._proposer = proposer
        self._widest = min(proposer.widest, self.rows)

    def nearest(
        self,
        queries: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        params: SearchParams = DEFAULT_PARAMS,
    ) -> list[SearchHits]:
        """Finds k near rows of each query (n, dim), not always the nearest; fewer if fewer are `allowed` (rows,).

        Raises InvalidArgument for parameters that the engine does not know.
        """
        available = self.rows if allowed is None else int(np.count_nonzero(allowed))
        self._check(params)
        if available <= max(k, SCAN_ROWS if allowed is not None else 0):
            return self.flat.nearest(queries, k, allowed)
        asked = (params.nprobe if self.plan.lists else params.ef_search) or self.plan.breadth
        # The fewer rows are allowed, the farther apart they lie, but the fewer compete (docs/experiments/retrieval.md).
        breadth = min(int(asked * (self.rows / available) ** 0.5), self._widest)
        selector = selector_of(allowed)
        width = min(2 * k + self.plan.candidates, self.rows)
        results: dict[int, SearchHits] = {}
        pending = np.arange(len(queries))
        while len(pending):
            proposed = self._proposer.propose(queries[pending], width, breadth, selector)
            for row, candidates in zip(pending.tolist(), proposed, strict=True):
                ordinals = candidates[(candidates >= 0) & (candidates < self.rows)]
                if len(ordinals) >= k:
                    (found,) = self.flat.nearest_among(queries[row : row + 1], ordinals, k)
                    results[row] = replace(found, exact=False)
                elif breadth >= self._widest:
                    results[row] = self.flat.nearest(queries[row : row + 1], k, allowed)[0]
            pending = np.array([row for row in pending.tolist() if row not in results], dtype=np.int64)
            breadth = min(breadth * 4, self._widest)
        return [results[row] for row in range(len(queries))]

    def _check(self, params: SearchParams) -> None:
        known, unknown = ("nprobe", "ef_search") if self.plan.lists else ("ef_search", "nprobe")
        if getattr(params, unknown):
            raise errors.InvalidArgument.field(
                f"params.{unknown}", f"means nothing to the engine {self.plan.engine}; set {known}, exact, or neither"
            )
        if params.ef_search > WIDEST_SEARCH:
            raise errors.InvalidArgument.field(
                "params.ef_search", f"must be at most {WIDEST_SEARCH:,}, got {params.ef_search:,}; or set exact"
            )

    def steps(
        self,
        queries: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        params: SearchParams = DEFAULT_PARAMS,
    ) -> Iterator[list[SearchHits] | None]:
        """Yields what `nearest` finds; an exact search goes slice by slice and yields None after each but the last."""
        if params.exact:
            at_once = min(SLICE_ROWS, max(SLICE_PRODUCTS // len(queries), 1))
            yield from self.flat.scan(queries, k, allowed, at_once)
        else:
            yield self.nearest(queries, k, allowed, params)


class RemoteProposer(Protocol):
    """A system that holds the vectors of one generation. `exact`: it compares a query with every premise.

    It gives at most `most` ordinals for a query. Calls that wait for it run in `threads`.
    """

    exact: bool
    most: int
    threads: ThreadPoolExecutor

    def propose(
        self, queries: NDArray[np.float32], width: int, selection: Selection, breadth: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yields for each query (n, dim) at most `width` selected ordinals and their products in float32.

        It has them all when there are fewer. `breadth` is that of an approximate search; 0 takes the default.
        """


class RemoteIndex:
    """Searches by what a system proposes over the vectors of `flat`."""

    is_unsure, on_card = True, False  # unsure: the system may have lost them since

    def __init__(self, flat: FlatIndex, proposer: RemoteProposer) -> None:
        self.vectors: NDArray[Any] = flat.vectors
        self.rows, self.dim = flat.rows, flat.dim
        self.exact, self.threads = proposer.exact, proposer.threads
        self._flat, self._proposer = flat, proposer

    def steps(
        self, queries: NDArray[np.float32], k: int, selection: Selection, params: SearchParams = DEFAULT_PARAMS
    ) -> Iterator[list[SearchHits] | None]:
        """Yields None after each question but the last, then the k nearest selected rows of each query (n, dim).

        Raises Unimplemented for an exact search where the system is approximate.
        """
        if params.exact and not self.exact:
            raise errors.Unimplemented(
                "params.exact is not in the engine milvus-hnsw, which is approximate; use ef_search, or build the "
                "corpus with AEENC_INDEX_MILVUS_ENGINE=flat"
            )
        results: dict[int, SearchHits] = {}
        pending, width = np.arange(len(queries)), min(k + REMOTE_SLACK, self._proposer.most)
        while True:
            proposed = self._proposer.propose(queries[pending], width, selection, params.ef_search)
            for row, (ordinals, products) in zip(pending.tolist(), proposed, strict=True):
                hits = self._scored(queries[row], ordinals, products, k, width)
                if hits.exact or not self.exact or width == self._proposer.most:
                    results[row] = hits
            pending = np.array([row for row in pending.tolist() if row not in results], dtype=np.int64)
            if not len(pending):
                break
            width = min(4 * width, self._proposer.most)
            yield None
        yield [results[row] for row in range(len(queries))]

    def _scored(
        self,
        query: NDArray[np.float32],
        ordinals: NDArray[np.int64],
        products: NDArray[np.float32],
        k: int,
        width: int,
    ) -> SearchHits:
        """The best k of what was proposed; exact if nothing else can be among them."""
        hits = self._flat.rescore(query, ordinals[(ordinals >= 0) & (ordinals < self.rows)], k)
        is_final = len(ordinals) < width
        if not is_final and len(hits.ordinals) == k:
            ceiling = float(products.min()) + rounding_bound(query[None], self._flat.largest_norm)
            is_final = bool(is_out_of_reach(ceiling, hits.scores[-1:])[0])
        return replace(hits, exact=self.exact and is_final)


SearchIndex = FlatIndex | ApproximateIndex | RemoteIndex
OpenRemote = Callable[[Generation], RemoteProposer]
OpenIndex = Callable[[Generation], SearchIndex]


def open_index(generation: Generation, open_remote: OpenRemote | None = None, card: Card | None = None) -> SearchIndex:
    """Opens the index of a generation. Raises DataLoss naming the file that differs from its manifest.

    With a `card`, it proposes for exact engines. Raises FailedPrecondition where the card has no room and must have, or
    for an engine of another system that `open_remote` is missing for.
    """
    artifact = generation.artifact
    with damage_is_data_loss(artifact.path, "build the generation again"):
        largest_norm = artifact.meta.get("largest_norm")
        flat = FlatIndex(generation.vectors, largest_norm=largest_norm)
        if artifact.meta["engine"] == "flat":
            if flat.rows >= CODES_FROM:
                flat.coarse = (card and card.load(flat.vectors, flat.largest_norm)) or Int8Proposer(flat.vectors)
            return flat
        if artifact.meta["engine"] in REMOTE_ENGINES:
            if open_remote is None:
                raise errors.FailedPrecondition(
                    f"generation {generation.id} of corpus {generation.corpus!r} is searched by a Milvus; set "
                    "AEENC_INDEX_MILVUS_URI, or build the corpus again with AEENC_INDEX_BACKEND=faiss"
                )
            return RemoteIndex(flat, open_remote(generation))
        plan = made_of(IndexPlan, artifact.meta["index"])
    path = artifact.file(INDEX_FILE)
    if sha256_of(path) != artifact.files[INDEX_FILE].sha256:  # every time: FAISS trusts what it reads
        raise errors.DataLoss(f"{path} does not have the sha256 of its manifest; build the generation again")
    return ApproximateIndex(flat, read_proposer(path, flat, plan), plan)


def read_proposer(path: Path, flat: FlatIndex, plan: IndexPlan) -> IvfProposer | GraphProposer:
    """Reads a FAISS index over the vectors of `flat`. Raises DataLoss when the file holds anything else."""
    FAISS.set_deserialization_vector_byte_limit(path.stat().st_size)
    try:
        index = FAISS.read_index(str(path), FAISS.IO_FLAG_SKIP_STORAGE)
    except RuntimeError as error:
        raise errors.DataLoss(f"{path} is not a FAISS index ({error}); build the generation again") from error
    found = (type(index).__name__, index.d, index.ntotal, index.metric_type, index.is_trained)
    halves = flat.vectors.dtype == np.float16
    kind = "IndexIVFPQFastScan" if plan.engine == "ivf" else "IndexHNSWSQ" if halves else "IndexHNSWFlat"
    wanted = (kind, flat.dim, flat.rows, FAISS.METRIC_INNER_PRODUCT, True)
    if found != wanted or plan.lists != getattr(index, "nlist", 0):
        raise errors.DataLoss(f"{path} holds {found}, its manifest says {wanted}; build the generation again")
    if plan.engine == "hnsw":
        storage = flat_over(flat.vectors)
        index.storage, index.own_fields = storage, False
        index.referenced_objects = [storage]  # keeps it alive as long as the index
        return GraphProposer(index)
    return IvfProposer(index)
