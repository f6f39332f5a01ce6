"""MAP, NDCG and Hit@k from the ranks of gold premises. Binary gain, log base 2; MAP and NDCG macro, Hit@k micro.

A gold premise that a ranking does not have is at rank UNRANKED: it adds nothing, and it stays in every denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]
UNRANKED = 2**62


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
        """The metrics under the names that reports and tables use."""
        return {
            "MAP": self.map,
            "NDCG": self.ndcg,
            "NDCG@10": self.ndcg_at_10,
            "NDCG@50": self.ndcg_at_50,
            "Hit@10": self.hit_at_10,
            "Hit@20": self.hit_at_20,
            "Hit@50": self.hit_at_50,
        }


def average_precision(ranks: Ranks) -> float:
    """Mean over the gold premises of the precision at their rank. `ranks` (g,) in any order, from 1."""
    found = np.sort(ranks)
    precisions = np.where(found < UNRANKED, np.arange(1, len(found) + 1) / found, 0.0)
    return float(np.mean(precisions))


def ndcg(ranks: Ranks, k: int | None = None) -> float:
    """Discounted cumulative gain of the first k (None: all), over that of the best ranking. `ranks` (g,), from 1."""
    counted = ranks[ranks < UNRANKED] if k is None else ranks[ranks <= k]
    best = np.arange(1, (len(ranks) if k is None else min(len(ranks), k)) + 1)
    return float(np.sum(1 / np.log2(counted + 1)) / np.sum(1 / np.log2(best + 1)))


def hit(ranks: Sequence[Ranks], k: int) -> float:
    """Share of all (query, premise) pairs whose premise is in the first k."""
    together = np.concatenate(ranks)
    return float(np.mean(together <= k))


def metrics_of(ranks: Sequence[Ranks]) -> Metrics:
    """The metrics of a set of queries from their gold ranks; each query has at least one."""
    return Metrics(
        map=float(np.mean([average_precision(r) for r in ranks])),
        ndcg=float(np.mean([ndcg(r) for r in ranks])),
        ndcg_at_10=float(np.mean([ndcg(r, 10) for r in ranks])),
        ndcg_at_50=float(np.mean([ndcg(r, 50) for r in ranks])),
        hit_at_10=hit(ranks, 10),
        hit_at_20=hit(ranks, 20),
        hit_at_50=hit(ranks, 50),
    )
