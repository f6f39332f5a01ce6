"""Checks of requests: every wrong field is named with its value and what to give instead."""

from __future__ import annotations

import pytest

from aeenc import errors
from services.kit.limits import Limits, check_count, check_k, check_texts

LIMITS = Limits(items=4, text_bytes=16, k=10)


def test_what_is_within_the_limits_passes() -> None:
    check_texts(["a", "b" * 16, "é" * 8, "\U0001f525" * 4], LIMITS)
    check_k(1, LIMITS)
    check_k(10, LIMITS)
    check_count(4, LIMITS, "ids")


def test_no_text_is_refused_with_what_to_give() -> None:
    with pytest.raises(errors.InvalidArgument, match="texts: is empty; give 1 to 4") as caught:
        check_texts([], LIMITS)
    assert caught.value.violations[0].field == "texts"


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_is_named_by_its_position(text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"texts\[1\]: is empty; give a sentence") as caught:
        check_texts(["a", text], LIMITS)
    assert not isinstance(caught.value, errors.TooLarge)


@pytest.mark.parametrize(("text", "size"), [("b" * 17, 17), ("é" * 9, 18), ("\U0001f525" * 5, 20)])
def test_a_text_over_the_limit_is_measured_in_bytes(text: str, size: int) -> None:
    with pytest.raises(errors.TooLarge, match=rf"hypotheses\[0\]: {size} bytes are over the limit of 16"):
        check_texts([text], LIMITS, "hypotheses")


def test_every_bad_text_is_named() -> None:
    with pytest.raises(errors.TooLarge, match="and 1 more") as caught:
        check_texts(["", "a", "b" * 17], LIMITS)
    assert [violation.field for violation in caught.value.violations] == ["texts[0]", "texts[2]"]


def test_too_many_items_are_refused_and_told_to_be_split() -> None:
    with pytest.raises(errors.TooLarge, match="5 items are over the limit of 4 a call; split the call") as caught:
        check_texts(["a"] * 5, LIMITS)
    assert caught.value.reason == "OVER_LIMIT"
    assert caught.value.violations[0].field == "texts"


@pytest.mark.parametrize("k", [0, -1, 11])
def test_a_k_outside_its_range_is_refused_with_the_range(k: int) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"k: is {k}; give 1 to 10") as caught:
        check_k(k, LIMITS)
    assert caught.value.violations[0].field == "k"
