"""The quality gate: a candidate is compared with what a label serves and with the best that was published under it.

Every step from version to version may be within noise, ten of them not. So the best one is remembered, for each
measurement (generation, validation queries, rankings) by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.evaluation import paired_randomisation_test
from services.store.registry import Registry
from services.trainer.registry.checkpoints import Checkpoints

SIGNIFICANCE = 0.05
_SAME = ("generation", "queries_sha256", "reranks")  # a cross-encoder's quality depends on the rankings


@dataclass(frozen=True)
class Comparison:
    """A candidate beside a published version on the same queries: both MAPs, and a paired test (1: not lower)."""

    version: str
    queries: int
    candidate_map: float
    version_map: float
    p_value: float


@dataclass(frozen=True)
class Verdict:
    """What a candidate was compared with; if with nothing, `not_compared` says why."""

    comparisons: tuple[Comparison, ...] = ()
    not_compared: str = ""


class QualityGate:
    """Compares candidates with published versions."""

    def __init__(self, registry: Registry, checkpoints: Checkpoints) -> None:
        self._registry, self._checkpoints = registry, checkpoints

    async def compare(self, version: str, space_id: str, label: str) -> tuple[int, Verdict]:
        """Compares a version with those of a label. Returns the label's revision, 0 for no label, and the verdict.

        Raises FailedPrecondition if a paired test on the same queries finds the version worse. Without metrics on the
        same queries there is nothing to compare: the version passes, and the verdict says so.
        """
        serving = await self._registry.label(space_id, label)
        if serving is None:
            return 0, Verdict(not_compared=f"label {label!r} serves nothing yet")
        if serving.version == version:
            return serving.revision, Verdict(not_compared=f"label {label!r} serves this version already")
        candidate = await self._checkpoints.metrics(version)
        if candidate is None:
            return serving.revision, Verdict(not_compared="it was trained without validation queries")
        best = await self._registry.best_published(space_id, label, _measure_of(candidate))
        names = dict.fromkeys(serving.versions, "serving")
        if best:
            names.setdefault(best, "best published")
        comparisons = [
            await self._test(version, candidate, theirs, name) for theirs, name in names.items() if theirs != version
        ]
        made = tuple(one for one in comparisons if one is not None)
        other = "" if made else f"{serving.version} was measured on other validation queries or premises"
        return serving.revision, Verdict(made, other)

    async def note(self, version: str, space_id: str, label: str, verdict: Verdict, *, force: bool) -> None:
        """Remembers the best one after a publication. With `force` that is the one published, however it measures."""
        candidate = await self._checkpoints.metrics(version)
        if candidate is None:
            return
        better = [] if force else [(one.version_map, one.version) for one in verdict.comparisons]
        best = max([(float(_precisions(candidate, "after").mean()), version), *better])[1]
        await self._registry.set_best_published(space_id, label, _measure_of(candidate), best)

    async def _test(self, version: str, candidate: dict[str, Any], theirs: str, name: str) -> Comparison | None:
        try:
            measured = _precisions_of(theirs, await self._checkpoints.metrics(theirs), candidate)
        except errors.NotFound:  # deleted since
            return None
        if measured is None:
            return None
        ours = _precisions(candidate, "after")
        is_lower = ours.mean() < measured.mean()
        p_value = await asyncio.to_thread(paired_randomisation_test, ours, measured) if is_lower else 1.0
        if p_value < SIGNIFICANCE:
            raise errors.FailedPrecondition(
                f"checkpoint {version} has validation MAP {ours.mean():.4f}, the {name} {theirs} {measured.mean():.4f} "
                f"on the same {len(ours)} queries (paired randomisation test, p = {p_value:.3f}); publish with force "
                "if you want it nevertheless",
                reason="QUALITY_GATE",
            )
        return Comparison(theirs, len(ours), float(ours.mean()), float(measured.mean()), float(p_value))


def _precisions_of(
    version: str, metrics: dict[str, Any] | None, candidate: dict[str, Any]
) -> NDArray[np.float64] | None:
    """Finds a version's average precisions on the candidate's queries; None if never measured."""
    if metrics is not None and _measure_of(metrics) == _measure_of(candidate):
        return _precisions(metrics, "after")
    if candidate["base_version"] == version:
        return _precisions(candidate, "before")
    return None


def _precisions(metrics: dict[str, Any], when: str) -> NDArray[np.float64]:
    return np.array(metrics[when]["average_precisions"], dtype=np.float64)


def _measure_of(metrics: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([metrics.get(name) for name in _SAME]).encode()).hexdigest()
