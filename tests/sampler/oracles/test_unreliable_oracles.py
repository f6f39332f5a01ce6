"""Oracles that are down, late, confused or silent: no negative comes of it, and the run says what is wrong."""

import asyncio

import grpc
import pytest

from aeenc.oracle import EXPLAINS, REFUSES
from aeenc.v1 import oracle_pb2, oracle_pb2_grpc, types_pb2
from support.worlds.sampler_world import (
    HYPOTHESES,
    PairSet,
    SamplerWorld,
    brute_force,
    failed,
    finish,
    honest,
    pair_set,
    resumed,
    serving,
)

FAILED, SUCCEEDED = types_pb2.WORK_STATE_FAILED, types_pb2.WORK_STATE_SUCCEEDED


def positives(pairs: PairSet) -> PairSet:
    return {pair for pair in pairs if pair[2] == "+"}


@pytest.mark.parametrize("judgement", ["ABSTAIN", "UNSEEN", "UNSPECIFIED", 17])
async def test_what_is_no_clear_refusal_is_recorded_as_skipped(world: SamplerWorld, client, judgement: str | int):
    value = judgement if isinstance(judgement, int) else oracle_pb2.Judgement.Value(f"JUDGEMENT_{judgement}")

    def unclear(task: oracle_pb2.OracleTask) -> list[oracle_pb2.Verdict]:
        for verdict in (verdicts := honest(task)):
            if verdict.judgement == REFUSES:
                verdict.judgement = value
        return verdicts

    world.oracle.behaviour = unclear
    run = await finish(client)
    assert await pair_set(client, run.id) == positives(brute_force())
    skipped = await pair_set(client, run.id, "?")
    assert {(query, premise, "-") for query, premise, _ in skipped} == brute_force() - positives(brute_force())
    assert (run.state, run.progress.negatives) == (SUCCEEDED, 0)
    assert run.progress.skipped == len(brute_force()) - run.progress.positives


async def test_a_premise_judged_twice_becomes_no_pair(world: SamplerWorld, client):
    def stammer(task: oracle_pb2.OracleTask) -> list[oracle_pb2.Verdict]:
        verdicts = honest(task)
        twin = oracle_pb2.Verdict(premise_id=verdicts[0].premise_id, judgement=REFUSES)
        return [*verdicts, twin]

    world.oracle.behaviour = stammer
    run = await finish(client, max_depth=0)
    recorded = await pair_set(client, run.id)
    first = {(task.query, task.candidates[0].premise.text) for task in world.oracle.tasks}
    assert not {(query, premise) for query, premise, _ in recorded} & first
    assert run.progress.skipped == len(HYPOTHESES)


async def test_verdicts_on_unknown_premises_and_tasks_are_ignored(world: SamplerWorld, client):
    world.oracle.behaviour = lambda task: [
        *honest(task),
        oracle_pb2.Verdict(premise_id="p-of-no-corpus", judgement=REFUSES),
        oracle_pb2.Verdict(premise_id="", judgement=EXPLAINS),
    ]
    run = await finish(client)
    assert await pair_set(client, run.id) == brute_force()
    assert run.progress.skipped == 2 * len(world.oracle.tasks)


@pytest.mark.parametrize("nonsense", ["nothing", "no verdicts", "unknown ids"])
async def test_an_oracle_that_talks_nonsense_fails_the_run_with_a_remedy(world: SamplerWorld, client, nonsense: str):
    unknown = oracle_pb2.Verdict(premise_id="x", judgement=REFUSES)
    answers = {"nothing": None, "no verdicts": [], "unknown ids": [unknown]}
    world.oracle.behaviour = lambda task: answers[nonsense]
    run = await failed(client, "oracle 'fake' at 127.0.0.1:", "resume")
    assert await pair_set(client, run.id) == set()
    world.oracle.behaviour = honest
    run = await resumed(client, run.id)
    assert (run.state, run.error) == (SUCCEEDED, "")
    assert await pair_set(client, run.id) == brute_force()


async def test_an_oracle_that_is_down_fails_the_run_until_it_is_back(world: SamplerWorld):
    async with world.sampler(oracle={"target": "127.0.0.1:1"}) as client:
        run = await failed(client, "oracle 'fake' at 127.0.0.1:1 failed 5 times")
        assert (await client.info()).active_runs == ()
    async with world.sampler() as client:
        await client.resume(run.id)
        assert (await client.wait(run.id)).state == SUCCEEDED
        assert await pair_set(client, run.id) == brute_force()


async def test_an_oracle_that_dies_half_way_loses_nothing(world: SamplerWorld, until_progress):
    world.oracle.delay_s = 0.02
    other = type(world.oracle)(delay_s=0.02)
    register = oracle_pb2_grpc.add_OracleServiceServicer_to_server
    async with (
        serving(register, other) as port,
        world.sampler(wave_nodes=4, oracle={"target": f"127.0.0.1:{port}"}) as client,
    ):
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        await until_progress(client, run.id, nodes_judged=5)
    assert other.asked
    async with world.sampler() as client:
        run = await asyncio.wait_for(client.wait(run.id), 20)
        if run.state == FAILED:
            run = await resumed(client, run.id)
        assert await pair_set(client, run.id) == brute_force()
        assert run.progress.nodes_failed == 0


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_passing_failures_are_retried(world: SamplerWorld, status: grpc.StatusCode):
    world.oracle.status = status
    async with world.sampler(oracle={"max_attempts": 20, "patience_s": 30.0}) as client:
        run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=6)
        await world.oracle.called(2)
        world.oracle.status = None
        assert (await client.wait(run.id)).state == SUCCEEDED
        assert await pair_set(client, run.id) == brute_force()


async def test_an_oracle_that_is_too_slow_fails_the_run_and_nothing_is_refused(world: SamplerWorld):
    world.oracle.delay_s = 5
    async with world.sampler(oracle={"timeout_s": 0.1, "max_attempts": 2}) as client:
        run = await failed(client, "did not answer within 0.1 s")
        assert await pair_set(client, run.id) == set()


async def test_a_wrong_token_is_not_tried_again(world: SamplerWorld, client):
    world.oracle.status = grpc.StatusCode.UNAUTHENTICATED
    run = await finish(client)
    assert run.state == FAILED
    assert world.oracle.calls == 1


async def test_a_node_that_always_fails_alone_does_not_stop_the_others(world: SamplerWorld, client):
    world.oracle.behaviour = lambda task: None if task.query == "hypothesis 3" else honest(task)
    run = await finish(client)
    recorded = await pair_set(client, run.id)
    assert (run.state, run.progress.nodes_failed) == (SUCCEEDED, 1)
    assert recorded == brute_force([h for h in HYPOTHESES if h[1] != "hypothesis 3"])


async def test_an_oracle_without_an_answer_to_a_third_of_the_nodes_fails_the_run_and_loses_few(world: SamplerWorld):
    hypotheses = [(f"tree-{n}", f"hypothesis {n}") for n in range(24)]
    world.oracle.behaviour = lambda task: None if int(task.query.split()[1]) % 3 == 0 else honest(task)
    async with world.sampler(oracle={"max_attempts": 1}) as client:
        run = await failed(client, "of the last", hypotheses=hypotheses, max_depth=0)
        world.oracle.behaviour = honest
        run = await resumed(client, run.id)
        assert run.state == SUCCEEDED
        assert run.progress.nodes_failed <= 3
        answered = {query for query, *_ in await pair_set(client, run.id)}
        assert len(answered) == len(hypotheses) - run.progress.nodes_failed


@pytest.mark.parametrize("count", [1, 2])
async def test_the_last_unanswered_nodes_fail_the_run_once_and_are_left_out_after_a_resume(
    world: SamplerWorld, client, count: int
):
    world.oracle.behaviour = lambda task: None if "hypothesis" in task.query else honest(task)
    run = await failed(client, "0-0", hypotheses=HYPOTHESES[:count])
    run = await resumed(client, run.id)
    assert (run.state, run.progress.nodes_failed) == (SUCCEEDED, count)
    assert await pair_set(client, run.id) == set()
