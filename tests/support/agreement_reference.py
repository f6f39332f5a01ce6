"""Cohen's and Fleiss' kappa and Krippendorff's alpha written from their definitions, one rating at a time.

A reference to compare libraries with: slow, and for two categories only. A candidate is annotator to yes or no.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

Candidates = Sequence[Mapping[str, bool]]


def cohen(candidates: Candidates) -> float:
    """Mean over pairs: (observed - expected) / (1 - expected), where expected is below 1."""
    kappas = []
    for one, other in combinations(sorted({name for candidate in candidates for name in candidate}), 2):
        both = [(c[one], c[other]) for c in candidates if one in c and other in c]
        if not both:
            continue
        observed = sum(a == b for a, b in both) / len(both)
        yes_one, yes_other = (sum(pair[side] for pair in both) / len(both) for side in (0, 1))
        expected = yes_one * yes_other + (1 - yes_one) * (1 - yes_other)
        if expected < 1:
            kappas.append((observed - expected) / (1 - expected))
    return sum(kappas) / len(kappas) if kappas else math.nan


def fleiss(candidates: Candidates) -> float:
    """Over the candidates with the most usual number of ratings, of equally usual ones the greater."""
    sizes = Counter(len(candidate) for candidate in candidates if len(candidate) > 1)
    if not sizes:
        return math.nan
    n = max(sizes, key=lambda size: (sizes[size], size))
    alike = [list(candidate.values()) for candidate in candidates if len(candidate) == n]
    observed = sum(
        sum(ratings.count(value) * (ratings.count(value) - 1) for value in (True, False)) / (n * (n - 1))
        for ratings in alike
    ) / len(alike)
    share = sum(ratings.count(True) for ratings in alike) / (n * len(alike))
    expected = share**2 + (1 - share) ** 2
    return (observed - expected) / (1 - expected) if expected < 1 else math.nan


def krippendorff(candidates: Candidates) -> float:
    """1 - observed / expected disagreement, from the coincidences of all ordered pairs within a candidate."""
    coincidences: Counter[tuple[bool, bool]] = Counter()
    for candidate in candidates:
        ratings = list(candidate.values())
        for one, other in permutations(range(len(ratings)), 2):
            coincidences[ratings[one], ratings[other]] += 1 / (len(ratings) - 1)
    totals = {value: sum(w for (a, _), w in coincidences.items() if a == value) for value in (True, False)}
    n = sum(totals.values())
    expected = 2 * totals[True] * totals[False] / (n - 1) if n > 1 else 0.0
    return 1 - (2 * coincidences[True, False]) / expected if expected else math.nan
