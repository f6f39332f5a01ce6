"""Whether two systems differ: the paired randomisation test on per-query values (Smucker et al. 2007)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK_ROUNDS = 1000


def paired_randomisation_test(
    first: NDArray[np.float64], second: NDArray[np.float64], *, rounds: int = 10_000, seed: int = 0
) -> float:
    """The two-sided p-value of the difference of means of two systems on the same queries, (q,) each.

    Signs of the per-query differences are flipped at random; the observed assignment counts as one round.
    """
    differences = first - second
    observed = abs(differences.mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, rounds, BLOCK_ROUNDS):
        block = min(BLOCK_ROUNDS, rounds - start)
        signs = generator.integers(0, 2, size=(block, len(differences))) * 2 - 1
        extreme += int((np.abs((signs * differences).mean(axis=1)) >= observed - 1e-15).sum())
    return (extreme + 1) / (rounds + 1)
