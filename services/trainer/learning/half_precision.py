"""fp16 beside fp32, for GPUs: converts an exported model, and keeps it where its vectors of the probes are right."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.learning.quantization import vectors_alone

FILE = "model.fp16.onnx"
MIN_COSINE = 0.999  # what the encoder asks for when it loads the file
DECIMALS = 6


def add_fp16(directory: Path, probe_ids: Sequence[Sequence[int]], expected: NDArray[np.float32]) -> dict[str, Any]:
    """Puts an fp16 model beside `model.onnx` if its vectors of the probes are near the `expected`, (n, dim) both.

    Returns how near they are. Raises nothing that is about fp16: the fp32 model alone is a whole checkpoint.
    """
    path = directory / FILE
    least, reason = None, ""
    try:
        _convert(directory / "model.onnx", path)
        found = vectors_alone(path, probe_ids)
        least = round(float(np.einsum("nd,nd->n", found, expected).min()), DECIMALS)
        if not least >= MIN_COSINE:  # NaN fails this too
            reason = f"the least cosine to fp32 is {least:.4f}, below {MIN_COSINE:g}"
    except Exception as error:  # noqa: BLE001 - whatever the conversion cannot do, the fp32 checkpoint is published
        traceback.print_exc(file=sys.stderr)
        reason = f"the conversion failed ({type(error).__name__}); the trainer's log has it"
    if reason:
        path.unlink(missing_ok=True)
    return {"passed": not reason, "cosine_min": least, "reason": reason}


def _convert(fp32_path: Path, fp16_path: Path) -> None:
    """Halves weights and operators; inputs stay int64 and the output float32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    logging.disable(logging.WARNING)  # the library tells of every number that it rounds
    try:
        model = convert_float_to_float16(onnx.load(fp32_path), keep_io_types=True)
    finally:
        logging.disable(logging.NOTSET)
    fp16_path.write_bytes(model.SerializeToString())
