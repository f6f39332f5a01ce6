"""Metrics over parts of the gold pairs, seen in training or not or left in conditioned retrieval, and over whole trees.

Conditioned retrieval tells the index, for each query, the gold premise that it found first, and ranks the others. In a
part, gold premises outside it are not candidates: they count neither as right nor as wrong.

Of a tree it counts how many leaves are among the first 25 premises retrieved for it. The query is the hypothesis alone
or, along the gold tree, every inner node; its lists are merged by each premise's best score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument
from aeenc.evaluation import Metrics, condensed, metrics_of
from services.trainer.evaluation.protocol import EvaluationQuery, GoldStandard, Ranks, Report

Kind = Literal[
    "QUERY_SEEN", "QUERY_UNSEEN", "PREMISE_SEEN", "PREMISE_UNSEEN", "PAIR_SEEN", "PAIR_UNSEEN", "NOT_CONDITIONED"
]
Marks = NDArray[np.bool_]
FIRST = 25


@dataclass(frozen=True)
class Part:
    """Quality on a part. A protocol is None if it ranks nothing of the part. Counts are those of `paper`."""

    kind: Kind
    strict: Metrics | None
    paper: Metrics | None
    queries: int
    pairs: int


def parts_seen(standard: GoldStandard, report: Report, training: Sequence[EvaluationQuery]) -> list[Part]:
    """Splits a report by queries, premises and pairs seen in `training`; parts without a pair are left out."""
    queries = {query.text for query in training}
    premises = {premise for query in training for premise in query.gold}
    pairs = {(query.text, premise) for query in training for premise in query.gold}
    marks = {
        "QUERY": [np.array([query.text in queries] * len(query.gold)) for query in standard.queries],
        "PREMISE": [np.array([one in premises for one in query.gold]) for query in standard.queries],
        "PAIR": [np.array([(query.text, one) in pairs for one in query.gold]) for query in standard.queries],
    }
    return [part for name, seen in marks.items() for part in _both(name, standard, report, seen)]


def _both(name: str, standard: GoldStandard, report: Report, seen: Sequence[Marks]) -> Iterator[Part]:
    for state, wanted in (("SEEN", seen), ("UNSEEN", [~marks for marks in seen])):
        pairs = sum(int(marks.sum()) for marks in wanted)
        if not pairs:
            continue
        kind: Kind = f"{name}_{state}"  # type: ignore[assignment]
        strict_wanted = [marks[others] for marks, others in zip(wanted, standard.others, strict=True)]
        yield Part(
            kind,
            _metrics(report.strict_ranks, strict_wanted),
            _metrics(report.paper_ranks, wanted) if report.paper_ranks else None,
            queries=sum(bool(marks.any()) for marks in wanted),
            pairs=pairs,
        )


def _metrics(ranks: Sequence[Ranks], wanted: Sequence[Marks]) -> Metrics | None:
    found = [condensed(own, marks) for own, marks in zip(ranks, wanted, strict=True) if marks.any()]
    return metrics_of(found) if found else None


def with_several_gold(standard: GoldStandard) -> GoldStandard:
    """Selects the queries with two or more gold premises beside their own text. Raises InvalidArgument for none."""
    kept = standard.kept
    chosen = [n for n, gold in enumerate(kept) if len(gold) > 1]
    if not chosen:
        raise InvalidArgument("no query has two gold premises, one of which could be told; evaluate other queries")
    queries, own = [standard.queries[n] for n in chosen], [standard.own[n] for n in chosen]
    return GoldStandard(queries, [kept[n] for n in chosen], own)


def told_apart(several: GoldStandard, before: Sequence[Ranks]) -> tuple[list[int], GoldStandard, list[Ranks]]:
    """Splits the gold premises of each query: the ordinal of the one that ranked best, and the others.

    Also returns the ranks of the others when nothing is told and the best one is not a candidate.
    """
    told = [int(np.argmin(ranks)) for ranks in before]
    ordinals = [int(gold[one]) for gold, one in zip(several.gold, told, strict=True)]
    others = [np.delete(gold, one) for gold, one in zip(several.gold, told, strict=True)]
    wanted = [np.arange(len(ranks)) != one for ranks, one in zip(before, told, strict=True)]
    without = [condensed(ranks, marks) for ranks, marks in zip(before, wanted, strict=True)]
    return ordinals, GoldStandard(several.queries, others, several.own), without


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
