"""What a query costs without a service: candidates by FAISS, and by integers."""

from __future__ import annotations

import statistics
import time
from typing import Any

import faiss
import numpy as np

from benchmarks.harness.rows import Rows
from services.index.dense.exact import FlatIndex
from services.index.dense.int8 import Int8Proposer

Matrix = np.ndarray[Any, np.dtype[np.float32]]


def kernels(rows: Rows, matrix: Matrix, queries: Matrix) -> None:
    """Processor time of an exact search, re-scoring included: FAISS alone proposes, or integers do, in turn."""
    faiss.omp_set_num_threads(1)
    alone, coarse = FlatIndex(matrix), FlatIndex(matrix, coarse=Int8Proposer(matrix))
    usual = faiss.cvar.distance_compute_blas_threshold
    for size in (1, 8, 64):
        milliseconds: dict[str, list[float]] = {"FAISS": [], "integers": []}
        for start in range(0, 40 * size, size):
            part = np.take(queries, range(start, start + size), axis=0, mode="wrap")
            for name, index in (("FAISS", alone), ("integers", coarse)):
                begun = time.thread_time()
                index.nearest(part, 10)
                milliseconds[name].append((time.thread_time() - begun) * 1e3 / size)
        medians = {name: statistics.median(values) for name, values in milliseconds.items()}
        told = ", ".join(f"{name} {value:.3f} ms" for name, value in medians.items())
        rows.note(
            f"exact search of {size} at once, FAISS over integers", medians["FAISS"] / medians["integers"], "x", told
        )
    faiss.cvar.distance_compute_blas_threshold = usual  # of the whole process: FAISS alone is measured next
