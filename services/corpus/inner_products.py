"""Exact inner products and norms: in float64, the same to the bit whichever rows stand beside a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def exact_scores(rows: NDArray[np.float32], query: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns the inner products of `rows` (…, n, dim) with `query` (…, dim), in float64, rounded to float32."""
    return exact_products(rows, query).astype(np.float32)


def exact_products(rows: NDArray[np.float32], query: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the inner products of `rows` (…, n, dim) with `query` (…, dim), each independent of the other rows.

    Uses einsum, not `@`: BLAS sums a row in an order that depends on the number of rows.
    """
    products: NDArray[np.float64] = np.einsum("...ij,...j->...i", rows.astype(np.float64), query)
    return products


def norms_of(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Returns the norm of each row (n, dim), in float64."""
    exact = rows.astype(np.float64)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
    return norms
