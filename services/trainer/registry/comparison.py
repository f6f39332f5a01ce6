"""A version beside another one on the same queries: what the quality gate and the gain of a job have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aeenc.evaluation import Outcome, difference_of


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
