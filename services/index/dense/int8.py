"""Candidates of an exact search by integers of eight bits: a quarter of the memory to read, at many times the speed.

    vectors ──► blocks of codes ──► onnxruntime packs them for this processor

A premise is rounded to 8 bits a dimension and a query to 7, each with a scale of its own. Products of integers are
exact, so the rounding error of a score has a bound that holds for every row; with that bound as the ceiling, the search
stays exact. onnxruntime multiplies and picks, with the best kernel that the processor has.

That kernel wants the codes in a layout of its own, which depends on the processor, so they are no file of a generation:
they are made whenever it is opened (decision 17).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from services.corpus.inner_products import norms_of
from services.index.dense.exact import UNIT_ROUNDOFF, Proposal

LARGEST_PREMISE = 127
LARGEST_QUERY = 63  # with 8 bits the products of a pair would overflow in processors without VNNI
ZERO = 64  # queries are unsigned
BLOCK_ROWS = 1024
SCORES_AT_ONCE = 4_000_000  # 16 MB
CONSTANT_BYTES = 128 * 1024**2  # of codes in one model; protobuf takes 2 GiB, and making one takes four copies
_OUT_OF_REACH = np.float32(-1e30)


@dataclass(frozen=True)
class Rounding:
    """What rounding cost: the largest norm of a row, and of the difference between a row and its codes."""

    largest_norm: float
    largest_error: float


class Int8Proposer:
    """Proposes by integers rounded from `vectors` (rows, dim), in a quarter of their memory."""

    def __init__(self, vectors: NDArray[Any]) -> None:
        rows, dim = vectors.shape
        self._parts = parts_of(rows, dim)
        models = ((_session(model), rounding) for model, rounding in (_model_of(vectors[part]) for part in self._parts))
        self._sessions, roundings = zip(*models, strict=True)  # one after another: each takes four copies of its codes
        rounding = Rounding(max(one.largest_norm for one in roundings), max(one.largest_error for one in roundings))
        self._by_error = 1.01 * rounding.largest_norm
        lost = 4 * UNIT_ROUNDOFF * (rounding.largest_norm + rounding.largest_error)
        self._by_length = 1.01 * (rounding.largest_error + lost)
        self._everywhere = np.zeros(rows, dtype=np.float32)

    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposal:
        """Proposes `width` rows for each query (n, dim), fewer than are `allowed` (rows,).

        With a query q rounded to r and a premise p to s: q·p - r·s ≤ |q - r| |p| + |r| |p - s|. The bound grows by a
        hundredth for its own rounding, and by what three float32 operations can lose of a product.
        """
        bias = self._everywhere if allowed is None else np.where(allowed, np.float32(0), _OUT_OF_REACH)
        found = [
            _best_of(session, queries, min(width, part.stop - part.start), bias[part])
            for session, part in zip(self._sessions, self._parts, strict=True)
        ]
        scores, ordinals = found[0]["scores"], found[0]["ordinals"]
        if len(found) > 1:
            scores = np.concatenate([one["scores"] for one in found], axis=1)
            starts = zip(found, self._parts, strict=True)
            ordinals = np.concatenate([one["ordinals"] + part.start for one, part in starts], axis=1)
            best = np.argsort(-scores, axis=1)[:, :width]
            scores, ordinals = (np.take_along_axis(of, best, axis=1) for of in (scores, ordinals))
        error, length = (found[0][name][:, 0].astype(np.float64) for name in ("query_error", "length"))
        return Proposal(ordinals, scores, error * self._by_error + length * self._by_length)


def _best_of(
    session: ort.InferenceSession, queries: NDArray[np.float32], width: int, bias: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    """The best rows of one block for each query, best first, and what rounding the queries cost; bounded in memory."""
    feeds, names = {"width": np.array([width]), "bias": bias}, ("ordinals", "scores", "query_error", "length")
    at_once = max(1, SCORES_AT_ONCE // len(bias))
    parts = [
        session.run(names, {**feeds, "queries": queries[start : start + at_once]})
        for start in range(0, len(queries), at_once)
    ]
    if len(parts) == 1:
        return dict(zip(names, parts[0], strict=True))
    return {name: np.concatenate(of) for name, of in zip(names, zip(*parts, strict=True), strict=True)}


def parts_of(rows: int, dim: int) -> list[slice]:
    """Cuts rows into blocks of about the same size, none with more than `CONSTANT_BYTES` of codes."""
    blocks = -(-rows * dim // CONSTANT_BYTES)
    starts = [rows * block // blocks for block in range(blocks + 1)]
    return [slice(start, end) for start, end in pairwise(starts)]


def _model_of(vectors: NDArray[Any]) -> tuple[bytes, Rounding]:
    """Rounds vectors (rows, dim) to the model that multiplies with their codes."""
    rows, dim = vectors.shape
    codes = np.empty((dim, rows), dtype=np.int8)
    scales = np.empty(rows, dtype=np.float32)
    largest_norm = largest_error = 0.0
    for part, exact in _blocks(vectors):
        scales[part] = _scales(exact)
        rounded = np.rint(exact / scales[part, None])
        codes[:, part] = rounded.T
        error = norms_of(exact - rounded * scales[part, None].astype(np.float64))
        largest_error = max(largest_error, float(error.max()))
        largest_norm = max(largest_norm, float(norms_of(exact).max()))
    return _model(codes, scales), Rounding(largest_norm, largest_error)


def _scales(vectors: NDArray[np.float64]) -> NDArray[np.float32]:
    """The divisor of each row (n, dim), (n,), that turns its largest number into LARGEST_PREMISE."""
    scales: NDArray[np.float32] = (np.abs(vectors).max(axis=1) / LARGEST_PREMISE).astype(np.float32)
    scales[scales == 0.0] = 1.0
    return scales


def _blocks(vectors: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    for start in range(0, len(vectors), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        yield part, vectors[part].astype(np.float64)


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
