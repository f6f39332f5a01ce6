"""The device of a process, for all services that compute on one: its memory, its packages. It imports no runtime."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

from aeenc.errors import FailedPrecondition

# Of torch on a card and a CPU; of onnxruntime's arena without room, beyond its limit, in pieces; of CUDA's libraries.
_OUT_OF_MEMORY = (
    "out of memory",
    "allocate memory",
    "not enough memory",
    "is smaller than requested bytes",
    "Failed to find a free memory block",
    "ALLOC_FAILED",
    "bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether a runtime failed for lack of memory, by its words: onnxruntime has no class for it."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)


def free_cached_blocks() -> None:
    """Gives the card back what torch keeps of it for later, if torch computes in this process."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.cuda.empty_cache()


def bound_memory(cuda: Any, number: int, gpu_bytes: int, setting: str) -> None:
    """Bounds by `torch.cuda` what this process takes of a card (0: no bound). Raises FailedPrecondition beyond it."""
    if not gpu_bytes:
        return
    whole = cuda.get_device_properties(number).total_memory
    if gpu_bytes > whole:
        raise FailedPrecondition(
            f"{setting}={gpu_bytes}, but cuda:{number} has {whole:,} bytes; set at most these, or 0 for no limit"
        )
    cuda.set_per_process_memory_fraction(gpu_bytes / whole, number)


def check_one_build(*names: str, asked: str) -> None:
    """Raises FailedPrecondition where several of these packages, builds of one module, are installed.

    They overwrite each other's files, so nobody knows what computes. `asked` is the setting that wants to know.
    """
    found = [name for name in names if any(metadata.distributions(name=name))]
    if len(found) > 1:
        both = " and ".join(found)
        raise FailedPrecondition(
            f"{asked}, but {both} are installed, builds of one module; uninstall both, then install {found[-1]}"
        )
