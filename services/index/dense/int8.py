"""Candidates of an exact search by integers of eight bits: a quarter of the memory to read, at many times the speed.

A premise is rounded to 8 bits a dimension and a query to 7, each with a scale of its own. Products of integers are
exact, so the rounding error of a score has a bound that holds for every row; with that bound as the ceiling, the search
stays exact. onnxruntime multiplies and picks, with the best kernel that the processor has.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_OUT_OF_REACH = np.float32(-1e30)


class Int8Proposer:
    """Proposes by integers rounded from `vectors` (rows, dim), in a quarter of their memory."""

    def __init__(self, vectors: NDArray[Any]) -> None:
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
        self._everywhere = np.zeros(rows, dtype=np.float32)
        self._at_once = max(1, SCORES_AT_ONCE // rows)
        self._session = _session(codes, scales, largest_norm=largest_norm, error=largest_error)

    def propose(self, queries: NDArray[np.float32], width: int, allowed: NDArray[np.bool_] | None) -> Proposal:
        """Proposes `width` rows for each query (n, dim), fewer than are `allowed` (rows,)."""
        bias = self._everywhere if allowed is None else np.where(allowed, np.float32(0), _OUT_OF_REACH)
        feeds = {"width": np.array([width]), "bias": bias}
        parts = [
            self._session.run(["ordinals", "ceiling"], {**feeds, "queries": queries[start : start + self._at_once]})
            for start in range(0, len(queries), self._at_once)
        ]
        if len(parts) == 1:
            return Proposal(*parts[0])
        ordinals, ceiling = zip(*parts, strict=True)
        return Proposal(np.concatenate(ordinals), np.concatenate(ceiling))


def _scales(vectors: NDArray[np.float64]) -> NDArray[np.float32]:
    """The divisor of each row (n, dim), (n,), that turns its largest number into LARGEST_PREMISE."""
    scales: NDArray[np.float32] = (np.abs(vectors).max(axis=1) / LARGEST_PREMISE).astype(np.float32)
    scales[scales == 0.0] = 1.0
    return scales


def _blocks(vectors: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    for start in range(0, len(vectors), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        yield part, vectors[part].astype(np.float64)


def _session(
    codes: NDArray[np.int8], scales: NDArray[np.float32], *, largest_norm: float, error: float
) -> ort.InferenceSession:
    """Rounds queries, multiplies them with `codes` (dim, rows), scales and biases the products, picks the best.

    With a query q rounded to r and a premise p to s, no premise's error larger than `error`:
    q·p - r·s ≤ |q - r| |p| + |r| |p - s|. The bound grows by a hundredth for its own rounding, and by what three
    float32 operations can lose of a product.
    """
    from onnx import TensorProto, helper, numpy_helper

    dim, rows = codes.shape
    lost = 4 * UNIT_ROUNDOFF * (largest_norm + error)
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
        "by_error": np.float32(1.01 * largest_norm),
        "by_length": np.float32(1.01 * (error + lost)),
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
        node("TopK", ["products", "width"], ["picked", "ordinals"], sorted=0),
        node("ReduceMin", ["picked", "along"], ["worst"], keepdims=1),
        node("Mul", ["worst", "unit"], ["worst_score"]),
        node("Mul", ["rounded", "unit"], ["near"]),
        node("Sub", ["queries", "near"], ["off"]),
        node("ReduceL2", ["off", "along"], ["query_error"], keepdims=1),
        node("ReduceL2", ["near", "along"], ["length"], keepdims=1),
        node("Mul", ["query_error", "by_error"], ["of_query"]),
        node("Mul", ["length", "by_length"], ["of_premise"]),
        node("Sum", ["worst_score", "of_query", "of_premise"], ["high"]),
        node("Squeeze", ["high", "along"], ["ceiling"]),
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
        [value("ordinals", TensorProto.INT64, ["n", "width"]), value("ceiling", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(constant, name) for name, constant in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
