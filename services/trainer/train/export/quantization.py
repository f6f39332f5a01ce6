"""int8 and fp16 beside fp32: reduces an exported model, and keeps the result only if it passes a gate.

int8 is gated by strict MAP and cosines on judged queries, fp16 by cosines of the probes. Callers may choose either;
premises, sampling, training and evaluation use fp32. Neither recipe of int8 lets a text's neighbours change its vector.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import FailedPrecondition
from services.trainer.evaluation.protocol import EvaluationQuery, evaluate
from services.trainer.evaluation.ranking import Matrix

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

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
# onnxruntime's fused kernel is slower on a CPU than the two operators that it replaces.
DISABLED_OPTIMIZERS = ["SkipLayerNormFusion"]
FP16_FILE = "model.fp16.onnx"
FP16_MIN_COSINE = 0.999  # the encoder demands it when it loads the file
DECIMALS = 6


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
class Trial:
    """Data of the int8 gate: distinct queries with their token ids, and the frozen premises (n, dim)."""

    queries: Sequence[EvaluationQuery]
    ids: Sequence[Sequence[int]]
    premises: Matrix
    ordinal_by_text: Mapping[str, int]


def add_int8(directory: Path, trial: Trial, probe_ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Adds an encoder's int8 model and its probe vectors if they pass, as `add_gated` does."""
    expected = vectors_alone(directory / "model.onnx", trial.ids)

    def gate(path: Path) -> Int8Gate:
        found = vectors_alone(path, trial.ids)
        measured = int8_gate(trial.queries, expected, found, trial.premises, trial.ordinal_by_text)
        if measured.passed:
            np.save(directory / PROBES_FILE, vectors_alone(path, probe_ids), allow_pickle=False)
        return measured

    return add_gated(directory, gate, len(trial.queries))


def add_int8_of_premises(
    directory: Path, probe_ids: Sequence[Sequence[int]], expected: NDArray[np.float32]
) -> dict[str, Any]:
    """Adds the int8 model that is to encode a space's premises, and its probe vectors; returns the gate's figures.

    Nobody has judged anything in a new space, so the gate has cosines alone: of the probes to fp32's `expected`. Raises
    FailedPrecondition where no recipe passes.
    """

    def gate(path: Path) -> Int8Gate:
        vectors = vectors_alone(path, probe_ids)
        np.save(directory / PROBES_FILE, vectors, allow_pickle=False)
        return int8_gate((), expected, vectors)

    meta = add_gated(directory, gate, 0)
    if not meta["passed"]:
        raise FailedPrecondition(
            f"premises cannot be int8 with this base model: {meta['reason']}; unset AEENC_TRAINER_PREMISE_PRECISION"
        )
    return {"int8": meta}


def add_gated(directory: Path, gate_of: Callable[[Path], Int8Gate], queries: int) -> dict[str, Any]:
    """Adds an int8 model beside `model.onnx` if a recipe passes its gate, which writes the probes' outputs then.

    Returns the gate's figures. Tries slower recipes as long as none passes. Never raises for int8's sake: the fp32
    model alone is a whole checkpoint.
    """
    meta: dict[str, Any] = {}
    for recipe in RECIPES:
        try:
            quantize(directory / "model.onnx", directory / FILE, recipe)
            gate = gate_of(directory / FILE)
        except Exception as error:  # noqa: BLE001 - the fp32 checkpoint is published whatever fails here
            traceback.print_exc(file=sys.stderr)
            reason = f"the quantisation failed ({type(error).__name__}); the trainer's log has it"
            gate = Int8Gate(False, None, None, None, queries, reason)
        meta = gate.to_meta(recipe)
        if gate.passed:
            return meta
        for name in (FILE, PROBES_FILE):
            (directory / name).unlink(missing_ok=True)
    return meta


def quantize(fp32_path: Path, int8_path: Path, recipe: Recipe = "rowwise") -> None:
    """Writes the int8 form of an exported model, whole or not at all. The same input gives the same bytes.

    Weights of matrix products become int8, per output channel (`rowwise`) or per block; the rest stays fp32.
    """
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    from services.trainer.train.export.rowwise import quantize_rows

    model = onnx.load(fp32_path)
    if recipe == "rowwise":
        quantize_rows(model)
    else:
        with _quiet():
            quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
            quantizer.process()
        model = quantizer.model.model
    partial = int8_path.with_name(f".{int8_path.name}")
    partial.write_bytes(model.SerializeToString())
    partial.rename(int8_path)


def int8_gate(
    queries: Sequence[EvaluationQuery],
    fp32_vectors: NDArray[np.float32],
    int8_vectors: NDArray[np.float32],
    premises: Matrix | None = None,
    ordinal_by_text: Mapping[str, int] = MappingProxyType({}),
) -> Int8Gate:
    """Compares unit vectors (q, dim) of the same distinct texts: cosines, and the strict MAP of queries over premises.

    Without premises (n, dim) it compares the cosines alone.
    """
    if not np.isfinite(int8_vectors).all():
        return Int8Gate(False, None, None, None, len(queries), "a vector of the int8 model is not finite")
    loss = None
    if premises is not None:
        before, after = (
            evaluate(queries, vectors, premises, ordinal_by_text).strict.map for vectors in (fp32_vectors, int8_vectors)
        )
        loss = before - after
    norms = np.linalg.norm(fp32_vectors, axis=1) * np.linalg.norm(int8_vectors, axis=1)
    cosines = np.einsum("qd,qd->q", fp32_vectors, int8_vectors) / np.maximum(norms, 1e-12)
    mean, least = float(cosines.mean()), float(cosines.min())
    reasons = [
        *([f"MAP falls by {loss:.4f}, more than {MAX_MAP_LOSS:g}"] if loss is not None and loss > MAX_MAP_LOSS else []),
        *([f"the mean cosine to fp32 is {mean:.4f}, below {MIN_COSINE_MEAN:g}"] if mean < MIN_COSINE_MEAN else []),
        *([f"the least cosine to fp32 is {least:.4f}, below {MIN_COSINE:g}"] if least < MIN_COSINE else []),
    ]
    return Int8Gate(not reasons, loss, mean, least, len(queries), "; ".join(reasons))


def vectors_alone(path: Path, ids: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Encodes each text alone and unpadded with onnxruntime on the CPU, (n, dim)."""
    session = session_of(path, threads=1)  # the same sums in the same order on every machine with this CPU
    rows = []
    for tokens in ids:
        feeds = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), dtype=np.int64)}
        rows.append(session.run(["sentence_embedding"], feeds)[0][0])
    return np.stack(rows)


def session_of(path: Path, threads: int) -> InferenceSession:
    """Opens an exported model on the CPU, as the encoder service does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"], disabled_optimizers=DISABLED_OPTIMIZERS
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Mutes the libraries' warnings and progress within the block."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def add_fp16(directory: Path, probe_ids: Sequence[Sequence[int]], expected: NDArray[np.float32]) -> dict[str, Any]:
    """Adds an fp16 model beside `model.onnx` if its probe vectors are close to the `expected`, (n, dim) both.

    Returns the figures. Never raises for fp16's sake: the fp32 model alone is a whole checkpoint.
    """
    path = directory / FP16_FILE
    least, reason = None, ""
    try:
        _halve(directory / "model.onnx", path)
        found = vectors_alone(path, probe_ids)
        least = round(float(np.einsum("nd,nd->n", found, expected).min()), DECIMALS)
        if not least >= FP16_MIN_COSINE:  # NaN fails this too
            reason = f"the least cosine to fp32 is {least:.4f}, below {FP16_MIN_COSINE:g}"
    except Exception as error:  # noqa: BLE001 - the fp32 checkpoint is published whatever fails here
        traceback.print_exc(file=sys.stderr)
        reason = f"the conversion failed ({type(error).__name__}); the trainer's log has it"
    if reason:
        path.unlink(missing_ok=True)
    return {"passed": not reason, "cosine_min": least, "reason": reason}


def _halve(fp32_path: Path, fp16_path: Path) -> None:
    """Converts weights and operators to fp16; inputs stay int64 and the output float32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():  # the library reports every number that it rounds
        model = convert_float_to_float16(onnx.load(fp32_path), keep_io_types=True)
    fp16_path.write_bytes(model.SerializeToString())
