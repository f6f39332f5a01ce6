"""Quality by strata of the gold pairs: words that premise and query share, depth in the trees, split of the premise.

In a stratum only its own gold premises count; the others are taken out of the ranking, as in the parts of a report. The
bands are fixed, so that figures of two systems are of the same pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from aeenc.evaluation.metrics import UNRANKED, Metrics, Ranks, condensed, metrics_of
from aeenc.trees.dataset import Candidate
from aeenc.trees.tree import Tree


class StrataName(StrEnum):
    """What pairs are told apart by."""

    OVERLAP = "overlap"
    DEPTH = "depth"
    SPLIT = "split"


OVERLAPS = {"no shared word": 0.0, "up to .1": 0.1, "up to .25": 0.25, "over .25": 1.0}  # by their upper ends
_WORD = re.compile(r"\w+")
DEPTHS = ("1 step", "2 steps", "3 steps", "4 and more")


@dataclass(frozen=True)
class Strata:
    """The bands in their order, and which of them a pair of query and gold premise is in."""

    names: Sequence[str]
    band_of: Callable[[str, str], str]


@dataclass(frozen=True)
class Stratum:
    """Quality on the pairs of a band."""

    name: str
    metrics: Metrics
    queries: int
    pairs: int


def words(text: str) -> set[str]:
    """Returns the distinct words of a text, lower-cased."""
    return set(_WORD.findall(text.lower()))


def word_overlap(query: str, premise: str) -> float:
    """The Jaccard overlap of the lower-cased words of two texts; 0 where both have none."""
    ours, theirs = words(query), words(premise)
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.0


def by_overlap() -> Strata:
    """By `word_overlap` of query and premise."""

    def band_of(query: str, premise: str) -> str:
        shared = word_overlap(query, premise)
        return next(name for name, end in OVERLAPS.items() if shared <= end)

    return Strata(list(OVERLAPS), band_of)


def by_depth(trees: Iterable[Tree]) -> Strata:
    """By the steps between a query and the deepest leaf below it, in the tree where these are most."""
    steps: dict[str, int] = {}
    for tree in trees:
        for label, depth in tree.depths.items():
            steps[tree.texts[label]] = max(depth, steps.get(tree.texts[label], 0))
    return Strata(DEPTHS, lambda query, _: DEPTHS[min(max(steps.get(query, 1), 1), len(DEPTHS)) - 1])


def by_split(candidates: Iterable[Candidate]) -> Strata:
    """By the first split that has the premise: the facts, then train, then the others."""
    first = {one.text: one.splits[0] if one.splits else "none" for one in candidates}
    return Strata(list(dict.fromkeys(first.values())), lambda _, premise: first.get(premise, "none"))


def metrics_by(strata: Strata, pairs: Sequence[tuple[str, Sequence[str]]], ranks: Sequence[Ranks]) -> list[Stratum]:
    """Measures each band that has a pair. `pairs` are queries with their gold premises, `ranks` (g,) those of each.

    A rank of 0 is that of a premise that was not found.
    """
    bands = [np.array([strata.band_of(query, one) for one in gold], dtype=object) for query, gold in pairs]
    found = []
    for name in dict.fromkeys((*strata.names, *(band for row in bands for band in row))):
        placed = [
            condensed(np.where(row == 0, UNRANKED, row), of == name)
            for row, of in zip(ranks, bands, strict=True)
            if (of == name).any()
        ]
        if placed:
            found.append(Stratum(name, metrics_of(placed), len(placed), sum(map(len, placed))))
    return found
