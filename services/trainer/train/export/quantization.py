"""int8 and fp16 beside fp32: reduces an exported model, and keeps the result only if it passes a gate.

int8 is gated by strict MAP on judged queries and, of vectors, by cosines; fp16 by cosines of the probes. Callers may
choose either; premises, sampling, training and evaluation use fp32. Neither recipe of int8 lets a text's neighbours
change its vector.

`rowwise` multiplies matrices in integers, with a scale for each token of the activations:

    x ──► scale of each row: max|x| / 127 ──► x / scale, rounded to uint8 around 128 ──┐
    w ──► scale of each column, 7 bits ────────────────────────────────────────────────┴─► product ──► x both scales

Integer sums are exact, and a row's scale depends on that row alone. So a text has the same vector alone and in any
batch, padded or not. Weights have 7 bits because processors without VNNI add pairs of products in 16 bits:
2 x 255 x 63 = 32,130 fits, 8 bits would saturate.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from aeenc.errors import FailedPrecondition
from services.trainer.models.batches import Batches, Item, Outputs, outputs_of

FILE = "model.int8.onnx"
PROBES_FILE = "probes.int8.npy"
MAX_MAP_LOSS = 0.002
MIN_COSINE_MEAN = 0.99
MIN_COSINE = 0.95

Recipe = Literal["rowwise", "blockwise"]
# The fastest first. `rowwise` has one activation scale for each token, `blockwise` one for 128 numbers of it: that is
# closer to fp32 and takes about half more time (docs/experiments/encoder.md).
RECIPES: tuple[Recipe, ...] = ("rowwise", "blockwise")
BLOCK = 128
FP16_FILE = "model.fp16.onnx"
FP16_MIN_COSINE = 0.999  # the encoder demands it when it loads the file
DECIMALS = 6
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


@dataclass(frozen=True)
class Int8Gate:
    """Result of the int8 gate. A figure is None if there was nothing to measure; `reason` says why it did not pass."""

    passed: bool
    map_loss: float | None
    cosine_mean: float | None
    cosine_min: float | None
    queries: int
    reason: str = ""

    def to_meta(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the figures for the manifest, with the recipe of the quantisation."""
        figures = {name: round(v, DECIMALS) if isinstance(v, float) else v for name, v in asdict(self).items()}
        return {**figures, "recipe": recipe}


@dataclass(frozen=True)
class Int8Trial:
    """What the int8 model of a checkpoint is judged by: `items`, of so many `queries`, and the strict MAP they give.

    `fp32_map` is that of fp32, where it is known; otherwise it is measured, and so are cosines. `together` and
    `threads` are those of `outputs_of`. `of_premises`: it is to encode the premises of a new space, of which nobody has
    judged anything, and there is no checkpoint without it.
    """

    items: Sequence[Item]
    queries: int = 0
    map_of: Callable[[Outputs], float] | None = None
    fp32_map: float | None = None
    together: int = 1
    threads: int = 1
    of_premises: bool = False


def add_int8(directory: Path, batches: Batches, probes: Sequence[Item], trial: Int8Trial) -> dict[str, Any]:
    """Adds an int8 model beside `model.onnx`, and its outputs of the probes, if a recipe passes the gate.

    Returns the gate's figures. Tries slower recipes as long as none passes. Never raises for int8's sake, as the fp32
    model alone is a whole checkpoint, but FailedPrecondition where premises need it.
    """

    def outputs(file: str) -> Outputs:
        return outputs_of(directory / file, batches, trial.items, together=trial.together, threads=trial.threads)

    expected = outputs("model.onnx") if trial.fp32_map is None else None
    meta: dict[str, Any] = {}
    for recipe in RECIPES:
        try:
            quantize(directory / "model.onnx", directory / FILE, recipe)
            gate = int8_gate(trial, outputs(FILE), expected)
            if gate.passed:
                np.save(directory / PROBES_FILE, outputs_of(directory / FILE, batches, probes), allow_pickle=False)
        except Exception as error:  # noqa: BLE001 - the fp32 checkpoint is published whatever fails here
            traceback.print_exc(file=sys.stderr)
            reason = f"the quantisation failed ({type(error).__name__}); the trainer's log has it"
            gate = Int8Gate(False, None, None, None, trial.queries, reason)
        meta = gate.to_meta(recipe)
        if gate.passed:
            return meta
        for name in (FILE, PROBES_FILE):
            (directory / name).unlink(missing_ok=True)
    if trial.of_premises:
        raise FailedPrecondition(
            f"premises cannot be int8 with this base model: {meta['reason']}; unset AEENC_TRAINER_PREMISE_PRECISION"
        )
    return meta


def quantize(fp32_path: Path, int8_path: Path, recipe: Recipe = "rowwise") -> None:
    """Writes the int8 form of an exported model. The same input gives the same bytes.

    Weights of matrix products become int8, per output channel (`rowwise`) or per block; the rest stays fp32.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(fp32_path)
    if recipe == "rowwise":
        quantize_rows(model)
    else:
        with _quiet():
            quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
            quantizer.process()
        model = quantizer.model.model
    int8_path.write_bytes(model.SerializeToString())


def int8_gate(trial: Int8Trial, found: Outputs, expected: Outputs | None) -> Int8Gate:
    """Compares the outputs of the int8 model with those `expected` by fp32: cosines of vectors, and their strict MAP.

    Without `expected` it compares the MAP alone, with the known one.
    """
    if not np.isfinite(found).all():
        return Int8Gate(False, None, None, None, trial.queries, "an output of the int8 model is not finite")
    loss, mean, least = None, None, None
    reasons = []
    if trial.map_of is not None:
        before = trial.map_of(expected) if expected is not None else trial.fp32_map or 0.0
        loss = before - trial.map_of(found)
        reasons += [f"MAP falls by {loss:.4f}, more than {MAX_MAP_LOSS:g}"] if loss > MAX_MAP_LOSS else []
    if expected is not None:
        norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
        cosines = np.einsum("qd,qd->q", expected, found) / np.maximum(norms, 1e-12)
        mean, least = float(cosines.mean()), float(cosines.min())
        for name, cosine, bound in (("mean", mean, MIN_COSINE_MEAN), ("least", least, MIN_COSINE)):
            reasons += [f"the {name} cosine to fp32 is {cosine:.4f}, below {bound:g}"] if cosine < bound else []
    return Int8Gate(not reasons, loss, mean, least, trial.queries, "; ".join(reasons))


@contextmanager
def _quiet() -> Iterator[None]:
    """Mutes the libraries' warnings and progress within the block."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def add_fp16(directory: Path, batches: Batches, probes: Sequence[Item], expected: Outputs) -> dict[str, Any]:
    """Adds an fp16 model beside `model.onnx` if its vectors of the probes are close to the `expected` ones.

    Returns the figures. Never raises for fp16's sake: the fp32 model alone is a whole checkpoint.
    """
    path = directory / FP16_FILE
    least, reason = None, ""
    try:
        _halve(directory / "model.onnx", path)
        found = outputs_of(path, batches, probes)
        if not np.isfinite(found).all() or not np.isfinite(expected).all():
            reason = "an output of the fp16 model, or of that in fp32, is not finite"
        elif (least := round(float(np.einsum("nd,nd->n", found, expected).min()), DECIMALS)) < FP16_MIN_COSINE:
            reason = f"the least cosine to fp32 is {least:.4f}, below {FP16_MIN_COSINE:g}"
    except Exception as error:  # noqa: BLE001 - the fp32 checkpoint is published whatever fails here
        traceback.print_exc(file=sys.stderr)
        reason = f"the conversion failed ({type(error).__name__}); the trainer's log has it"
    if reason:
        path.unlink(missing_ok=True)
    return {"passed": not reason, "cosine_min": least, "reason": reason}


def _halve(fp32_path: Path, fp16_path: Path) -> None:
    """Converts weights and operators to fp16; inputs stay int64 and the output float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():  # the library reports every number that it rounds
        model = convert_float_to_float16(onnx.load(fp32_path), keep_io_types=True)
    fp16_path.write_bytes(model.SerializeToString())


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
