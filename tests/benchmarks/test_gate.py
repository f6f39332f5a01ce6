"""`make bench NAME=gate`: the rates at which the quality gate refuses, over the noise of measured systems."""

from __future__ import annotations

import pytest

from aeenc.evaluation.metrics import FEWEST
from benchmarks.trainer.gate import rate, real_differences


@pytest.mark.parametrize(
    ("loss", "queries", "least", "most"), [(0.05, 200, 0.95, 1.0), (0.0, 200, 0.0, 0.1), (1.0, 5, 0.0, 0.0)]
)
async def test_the_gate_refuses_a_loss_and_seldom_an_equal(loss: float, queries: int, least: float, most: float):
    refused, too_few = await rate(real_differences(), loss, queries, trials=40)
    assert least <= refused <= most
    assert too_few == (queries < FEWEST)
