"""Differences between rows, tested by tree: the queries of one tree are no independent observations.

Trees are one group where they share a query, or one has another's query as a premise. Each report keeps the strict
average precision of each query, its group, and whether train lacks the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.cli.learning.evaluation import training_of
from aeenc.cli.learning.jobs import validation_of
from aeenc.evaluation import UNRANKED, average_precision, paired_randomisation_test
from aeenc.trees import Dataset
from aeenc.trees.folds import connected

RESAMPLED = 10_000  # times, for an interval
BY_QUERY = "strict_by_query"  # in a report: `AP`, `group` and `unseen` (1 or 0), each in the order of the queries

Precisions = NDArray[np.float64]
Groups = NDArray[np.int64]


@dataclass(frozen=True)
class Difference:
    """How far the strict MAP of a row is above another's: with its 95 % interval and p-value, both by tree."""

    mean: float
    low: float
    high: float
    p: float


def asked_of(dataset: Dataset, split: str) -> list[str]:
    """Returns the queries that have strict gold, in the order of reports."""
    return [text for text, gold in validation_of(dataset, split) if any(one != text for one in gold)]


def groups_of(dataset: Dataset, split: str) -> Groups:
    """The group of trees of each query that has strict gold."""
    trees = dataset.trees(split)
    group_of = {
        trees[at].texts[label]: n
        for n, group in enumerate(connected(trees))
        for at in group
        for label in trees[at].children
    }
    return np.array([group_of[text] for text in asked_of(dataset, split)])


def unseen_of(dataset: Dataset, split: str) -> NDArray[np.bool_]:
    """Whether train lacks each query that has strict gold."""
    learned = {text for text, _ in training_of(dataset, split)}
    return np.array([text not in learned for text in asked_of(dataset, split)])


def precisions_of(ranks: Sequence[Sequence[int]]) -> Precisions:
    """The average precision of each query that has gold, by the ranks of its gold; 0 is not ranked."""
    found = [np.array([rank or UNRANKED for rank in own]) for own in ranks if len(own)]
    return np.array([average_precision(own) for own in found])


def by_query(dataset: Dataset, split: str, strict_ranks: Sequence[Sequence[int]]) -> dict[str, list[Any]]:
    """Returns the average precision and the group of each query, and whether train lacks it, for a report."""
    precisions, unseen = np.round(precisions_of(strict_ranks), 6), unseen_of(dataset, split).astype(int)
    return {"AP": precisions.tolist(), "group": groups_of(dataset, split).tolist(), "unseen": unseen.tolist()}


def p_by_tree(groups: Groups, first: Precisions, second: Precisions) -> float:
    """The paired randomisation test over groups of trees, of two systems' figures by query."""
    differences = np.bincount(groups, first - second)
    return paired_randomisation_test(differences, np.zeros_like(differences))


def difference(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], *, unseen: bool = False
) -> Difference | None:
    """The difference of two rows' reports, one a seed, over all queries or those that train lacks.

    The figure of a query is the mean of its seeds; the interval is that of resampled groups (bootstrap). None where a
    report keeps nothing by query, or train has all queries.
    """
    if not all(BY_QUERY in report for report in (*first, *second)) or not (first and second):
        return None
    counted = np.array(first[0][BY_QUERY]["unseen"], dtype=bool) | (not unseen)
    if not counted.any():
        return None
    groups = np.unique(np.array(first[0][BY_QUERY]["group"])[counted], return_inverse=True)[1]
    ours, theirs = (np.mean([one[BY_QUERY]["AP"] for one in reports], axis=0)[counted] for reports in (first, second))
    sums, counts = np.bincount(groups, ours - theirs), np.bincount(groups)
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLED, len(sums)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [2.5, 97.5])
    return Difference(float(np.mean(ours - theirs)), float(low), float(high), p_by_tree(groups, ours, theirs))
