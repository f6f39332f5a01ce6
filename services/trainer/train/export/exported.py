"""Exported models: what a checkpoint is written of, and how their outputs are computed. Without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.models.batches import Batches, Item, by_length, characters

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Outputs = NDArray[np.float32]  # vectors (n, dim) of texts, scores (n,) of pairs

# Sixteen texts of one to several dozen words, so that loading a checkpoint probes every length bucket.
_CLAUSES = (
    "magnetism",
    "an iron nail is attracted by a magnet",
    "if an object is made of a magnetic metal then it is pulled towards a magnet",
    "the sun is a star; it gives light and heat to the planets that travel around it",
)
PROBES = tuple("; ".join([clause] * times) for clause in _CLAUSES for times in (1, 2, 3, 5))
# onnxruntime's fused kernel is slower on a CPU than the two operators that it replaces.
DISABLED_OPTIMIZERS = ["SkipLayerNormFusion"]


@dataclass(frozen=True)
class ExportedModel:
    """An ONNX model of texts, or of pairs of them, and all else that a checkpoint has of it.

    `expected` are the outputs of the `probes`, and then of `further` items, by torch. `files` lie beside the model;
    `meta` is what its users need to know.
    """

    onnx: bytes
    batches: Batches
    probes: Sequence[Item]
    expected: Outputs
    files: Mapping[str, bytes]
    meta: Mapping[str, Any]
    id_prefix: str
    further: Sequence[Item] = ()


def outputs_of(path: Path, batches: Batches, items: Sequence[Item], *, together: int = 1, threads: int = 1) -> Outputs:
    """Computes the outputs of items by an exported model: each alone and unpadded, or so many together.

    With one thread the sums have the same order on every machine with this CPU.
    """
    session = session_of(path, threads)
    names = {put.name for put in session.get_inputs()}
    rows: list[Any] = [None] * len(items)
    for part in by_length(characters(items), together):
        inputs = batches.inputs([items[n] for n in part])
        found = session.run(None, {name: values for name, values in inputs.items() if name in names})[0]
        for n, row in zip(part, found, strict=True):
            rows[n] = row
    return np.stack(rows) if rows else np.empty(0, dtype=np.float32)


def session_of(path: Path, threads: int) -> InferenceSession:
    """Opens an exported model on the CPU, as the encoder service does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"], disabled_optimizers=DISABLED_OPTIMIZERS
    )
