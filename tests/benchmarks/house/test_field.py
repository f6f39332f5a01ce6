"""Two answers that `make bench NAME=field` counts as the same."""

from __future__ import annotations

import pytest

from aeenc.calls.retrieval import Hit
from benchmarks.house.field import same_premises


def hits(**scores: float) -> list[Hit]:
    return [Hit(name, f"text of {name}", score) for name, score in scores.items()]


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (hits(a=0.9, b=0.5, c=0.4), True),
        (hits(a=0.9, c=0.5, b=0.4), False),
        (hits(a=0.9, b=0.5, d=0.4), True),  # a tie with c at the last place
        (hits(a=0.9, d=0.5, c=0.4), False),
        (hits(a=0.9, b=0.5), False),
        ([], False),
    ],
)
def test_answers_have_the_same_premises_but_for_ties(second: list[Hit], same: bool):
    assert same_premises(hits(a=0.9, b=0.5, c=0.4), second) == same


def test_rounding_orders_premises_of_equal_scores():
    assert same_premises(hits(a=0.9, b=0.50000006, c=0.5), hits(a=0.9, c=0.50000006, b=0.5))
    assert not same_premises(hits(a=0.9, b=0.50001, c=0.5), hits(a=0.9, c=0.50001, b=0.5))
