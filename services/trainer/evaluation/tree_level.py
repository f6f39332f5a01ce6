"""Tree-level metrics: how many of a tree's leaves are among the first 25 premises retrieved for it.

The query is the hypothesis alone or, along the gold tree, every inner node; its lists are merged by each premise's best
score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FIRST = 25


class RankedPremises(NamedTuple):
    """Premises by ordinal and their scores, each (n,), best first: arrays, as an evaluation holds thousands."""

    ordinals: NDArray[np.int32]
    scores: NDArray[np.float64]


@dataclass(frozen=True)
class GoldTree:
    """The texts of a tree: its hypothesis, its other inner nodes, and its leaves."""

    hypothesis: str
    intermediates: tuple[str, ...]
    leaves: tuple[str, ...]

    @property
    def queries(self) -> tuple[str, ...]:
        """All inner nodes, the hypothesis first."""
        return (self.hypothesis, *self.intermediates)


@dataclass(frozen=True)
class TreeLevel:
    """Mean recall of a tree's leaves, recall over all leaves, and the share of trees with full recall."""

    recall_at_25: float
    recall_at_25_micro: float
    all_correct_at_25: float
    trees: int
    leaves: int


def tree_level(
    trees: Sequence[GoldTree], found: Mapping[str, RankedPremises], ordinal_by_text: Mapping[str, int], *, along: bool
) -> TreeLevel:
    """Measures the quality over trees. `found` has the first FIRST premises of each query; leaves count by text."""
    shares, hits, leaves = [], 0, 0
    for tree in trees:
        lists = [found[text] for text in (tree.queries if along else (tree.hypothesis,))]
        first = set(merged(lists))
        wanted = {ordinal_by_text[leaf] for leaf in tree.leaves}
        shares.append(len(wanted & first) / len(wanted))
        hits, leaves = hits + len(wanted & first), leaves + len(wanted)
    complete = [share == 1.0 for share in shares]
    return TreeLevel(float(np.mean(shares)), hits / leaves, float(np.mean(complete)), len(trees), leaves)


def merged(lists: Sequence[RankedPremises]) -> list[int]:
    """Merges lists to the FIRST ordinals by best score in any list; ties go to the lower ordinal."""
    best: dict[int, float] = {}
    for one in lists:
        for ordinal, score in zip(one.ordinals.tolist(), one.scores.tolist(), strict=True):
            best[ordinal] = max(score, best.get(ordinal, -np.inf))
    return sorted(best, key=lambda ordinal: (-best[ordinal], ordinal))[:FIRST]
