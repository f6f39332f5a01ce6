"""Exact search over a matrix of premise vectors: the same to the bit whatever the batch, the threads or the back end.

    queries ── proposer ──► candidates ± error ── float64 re-scoring ──► k best ── others out of reach? ──► SearchHits
                  ▲                                                                       │ no
                  └────────────── more candidates; in the end, all rows ◄─────────────────┘

A proposer names candidates by numbers that are cheap and wrong by no more than it says. Each candidate that can be
among the best is scored again in float64 by a kernel that sees one row at a time, rounded to float32, and ordered by
(score descending, ordinal ascending): ties go to the premise inserted first. Proposers are FAISS and integers of eight
bits, which take a quarter of the memory to read, at many times the speed: a premise is rounded to 8 bits a dimension
and a query to 7, each with a scale of its own. Products of integers are exact, so the rounding error has a bound that
holds for every row. onnxruntime multiplies and picks, with the best kernel that the processor has; it wants the codes
in a layout of its own, so they are no file of a generation: they are made whenever it is opened (decision 17).

This module has no locks and no threads; the batcher calls it from one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import faiss
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from services.corpus.arrays import exact_scores, norms_of
from services.index.values import DEFAULT_PARAMS, SearchHits, SearchParams

SCAN_ROWS = 20_000  # allowed rows; a scan of fewer alone is as fast as any index
SLACK = 32  # candidates beyond k in the first attempt
COARSE_UP_TO = 100  # hits; beyond, scoring the many candidates of integers costs more than it saves
WIDEST = 4096  # candidates; beyond, scoring all rows in float64 is cheaper than FAISS's heaps
BLOCK_ROWS = 8192
CACHED_ROWS = 512  # rows of float64 that stay in a core's cache
SCAN_UP_TO = 12  # queries; above, FAISS's matrix product beats its scan (measured at 16k x 384, one thread)
ALWAYS_SCAN = 2**31 - 1
_ALWAYS_BLAS = 1
FAISS: Any = faiss  # its stubs lack keyword arguments, views and the parameters of HNSW
UNIT_ROUNDOFF = 2.0**-24  # of float32
LARGEST_PREMISE = 127
LARGEST_QUERY = 63  # with 8 bits the products of a pair would overflow in processors without VNNI
ZERO = 64  # queries are unsigned
CODED_ROWS = 1024  # at a time
SCORES_AT_ONCE = 4_000_000  # 16 MB
CONSTANT_BYTES = 128 * 1024**2  # of codes in one model; protobuf takes 2 GiB, and making one takes four copies
_OUT_OF_REACH = np.float32(-1e30)


class FlatIndex:
    """Searches `vectors` (n, dim), float32 or float16, without copying them; a memory map stays on disk.

    The `largest_norm` of a row bounds FAISS's rounding error; without it, all rows are read to find it. `coarse`
    proposes first; FAISS, whose errors are smaller, only where `coarse` leaves a list open.
    """

    exact, is_unsure = True, False  # unsure: whether what searches still has the vectors

    def __init__(
        self,
        vectors: NDArray[np.float32] | NDArray[np.float16],
        *,
        largest_norm: float | None = None,
        coarse: Proposer | None = None,
    ) -> None:
        self.vectors: NDArray[Any] = np.ascontiguousarray(vectors)  # no copy of a memory map
        self.rows, self.dim = self.vectors.shape
        blocks = (self.vectors[start : start + BLOCK_ROWS] for start in range(0, self.rows, BLOCK_ROWS))
        norms = (float(norms_of(block).max()) for block in blocks)
        self.largest_norm = max(norms, default=0.0) if largest_norm is None else largest_norm
        self.coarse, self._fine = coarse, FaissProposer(self.vectors, self.largest_norm)

    @property
    def on_card(self) -> bool:
        """Whether a GPU reads the rows."""
        return self.coarse is not None and self.coarse.on_card

    def nearest(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None = None
    ) -> list[SearchHits]:
        """Finds the k nearest rows of each query (n, dim) by inner product, fewer when fewer are `allowed` (rows,)."""
        available = self.rows if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(k, available)
        if wanted == 0:
            return [SearchHits(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        if allowed is not None and available <= SCAN_ROWS < self.rows:
            return [*self.nearest_among(queries, np.flatnonzero(allowed), wanted)]
        results: dict[int, SearchHits] = {}
        pending = np.arange(len(queries))
        for proposer, width in self._attempts(wanted):
            if not len(pending) or width >= available:
                continue
            try:
                proposed = proposer.propose(queries[pending], width, allowed)
            except ProposerLost:
                continue
            ordinals, scores = self._best(queries[pending], proposed, wanted)
            final = is_out_of_reach(proposed.ceiling, scores[:, -1])
            results |= {int(pending[n]): SearchHits(ordinals[n], scores[n]) for n in np.flatnonzero(final)}
            pending = pending[~final]
        if len(pending):
            everything = np.arange(self.rows) if allowed is None else np.flatnonzero(allowed)
            results |= {int(row): self.rescore(queries[row], everything, wanted) for row in pending}
        return [results[row] for row in range(len(queries))]

    def steps(
        self,
        queries: NDArray[np.float32],
        k: int,
        allowed: NDArray[np.bool_] | None = None,
        params: SearchParams = DEFAULT_PARAMS,  # noqa: ARG002 -- always exact
    ) -> Iterator[list[SearchHits] | None]:
        """Yields what `nearest` finds, in one step."""
        yield self.nearest(queries, k, allowed)

    def scan(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None, rows_at_once: int
    ) -> Iterator[list[SearchHits] | None]:
        """Finds what `nearest` finds, to the bit, some rows at a time: yields None after a slice, at last the hits.

        The score of a row does not depend on other rows. So the best of the slices' exact hits are the best of all.
        """
        best = [SearchHits(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        for start in range(0, self.rows, rows_at_once):
            if start:
                yield None
            part = slice(start, start + rows_at_once)
            index = FlatIndex(self.vectors[part], largest_norm=self.largest_norm)
            found = index.nearest(queries, k, None if allowed is None else allowed[part])
            shifted = (SearchHits(one.ordinals + start, one.scores) for one in found)
            both = [old.followed_by(new) for old, new in zip(best, shifted, strict=True)]
            best = [SearchHits.best(one.ordinals, one.scores, k) for one in both]
        yield best

    def nearest_among(self, queries: NDArray[np.float32], ordinals: NDArray[np.int64], k: int) -> Iterator[SearchHits]:
        """Finds the k nearest of some rows to each query (n, dim), exactly."""
        among = np.sort(ordinals)  # ties go to the lower ordinal
        for found in FlatIndex(self.vectors[among], largest_norm=self.largest_norm).nearest(queries, k):
            yield SearchHits(among[found.ordinals], found.scores)

    def _attempts(self, wanted: int) -> Iterator[tuple[Proposer | FaissProposer, int]]:
        """Yields who proposes how many candidates, for as long as a list is not final."""
        if self.coarse is not None and wanted <= self.coarse.up_to:
            width = wanted + max(wanted, SLACK)
            yield from ((self.coarse, width), (self.coarse, 4 * width))
        width = wanted + SLACK
        while width <= WIDEST:
            yield self._fine, width
            width *= 4

    def rescore(self, query: NDArray[np.float32], ordinals: NDArray[np.int64], wanted: int) -> SearchHits:
        """Finds the `wanted` best of some rows by their exact scores; ties go to the lower ordinal."""
        scores = np.empty(len(ordinals), dtype=np.float32)
        exact_query = query.astype(np.float64)
        for start in range(0, len(ordinals), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            scores[part] = exact_scores(self.vectors[ordinals[part]], exact_query)
        return SearchHits.best(ordinals, scores, wanted)

    def _best(
        self, queries: NDArray[np.float32], proposed: Proposal, wanted: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ordinals and exact scores (n, wanted) of the best candidates of each query, as in `rescore`."""
        candidates, possible = proposed.ordinals, proposed.possible(wanted)
        scores = np.full(candidates.shape, -np.inf, dtype=np.float32)
        # All queries in one go: this thread gives the interpreter away in each call of numpy, and waits to get it back.
        scores[possible] = self._scores(candidates[possible], queries.astype(np.float64), np.nonzero(possible)[0])
        order = np.lexsort((candidates, -scores), axis=1)[:, :wanted]
        rows = np.arange(len(queries))[:, None]
        return candidates[rows, order], scores[rows, order]

    def _scores(
        self, ordinals: NDArray[np.int64], queries: NDArray[np.float64], of: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Exact scores (m,) of the rows `ordinals` (m,), each with the query that `of` (m,) names."""
        scores = np.empty(len(ordinals), dtype=np.float32)
        for start in range(0, len(ordinals), CACHED_ROWS):
            part = slice(start, start + CACHED_ROWS)
            scores[part] = exact_scores(self.vectors[ordinals[part], None], queries[of[part]])[:, 0]
        return scores


class Proposer(Protocol):
    """Proposes for at most `up_to` hits, on a GPU that works (`on_card`) or a CPU."""

    @property
    def up_to(self) -> int: ...
    @property
    def on_card(self) -> bool: ...
    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposal:
        """Proposes `width` rows for each query (n, dim), fewer than are `allowed` (rows,). Raises ProposerLost."""


class ProposerLost(Exception):
    """A proposer that cannot propose now."""


@dataclass(frozen=True)
class Proposal:
    """Candidates for the nearest rows, best first: `ordinals` (n, width) and their proposed `scores` (n, width).

    In exact arithmetic, the score of a candidate differs from the proposed one by at most `error` (n,), and that of any
    other row is at most `ceiling` (n,).
    """

    ordinals: NDArray[np.int64]
    scores: NDArray[np.floating]
    error: NDArray[np.float64]

    @property
    def ceiling(self) -> NDArray[np.float64]:
        """The highest score that a row outside the candidates can have."""
        ceiling: NDArray[np.float64] = self.scores[:, -1] + self.error
        return ceiling

    def possible(self, wanted: int) -> NDArray[np.bool_]:
        """Which candidates (n, width) can be among the best `wanted`, for each query: these and no others.

        The candidate at place `wanted` scores at least its proposed score less the error. A candidate whose highest
        possible score, rounded to float32 as scores are, is below that cannot be in the list, whatever its ordinal.
        """
        least = (self.scores[:, wanted - 1] - self.error).astype(np.float32)
        most = (self.scores + self.error[:, None]).astype(np.float32)
        possible: NDArray[np.bool_] = most >= least[:, None]
        return possible


class FaissProposer:
    """Proposes by FAISS over `vectors` (rows, dim), float32 or float16, without copying them."""

    def __init__(self, vectors: NDArray[Any], largest_norm: float) -> None:
        self._vectors, self._largest_norm = vectors, largest_norm
        self._halves = flat_over(vectors) if vectors.dtype == np.float16 else None

    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposal:
        """Proposes by float32 products, whose last bits depend on the batch. Sets a process-wide FAISS variable."""
        queries, selector = np.ascontiguousarray(queries, dtype=np.float32), selector_of(allowed)
        error = rounding_bound(queries, self._largest_norm)
        if self._halves is not None:
            parameters = None if selector is None else FAISS.SearchParameters(sel=selector)
            raw, ordinals = self._halves.search(queries, width, params=parameters)
            return Proposal(ordinals, raw, error)
        rows, dim = self._vectors.shape
        raw = np.empty((len(queries), width), dtype=np.float32)
        ordinals = np.empty((len(queries), width), dtype=np.int64)
        faiss.cvar.distance_compute_blas_threshold = ALWAYS_SCAN if len(queries) <= SCAN_UP_TO else _ALWAYS_BLAS
        pointers = [faiss.swig_ptr(array) for array in (queries, self._vectors, raw, ordinals)]
        sizes = (dim, len(queries), rows, width)
        FAISS.knn_inner_product(*pointers[:2], *sizes, *pointers[2:], *(() if selector is None else (selector,)))
        return Proposal(ordinals, raw, error)


def is_out_of_reach(ceiling: NDArray[np.floating], last: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether no row outside the candidates can enter a list whose k-th score is `last`. Both (n,).

    This is the proof of exactness. A row outside scores at most `ceiling` in exact arithmetic. Scores are compared
    after rounding to float32, and rounding keeps order: if `ceiling` is below the float32 just under `last`, that row's
    rounded score is below `last` as well. Strictly below matters: an equal score with a lower ordinal would come first.
    """
    just_under: NDArray[np.float32] = np.nextafter(last, np.float32(-np.inf))
    return ceiling < just_under


def rounding_bound(queries: NDArray[np.float32], largest_norm: float) -> NDArray[np.float64]:
    """Bounds the error of float32 inner products of queries (n, dim) with rows no longer than `largest_norm`: (n,).

    It holds for any order of summation: dim x unit roundoff x product of the norms (Higham 2002, 3.1).
    """
    factor = 1.01 * (queries.shape[1] + 4) * UNIT_ROUNDOFF * largest_norm
    bound: NDArray[np.float64] = norms_of(queries) * factor
    return bound


def flat_over(vectors: NDArray[Any]) -> Any:
    """Makes a flat FAISS index over `vectors` (n, dim), float32 or float16. It points into them: keep both alive."""
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
    """Makes a FAISS selector of the rows `allowed` (rows,); None stands for all."""
    return None if allowed is None else FAISS.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))


class Int8Proposer:
    """Proposes by integers rounded from `vectors` (rows, dim), in a quarter of their memory."""

    up_to, on_card = COARSE_UP_TO, False

    def __init__(self, vectors: NDArray[Any]) -> None:
        rows, dim = vectors.shape
        self._parts = parts_of(rows, dim)
        # one after another: each takes four copies of its codes
        coded = [
            (_session(model), norm, error) for model, norm, error in (_model_of(vectors[of]) for of in self._parts)
        ]
        self._sessions = [session for session, *_ in coded]
        largest_norm, largest_error = max(norm for _, norm, _ in coded), max(error for *_, error in coded)
        self._by_error = 1.01 * largest_norm
        self._by_length = 1.01 * (largest_error + 4 * UNIT_ROUNDOFF * (largest_norm + largest_error))
        self._everywhere = np.zeros(rows, dtype=np.float32)

    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposal:
        """Proposes `width` rows for each query (n, dim), fewer than are `allowed` (rows,).

        With a query q rounded to r and a premise p to s: q·p - r·s ≤ |q - r| |p| + |r| |p - s|. The bound grows by a
        hundredth for its own rounding, and by what three float32 operations can lose of a product.
        """
        bias = self._everywhere if allowed is None else np.where(allowed, np.float32(0), _OUT_OF_REACH)
        found = [
            _in_block(session, queries, min(width, part.stop - part.start), bias[part])
            for session, part in zip(self._sessions, self._parts, strict=True)
        ]
        placed = zip(found, self._parts, strict=True)
        scores, ordinals = best_of([(one["scores"], one["ordinals"] + part.start) for one, part in placed], width)
        error, length = (found[0][name][:, 0].astype(np.float64) for name in ("query_error", "length"))
        return Proposal(ordinals, scores, error * self._by_error + length * self._by_length)


def best_of(
    found: Sequence[tuple[NDArray[Any], NDArray[np.int64]]], width: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Joins the scores and ordinals (n, ≤ width) that blocks of rows propose: the best `width` of all, best first."""
    if len(found) == 1:
        return found[0]
    scores, ordinals = (np.concatenate(of, axis=1) for of in zip(*found, strict=True))
    best = np.argsort(-scores, axis=1)[:, :width]
    return np.take_along_axis(scores, best, axis=1), np.take_along_axis(ordinals, best, axis=1)


def _in_block(
    session: ort.InferenceSession, queries: NDArray[np.float32], width: int, bias: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    """The best rows of one block for each query, best first, and what rounding the queries cost; bounded in memory."""
    feeds, names = {"width": np.array([width]), "bias": bias}, ("ordinals", "scores", "query_error", "length")
    at_once = max(1, SCORES_AT_ONCE // len(bias))
    parts = [
        session.run(names, {**feeds, "queries": queries[start : start + at_once]})
        for start in range(0, len(queries), at_once)
    ]
    return {name: np.concatenate(of) for name, of in zip(names, zip(*parts, strict=True), strict=True)}


def parts_of(rows: int, dim: int) -> list[slice]:
    """Cuts rows into blocks of about the same size, none with more than `CONSTANT_BYTES` of codes."""
    blocks = -(-rows * dim // CONSTANT_BYTES)
    starts = [rows * block // blocks for block in range(blocks + 1)]
    return [slice(start, end) for start, end in pairwise(starts)]


def _model_of(vectors: NDArray[Any]) -> tuple[bytes, float, float]:
    """Rounds vectors (rows, dim) to the model that multiplies with their codes.

    Returns the largest norm of a row, and of the difference between a row and its codes, as well.
    """
    rows, dim = vectors.shape
    codes, scales = np.empty((dim, rows), dtype=np.int8), np.empty(rows, dtype=np.float32)
    norm = error = 0.0
    for start in range(0, rows, CODED_ROWS):
        part = slice(start, start + CODED_ROWS)
        exact = vectors[part].astype(np.float64)
        scales[part] = np.abs(exact).max(axis=1) / LARGEST_PREMISE
        scales[part][scales[part] == 0.0] = 1.0
        rounded = np.rint(exact / scales[part, None])
        codes[:, part] = rounded.T
        error = max(error, float(norms_of(exact - rounded * scales[part, None].astype(np.float64)).max()))
        norm = max(norm, float(norms_of(exact).max()))
    return _model(codes, scales), norm, error


def _session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _model(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> bytes:
    """Rounds queries, multiplies them with `codes` (dim, rows), scales and biases the products, picks the best."""
    from onnx import TensorProto, helper, numpy_helper

    dim, rows = codes.shape
    constants: dict[str, Any] = {
        "premises": codes,
        "scales": scales,
        "one": np.float32(1),
        "no_zero": np.int8(0),
        "zero": np.uint8(ZERO),
        "zero_float": np.float32(ZERO),
        "largest": np.float32(LARGEST_QUERY),
        "tiny": np.float32(1e-30),
        "along": np.array([1]),
    }
    fused = ["codes", "premises", "one", "scales", "zero", "no_zero", "bias"]
    node = helper.make_node
    nodes = [
        node("Abs", ["queries"], ["sizes"]),
        node("ReduceMax", ["sizes", "along"], ["greatest"], keepdims=1),
        node("Max", ["greatest", "tiny"], ["positive"]),
        node("Div", ["positive", "largest"], ["unit"]),
        node("Div", ["queries", "unit"], ["in_units"]),
        node("Round", ["in_units"], ["rounded"]),
        node("Add", ["rounded", "zero_float"], ["shifted"]),
        node("Cast", ["shifted"], ["codes"], to=TensorProto.UINT8),
        node("MatMulIntegerToFloat", fused, ["products"], domain="com.microsoft"),
        node("TopK", ["products", "width"], ["picked", "ordinals"]),
        node("Mul", ["picked", "unit"], ["scores"]),
        node("Mul", ["rounded", "unit"], ["near"]),
        node("Sub", ["queries", "near"], ["off"]),
        node("ReduceL2", ["off", "along"], ["query_error"], keepdims=1),
        node("ReduceL2", ["near", "along"], ["length"], keepdims=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "proposals",
        [
            value("queries", TensorProto.FLOAT, ["n", dim]),
            value("width", TensorProto.INT64, [1]),
            value("bias", TensorProto.FLOAT, [rows]),
        ],
        [
            value("ordinals", TensorProto.INT64, ["n", "width"]),
            value("scores", TensorProto.FLOAT, ["n", "width"]),
            value("query_error", TensorProto.FLOAT, ["n", 1]),
            value("length", TensorProto.FLOAT, ["n", 1]),
        ],
        [numpy_helper.from_array(constant, name) for name, constant in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return model
