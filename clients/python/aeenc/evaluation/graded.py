"""Metrics over rated premises: NDCG with graded gain, its ceiling for a re-ranker, and recall by grade.

NDCG of TextGraphs is the measure of the shared task on multi-hop explanations (Thayaparan et al. 2021).

A grade is a real number from 0 (judged irrelevant) to MAX_GRADE; binary gold has grade 1. `ranks` and `grades` of a
query belong together, one for each rated premise, in any order; ranks count from 1, UNRANKED where a list lacks one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count

from aeenc.errors import InvalidArgument
from aeenc.evaluation.metrics import UNRANKED, ndcg

MAX_GRADE = 100.0  # the exponential gain of larger ones leaves no digits for the others
MISSING_RANK = 10**6  # of a rated premise that a list lacks, as TextGraphs counts
LENGTHS = (10, 25, 50, 100, 200)  # of lists whose recall is reported


class Gain(Enum):
    """The gain of a premise, from its grade."""

    LINEAR = "linear"
    """The grade, as in trec_eval."""
    EXPONENTIAL = "exponential"
    """2^grade - 1, as in Burges et al. 2005."""
    TEXTGRAPHS = "textgraphs"
    """2^grade - 1; a premise that a list lacks stands at MISSING_RANK, where it has 1/20 of its gain."""

    def of(self, grade: float) -> float:
        """Returns the gain of a grade. Raises InvalidArgument for one outside 0 to MAX_GRADE."""
        check_grade(grade)
        return grade if self is Gain.LINEAR else 2.0**grade - 1


def check_grade(grade: float) -> float:
    """Returns the grade. Raises InvalidArgument for one outside 0 to MAX_GRADE."""
    if not 0 <= grade <= MAX_GRADE:
        raise InvalidArgument(f"a grade must be between 0 and {MAX_GRADE:g}, got {grade}")
    return grade


def grade_text(grade: float) -> str:
    """Writes a grade in full, a whole one without a point."""
    whole = int(check_grade(grade))
    return str(whole if whole == grade else float(grade))


def graded_ndcg(ranks: Sequence[int], grades: Sequence[float], gain: Gain = Gain.LINEAR, k: int | None = None) -> float:
    """Discounted gain of the first k (None: all), over that of the best order of all rated premises.

    Raises InvalidArgument if no grade is above 0.
    """
    places = [min(rank, MISSING_RANK) for rank in ranks] if gain is Gain.TEXTGRAPHS else ranks
    return ndcg(places, k, [gain.of(grade) for grade in grades])


def oracle_ndcg(ranks: Sequence[int], grades: Sequence[float], gain: Gain = Gain.LINEAR, length: int = 200) -> float:
    """NDCG of the first `length` in their own best order: no re-ranker of this list can reach more.

    Raises InvalidArgument if no grade is above 0.
    """
    best_first = sorted(zip(grades, ranks, strict=True), reverse=True)
    places = count(1)
    best = [next(places) if rank <= length else UNRANKED for _, rank in best_first]
    return graded_ndcg(best, [grade for grade, _ in best_first], gain)


def recall_by_grade(
    ranks: Iterable[Sequence[int]], grades: Iterable[Sequence[float]], lengths: Sequence[int]
) -> dict[float, list[float]]:
    """Computes, for each grade above 0, the share of its (query, premise) pairs in the first `lengths` of a list.

    Highest grade first. Grades are taken as they are: round real ones before.
    """
    places: dict[float, list[int]] = {}
    for own_ranks, own_grades in zip(ranks, grades, strict=True):
        for rank, grade in zip(own_ranks, own_grades, strict=True):
            if check_grade(grade) > 0:
                places.setdefault(float(grade), []).append(rank)
    return {
        grade: [sum(rank <= length for rank in found) / len(found) for length in lengths]
        for grade, found in sorted(places.items(), reverse=True)
    }


@dataclass(frozen=True)
class GradedMetrics:
    """Graded quality of one system: means over queries, and the recall of each grade in the first LENGTHS."""

    ndcg_linear: float
    ndcg_exponential: float
    ndcg_textgraphs: float
    oracle_ndcg_linear: float
    oracle_ndcg_exponential: float
    oracle_ndcg_textgraphs: float
    recalls: dict[float, list[float]]
    pairs: dict[float, int]


def graded_metrics_of(ranks: Sequence[Sequence[int]], grades: Sequence[Sequence[float]]) -> GradedMetrics:
    """Computes the metrics of a set of queries; each has a grade above 0. Raises InvalidArgument for no queries."""
    if not ranks:
        raise InvalidArgument("there are no queries to measure; give at least one with a gold premise")

    def mean(metric: Callable[[Sequence[int], Sequence[float], Gain], float], gain: Gain) -> float:
        return math.fsum(metric(*one, gain) for one in zip(ranks, grades, strict=True)) / len(ranks)

    return GradedMetrics(
        **{f"ndcg_{gain.value}": mean(graded_ndcg, gain) for gain in Gain},
        **{f"oracle_ndcg_{gain.value}": mean(oracle_ndcg, gain) for gain in Gain},
        recalls=recall_by_grade(ranks, grades, LENGTHS),
        pairs=dict(Counter(float(grade) for row in grades for grade in row if grade)),
    )


def is_graded(by_query: Mapping[str, Mapping[str, float]]) -> bool:
    """Says whether any relevant premise has another grade than 1."""
    return any(grade not in (0, 1) for grades in by_query.values() for grade in grades.values())
