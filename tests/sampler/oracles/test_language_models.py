"""A run that asks a language model: whatever its endpoint does, a run that succeeded has its answers."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import aeenc
from aeenc import values
from aeenc.oracles.ledger import Budget
from aeenc.oracles.llm import LanguageModelOracle
from support.servers.model_endpoint import KEY, ModelEndpoint
from support.worlds.sampler_world import SamplerWorld, failed, finish, pair_set, resumed

FAILED, SUCCEEDED = values.WorkState.FAILED, values.WorkState.SUCCEEDED


@asynccontextmanager
async def judging(
    world: SamplerWorld, endpoint: ModelEndpoint, *, budget: Budget | None = None, **settings: Any
) -> AsyncIterator[aeenc.SamplerClient]:
    """A sampler whose oracle is a language model at the endpoint."""
    oracle = LanguageModelOracle(endpoint.url, "m", key=KEY, timeout_s=5.0, budget=budget)
    server = await oracle.start()
    try:
        async with world.sampler(oracle={"target": f"127.0.0.1:{server.port}", **settings}) as client:
            yield client
    finally:
        await server.stop(0)
        await oracle.close()


def moderate(text: str, number: int) -> str:
    """A verdict that makes trees of some levels."""
    return "explains" if hash_of(text) % 4 == 0 else "does_not_explain"


def hash_of(text: str) -> int:
    return sum(text.encode())


async def in_earnest(client: aeenc.SamplerClient, run: Any) -> bool:
    """Whether every node of a run was answered."""
    return run.progress.nodes_failed == 0 and not await pair_set(client, run.id, "?")


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


async def test_a_model_that_fails_for_a_while_loses_no_node(world: SamplerWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.sampler.oracles.gateway.FIRST_PAUSE_S", 0.05)
    begun = time.monotonic()
    endpoint = ModelEndpoint(fault=lambda number: "" if time.monotonic() - begun > 1.0 else "hang up", verdict=moderate)
    with endpoint.served():
        async with judging(world, endpoint, max_attempts=5, backoff_s=0.2, patience_s=30.0) as client:
            run = await finish(client)
            assert run.state == SUCCEEDED, run.error
            assert await in_earnest(client, run)


async def test_a_wrong_key_fails_the_run_at_the_first_call(world: SamplerWorld):
    with ModelEndpoint(fault=lambda number: "unauthorized").served() as endpoint:
        async with judging(world, endpoint) as client:
            begun = time.monotonic()
            await failed(client, "answers 401 for model 'm'; check the key")
            assert time.monotonic() - begun < 10
            assert len(endpoint.sent) <= 16  # 4 calls of the sampler, 4 prompts of each at once


async def test_a_spent_budget_fails_the_run_which_a_higher_one_lets_go_on(world: SamplerWorld):
    with ModelEndpoint(verdict=moderate).served() as endpoint:
        async with judging(world, endpoint, budget=Budget(tokens=5000)) as client:
            run = await failed(client, "5,000 tokens (--max-tokens)")
        async with judging(world, endpoint) as client:
            run = await resumed(client, run.id)
            assert run.state == SUCCEEDED, run.error
            assert await in_earnest(client, run)


async def test_a_model_without_a_valid_answer_to_a_third_of_the_nodes_fails_the_run(world: SamplerWorld):
    def verdict(text: str, number: int) -> str:
        return "no such word" if hash_of(text) % 3 == 0 else moderate(text, number)

    with ModelEndpoint(verdict=verdict).served() as endpoint:
        async with judging(world, endpoint, max_attempts=1, patience_s=1.0) as client:
            run = await failed(client, hypotheses=[(f"t{n}", f"hypothesis {n}") for n in range(60)], k=1)
            assert re.search("of the last [0-9]+ nodes", run.error)


async def test_the_nonsense_about_one_node_is_an_abstention(world: SamplerWorld):
    with ModelEndpoint(fault=lambda number: "prose" if number == 5 else "", verdict=moderate).served() as endpoint:
        async with judging(world, endpoint) as client:
            run = await finish(client)
            assert run.state == SUCCEEDED
            assert len({query for query, *_ in await pair_set(client, run.id, "?")}) == 1
