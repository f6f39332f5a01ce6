"""Vectors to size with: clusters with noise from a seed, since graphs behave unlike themselves on plain random ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.index.sizing_model import DIM

CLUSTERS = 2_000


def clustered(count: int, *, seed: int) -> NDArray[np.float32]:
    """Unit vectors (count, DIM) around the same centres for every seed."""
    centres = np.random.default_rng(1).normal(size=(CLUSTERS, DIM))
    rng = np.random.default_rng(seed)
    matrix = centres[rng.integers(0, CLUSTERS, count)] + 0.8 * rng.normal(size=(count, DIM))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)
