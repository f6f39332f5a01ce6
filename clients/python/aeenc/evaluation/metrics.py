"""MAP, NDCG and Hit@k from the ranks of gold premises, and the paired randomisation test between two systems.

Gain is binary, logarithms are of base 2; MAP and NDCG are macro averages, Hit@k is a micro average. A gold premise that
a ranking lacks has rank UNRANKED: it adds nothing, and it stays in every denominator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument

Ranks = NDArray[np.int64]
Outcome = Literal["BETTER", "NO_DIFFERENCE", "WORSE", "TOO_FEW"]
UNRANKED = 2**62
BLOCK_SIGNS = 1_000_000  # of a randomisation test, held at once
SIGNIFICANCE = 0.05
BETTER_SIGNIFICANCE = 0.01  # a job publishes what is better by itself, maybe often; of verdicts by chance, 1 in 100
FEWEST = 10  # queries: fewer can tell only an enormous difference from chance
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
    """Averages the precision at the rank of each gold premise. `ranks` (g,) in any order, from 1; at least one."""
    found = np.sort(_gold(ranks))
    precisions = np.where(found < UNRANKED, np.arange(1, len(found) + 1) / found, 0.0)
    return float(np.mean(precisions))


def ndcg(ranks: Sequence[int] | Ranks, k: int | None = None, gains: Sequence[float] | None = None) -> float:
    """Discounted cumulative gain of the first k (None: all), over that of the best order.

    `ranks` (g,), from 1; each has a gain of 1, unless `gains` (g,) are given. Raises InvalidArgument without a gain.
    """
    gains = [1.0] * len(_gold(np.asarray(ranks))) if gains is None else gains
    last = UNRANKED - 1 if k is None else k
    found = ((gain, int(rank)) for gain, rank in zip(gains, ranks, strict=True) if rank <= last)
    return dcg(found) / ideal_dcg(gains, k)


def ideal_dcg(gains: Sequence[float], k: int | None = None) -> float:
    """Discounted gain of the first k in the best order. Raises InvalidArgument if no gain is above 0."""
    best = dcg(zip(sorted(gains, reverse=True)[:k], range(1, len(gains) + 1), strict=False))
    if not best:
        raise InvalidArgument("no premise of the query has a grade above 0; leave the query out")
    return best


def dcg(found: Iterable[tuple[float, int]]) -> float:
    """Sums gains by rank, from 1. math.fsum rounds once, so that the order of the terms changes no digit."""
    return math.fsum(gain / math.log2(rank + 1) for gain, rank in found)


def condensed(ranks: Ranks, wanted: NDArray[np.bool_]) -> Ranks:
    """Ranks (g,) of the gold premises `wanted`, had the other gold premises been left out of the ranking."""
    kept, out = ranks[wanted], ranks[~wanted]
    better = np.searchsorted(np.sort(out), kept)
    return np.where(kept < UNRANKED, kept - better, UNRANKED)


def hit(ranks: Sequence[Ranks], k: int) -> float:
    """Returns the share of (query, premise) pairs whose premise is in the first k. Raises InvalidArgument for none."""
    if not len(ranks):
        raise InvalidArgument("there are no queries to measure; give at least one with a gold premise")
    together = np.concatenate(ranks)
    return float(np.mean(together <= k))


def metrics_of(ranks: Sequence[Ranks]) -> Metrics:
    """Computes the metrics of queries from their gold ranks. Raises InvalidArgument for a query without one."""
    hits = {f"hit_at_{k}": hit(ranks, k) for k in (10, 20, 50)}
    return Metrics(
        map=float(np.mean([average_precision(r) for r in ranks])),
        ndcg=float(np.mean([ndcg(r) for r in ranks])),
        ndcg_at_10=float(np.mean([ndcg(r, 10) for r in ranks])),
        ndcg_at_50=float(np.mean([ndcg(r, 50) for r in ranks])),
        **hits,
    )


def paired_randomisation_test(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    *,
    rounds: int = 10_000,
    seed: int = 0,
    alternative: Literal["two-sided", "less"] = "two-sided",
) -> float:
    """Computes the p-value of the difference of means of two systems on the same queries, (q,) each.

    The paired randomisation test (Smucker et al. 2007): signs of the per-query differences are flipped at random; the
    observed assignment counts as one round. `less` asks only whether the first mean is lower. Raises InvalidArgument
    for no queries, different numbers of them, or a value that is not finite.
    """
    if len(first) != len(second) or not len(first):
        raise InvalidArgument(f"a paired test needs the same queries, got {len(first)} and {len(second)} queries")
    differences = first - second
    if not np.isfinite(differences).all():
        raise InvalidArgument("a value of a paired test is not finite; leave its query out of both systems")
    extremity = np.abs if alternative == "two-sided" else np.negative
    observed = extremity(differences.mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    at_once = max(1, BLOCK_SIGNS // len(differences))
    for start in range(0, rounds, at_once):
        block = min(at_once, rounds - start)
        signs = generator.integers(0, 2, size=(block, len(differences))) * 2 - 1
        extreme += int((extremity((signs * differences).mean(axis=1)) >= observed - 1e-15).sum())
    return (extreme + 1) / (rounds + 1)


@dataclass(frozen=True)
class Difference:
    """How one system differs from another on the same queries: both means, and the one-sided p of each direction."""

    outcome: Outcome
    first: float
    second: float
    p_better: float
    p_worse: float


def difference_of(first: NDArray[np.float64], second: NDArray[np.float64]) -> Difference:
    """Says whether the first system is better or worse than the second, one value per query (q,) each.

    Each direction has its own one-sided paired randomisation test, at the level BETTER_SIGNIFICANCE or SIGNIFICANCE.
    TOO_FEW, with p 1, for fewer than FEWEST queries.
    Raises InvalidArgument as the test does.
    """
    p_better = paired_randomisation_test(second, first, alternative="less")
    p_worse = paired_randomisation_test(first, second, alternative="less")
    means = float(first.mean()), float(second.mean())
    if len(first) < FEWEST:
        return Difference("TOO_FEW", *means, 1.0, 1.0)
    outcome: Outcome = "NO_DIFFERENCE"
    if p_better < BETTER_SIGNIFICANCE:
        outcome = "BETTER"
    elif p_worse < SIGNIFICANCE:
        outcome = "WORSE"
    return Difference(outcome, *means, p_better, p_worse)


def _gold(ranks: Ranks) -> Ranks:
    """Returns the ranks of a query's gold premises. Raises InvalidArgument for none."""
    if not len(ranks):
        raise InvalidArgument("a query has no gold premise; leave it out")
    return ranks
