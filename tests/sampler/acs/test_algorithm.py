"""Which pairs a run records: the result of Algorithm 2, whatever the batching, within its budgets."""

import asyncio
from typing import Any

import pytest

from aeenc.v1 import types_pb2
from services.sampler.acs.algorithm import ROUNDS
from support.worlds.sampler_world import (
    FACTS,
    HYPOTHESES,
    SamplerWorld,
    brute_force,
    explains,
    finish,
    is_leaf,
    nearest,
    pair_set,
)


@pytest.mark.parametrize(
    ("config", "definition"),
    [
        ({}, {}),
        *(({"max_depth": depth}, {"max_depth": depth}) for depth in (0, 1, 2)),
        ({"max_nodes_per_tree": 3}, {"max_nodes": 3}),
        ({"split": "train"}, {"splits": ("facts", "train")}),
    ],
    ids=str,
)
async def test_a_run_records_exactly_the_pairs_of_algorithm_2_and_asks_each_once(
    world: SamplerWorld, client, config: dict[str, Any], definition: dict[str, Any]
):
    run = await finish(client, **config)
    assert run.state == types_pb2.WORK_STATE_SUCCEEDED, run.error
    expected = brute_force(**definition)
    assert await pair_set(client, run.id) == expected
    progress = run.progress
    assert progress.positives == sum(sign == "+" for _, _, sign in expected)
    assert progress.negatives == sum(sign == "-" for _, _, sign in expected)
    assert progress.judgements == len(expected) == len(world.oracle.asked) == len(set(world.oracle.asked))
    assert progress.trees == progress.trees_done == len(HYPOTHESES)
    assert progress.nodes_pending == progress.skipped == progress.nodes_failed == 0


@pytest.mark.parametrize(("wave_nodes", "batch_tasks", "max_concurrency"), [(1, 1, 1), (3, 2, 4), (256, 16, 1)])
async def test_batching_and_concurrency_do_not_change_the_pairs(
    world: SamplerWorld, wave_nodes: int, batch_tasks: int, max_concurrency: int
):
    oracle = {"batch_tasks": batch_tasks, "max_concurrency": max_concurrency}
    async with world.sampler(wave_nodes=wave_nodes, oracle=oracle) as client:
        run = await finish(client)
        assert await pair_set(client, run.id) == brute_force()
    assert world.oracle.most_in_flight <= max_concurrency


async def test_independent_nodes_are_retrieved_in_one_call(world: SamplerWorld, client):
    run = await finish(client)
    depths = 10
    assert len(world.index.requests) <= 2 * depths < run.progress.nodes_judged
    assert {request.precision for request in world.index.requests} == {types_pb2.PRECISION_FLOAT32}
    assert world.index.requests[0].model.label == "stable", "a run that names no encoder is no traffic for a canary"


async def test_version_and_generation_are_resolved_once_at_the_start(world: SamplerWorld, client):
    world.oracle.delay_s = 0.02
    run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
    world.index.stable, world.index.active = "version-2", "generation-2"
    run = await client.wait(run.id)
    assert (run.model_version, run.generation) == ("version-1", "generation-1")
    assert {r.model.version for r in world.index.requests[1:]} == {"version-1"}
    assert {r.generation for r in world.index.requests[1:]} == {"generation-1"}


ID = {f"fact {number}": f"p{number}" for number in range(100)}


def brute_force_conditioned(*, k: int = 6, max_depth: int = 8) -> set[tuple[str, str, str]]:
    """As `sampler_world.brute_force`, with rounds: tree after tree, node after node, one round after the other."""
    pairs = set()
    for _, hypothesis in HYPOTHESES:
        visited, queue = {hypothesis}, [(hypothesis, 0, ())]
        while queue:
            query, depth, path = queue.pop(0)
            accepted: list[str] = []
            for _ in range(ROUNDS):
                found = [p for _, p, _ in nearest(query, FACTS, (), [ID[p] for p in accepted]) if p not in path][:k]
                new = [p for p in found if explains(query, p) and p not in accepted]
                pairs |= {(query, p, "+" if explains(query, p) else "-") for p in found}
                accepted += new
                if not new:
                    break
            for premise in accepted:
                if not is_leaf(premise) and premise not in visited and depth < max_depth:
                    visited.add(premise)
                    queue.append((premise, depth + 1, (*path, query)))
    return pairs


async def test_a_conditioned_run_asks_until_nothing_new_is_accepted(world: SamplerWorld, client):
    expected = brute_force_conditioned(max_depth=1)
    run = await finish(client, conditioned=True, max_depth=1)
    assert await pair_set(client, run.id) == expected
    plain = await finish(client, max_depth=1)
    assert run.progress.judgements == len(expected) > plain.progress.judgements
    assert run.config.conditioned
    conditioned = [list(one.premise_ids) for request in world.index.requests for one in request.accepted]
    assert max(map(len, conditioned)) >= 3
    shown = [(task.query, one.premise.text) for task in world.oracle.tasks for one in task.accepted]
    assert [explains(*one) for one in shown] == [True] * len(shown) != []


async def test_a_conditioned_run_that_is_cancelled_between_rounds_asks_nothing_again(
    world: SamplerWorld, until_progress
):
    world.oracle.delay_s = 0.03
    async with world.sampler(wave_nodes=4) as client:
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6, conditioned=True, max_depth=1)
        await until_progress(client, run.id, judgements=60)
        await client.cancel(run.id)
        kept = await pair_set(client, run.id)
        world.oracle.asked.clear()
        await client.resume(run.id)
        run = await asyncio.wait_for(client.wait(run.id), 40)
        assert run.state == types_pb2.WORK_STATE_SUCCEEDED
        assert await pair_set(client, run.id) == brute_force_conditioned(max_depth=1)
        assert not set(world.oracle.asked) & {(query, premise) for query, premise, _ in kept}
        assert run.progress.judgements == len(brute_force_conditioned(max_depth=1))
