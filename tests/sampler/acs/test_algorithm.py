"""Which pairs a run records: the result of Algorithm 2, whatever the batching, within its budgets."""

from typing import Any

import pytest

from aeenc.v1 import types_pb2
from support.worlds.sampler_world import HYPOTHESES, SamplerWorld, brute_force, finish, pair_set


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
    world: SamplerWorld, config: dict[str, Any], definition: dict[str, Any]
):
    async with world.sampler() as client:
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


async def test_independent_nodes_are_retrieved_in_one_call(world: SamplerWorld):
    async with world.sampler() as client:
        run = await finish(client)
    depths = 10
    assert len(world.index.requests) <= 2 * depths < run.progress.nodes_judged
    assert {request.precision for request in world.index.requests} == {types_pb2.PRECISION_FLOAT32}
    assert world.index.requests[0].model.label == "stable", "a run that names no encoder is no traffic for a canary"


@pytest.mark.parametrize("max_judgements", [5, 60, 200])
@pytest.mark.parametrize("max_nodes", [0, 4])
async def test_a_budget_is_spent_to_the_last_verdict_on_pairs_of_the_algorithm(
    world: SamplerWorld, max_judgements: int, max_nodes: int
):
    async with world.sampler() as client:
        run = await finish(client, max_judgements=max_judgements, max_nodes_per_tree=max_nodes)
        found, whole = await pair_set(client, run.id), brute_force(max_nodes=max_nodes or 10**9)
    assert found <= whole
    assert run.state == types_pb2.WORK_STATE_SUCCEEDED
    assert len(found) == run.progress.judgements == len(world.oracle.asked) == min(max_judgements, len(whole))


async def test_version_and_generation_are_resolved_once_at_the_start(world: SamplerWorld):
    world.oracle.delay_s = 0.02
    async with world.sampler() as client:
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        world.index.stable, world.index.active = "version-2", "generation-2"
        run = await client.wait(run.id)
        assert (run.model_version, run.generation) == ("version-1", "generation-1")
        assert {r.model.version for r in world.index.requests[1:]} == {"version-1"}
        assert {r.generation for r in world.index.requests[1:]} == {"generation-1"}
