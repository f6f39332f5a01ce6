"""Work on runs: waves overlap, budgets of oracles hold, a lease in doubt asks nothing, samplers share."""

import asyncio
from collections import Counter
from typing import Any

import grpc
import pytest

from aeenc import errors
from aeenc.v1 import types_pb2
from services.sampler.acs import algorithm
from services.sampler.execution.run_worker import READ_TREES
from services.sampler.records.keys import RunKeys
from services.sampler.records.node_store import NodeStore
from services.sampler.records.run_store import RunStore
from support.worlds.sampler_world import (
    HYPOTHESES,
    SamplerWorld,
    at_work,
    brute_force,
    explains,
    finish,
    is_leaf,
    pair_set,
    take,
)

CONFIG = {"corpus": "science", "oracle": "fake", "k": 6}


@pytest.mark.parametrize("max_depth", [0, 2])
async def test_a_run_with_a_budget_gives_eight_people_a_task_at_once(world: SamplerWorld, max_depth: int):
    run = {"max_judgements": 10_000, "k": 20, "max_depth": max_depth}
    async with at_work(world, 8, run=run) as (people, _, run_id):
        leases = [await take(people, f"person {n}", run_id) for n in range(8)]
    assert len({lease.task.query for lease in leases}) == 8


@pytest.mark.parametrize(
    ("silent", "limits", "most"),
    [({3}, {"max_nodes_per_tree": 3, "max_judgements": 1000}, 3), ({0, 5}, {}, 10**9)],
    ids=["a budget covers all", "no budget"],
)
async def test_a_tree_that_waits_for_its_answers_does_not_hold_up_others(
    world: SamplerWorld, until_progress, silent: set[int], limits: dict[str, int], most: int
):
    world.oracle.silent = frozenset(f"hypothesis {n}" for n in silent)
    async with world.sampler(oracle={"batch_tasks": 1, "max_concurrency": 16, "timeout_s": 60}) as client:
        run = await client.start_run(HYPOTHESES, **limits, **CONFIG)
        await until_progress(client, run.id, trees_done=len(HYPOTHESES) - len(silent))
        others = [one for one in HYPOTHESES if one[1] not in world.oracle.silent]
        assert await pair_set(client, run.id) == brute_force(others, max_nodes=most)


@pytest.mark.parametrize("roots_s", [0.0, 0.3])
async def test_a_budget_is_spent_on_the_hypotheses_first_and_what_grows_from_them_gets_the_rest(
    world: SamplerWorld, client, roots_s: float
):
    hypotheses = [(f"tree-{n}", f"hypothesis {n}") for n in range(40)]
    world.oracle.silent = frozenset(text for _, text in hypotheses[::2])  # others have grown before they answer
    world.oracle.silent_s = roots_s
    run = await finish(client, hypotheses=hypotheses, k=3, max_judgements=40 * 3 + 10)
    found = await pair_set(client, run.id)
    roots = brute_force(hypotheses, k=3, max_depth=0)
    assert (run.progress.trees, len(roots), len(found)) == (40, 40 * 3, 40 * 3 + 10)
    assert roots < found


@pytest.mark.parametrize("conditioned", [False, True])
@pytest.mark.parametrize(
    ("k", "max_judgements", "max_nodes"), [(12, 25, 0), (4, 40, 0), (6, 1_000, 0), (6, 5, 4), (6, 60, 4), (6, 200, 4)]
)
async def test_a_budget_is_used_up_and_never_exceeded_however_slow_single_answers_are(
    world: SamplerWorld, k: int, max_judgements: int, max_nodes: int, conditioned: bool
):
    world.oracle.silent = frozenset(f"fact {n}" for n in range(60) if n % 2)
    world.oracle.silent_s = 0.1
    async with world.sampler(wave_nodes=8, oracle={"batch_tasks": 1, "max_concurrency": 16}) as client:
        limits = {"max_judgements": max_judgements, "max_nodes_per_tree": max_nodes}
        run = await finish(client, k=k, conditioned=conditioned, **limits)
        found, whole = await pair_set(client, run.id), brute_force(k=k, max_nodes=max_nodes or 10**9)
    assert run.state == types_pb2.WORK_STATE_SUCCEEDED
    spent = min(max_judgements, len(whole))
    assert spent <= run.progress.judgements == len(world.oracle.asked) == len(found) <= max_judgements
    assert conditioned or (found <= whole and len(found) == spent)


async def test_the_next_wave_is_retrieved_for_while_the_oracle_judges(world: SamplerWorld):
    world.oracle.delay_s = 60
    async with world.sampler(wave_nodes=8) as client:
        await client.start_run(HYPOTHESES, **CONFIG)
        async with asyncio.timeout(10):
            await world.oracle.called(4)
        asked = [list(request.texts) for request in world.index.requests[1:]]
    assert sorted(asked) == [[text for _, text in HYPOTHESES[n : n + 2]] for n in (0, 2, 4, 6)]


async def test_premises_too_long_for_one_answer_are_retrieved_by_more_calls(world: SamplerWorld, client):
    world.index.most_texts = 1
    run = await client.start_run(HYPOTHESES, **CONFIG)
    assert (await asyncio.wait_for(client.wait(run.id), 30)).state == types_pb2.WORK_STATE_SUCCEEDED
    assert await pair_set(client, run.id) == brute_force()


async def test_at_most_a_wave_of_nodes_is_in_work_and_trees_are_read_as_they_are_needed(world: SamplerWorld):
    hypotheses = [(str(n), f"hypothesis {n}") for n in range(60)]
    most = 0
    async with world.sampler(wave_nodes=8) as client:
        run = await client.start_run(hypotheses, **CONFIG)
        async for _, seen in client.watch(run.id):
            most = max(most, len(world.oracle.tasks) - seen.progress.nodes_judged - seen.progress.nodes_failed)
        assert await pair_set(client, run.id) == brute_force(hypotheses)
    assert most <= 16  # an event is seen late: the next wave may be under way by then


async def test_an_answer_makes_its_own_tree_alone_be_looked_at_and_trees_are_read_in_parts(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch
):
    hypotheses = [(str(n), f"hypothesis {n}") for n in range(60)]
    pending, open_trees = algorithm.Tree.pending, NodeStore.open_trees
    looks, parts = Counter[int](), list[int]()

    def counted(tree: algorithm.Tree) -> list[algorithm.Node]:
        looks[tree.index] += 1
        return pending(tree)

    async def recorded(nodes: NodeStore, run_id: str, after: int, limit: int) -> list[algorithm.Tree]:
        parts.append(limit)
        return await open_trees(nodes, run_id, after, limit)

    monkeypatch.setattr(algorithm.Tree, "pending", counted)
    monkeypatch.setattr(NodeStore, "open_trees", recorded)
    async with world.sampler(wave_nodes=64, oracle={"batch_tasks": 1}) as client:
        run = await finish(client, hypotheses=hypotheses)
    assert looks.total() <= 3 * run.progress.nodes_judged  # a node is found, put to work and judged
    assert max(parts) <= READ_TREES < len(looks) == len(hypotheses)


async def test_an_oracle_is_never_asked_beyond_its_budget_and_goes_on_when_it_is_raised(world: SamplerWorld):
    expected = brute_force()
    limit = len(expected) // 2
    async with world.sampler(oracle={"max_judgements": limit}) as client:
        runs = [await client.start_run(HYPOTHESES[part], **CONFIG) for part in (slice(0, 4), slice(4, 9))]
        runs = [await asyncio.wait_for(client.wait(run.id), 40) for run in runs]
        failed = [run for run in runs if run.state == types_pb2.WORK_STATE_FAILED]
        assert failed
        assert f"may be asked for {limit} verdicts in all" in failed[0].error
        assert limit - 12 <= len(world.oracle.asked) <= limit
        kept = {run.id: await pair_set(client, run.id) for run in runs}
    async with world.sampler(oracle={"max_judgements": 10 * limit}) as client:
        for run in failed:
            await client.resume(run.id)
            assert (await asyncio.wait_for(client.wait(run.id), 40)).state == types_pb2.WORK_STATE_SUCCEEDED
        for run, part in zip(runs, (slice(0, 4), slice(4, 9)), strict=True):
            pairs = await pair_set(client, run.id)
            assert pairs == brute_force(HYPOTHESES[part]) >= kept[run.id]


async def test_a_node_that_is_asked_again_takes_nothing_more_from_the_budget(redis: Any, keys: RunKeys):
    for run_id in ("run", "other run"):
        await redis.hset(keys.record(run_id), "state", "RUNNING")
    runs = RunStore(redis, keys)
    assert await runs.reserve("o", 10, "run", [("0-0:0", 6), ("1-0:0", 6), ("2-0:0", 4)]) == [True, False, True]
    assert await runs.reserve("o", 10, "run", [("0-0:0", 6), ("2-0:0", 4)]) == [True, True]
    assert await runs.reserve("o", 10, "other run", [("0-0:0", 1)]) == [False]
    assert await runs.reserve("another", 10, "run", [("0-0:1", 10)]) == [True]


async def test_a_lease_is_sure_only_as_long_as_nobody_else_can_have_it(redis: Any, keys: RunKeys):
    store = RunStore(redis, keys)
    mine, other = (store.cycles.lease("run", owner, lease_s) for owner, lease_s in (("me", 1.0), ("you", 30.0)))
    assert not mine.sure
    assert await mine.renew()
    assert mine.sure
    assert not await other.renew()
    async with asyncio.timeout(10):
        while not await other.renew():  # noqa: ASYNC110 -- a test's wait
            await asyncio.sleep(0.02)
    assert not mine.sure
    assert not await mine.renew()
    await other.release()
    assert not other.sure


async def test_a_worker_whose_lease_is_in_doubt_asks_nothing_before_it_is_sure_again(
    world: SamplerWorld, monkeypatch, redis: Any, keys: RunKeys
):
    """Nobody renews here, so the lease is over when the index answers; another sampler has taken it by then."""
    monkeypatch.setattr("services.store.redis.RENEWALS", 0.001)
    async with world.sampler(lease_s=1.0, poll_s=60.0) as client:
        store = RunStore(redis, keys)
        world.index.delay_s = 0.0
        run = await client.start_run(HYPOTHESES, **CONFIG)
        await asyncio.wait_for(client.wait(run.id), 20)  # alone, it goes on when it is in doubt
        assert await pair_set(client, run.id) == brute_force()
        world.oracle.calls = 0
        asked = len(world.index.requests)  # the start asks once itself
        start = asyncio.create_task(client.start_run(HYPOTHESES, **CONFIG))
        world.index.delay_s = 2.5
        taken = (await start).id
        async with asyncio.timeout(20):
            while len(world.index.requests) <= asked + 1 or not await store.cycles.lease(taken, "another", 60).renew():  # noqa: ASYNC110 -- a test's wait
                await asyncio.sleep(0.01)
        assert world.oracle.calls == 0, "the lease was taken before the index had answered"
        await asyncio.sleep(2.5)  # the index has answered
        assert world.oracle.calls == 0


async def test_samplers_share_the_runs_that_wait(world: SamplerWorld):
    world.oracle.delay_s = 0.02
    one = world.sampler(max_active_runs=1, wave_nodes=4, lease_s=30.0, instance="one")
    other = world.sampler(max_active_runs=1, wave_nodes=4, lease_s=30.0, instance="other")
    async with one as first, other as second:
        runs = [await first.start_run(HYPOTHESES, **CONFIG) for _ in range(4)]
        busy: set[str] = set()
        while len(busy) < 2:
            infos = [await client.info() for client in (first, second)]
            busy = {info.service.instance for info in infos if info.active_runs}
            assert not set(infos[0].active_runs) & set(infos[1].active_runs)
        for run in runs:
            assert (await asyncio.wait_for(second.wait(run.id), 40)).state == types_pb2.WORK_STATE_SUCCEEDED
            assert await pair_set(second, run.id) == brute_force()


@pytest.mark.parametrize("breaker_failures", [5, 8])  # 8: it opens with the last failure, and nobody waits
async def test_a_run_that_has_lost_its_oracle_fails_and_keeps_its_nodes(world: SamplerWorld, breaker_failures: int):
    async with world.sampler(wave_nodes=4, oracle={"max_attempts": 2, "breaker_failures": breaker_failures}) as client:
        run = await client.start_run(HYPOTHESES, **CONFIG)
        await world.oracle.called(3)
        world.oracle.status = grpc.StatusCode.UNAVAILABLE
        run = await asyncio.wait_for(client.wait(run.id), 20)
        assert run.state == types_pb2.WORK_STATE_FAILED
        assert run.progress.nodes_failed == 0
        world.oracle.status = None
        await client.resume(run.id)
        run = await asyncio.wait_for(client.wait(run.id), 20)
        assert run.state == types_pb2.WORK_STATE_SUCCEEDED
        assert await pair_set(client, run.id) == brute_force()


async def test_a_start_with_too_many_bytes_is_refused(client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.sampler.convert.START_BYTES", 1 << 20)
    hypotheses = ((str(n), "x" * 2000) for n in range(1000))
    with pytest.raises(errors.TooLarge, match="1 MiB") as refused:
        await client.start_run(hypotheses, **CONFIG)
    assert [one.field for one in refused.value.violations] == ["hypotheses"]


def test_the_world_has_what_these_tests_are_about():
    pairs = brute_force()
    assert any(sign == "+" and not is_leaf(premise) for _, premise, sign in pairs)
    assert any(not explains(query, premise) for query, premise, _ in pairs)
