"""Inference sessions of onnxruntime: one thread each, no spinning, no arena; CPU or CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnxruntime as ort

from aeenc.errors import DataLoss, FailedPrecondition

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_SLOWER_FUSIONS = ["SkipLayerNormFusion"]  # on a CPU the fused kernel is slower than the two that it replaces


def providers_of(device: str) -> list[str]:
    """Onnxruntime's execution providers for `auto`, `cpu` or `cuda`, the preferred first.

    Raises FailedPrecondition when CUDA is asked for and this build of onnxruntime has none.
    """
    if device == "cpu" or (device == "auto" and CUDA not in ort.get_available_providers()):
        return [CPU]
    if CUDA not in ort.get_available_providers():
        raise FailedPrecondition(
            "AEENC_ENCODER_DEVICE=cuda, but this onnxruntime has no CUDA; install the extra encoder-gpu"
        )
    ort.preload_dlls()  # the CUDA libraries that were installed as wheels
    return [CUDA, CPU]


def open_session(
    path: Path, providers: Sequence[str], output: str, optional_inputs: Iterable[str] = ()
) -> ort.InferenceSession:
    """A session over a model file of `input_ids` and `attention_mask`, with an output of that name.

    From the path and not from bytes: the runtime then neither holds the interpreter nor a second copy meanwhile. It
    creates no thread of its own, so it may be opened by a thread of low priority. Raises DataLoss.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # parallelism comes from several workers, each with a batch of its own
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False  # lengths vary; an arena would grow to the sum of all shapes and stay
    options.log_severity_level = 3
    slower = _SLOWER_FUSIONS if list(providers) == [CPU] else []
    try:
        session = ort.InferenceSession(path, options, providers=list(providers), disabled_optimizers=slower)
    except Exception as error:  # the runtime raises its own unexported classes
        raise DataLoss(f"{path} is refused by onnxruntime: {str(error)[:200]}") from error
    inputs = inputs_of(session)
    outputs = [o.name for o in session.get_outputs()]
    if inputs - set(optional_inputs) != {"input_ids", "attention_mask"} or output not in outputs:
        raise DataLoss(f"{path} has inputs {sorted(inputs)} and outputs {outputs}; export it again")
    return session


def inputs_of(session: ort.InferenceSession) -> set[str]:
    """The names of a session's inputs."""
    return {found.name for found in session.get_inputs()}
