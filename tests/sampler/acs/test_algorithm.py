"""Which pairs a run records: the result of Algorithm 2, whatever the batching, within its budgets."""

import pytest

from aeenc.v1 import sampler_pb2, types_pb2
from support.worlds.sampler_world import HYPOTHESES, SamplerWorld, brute_force, finish, honest, nearest, pair_set


async def test_a_run_records_exactly_the_pairs_of_algorithm_2(world: SamplerWorld):
    async with world.sampler() as client:
        run = await finish(client)
        assert run.state == types_pb2.WORK_STATE_SUCCEEDED, run.error
        expected = brute_force()
        assert await pair_set(client, run.id) == expected
    progress = run.progress
    assert progress.positives == sum(sign == "+" for _, _, sign in expected)
    assert progress.negatives == sum(sign == "-" for _, _, sign in expected)
    assert progress.judgements == len(expected) == len(world.oracle.asked)
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


async def test_nothing_is_asked_twice_in_a_run(world: SamplerWorld):
    async with world.sampler() as client:
        await finish(client)
    assert len(world.oracle.asked) == len(set(world.oracle.asked))
    texts = [text for _, text in HYPOTHESES]
    assert "fact 7" in texts
    asked = sum(query == "fact 7" for query, _ in world.oracle.asked)
    assert asked <= 6 + 8, "the hypothesis is a premise elsewhere too, below ancestors that make room for others"


async def test_a_node_sees_k_candidates_however_many_ancestors_are_among_the_nearest(world: SamplerWorld):
    async with world.sampler() as client:
        await finish(client)
    asked = set(world.oracle.asked)
    made_up = 0
    for task in world.oracle.tasks:
        nearest_six = nearest(task.query, 6)
        wanted = [text for _, text, _ in nearest(task.query, 6 + 8) if text not in task.path][:6]
        made_up += wanted != [text for _, text, _ in nearest_six]
        assert len(task.candidates) <= 6
        assert {(task.query, text) for text in wanted} <= asked
    assert made_up > 5, "some nodes have ancestors among their nearest"


async def test_neither_a_query_nor_its_ancestors_are_candidates(world: SamplerWorld):
    async with world.sampler() as client:
        await finish(client)
    assert any(len(task.path) >= 2 for task in world.oracle.tasks)
    for task in world.oracle.tasks:
        texts = {candidate.premise.text for candidate in task.candidates}
        assert not texts & {task.query, *task.path}


async def test_a_leaf_is_never_expanded(world: SamplerWorld):
    world.oracle.behaviour = lambda task: [
        type(verdict)(premise_id=verdict.premise_id, judgement=verdict.judgement, leaf=True) for verdict in honest(task)
    ]
    async with world.sampler() as client:
        run = await finish(client)
        assert await pair_set(client, run.id) == brute_force(max_depth=0)
    assert run.progress.nodes_judged == len(HYPOTHESES)


@pytest.mark.parametrize("max_depth", [0, 1, 2])
async def test_nodes_below_the_depth_limit_are_not_expanded(world: SamplerWorld, max_depth: int):
    async with world.sampler() as client:
        run = await finish(client, max_depth=max_depth)
        assert await pair_set(client, run.id) == brute_force(max_depth=max_depth)


@pytest.mark.parametrize("max_judgements", [1, 5, 13, 60, 200])
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


async def test_a_tree_stops_at_its_node_limit(world: SamplerWorld):
    async with world.sampler() as client:
        run = await finish(client, max_nodes_per_tree=3)
        assert await pair_set(client, run.id) == brute_force(max_nodes=3)


async def test_positives_only_records_no_negative(world: SamplerWorld):
    async with world.sampler() as client:
        run = await finish(client, collect=sampler_pb2.COLLECT_POSITIVES_ONLY)
        assert await pair_set(client, run.id) == {pair for pair in brute_force() if pair[2] == "+"}
    assert run.progress.negatives == run.progress.skipped == 0


async def test_premises_of_other_splits_are_never_put_before_the_oracle(world: SamplerWorld):
    async with world.sampler() as client:
        run = await finish(client, split="train")
        assert await pair_set(client, run.id) == brute_force(splits=("facts", "train"))
    assert {int(premise.split()[1]) % 5 for _, premise in world.oracle.asked} == {0, 1, 2, 4}


async def test_version_and_generation_are_resolved_once_at_the_start(world: SamplerWorld):
    world.oracle.delay_s = 0.02
    async with world.sampler() as client:
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        world.index.stable, world.index.active = "version-2", "generation-2"
        run = await client.wait(run.id)
        assert (run.model_version, run.generation) == ("version-1", "generation-1")
        assert {r.model.version for r in world.index.requests[1:]} == {"version-1"}
        assert {r.generation for r in world.index.requests[1:]} == {"generation-1"}
        provenance = [pair.provenance async for pair in client.list_pairs(run.id)]
    assert {(p.model_version, p.generation, p.oracle, p.annotator) for p in provenance} == {
        ("version-1", "generation-1", "fake", "fake")
    }
    assert all(p.run_id == run.id and p.node_id and p.rank >= 1 for p in provenance)
