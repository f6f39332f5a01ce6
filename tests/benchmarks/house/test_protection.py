"""The breaks of `make bench NAME=protection` still fit the code, which they replace by its text."""

from __future__ import annotations

import pytest

from benchmarks.harness.rows import ROOT
from benchmarks.house.protection import BREAKS, Break


@pytest.mark.parametrize("one", BREAKS, ids=[one.rule for one in BREAKS])
def test_each_break_replaces_one_place_and_names_a_test_that_there_is(one: Break):
    assert (ROOT / one.path).read_text().count(one.code) == 1
    file, _, name = one.test.partition("::")
    assert name.split("[")[0] in (ROOT / "tests" / file).read_text()
