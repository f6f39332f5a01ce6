"""The same metrics over parts of the queries or pairs: those that training has seen, and the others.

A part of a query's gold premises is ranked as if the others were no candidates: they are neither right nor wrong there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aeenc.evaluation import UNRANKED, Metrics, metrics_of
from services.trainer.evaluation.protocol import EvaluationQuery, Ranks, Report, Standard

Kind = Literal[
    "QUERY_SEEN", "QUERY_UNSEEN", "PREMISE_SEEN", "PREMISE_UNSEEN", "PAIR_SEEN", "PAIR_UNSEEN", "NOT_CONDITIONED"
]
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """Quality on a part; a protocol is None where the part has nothing that it ranks. Counts are those of `paper`."""

    kind: Kind
    strict: Metrics | None
    paper: Metrics | None
    queries: int
    pairs: int


def parts_seen(standard: Standard, report: Report, training: Sequence[EvaluationQuery]) -> list[Part]:
    """The report by queries, premises and pairs that stand in `training`; parts without a pair are left out."""
    queries = {query.text for query in training}
    premises = {premise for query in training for premise in query.gold}
    pairs = {(query.text, premise) for query in training for premise in query.gold}
    marks = {
        "QUERY": [np.array([query.text in queries] * len(query.gold)) for query in standard.queries],
        "PREMISE": [np.array([one in premises for one in query.gold]) for query in standard.queries],
        "PAIR": [np.array([(query.text, one) in pairs for one in query.gold]) for query in standard.queries],
    }
    return [part for name, seen in marks.items() for part in _both(name, standard, report, seen)]


def _both(name: str, standard: Standard, report: Report, seen: Sequence[Marks]) -> Iterator[Part]:
    for state, wanted in (("SEEN", seen), ("UNSEEN", [~marks for marks in seen])):
        pairs = sum(int(marks.sum()) for marks in wanted)
        if not pairs:
            continue
        kind: Kind = f"{name}_{state}"  # type: ignore[assignment]
        others = [
            ordinals != (-1 if own is None else own) for ordinals, own in zip(standard.gold, standard.own, strict=True)
        ]
        strict_wanted = [marks[other] for marks, other in zip(wanted, others, strict=True)]
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


def condensed(ranks: Ranks, wanted: Marks) -> Ranks:
    """The ranks (g,) of the gold premises `wanted`, had the other gold premises been left out of the ranking."""
    kept, out = ranks[wanted], ranks[~wanted]
    better = (out[None, :] < kept[:, None]).sum(axis=1)
    return np.where(kept < UNRANKED, kept - better, UNRANKED)
