"""Reads .npy files, one header at a time.

numpy parses a header by `ast.literal_eval`, and CPython 3.11 counts the depth of its recursion for all threads
together: two headers at once may end in SystemError (github.com/python/cpython/issues/106905).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEADER = threading.Lock()


def map_array(path: Path) -> NDArray[Any]:
    """Maps an array into memory, to be read alone. Raises as `np.load` does; never unpickles."""
    with _HEADER:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped
