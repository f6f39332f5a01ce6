"""The int8 recipe `rowwise`: matrix products in integers, with a scale for each token of the activations.

    x ──► scale of each row: max|x| / 127 ──► x / scale, rounded to uint8 around 128 ──┐
    w ──► scale of each column, 7 bits ────────────────────────────────────────────────┴─► product ──► x both scales

Integer sums are exact, and a row's scale depends on that row alone. So a text has the same vector alone and in any
batch, padded or not. Weights have 7 bits because processors without VNNI add pairs of products in 16 bits:
2 x 255 x 63 = 32,130 fits, 8 bits would saturate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

LARGEST_WEIGHT = 63
ZERO_POINT, LARGEST_ACTIVATION = 128, 127.0
_MICROSOFT = "com.microsoft"
_CONSTANTS: dict[str, NDArray[Any]] = {
    "int8_last_axis": np.array([-1], dtype=np.int64),
    "int8_least": np.array(1e-12, dtype=np.float32),  # of a row's maximum, so that a row of zeros divides by something
    "int8_largest": np.array(LARGEST_ACTIVATION, dtype=np.float32),
    "int8_one": np.array(1, dtype=np.float32),
    "int8_zero": np.array(ZERO_POINT, dtype=np.uint8),
}


def quantize_rows(model: onnx.ModelProto) -> None:
    """Rewrites, in place, all products with a constant matrix. The same model gives the same bytes."""
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) == 2}
    nodes: list[onnx.NodeProto] = []
    added = [numpy_helper.from_array(value, name) for name, value in _CONSTANTS.items()]
    replaced: set[str] = set()
    rounded: set[str] = set()  # several products may share their activations
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            nodes.append(node)
            continue
        activations, weight = node.input
        if activations not in rounded:
            rounded.add(activations)
            nodes += _rounded(activations)
        if weight not in replaced:
            replaced.add(weight)
            added += _columns(weight, numpy_helper.to_array(weights[weight]))
        nodes += _product(activations, weight, node.output[0])
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*kept, *added])
    if all(one.domain != _MICROSOFT for one in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))


def _rounded(x: str) -> list[onnx.NodeProto]:
    """Makes `x_rounded`, uint8, and `x_scale` of each row."""
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Abs", [x], "size", {}),
        ("ReduceMax", [f"{x}_size", "int8_last_axis"], "most", {"keepdims": 1}),
        ("Max", [f"{x}_most", "int8_least"], "range", {}),
        ("Div", [f"{x}_range", "int8_largest"], "scale", {}),
        ("Div", [x, f"{x}_scale"], "scaled", {}),
        ("QuantizeLinear", [f"{x}_scaled", "int8_one", "int8_zero"], "rounded", {}),
    ]
    return [helper.make_node(kind, inputs, [f"{x}_{output}"], **options) for kind, inputs, output, options in steps]


def _columns(name: str, weight: NDArray[Any]) -> list[onnx.TensorProto]:
    """Rounds a matrix (in, out) by the scales of its columns."""
    scales = np.abs(weight).max(axis=0) / LARGEST_WEIGHT
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    whole = np.clip(np.rint(weight / scales), -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8)
    return [numpy_helper.from_array(whole, f"{name}_rounded"), numpy_helper.from_array(scales, f"{name}_scale")]


def _product(x: str, weight: str, output: str) -> list[onnx.NodeProto]:
    inputs = [f"{x}_rounded", f"{weight}_rounded", "int8_one", f"{weight}_scale", "int8_zero"]
    return [
        helper.make_node("MatMulIntegerToFloat", inputs, [f"{output}_columns"], domain=_MICROSOFT),
        helper.make_node("Mul", [f"{output}_columns", f"{x}_scale"], [output]),
    ]
