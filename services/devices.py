"""The device of a process, for all services that compute on one: its lack of memory. It imports no runtime."""

from __future__ import annotations

import sys

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
