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


@pytest.mark.parametrize(
    ("texts", "kind", "said", "fields"),
    [
        ([], errors.InvalidArgument, "texts: is empty; give 1 to 4", ["texts"]),
        *(
            (["a", text], errors.InvalidArgument, r"texts\[1\]: is empty; give a sentence", ["texts[1]"])
            for text in ("", " ", "\n\t")
        ),
        *(
            ([text], errors.TooLarge, rf"texts\[0\]: {size} bytes are over the limit of 16", ["texts[0]"])
            for text, size in (("b" * 17, 17), ("é" * 9, 18), ("\U0001f525" * 5, 20))
        ),
        (["", "a", "b" * 17], errors.TooLarge, "and 1 more", ["texts[0]", "texts[2]"]),
        (["a"] * 5, errors.TooLarge, "5 items are over the limit of 4 a call; split the call", ["texts"]),
    ],
)
def test_every_wrong_text_is_named_with_what_to_give(
    texts: list[str], kind: type[errors.InvalidArgument], said: str, fields: list[str]
) -> None:
    with pytest.raises(kind, match=said) as caught:
        check_texts(texts, LIMITS)
    assert type(caught.value) is kind
    assert [violation.field for violation in caught.value.violations] == fields
    assert caught.value.reason == ("OVER_LIMIT" if kind is errors.TooLarge else "INVALID_ARGUMENT")


@pytest.mark.parametrize("k", [0, -1, 11])
def test_a_k_outside_its_range_is_refused_with_the_range(k: int) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"k: is {k}; give 1 to 10") as caught:
        check_k(k, LIMITS)
    assert caught.value.violations[0].field == "k"
