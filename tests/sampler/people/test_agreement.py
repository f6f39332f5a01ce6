"""Figures of agreement: against printed examples, and two libraries on random ratings with gaps."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pytest
from krippendorff import alpha

from services.sampler.people.agreement import agreement_of, agreement_of_pairs, edge_f1


def by_libraries(candidates: Sequence[Mapping[str, bool]]) -> tuple[float, float, float]:
    """Cohen's kappa, the mean over pairs; Fleiss' of the most usual number of ratings; alpha. NaN: not defined.

    Of numbers that are equally usual, the greater counts.
    """
    from statsmodels.stats.inter_rater import cohens_kappa, fleiss_kappa

    if not candidates:
        return math.nan, math.nan, math.nan
    kappas = []
    for one, other in combinations(sorted({name for candidate in candidates for name in candidate}), 2):
        if both := [(c[one], c[other]) for c in candidates if one in c and other in c]:
            kappas.append(cohens_kappa([[both.count((a, b)) for b in (0, 1)] for a in (0, 1)], return_results=False))
    defined = [kappa for kappa in kappas if not math.isnan(kappa)]
    counts = np.array([[list(one.values()).count(value) for value in (False, True)] for one in candidates])
    sizes = Counter(counts.sum(1).tolist())
    usual = max(sizes, key=lambda size: (sizes[size], size))
    return (
        sum(defined) / len(defined) if defined else math.nan,
        float(fleiss_kappa(counts[counts.sum(1) == usual])),
        alpha(value_counts=counts, level_of_measurement="nominal") if counts.any(0).all() else math.nan,
    )


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


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_the_figures_are_those_of_libraries_on_random_designs_with_gaps():
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
        people = len({name for candidate in common for name in candidate})
        assert told == pytest.approx((len(common), people, *by_libraries(common)), abs=1e-12, nan_ok=True), seed


def test_two_annotators_who_always_contradict_each_other_count_in_the_mean():
    apart = [{"one": True, "other": False}] * 3
    assert agreement_of(apart).cohen_kappa == 0.0
    alike = [{"one": True, "third": True}, {"one": False, "third": False}]
    assert agreement_of([*apart, *alike]).cohen_kappa == pytest.approx(0.5)


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
