"""A run that asks a language model: whatever its endpoint does, a run that succeeded has its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aeenc
from aeenc import values
from aeenc.oracles.ledger import Budget
from aeenc.oracles.llm import LanguageModelOracle
from support.servers.model_endpoint import KEY, ModelEndpoint
from support.worlds.sampler_world import SamplerWorld, answered_by, failed, finish, pair_set, resumed

FAILED, SUCCEEDED = values.WorkState.FAILED, values.WorkState.SUCCEEDED


@asynccontextmanager
async def judging(
    world: SamplerWorld, endpoint: ModelEndpoint, *, budget: Budget | None = None, **settings: Any
) -> AsyncIterator[aeenc.SamplerClient]:
    """A sampler whose oracle is a language model at the endpoint."""
    oracle = LanguageModelOracle(endpoint.url, "m", key=KEY, timeout_s=5.0, budget=budget)
    async with answered_by(world, oracle, **settings) as client:
        yield client
    await oracle.close()


def moderate(text: str, number: int) -> str:
    """A verdict that makes trees of some levels."""
    return "explains" if sum(text.encode()) % 4 == 0 else "does_not_explain"


@pytest.mark.parametrize("fault", ["unavailable", "prose", "bad request"])
async def test_a_model_that_fails_for_good_fails_the_run_and_a_resume_asks_everything(
    world: SamplerWorld, fault: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("services.sampler.oracles.gateway.FIRST_PATIENCE_S", 0.2)
    monkeypatch.setattr("services.sampler.oracles.gateway.FIRST_PAUSE_S", 0.05)
    mended = False
    endpoint = ModelEndpoint(fault=lambda number: "" if mended else fault, verdict=moderate)
    with endpoint.served():
        async with judging(world, endpoint, patience_s=0.2, max_attempts=2) as client:
            run = await finish(client)
            assert (run.state, run.progress.negatives, run.progress.positives) == (FAILED, 0, 0)
            assert "resume the run" in run.error
            mended = True
            run = await resumed(client, run.id)
            assert run.state == SUCCEEDED, run.error
            lost = {query for query, *_ in await pair_set(client, run.id, "?")}
            assert (len(lost) <= 1, run.progress.nodes_failed) == (True, 0)  # one node's nonsense is an abstention


async def test_a_spent_budget_fails_the_run_which_a_higher_one_lets_go_on(world: SamplerWorld):
    with ModelEndpoint(verdict=moderate).served() as endpoint:
        async with judging(world, endpoint, budget=Budget(tokens=5000)) as client:
            run = await failed(client, "5,000 tokens (--max-tokens)")
        async with judging(world, endpoint) as client:
            run = await resumed(client, run.id)
            assert run.state == SUCCEEDED, run.error
            assert (run.progress.nodes_failed, await pair_set(client, run.id, "?")) == (0, set())
