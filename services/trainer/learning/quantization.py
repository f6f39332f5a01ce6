"""int8 beside fp32: quantises an exported model, and decides on judged queries whether it may be served.

The encoder may serve it to callers who choose so; premises, sampling, training and evaluation use fp32. Dynamic
quantisation takes its activation scale from the whole batch, so everything here runs one unpadded text at a time, and
so must who serves it.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from services.trainer.evaluation import EvaluationQuery, evaluate

FILE = "model.int8.onnx"
PROBES_FILE = "probes.int8.npy"
MAX_MAP_LOSS = 0.002
MIN_COSINE_MEAN = 0.99
MIN_COSINE = 0.95

Recipe = Literal["dynamic", "blockwise"]
# The fastest first. `dynamic`: one activation scale a matrix product. `blockwise`: one scale for 128 numbers, which is
# several times closer to fp32 and takes about two thirds more time (docs/experiments.md).
RECIPES: tuple[Recipe, ...] = ("dynamic", "blockwise")
BLOCK = 128
# onnxruntime's fused kernel is slower on a CPU than the two operators that it replaces.
DISABLED_OPTIMIZERS = ["SkipLayerNormFusion"]
DECIMALS = 6


@dataclass(frozen=True)
class Int8Gate:
    """What the gate found. A figure is None where there was nothing to measure; `reason` says why it did not pass."""

    passed: bool
    map_loss: float | None
    cosine_mean: float | None
    cosine_min: float | None
    queries: int
    reason: str = ""

    def to_meta(self, recipe: Recipe) -> dict[str, Any]:
        """The figures for the manifest, and how the model was quantised."""
        figures = {name: round(v, DECIMALS) if isinstance(v, float) else v for name, v in asdict(self).items()}
        return {**figures, "recipe": recipe}


@dataclass(frozen=True)
class Trial:
    """What a quantised model is tried on: distinct queries with their token ids, and the frozen premises (n, dim)."""

    queries: Sequence[EvaluationQuery]
    ids: Sequence[Sequence[int]]
    premises: NDArray[np.float32]
    ordinal_by_text: Mapping[str, int]


def add_int8(directory: Path, trial: Trial, probe_ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Puts an int8 model and its vectors of the probes beside `model.onnx` if one passes; returns what the gate found.

    A recipe that does not pass is followed by the next, slower one. Raises nothing that is about int8: the fp32 model
    alone is a whole checkpoint.
    """
    meta: dict[str, Any] = {}
    expected = vectors_alone(directory / "model.onnx", trial.ids)
    for recipe in RECIPES:
        try:
            gate = _try(directory, recipe, trial, expected, probe_ids)
        except Exception as error:  # noqa: BLE001 - whatever quantisation cannot do, the fp32 checkpoint is published
            traceback.print_exc(file=sys.stderr)
            reason = f"the quantisation failed ({type(error).__name__}); the trainer's log has it"
            gate = Int8Gate(False, None, None, None, len(trial.queries), reason)
        meta = gate.to_meta(recipe)
        if gate.passed:
            return meta
        for name in (FILE, PROBES_FILE):
            (directory / name).unlink(missing_ok=True)
    return meta


def _try(
    directory: Path, recipe: Recipe, trial: Trial, expected: NDArray[np.float32], probe_ids: Sequence[Sequence[int]]
) -> Int8Gate:
    quantize(directory / "model.onnx", directory / FILE, recipe)
    found = vectors_alone(directory / FILE, trial.ids)
    gate = int8_gate(trial.queries, expected, found, trial.premises, trial.ordinal_by_text)
    if gate.passed:
        np.save(directory / PROBES_FILE, vectors_alone(directory / FILE, probe_ids), allow_pickle=False)
    return gate


def quantize(fp32_path: Path, int8_path: Path, recipe: Recipe = "dynamic") -> None:
    """Writes the int8 form of an exported model, whole or not at all; the same input gives the same bytes.

    Weights of matrix products become int8, per output channel (`dynamic`) or per block; the rest stays fp32.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    # The library leaves files of its own beside its input.
    with tempfile.TemporaryDirectory(dir=int8_path.parent, prefix=".quantize-") as scratch, _quiet():
        source, target = Path(scratch) / "fp32.onnx", Path(scratch) / "int8.onnx"
        source.write_bytes(fp32_path.read_bytes())
        if recipe == "dynamic":
            quantize_dynamic(
                source, target, per_channel=True, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8
            )
        else:
            quantizer = MatMulNBitsQuantizer(
                onnx.load(source), bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4
            )
            quantizer.process()
            onnx.save(quantizer.model.model, target)
        target.rename(int8_path)


def int8_gate(
    queries: Sequence[EvaluationQuery],
    fp32_vectors: NDArray[np.float32],
    int8_vectors: NDArray[np.float32],
    premises: NDArray[np.float32],
    ordinal_by_text: Mapping[str, int],
) -> Int8Gate:
    """Compares unit vectors (q, dim) of the same distinct queries over premises (n, dim): strict MAP and cosines."""
    if not np.isfinite(int8_vectors).all():
        return Int8Gate(False, None, None, None, len(queries), "a vector of the int8 model is not finite")
    before, after = (
        evaluate(queries, vectors, premises, ordinal_by_text).strict.map for vectors in (fp32_vectors, int8_vectors)
    )
    norms = np.linalg.norm(fp32_vectors, axis=1) * np.linalg.norm(int8_vectors, axis=1)
    cosines = np.einsum("qd,qd->q", fp32_vectors, int8_vectors) / np.maximum(norms, 1e-12)
    loss, mean, least = before - after, float(cosines.mean()), float(cosines.min())
    reasons = [
        *([f"MAP falls by {loss:.4f}, more than {MAX_MAP_LOSS:g}"] if loss > MAX_MAP_LOSS else []),
        *([f"the mean cosine to fp32 is {mean:.4f}, below {MIN_COSINE_MEAN:g}"] if mean < MIN_COSINE_MEAN else []),
        *([f"the least cosine to fp32 is {least:.4f}, below {MIN_COSINE:g}"] if least < MIN_COSINE else []),
    ]
    return Int8Gate(not reasons, loss, mean, least, len(queries), "; ".join(reasons))


def vectors_alone(path: Path, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """What onnxruntime gives on the CPU for each text alone and unpadded, (n, dim)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the same sums in the same order on every machine with this CPU
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"], disabled_optimizers=DISABLED_OPTIMIZERS
    )
    rows = []
    for tokens in ids:
        feeds = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), dtype=np.int64)}
        rows.append(session.run(["sentence_embedding"], feeds)[0][0])
    return np.stack(rows)


@contextmanager
def _quiet() -> Iterator[None]:
    """Mutes the library's advice and progress for a while."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
