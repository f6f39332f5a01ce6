"""Whole trees: how many of a tree's leaves stand among the first 25 premises found for it.

A tree is asked for by its hypothesis alone, or along the gold tree: by every inner node, the lists merged by the best
score that a premise has in any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FIRST = 25

RankedPremises = Sequence[tuple[int, float]]  # (ordinal, score), best first


@dataclass(frozen=True)
class GoldTree:
    """The texts of a tree: its hypothesis, its other inner nodes, and its leaves."""

    hypothesis: str
    intermediates: tuple[str, ...]
    leaves: tuple[str, ...]

    @property
    def queries(self) -> tuple[str, ...]:
        """The texts of all inner nodes, the hypothesis first."""
        return (self.hypothesis, *self.intermediates)


@dataclass(frozen=True)
class TreeLevel:
    """Mean share of a tree's leaves found, share of all leaves found, and share of trees with all of them."""

    recall: float
    recall_micro: float
    all_correct: float
    trees: int
    leaves: int


def tree_level(
    trees: Sequence[GoldTree], found: Mapping[str, RankedPremises], ordinal_by_text: Mapping[str, int], *, along: bool
) -> TreeLevel:
    """The quality over trees. `found` has at least the first FIRST premises of each query; leaves count by text."""
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
    """The FIRST ordinals by their best score in any list; ties by ordinal."""
    best: dict[int, float] = {}
    for one in lists:
        for ordinal, score in one:
            best[ordinal] = max(score, best.get(ordinal, -np.inf))
    return sorted(best, key=lambda ordinal: (-best[ordinal], ordinal))[:FIRST]
