"""Differences between rows, tested by tree: the queries of one tree are no independent observations.

Trees are one group where they share a query, or one has another's query as a premise. Each report keeps the strict
average precision of each query, over all its gold premises and over the facts among them, its group, and whether
train lacks the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.cli.learning.evaluation import training_of
from aeenc.evaluation import UNRANKED, average_precision, gold_of, paired_randomisation_test
from aeenc.trainer import gold_tree
from aeenc.trees import Dataset, Tree
from aeenc.trees.folds import connected
from services.trainer.evaluation.parts import FIRST, GoldTree, RankedPremises, TreeLevel, tree_level
from services.trainer.evaluation.protocol import Ranks

RESAMPLED = 10_000  # times, for an interval
BY_QUERY = "strict_by_query"  # in a report: AP, FACTS, `group` and UNSEEN (1 or 0), each in the order of the queries
AP, UNSEEN = "AP", "unseen"
JUMP = "f"
FACTS = "AP of facts alone"  # null where no gold premise is a fact

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
    return [text for text, gold in gold_of(dataset, split) if any(one != text for one in gold)]


def own_is_premise(dataset: Dataset, split: str) -> list[bool]:
    """Whether the text of each query of a split is a premise, too."""
    candidates = {one.text for one in dataset.candidates()}
    return [query.text in candidates for query in dataset.queries(split)]


def jump(strict: Sequence[Sequence[int]], own: Sequence[bool], found: float) -> float:
    """Returns f: where a MAP lies between own text before all premises, 0, and own text dropped, 1.

    `strict` has each query's ranks without its own text; `own` says whether that is a premise. NaN where none is.
    """

    def mean(shifts: Sequence[int]) -> float:
        ranks = [[rank + by if rank else UNRANKED for rank in one] for one, by in zip(strict, shifts, strict=True)]
        return float(np.mean([average_precision(np.array(one)) for one in ranks if one]))

    first, dropped = mean([int(one) for one in own]), mean([0] * len(strict))
    return (found - first) / (dropped - first) if dropped != first else float("nan")


def whole_trees(trees: Sequence[Tree], found: Mapping[str, Ranks], texts: Sequence[str]) -> TreeLevel:
    """Whole trees from the hypothesis alone, as Evaluate measures them; `found` has ordinals of `texts`, best first.

    A hypothesis that has no premise but itself is not asked, so its tree is left out.
    """
    asked = [gold_tree(tree) for tree in trees if tree.hypothesis in found]
    gold = [GoldTree(tree.hypothesis, (), tuple(tree.leaves)) for tree in asked]
    ranked = {
        text: RankedPremises(one[:FIRST], -np.arange(len(one[:FIRST]), dtype=float)) for text, one in found.items()
    }
    return tree_level(gold, ranked, {text: n for n, text in enumerate(texts)}, along=False)


def group_of(trees: Sequence[Tree]) -> dict[str, int]:
    """The group of trees of each query."""
    groups = enumerate(connected(trees))
    return {trees[at].texts[label]: n for n, group in groups for at in group for label in trees[at].children}


def groups_of(dataset: Dataset, split: str) -> Groups:
    """The group of trees of each query that has strict gold."""
    group = group_of(dataset.trees(split))
    return np.array([group[text] for text in asked_of(dataset, split)])


def unseen_of(dataset: Dataset, split: str) -> NDArray[np.bool_]:
    """Whether train lacks each query that has strict gold."""
    learned = {text for text, _ in training_of(dataset, split)}
    return np.array([text not in learned for text in asked_of(dataset, split)])


def precisions_of(ranks: Sequence[Sequence[int]]) -> Precisions:
    """The average precision of each query that has gold, by the ranks of its gold; 0 is not ranked."""
    found = [np.array([rank or UNRANKED for rank in own]) for own in ranks if len(own)]
    return np.array([average_precision(own) for own in found])


def fact_precisions_of(dataset: Dataset, split: str, ranks: Sequence[Sequence[int]]) -> Precisions:
    """The average precision over a query's gold facts, those of the fact file; NaN for a query that has none.

    Other gold premises are neither wanted nor in the way: they leave the ranking. `ranks` are strict; 0 is not ranked.
    """
    facts = set(dataset.facts.values())
    found = []
    for (text, gold), own in zip(gold_of(dataset, split), ranks, strict=True):
        if len(own):
            is_fact = np.array([one in facts for one in gold if one != text])
            found.append(_condensed(np.array([rank or UNRANKED for rank in own]), is_fact))
    return np.array([average_precision(own) if len(own) else np.nan for own in found])


def _condensed(ranks: NDArray[np.int64], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Renumbers the kept ranks as if the other premises were absent."""
    before = np.searchsorted(np.sort(ranks[~kept]), ranks[kept])
    return np.where(ranks[kept] < UNRANKED, ranks[kept] - before, UNRANKED)


def by_query(dataset: Dataset, split: str, strict_ranks: Sequence[Sequence[int]]) -> dict[str, list[Any]]:
    """Returns the average precisions and the group of each query, and whether train lacks it, for a report."""
    facts = np.round(fact_precisions_of(dataset, split, strict_ranks), 6).tolist()
    return {
        AP: np.round(precisions_of(strict_ranks), 6).tolist(),
        FACTS: [None if np.isnan(one) else one for one in facts],
        "group": groups_of(dataset, split).tolist(),
        UNSEEN: unseen_of(dataset, split).astype(int).tolist(),
    }


def means_of(kept: Mapping[str, Any]) -> dict[str, float]:
    """The strict MAP of what a report keeps by query: AP over all, UNSEEN, and FACTS, as far as there are such."""
    precisions = kept[AP]
    unseen = [ap for ap, counted in zip(precisions, kept[UNSEEN], strict=True) if counted]
    facts = [ap for ap in kept.get(FACTS, ()) if ap is not None]
    return {name: float(np.mean(of)) for name, of in {AP: precisions, UNSEEN: unseen, FACTS: facts}.items() if of}


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
    counted = np.array(first[0][BY_QUERY][UNSEEN], dtype=bool) | (not unseen)
    if not counted.any():
        return None
    groups = np.unique(np.array(first[0][BY_QUERY]["group"])[counted], return_inverse=True)[1]
    ours, theirs = (np.mean([one[BY_QUERY][AP] for one in reports], axis=0)[counted] for reports in (first, second))
    low, high = np.percentile(resampled_means(groups, ours - theirs), [2.5, 97.5])
    return Difference(float(np.mean(ours - theirs)), float(low), float(high), p_by_tree(groups, ours, theirs))


def resampled_means(groups: Groups, values: Precisions, number: int = 0) -> Precisions:
    """The mean of values (n,) in each of RESAMPLED drawings of as many groups as there are, 0 to `number` - 1.

    Values of the same groups are drawn alike, so that means may be subtracted. Where none is drawn it is NaN.
    """
    sums, counts = (np.bincount(groups, weights, number) for weights in (values, np.ones_like(values)))
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLED, len(sums)))
    with np.errstate(invalid="ignore"):
        return np.asarray(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
