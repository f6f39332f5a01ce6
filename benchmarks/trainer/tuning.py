"""Chooses on dev how Retrieve finds premises with a checkpoint: BM25's weight, prior, feedback, re-ranking.

One thing after the other, each with the best of those before: a grid over all of them would fit dev's noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aeenc import Fusion, Retrieval
from aeenc.errors import Unimplemented
from benchmarks.tables.research import Research

WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
PRIORS = (0.0, 0.02, 0.05, 0.07, 0.1, 0.15, 0.2)
FEEDBACKS = (0.0, 0.05, 0.1, 0.15)
RERANKS = (20, 50, 100)
RERANK_WEIGHTS = (0.05, 0.1, 0.2, 0.4)
WEIGHTED = (20, 50)  # re-ranked with each weight

Say = Callable[[str, dict[str, float]], None]


@dataclass(frozen=True)
class TuningResult:
    """The best way found, and its strict metrics."""

    retrieval: Retrieval
    strict: dict[str, float]


def tune(running: Research, split: str, version: str, say: Say) -> TuningResult:
    """Tries all, telling each; dense retrieval is among them. A tie stays with what is simpler."""

    def measured(retrieval: Retrieval) -> TuningResult:
        report = running.evaluate(split, version=version, retrieval=retrieval, strict_only=True)
        say(described(retrieval), report["strict"])
        return TuningResult(retrieval, report["strict"])

    best = measured(Retrieval("dense"))
    best = _better(best, (Retrieval("hybrid", Fusion(lexical_weight=weight)) for weight in WEIGHTS[1:]), measured)
    best = _better(best, [replace(best.retrieval, prior=share) for share in PRIORS[1:]], measured)
    best = _better(best, [replace(best.retrieval, negative_feedback=share) for share in FEEDBACKS[1:]], measured)
    try:
        ways = [replace(best.retrieval, rerank=n) for n in RERANKS]
        ways += [replace(best.retrieval, rerank=n, rerank_weight=w) for n in WEIGHTED for w in RERANK_WEIGHTS]
        return _better(best, ways, measured)
    except Unimplemented:
        say("re-ranking: no cross-encoder is served", {})
        return best


def described(retrieval: Retrieval) -> str:
    """A way to retrieve in a few words."""
    words = [retrieval.mode]
    if retrieval.fusion is not None and retrieval.fusion.lexical_weight is not None:
        words.append(f"BM25 {retrieval.fusion.lexical_weight:g}")
    if retrieval.prior:
        words.append(f"prior {retrieval.prior:g}")
    if retrieval.negative_feedback:
        words.append(f"negative feedback {retrieval.negative_feedback:g}")
    if retrieval.rerank:
        weight = f" weight {retrieval.rerank_weight:g}" if retrieval.rerank_weight else ""
        words.append(f"re-rank {retrieval.rerank}{weight}")
    return ", ".join(words)


def _better(best: TuningResult, ways: Any, measured: Callable[[Retrieval], TuningResult]) -> TuningResult:
    found: Sequence[TuningResult] = [best, *(measured(way) for way in ways)]
    return max(found, key=lambda one: one.strict["MAP"])
