"""How torch computes in a process of a job: on which device, in which precision, with how many threads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from aeenc.errors import FailedPrecondition
from services.trainer.jobs.files import Precision


def device_of(wanted: str, number: int = 0) -> torch.device:
    """Chooses the device of a job's process by its number, for `auto`, `cpu` or `cuda`: its own GPU if there is one.

    Raises FailedPrecondition for `cuda` if torch finds no GPU.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", number % torch.cuda.device_count())
    if wanted == "cuda":
        raise FailedPrecondition(
            "AEENC_TRAINER_DEVICE=cuda, but torch finds no GPU here; install a torch with CUDA on a machine with a "
            "GPU, or set AEENC_TRAINER_DEVICE=auto"
        )
    return torch.device("cpu")


def precision_of(wanted: Precision | Literal["auto"], device: torch.device) -> Precision:
    """Chooses the precision of products; for `auto`, bfloat16 if the device has instructions for it."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        known = torch.cpu.get_capabilities()
        has_bfloat16 = any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if has_bfloat16 else "float32"


def free_bytes(device: torch.device) -> int | None:
    """Returns how much more memory a process can take on a device; None if this machine does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    group = Path("/sys/fs/cgroup")
    try:  # a container's limit; its files in the page cache give way
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
        return min(free, int((group / "memory.max").read_text()) - used)
    except (OSError, ValueError, KeyError):  # no limit
        return free


def prepare_torch(threads: int, device: str = "cpu") -> None:
    """Sets up torch in this process: the number of threads, and deterministic kernels on a CPU."""
    torch.set_num_threads(max(1, threads))
    if device == "cpu" or not torch.cuda.is_available():  # a GPU lacks deterministic kernels
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
