"""Arrays on disk, mapped into memory, and exact products with them: in float64, whichever rows stand beside a row."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# numpy parses a header by `ast.literal_eval`, and CPython 3.11 counts the depth of its recursion for all threads
# together: two headers at once may end in SystemError (github.com/python/cpython/issues/106905).
_HEADER = threading.Lock()
NORM_TOLERANCE = 1e-3  # of a unit vector


def map_array(path: Path) -> NDArray[Any]:
    """Maps an array into memory, to be read alone. Raises as `np.load` does; never unpickles."""
    with _HEADER:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def exact_scores(rows: NDArray[np.float32], query: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns the inner products of `rows` (…, n, dim) with `query` (…, dim): in float64, rounded to float32.

    Each is independent of the other rows. Uses einsum, not `@`: BLAS sums a row in an order that depends on how many
    rows there are.
    """
    products: NDArray[np.float64] = np.einsum("...ij,...j->...i", rows.astype(np.float64), query)
    return products.astype(np.float32)


def norms_of(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Returns the norm of each row (n, dim), in float64."""
    exact = rows.astype(np.float64)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
    return norms


def are_unit(rows: NDArray[np.floating]) -> bool:
    """Whether all rows (n, dim) have unit length, up to rounding."""
    return bool(np.all(np.abs(norms_of(rows) - 1.0) <= NORM_TOLERANCE))  # NaN fails as well
