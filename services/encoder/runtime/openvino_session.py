"""Inference sessions of OpenVINO in bfloat16, for CPUs that multiply it in hardware (AVX-512 BF16, AMX).

It imports openvino on first use: the extra encoder-openvino is never a must.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aeenc.errors import DataLoss, FailedPrecondition
from services.encoder.runtime.runners import Ids

# One thread, which is the caller's own: several streams would compute in threads that the runtime starts, and these
# would keep the idle priority of the thread that loads a candidate.
_OPTIONS = {
    "INFERENCE_PRECISION_HINT": "bf16",
    "INFERENCE_NUM_THREADS": 1,
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,
}


def _imported() -> Any:
    """Imports openvino without the telemetry of its converter, which nothing here uses. Raises ImportError."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def bfloat16_refusal() -> str:
    """Returns why this process has no bfloat16 on the CPU; empty where it has."""
    try:
        openvino = _imported()
    except ImportError:
        return "bfloat16 on a CPU needs OpenVINO, which is not installed; install the extra encoder-openvino"
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return "this CPU has no instructions for bfloat16"
    return ""


class OpenvinoSession:
    """Computes `sentence_embedding` (n, dim) float32 from an ONNX file in bfloat16. Thread-safe.

    It keeps `copies` of the compiled model, since one computes one call at a time. Raises DataLoss.
    """

    def __init__(self, path: Path, copies: int) -> None:
        openvino = _imported()
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            core = openvino.Core()
            model = core.read_model(path)
            for _ in range(copies):
                self._idle.put(core.compile_model(model, "CPU", _OPTIONS).create_infer_request())
        except RuntimeError as error:
            raise DataLoss(f"{path} is refused by OpenVINO: {str(error)[:200]}") from error

    def run(self, outputs: Sequence[str] | None, feeds: dict[str, Ids]) -> Sequence[Any]:
        """Computes the vectors from `input_ids` and `attention_mask`, (n, length) int64 each."""
        if outputs not in (None, ["sentence_embedding"]):
            raise FailedPrecondition(f"OpenVINO computes sentence_embedding alone, not {outputs}")
        request = self._idle.get()
        try:
            return [request.infer(feeds, share_inputs=True)["sentence_embedding"].copy()]
        finally:
            self._idle.put(request)
