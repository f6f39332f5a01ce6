"""Agreement of annotators: Cohen's and Fleiss' kappa, Krippendorff's alpha, positive agreement, common edges.

A rating is a person's yes or no on one candidate; abstained and unseen do not count. A figure is NaN where it is not
defined: no candidate has two ratings, or everybody always said the same, so that chance alone would agree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from aeenc.values import Agreement


def agreement_of(ratings: Sequence[Mapping[str, bool]]) -> Agreement:
    """The agreement on candidates, each given as annotator to yes or no."""
    common = [candidate for candidate in ratings if len(candidate) > 1]
    names = sorted({annotator for candidate in common for annotator in candidate})
    yes, no = _tables(common, names)
    found = Agreement(
        cohen_kappa=math.nan,
        fleiss_kappa=math.nan,
        krippendorff_alpha=math.nan,
        candidates=len(common),
        annotators=len(names),
        positive_agreement=math.nan,
    )
    if not common:
        return found
    # Cohen 1960, of each pair of annotators: both yes, the one alone, the other alone, both no.
    both, one, other, neither = yes.T @ yes, yes.T @ no, no.T @ yes, no.T @ no
    shared = both + one + other + neither
    expected = (both + one) * (both + other) + (neither + one) * (neither + other)
    defined = np.triu(shared**2 > expected, k=1)
    kappas = ((both + neither) * shared - expected)[defined] / (shared**2 - expected)[defined]
    # Krippendorff 2011, nominal: any number of ratings a candidate.
    said_yes, said_no = yes.sum(axis=1), no.sum(axis=1)
    given = (said_yes + said_no).astype(np.int64)
    apart = 2 * said_yes * said_no
    differing = 2 * said_yes.sum() * said_no.sum()
    # Fleiss 1971 wants one number of ratings for all: the most usual one, of equally frequent ones the greatest.
    usual = np.bincount(given)
    most = len(usual) - 1 - int(np.argmax(usual[::-1]))
    alike = given == most
    share = said_yes[alike].mean() / most
    chance = 2 * share * (1 - share)  # of two ratings that differ
    # The share of yes in which two people meet (Cicchetti and Feinstein 1990). Where nearly everything is refused,
    # figures beyond chance hang on a few cells; this one leaves common refusals out.
    met, missed = 2 * np.triu(both, k=1).sum(), np.triu(one + other, k=1).sum()
    return replace(
        found,
        positive_agreement=float(met / (met + missed)) if met or missed else math.nan,
        cohen_kappa=float(kappas.mean()) if len(kappas) else math.nan,
        fleiss_kappa=float(1 - apart[alike].mean() / (most * (most - 1)) / chance) if chance else math.nan,
        krippendorff_alpha=float(1 - (apart / (given - 1)).sum() * (given.sum() - 1) / differing)
        if differing
        else math.nan,
    )


def agreement_of_pairs(ratings: Sequence[Mapping[str, bool]], names: Sequence[str]) -> NDArray[np.float64]:
    """The positive agreement of every two of these people, (people, people).

    NaN for one with themselves, and for two of whom neither says yes to a candidate that both have judged.
    """
    yes, no = _tables(ratings, names)
    met, missed = 2 * yes.T @ yes, yes.T @ no + no.T @ yes
    np.fill_diagonal(met, 0)
    return np.divide(met, met + missed, out=np.full_like(met, math.nan), where=met + missed > 0)


def _tables(ratings: Sequence[Mapping[str, bool]], names: Sequence[str]) -> list[NDArray[np.float64]]:
    """Who says yes, and who says no: (candidates, people) each."""
    tables = [np.zeros((len(ratings), len(names))) for _ in range(2)]
    column = {name: at for at, name in enumerate(names)}
    for row, judged in enumerate(ratings):
        for name, says_yes in judged.items():
            if name in column:
                tables[0 if says_yes else 1][row, column[name]] = 1
    return tables


def edge_f1(trees: Iterable[Mapping[str, Set[str]]]) -> float:
    """How far people draw the same edges: F1 of what two accept for the same query, over all pairs.

    Each task by annotator, with the ids that they accept. What one has not seen, or has added, counts against the pair.
    """
    shared = drawn = 0
    for by_annotator in trees:  # a premise that n people accept is shared by n (n - 1) / 2 pairs
        people = Counter(chain.from_iterable(by_annotator.values()))
        shared += sum(n * (n - 1) for n in people.values())
        drawn += people.total() * (len(by_annotator) - 1)
    return shared / drawn if drawn else math.nan
