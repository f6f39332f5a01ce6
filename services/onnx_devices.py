"""Where onnxruntime computes: on a CPU or on a GPU with CUDA, as the setting DEVICE of a service says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import onnxruntime as ort

from aeenc.errors import FailedPrecondition
from services.devices import check_one_build

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
DEVICES = Path("/dev")

# A model of one Identity operator, y = x, of one float: ir_version 8, opset 17.
_IDENTITY = bytes.fromhex(
    "08083a2f0a100a017812017922084964656e746974791201675a0b0a017812060a0408011200620b0a017912060a040801120042021011"
)


class Placement(NamedTuple):
    """Where a runtime computes, with the options of each provider, and why not on a GPU that is there."""

    providers: Sequence[str]
    reason: str = ""
    options: Sequence[dict[str, str]] | None = None


def providers_of(service: str, device: str, gpu_bytes: int = 0, *, or_cpu: bool = False) -> Placement:
    """Returns onnxruntime's execution providers for `auto`, `cpu`, `cuda` or `cuda:N`, the preferred one first.

    It opens a session to see: without a working driver, a build with CUDA computes on the CPU and says nothing. Raises
    FailedPrecondition for `cuda` when sessions would not be there, unless a CPU will do (`or_cpu`), and where two
    builds of onnxruntime are installed. `gpu_bytes` bounds their memory (0: no bound).
    """
    is_must, setting = device != "auto" and not or_cpu, f"AEENC_{service.upper()}_DEVICE"
    if device == "cpu":
        return Placement([CPU])
    check_one_build("onnxruntime", "onnxruntime-gpu", asked=f"{setting}={device}")
    if CUDA not in ort.get_available_providers():
        reason = f"this onnxruntime has no CUDA; install the extra {service}-gpu"
        if is_must:
            raise FailedPrecondition(f"{setting}={device}, but {reason}")
        has_gpu = any(DEVICES.glob("nvidia[0-9]*"))  # shown to this process by the driver of NVIDIA
        return Placement([CPU], f"a GPU is there, but {reason}, or set {setting}=cpu" if has_gpu else "")
    ort.preload_dlls()  # the CUDA libraries that were installed as wheels
    cuda = {"device_id": device.partition(":")[2] or "0", "use_tf32": "0"}  # single precision is meant: no TF32
    if gpu_bytes:
        cuda["gpu_mem_limit"] = str(gpu_bytes)
    placement = Placement([CUDA, CPU], options=[cuda, {}])
    if _opens_with_cuda(placement):
        return placement
    reason = "this onnxruntime has CUDA and its sessions are on the CPU; repair the driver or the CUDA libraries"
    if is_must:
        also = f", or name another card than {cuda['device_id']}" if ":" in device else ""
        raise FailedPrecondition(f"{setting}={device}, but {reason}{also}")
    return Placement([CPU], f"{reason}, or set {setting}=cpu")


def _opens_with_cuda(placement: Placement) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            _IDENTITY, options, providers=list(placement.providers), provider_options=placement.options
        )
        return CUDA in session.get_providers()
    except Exception:  # noqa: BLE001 -- the runtime raises its own unexported classes
        return False
