"""Conditioned runs: a node is retrieved for again with what was accepted, until nothing new is accepted."""

import asyncio

from aeenc.v1 import types_pb2
from services.sampler.acs.algorithm import ROUNDS
from support.worlds.sampler_world import FACTS, HYPOTHESES, SamplerWorld, explains, finish, is_leaf, nearest, pair_set

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


async def test_a_conditioned_run_asks_until_nothing_new_is_accepted(world: SamplerWorld):
    expected = brute_force_conditioned(max_depth=1)
    async with world.sampler() as client:
        run = await finish(client, conditioned=True, max_depth=1)
        assert await pair_set(client, run.id) == expected
        plain = await finish(client, max_depth=1)
    assert run.progress.judgements == len(expected) > plain.progress.judgements
    assert run.config.conditioned
    conditioned = [list(one.premise_ids) for request in world.index.requests for one in request.accepted]
    assert max(map(len, conditioned)) >= 3
    shown = [(task.query, one.premise.text) for task in world.oracle.tasks for one in task.accepted]
    assert [explains(*one) for one in shown] == [True] * len(shown) != []


async def test_batching_does_not_change_a_conditioned_run(by_wave_nodes):
    recorded = [pairs for _, pairs in await by_wave_nodes(1, 5, 256, conditioned=True, max_depth=1)]
    assert recorded == [brute_force_conditioned(max_depth=1)] * 3


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


async def test_the_budget_of_a_conditioned_run_holds(world: SamplerWorld):
    async with world.sampler() as client:
        run = await finish(client, conditioned=True, max_judgements=40)
    assert run.progress.judgements == len(world.oracle.asked) == 40
