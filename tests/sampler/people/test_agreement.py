"""Figures of agreement: against printed examples, their definitions and two libraries, on random ratings with gaps."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

import numpy as np
import pytest
from krippendorff import alpha

from services.sampler.people.agreement import agreement_of, agreement_of_pairs, edge_f1

# The definitions, one rating at a time, of a yes or no by annotator.
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


def rated(*rows: str) -> list[dict[str, bool]]:
    """Candidates from one row of 0, 1 and * (missing) an annotator."""
    return [
        {f"a{n}": value == "1" for n, value in enumerate(column) if value != "*"} for column in zip(*rows, strict=True)
    ]


def test_printed_examples_come_out():
    # Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), example A: binary, two observers, no gaps
    found = agreement_of(rated("0100000010", "1110010000"))
    assert found.krippendorff_alpha == pytest.approx(0.095, abs=5e-4)
    # two readers of 50 grant proposals: both yes 20, both no 15, one alone 5 and 10; kappa .4
    proposals = rated("1" * 20 + "1" * 5 + "0" * 10 + "0" * 15, "1" * 20 + "0" * 5 + "1" * 10 + "0" * 15)
    assert agreement_of(proposals).cohen_kappa == pytest.approx(0.4)


def test_the_figures_are_those_of_definitions_and_libraries_on_random_designs_with_gaps():
    from statsmodels.stats import inter_rater

    for seed in range(300):
        rng = random.Random(seed)
        names = [f"annotator-{n}" for n in range(2 + seed % 5)]
        rate, missing, flip = rng.random(), rng.choice((0, 0.3, 0.6)), rng.choice((0, 0.2, 0.5))
        ratings = []
        for _ in range(rng.randint(1, 40)):
            yes = rng.random() < rate
            ratings.append({name: yes ^ (rng.random() < flip) for name in names if rng.random() >= missing})
        found = agreement_of(ratings)
        common = [candidate for candidate in ratings if len(candidate) > 1]
        told = (found.candidates, found.annotators, found.cohen_kappa, found.fleiss_kappa, found.krippendorff_alpha)
        defined = (cohen, fleiss, krippendorff)
        by_definition = [figure(common) for figure in defined]
        people = len({name for candidate in common for name in candidate})
        assert told == pytest.approx((len(common), people, *by_definition), abs=1e-12, nan_ok=True)
        counts = np.array([[list(one.values()).count(value) for value in (False, True)] for one in common])
        if not math.isnan(found.krippendorff_alpha):
            expected = alpha(value_counts=counts, level_of_measurement="nominal")
            assert found.krippendorff_alpha == pytest.approx(expected, abs=1e-12)
        if not math.isnan(found.fleiss_kappa) and len(set(map(len, common))) == 1:
            assert found.fleiss_kappa == pytest.approx(inter_rater.fleiss_kappa(counts), abs=1e-12)
        if not math.isnan(found.cohen_kappa) and people == 2:
            both = [(one[names[0]], one[names[1]]) for one in common]
            cells = [[both.count((one, other)) for other in (False, True)] for one in (False, True)]
            kappa = inter_rater.cohens_kappa(cells, return_results=False)
            assert found.cohen_kappa == pytest.approx(kappa, abs=1e-12)


def test_two_annotators_who_always_contradict_each_other_count_in_the_mean():
    apart = [{"one": True, "other": False}] * 3
    assert agreement_of(apart).cohen_kappa == 0.0
    alike = [{"one": True, "third": True}, {"one": False, "third": False}]
    assert agreement_of([*apart, *alike]).cohen_kappa == pytest.approx(0.5)
    assert cohen([*apart, *alike]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "ratings",
    [[], [{"one": True}], [{"one": True, "other": True}] * 5, [{"one": False, "other": False}]],
    ids=["none", "alone", "always-yes", "one-no"],
)
def test_what_chance_alone_explains_is_not_a_number(ratings):
    found = agreement_of(ratings)
    assert all(math.isnan(f) for f in (found.cohen_kappa, found.fleiss_kappa, found.krippendorff_alpha))


def test_positive_agreement_is_that_of_a_table_of_two_by_two():
    # both yes 20, one of them 15 + 10, both no 955: 2 * 20 / (2 * 20 + 25)
    one, other = "1" * 35 + "0" * 965, "1" * 20 + "0" * 15 + "1" * 10 + "0" * 955
    assert agreement_of(rated(one, other)).positive_agreement == pytest.approx(40 / 65)
    assert math.isnan(agreement_of(rated("000", "000")).positive_agreement)


def test_positive_agreement_of_three_is_over_their_pairs():
    # yes, yes, no: one pair meets, two do not
    assert agreement_of(rated("1", "1", "0")).positive_agreement == pytest.approx(2 / 4)


def test_every_two_people_have_the_agreement_that_they_have_alone():
    for seed in range(50):
        rng = random.Random(seed)
        names = [f"annotator-{n}" for n in range(4)]
        ratings = [{name: rng.random() < 0.3 for name in names if rng.random() < 0.7} for _ in range(12)]
        alone = np.full((4, 4), math.nan)
        for one, other in combinations(range(4), 2):
            pair = {names[one], names[other]}
            both = [{name: said[name] for name in pair} for said in ratings if said.keys() >= pair]
            alone[one, other] = alone[other, one] = agreement_of(both).positive_agreement
        assert agreement_of_pairs(ratings, names) == pytest.approx(alone, nan_ok=True)


def test_edges_are_compared_by_pairs_of_people_in_one_task():
    tree = {"ann": {"p1", "p2", "p3"}, "bob": {"p1", "p9"}}
    alone = {"cid": {"p1"}}
    assert edge_f1([tree, alone, {"ann": set(), "bob": set()}]) == pytest.approx(2 * 1 / 5)
    assert math.isnan(edge_f1([alone]))


def test_perfect_and_perverse_agreement_are_one_and_below_zero():
    perfect = agreement_of(rated("0110", "0110", "0110"))
    assert (perfect.cohen_kappa, perfect.fleiss_kappa, perfect.krippendorff_alpha) == (1.0, 1.0, 1.0)
    perverse = agreement_of(rated("0110", "1001"))
    assert perverse.cohen_kappa == -1.0
    assert perverse.fleiss_kappa == -1.0
    assert perverse.krippendorff_alpha < 0
