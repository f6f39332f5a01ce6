"""MAP, NDCG and Hit@k from the ranks of gold premises, and the paired randomisation test between two systems.

Gain is binary, logarithms are of base 2; MAP and NDCG are macro averages, Hit@k is a micro average. A gold premise that
a ranking lacks has rank UNRANKED: it adds nothing, and it stays in every denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]
UNRANKED = 2**62
BLOCK_ROUNDS = 1000
# printed name -> field of Metrics and of the message RetrievalMetrics
METRIC_FIELDS = {
    "MAP": "map",
    "NDCG": "ndcg",
    "NDCG@10": "ndcg_at_10",
    "NDCG@50": "ndcg_at_50",
    "Hit@10": "hit_at_10",
    "Hit@20": "hit_at_20",
    "Hit@50": "hit_at_50",
}


@dataclass(frozen=True)
class Metrics:
    """Retrieval quality under one protocol; each value lies in [0, 1]."""

    map: float
    ndcg: float
    ndcg_at_10: float
    ndcg_at_50: float
    hit_at_10: float
    hit_at_20: float
    hit_at_50: float

    def to_dict(self) -> dict[str, float]:
        """Returns the metrics by the names that reports and tables use."""
        return {name: getattr(self, field) for name, field in METRIC_FIELDS.items()}


def average_precision(ranks: Ranks) -> float:
    """Averages the precision at the rank of each gold premise. `ranks` (g,) in any order, from 1."""
    found = np.sort(ranks)
    precisions = np.where(found < UNRANKED, np.arange(1, len(found) + 1) / found, 0.0)
    return float(np.mean(precisions))


def ndcg(ranks: Ranks, k: int | None = None) -> float:
    """Discounted cumulative gain of the first k (None: all), over that of the best ranking. `ranks` (g,), from 1."""
    counted = ranks[ranks < UNRANKED] if k is None else ranks[ranks <= k]
    best = np.arange(1, (len(ranks) if k is None else min(len(ranks), k)) + 1)
    return float(np.sum(1 / np.log2(counted + 1)) / np.sum(1 / np.log2(best + 1)))


def hit(ranks: Sequence[Ranks], k: int) -> float:
    """Returns the share of all (query, premise) pairs whose premise is in the first k."""
    together = np.concatenate(ranks)
    return float(np.mean(together <= k))


def metrics_of(ranks: Sequence[Ranks]) -> Metrics:
    """Computes the metrics of a set of queries from their gold ranks; each query has at least one."""
    return Metrics(
        map=float(np.mean([average_precision(r) for r in ranks])),
        ndcg=float(np.mean([ndcg(r) for r in ranks])),
        ndcg_at_10=float(np.mean([ndcg(r, 10) for r in ranks])),
        ndcg_at_50=float(np.mean([ndcg(r, 50) for r in ranks])),
        hit_at_10=hit(ranks, 10),
        hit_at_20=hit(ranks, 20),
        hit_at_50=hit(ranks, 50),
    )


def paired_randomisation_test(
    first: NDArray[np.float64], second: NDArray[np.float64], *, rounds: int = 10_000, seed: int = 0
) -> float:
    """Computes the two-sided p-value of the difference of means of two systems on the same queries, (q,) each.

    The paired randomisation test (Smucker et al. 2007): signs of the per-query differences are flipped at random; the
    observed assignment counts as one round.
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
