"""The quality gate: a candidate is compared with what a label serves, on the validation queries of the candidate's job.

The job has measured what served when it began; a version that has come to serve since counts if its own job measured it
on the same. The best version ever published is not remembered: the best of many on the same queries is partly luck, and
a candidate as good as all of them would often lose to it (docs/operations.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aeenc import errors
from aeenc.evaluation import Outcome, difference_of
from aeenc.evaluation.metrics import FEWEST
from services.store.formats import UNREADABLE
from services.store.registry import Registry
from services.trainer.registry.checkpoints import Checkpoints, Metrics

_SAME = ("generation", "queries_sha256", "reranks")  # a cross-encoder's quality depends on the rankings


@dataclass(frozen=True)
class Comparison:
    """A candidate beside another version on the same queries: both MAPs, the outcome, and p of each direction.

    `p_value` is the one-sided p of being worse, `p_better` that of being better.
    """

    version: str
    queries: int
    candidate_map: float
    version_map: float
    p_value: float
    p_better: float = 1.0  # an earlier release noted neither
    outcome: Outcome = "NO_DIFFERENCE"


def compared(ours: Sequence[float], version: str, theirs: Sequence[float]) -> Comparison:
    """Compares average precisions with those of a version on the same queries; without queries, they are too few."""
    if not len(ours):
        return Comparison(version, 0, 0.0, 0.0, 1.0, 1.0, "TOO_FEW")
    found = difference_of(np.array(ours), np.array(theirs))
    return Comparison(version, len(ours), found.first, found.second, found.p_worse, found.p_better, found.outcome)


@dataclass(frozen=True)
class Verdict:
    """What a candidate was compared with; if with nothing, `not_compared` says why.

    `nothing_serves`: no other version stands at the label.
    """

    comparisons: tuple[Comparison, ...] = ()
    not_compared: str = ""
    nothing_serves: bool = False

    def check_better(self, version: str) -> None:
        """Raises FailedPrecondition unless it is better than all it was compared with, or nothing else serves."""
        if self.nothing_serves or (self.comparisons and all(one.outcome == "BETTER" for one in self.comparisons)):
            return
        doubtful = next((one for one in self.comparisons if one.outcome != "BETTER"), None)
        why = self.not_compared
        if doubtful is not None:
            why = (
                f"no difference shown: MAP {doubtful.candidate_map:.4f}, the serving {doubtful.version} "
                f"{doubtful.version_map:.4f} on the same {doubtful.queries} queries (p = {doubtful.p_better:.3f})"
            )
        raise errors.FailedPrecondition(
            f"checkpoint {version} was not shown to be better than what serves ({why}); publish with force (`aeenc "
            "publish --anyway`) if you want it nevertheless",
            reason="QUALITY_GATE",
        )


class QualityGate:
    """Compares candidates with published versions."""

    def __init__(self, registry: Registry, checkpoints: Checkpoints) -> None:
        self._registry, self._checkpoints = registry, checkpoints

    async def compare(self, version: str, space_id: str, label: str) -> tuple[int, Verdict]:
        """Compares a version with those of a label. Returns the label's revision, 0 for no label, and the verdict.

        Raises FailedPrecondition if a paired test on the same queries finds the version worse. With too few queries, or
        without figures of both on the same ones, the version passes, and the verdict says so.
        """
        serving = await self._registry.label(space_id, label)
        if serving is None:
            return 0, Verdict(not_compared=f"label {label!r} serves nothing yet", nothing_serves=True)
        if serving.version == version:
            same = f"label {label!r} serves this version already"
            return serving.revision, Verdict(not_compared=same, nothing_serves=True)
        candidate = await self._checkpoints.metrics(version)
        if candidate is None:
            unmeasured = "it was trained without validation queries, and on too few trees to hold any back"
            return serving.revision, Verdict(not_compared=unmeasured)
        ours = candidate.average_precisions
        if len(ours) < FEWEST:
            too_few = f"too few validation queries: {len(ours)}, a comparison needs {FEWEST}; evaluate both versions"
            return serving.revision, Verdict(not_compared=too_few)
        comparisons = [
            await asyncio.to_thread(_compared, version, ours, theirs, measured)
            for theirs in serving.versions
            if theirs != version and (measured := await self._measured(theirs, candidate))
        ]
        other = (
            f"{serving.version} was not measured on the validation queries and premises of {version}; train again, or "
            "evaluate both versions"
        )
        return serving.revision, Verdict(tuple(comparisons), "" if comparisons else other)

    async def _measured(self, theirs: str, candidate: Metrics) -> Sequence[float]:
        """Finds a version's average precisions on the candidate's queries; none if it was never measured on them."""
        if found := candidate.measured.get(theirs):
            return found
        try:
            metrics = await self._checkpoints.metrics(theirs)
        except (errors.NotFound, *UNREADABLE):  # deleted since, or damaged: another one is to take its place
            return ()
        if metrics is None or any(getattr(metrics, name) != getattr(candidate, name) for name in _SAME):
            return ()
        return metrics.average_precisions


def _compared(version: str, ours: Sequence[float], theirs: str, measured: Sequence[float]) -> Comparison:
    """Compares average precisions. Raises FailedPrecondition for a version that is worse beyond chance."""
    made = compared(ours, theirs, measured)
    if made.outcome == "WORSE":
        raise errors.FailedPrecondition(
            f"checkpoint {version} has validation MAP {made.candidate_map:.4f}, the serving {theirs} "
            f"{made.version_map:.4f} on the same {made.queries} queries (one-sided paired randomisation test, p = "
            f"{made.p_value:.3f}); publish with force (`aeenc publish --anyway`) if you want it nevertheless",
            reason="QUALITY_GATE",
        )
    return made
