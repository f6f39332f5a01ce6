"""Learns the weights of features: those under which gold premises are likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument
from services.index.ranking.features import NAMES

RIDGE = 1e-3
STEPS = 50


def fit(
    features: Sequence[NDArray[np.float64]], gold: Sequence[NDArray[np.bool_]], names: Sequence[str] = NAMES
) -> dict[str, float]:
    """Finds the weights of some features under which the gold premises of many queries are likeliest.

    By Newton's method on a softmax over the premises of a query (ListNet with binary relevance), features at unit
    variance, a small ridge. All queries have as many premises; those without a gold one teach nothing. Raises
    InvalidArgument where all are such.
    """
    if not any(own.any() for own in gold):
        raise InvalidArgument(f"none of {len(gold)} queries has a gold premise among its first; name other queries")
    rows = np.stack(features)[..., [NAMES.index(name) for name in names]]
    wanted = np.stack(gold).astype(np.float64)
    rows, wanted = rows[wanted.any(axis=1)], wanted[wanted.any(axis=1)]
    rows = rows - rows.mean(axis=1, keepdims=True)
    scale = rows.std(axis=(0, 1))
    scale[scale == 0] = 1.0
    weights = _newton(rows / scale, wanted / wanted.sum(axis=1, keepdims=True)) / scale
    return dict(zip(names, weights.tolist(), strict=True))


def _newton(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Maximises the mean log likelihood of `wanted` (q, n), a distribution each, over weights of `rows` (q, n, f)."""
    queries, _, size = rows.shape
    weights = np.zeros(size)

    def likelihood(tried: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        sums = rows @ tried
        sums -= sums.max(axis=1, keepdims=True)
        exponents = np.exp(sums)
        total = exponents.sum(axis=1, keepdims=True)
        value = float((wanted * (sums - np.log(total))).sum()) / queries - RIDGE * float(tried @ tried)
        return value, exponents / total

    target = np.einsum("qn,qnf->f", wanted, rows) / queries
    value, shares = likelihood(weights)
    for _ in range(STEPS):
        mean = np.matmul(shares[:, None, :], rows)[:, 0]
        gradient = target - mean.mean(axis=0) - 2 * RIDGE * weights
        spread = (rows * np.sqrt(shares)[..., None]).reshape(-1, size)
        curvature = (spread.T @ spread - mean.T @ mean) / queries + 2 * RIDGE * np.eye(size)
        step = np.linalg.solve(curvature, gradient)
        before, share = value, 1.0
        value, shares = likelihood(weights + step)
        while value < before and share > 1e-4:  # a full step from afar goes too far
            share /= 2
            value, shares = likelihood(weights + share * step)
        weights = weights + share * step
        if value - before < 1e-9:
            break
    return weights
