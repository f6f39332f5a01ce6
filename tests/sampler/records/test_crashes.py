"""Acknowledged writes survive: SIGKILL of sampler or Redis in the middle of a run, two samplers at once."""

import asyncio
import contextlib
import itertools
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc import errors
from aeenc.oracle import Candidate, Task
from aeenc.v1 import sampler_pb2, types_pb2
from services.sampler.execution.sampling import Sampling
from services.sampler.people import steps
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from services.sampler.records.keys import RunKeys
from services.sampler.records.pair_log import PairLog
from services.store.redis import connect
from support.servers.replicated_redis import ReplicatedRedis
from support.service_process import RedisProcess, ServiceProcess
from support.worlds.people_world import sent
from support.worlds.sampler_world import HYPOTHESES, SamplerWorld, brute_force, pair_set

CONFIG = {"corpus": "science", "oracle": "fake", "k": 6}


@contextlib.asynccontextmanager
async def sampler_process(world: SamplerWorld, home: Path) -> AsyncIterator[tuple[ServiceProcess, aeenc.SamplerClient]]:
    """`python -m services.sampler` as an operator starts it; killed at the end."""
    process = ServiceProcess.of("sampler", home, **world.settings, wave_nodes=4)
    process.start()
    client = aeenc.SamplerClient(aeenc.Channel(process.target))
    try:
        await process.ready()
        yield process, client
    finally:
        process.kill()
        await client.channel.close()


async def test_a_killed_sampler_loses_no_pair_and_its_successor_asks_nothing_again(
    world: SamplerWorld, until_progress, tmp_path, redis: Any, keys: RunKeys
):
    world.oracle.delay_s = 0.05
    async with sampler_process(world, tmp_path) as (process, client):
        run = await client.start_run(HYPOTHESES, **CONFIG)
        seen = await until_progress(client, run.id, nodes_judged=8)
        acknowledged = seen.positives + seen.negatives
        process.kill()
    kept, _ = await PairLog(redis, keys).page(run.id, 0, 10_000, None)
    assert len(kept) >= acknowledged > 0
    expected = brute_force()
    assert len(kept) < len(expected), "the sampler was killed too late to show anything"
    world.oracle.asked.clear()
    world.oracle.delay_s = 0.0
    async with sampler_process(world, tmp_path) as (_, client):
        finished = await asyncio.wait_for(client.wait(run.id), 30)
        assert finished.state == types_pb2.WORK_STATE_SUCCEEDED
        assert await pair_set(client, run.id) == expected
        assert [pair.seq for pair in kept] == list(range(1, len(kept) + 1))
        first = [(pair.query, pair.premise) async for pair in client.list_pairs(run.id)][: len(kept)]
        assert first == [(pair.query, pair.premise) for pair in kept]
        assert finished.progress.judgements == len(expected)
    assert not set(world.oracle.asked) & {(pair.query, pair.premise) for pair in kept}


async def test_a_drained_sampler_exits_clean_and_another_goes_on_at_once(world: SamplerWorld, until_progress, tmp_path):
    world.oracle.delay_s = 0.05
    async with sampler_process(world, tmp_path) as (process, client):
        run = await client.start_run(HYPOTHESES, **CONFIG)
        await until_progress(client, run.id, nodes_judged=4)
        assert await process.stop() == 0
    world.oracle.delay_s = 0.0
    async with world.sampler(lease_s=60.0) as client:
        await asyncio.wait_for(client.wait(run.id), 10)
        assert await pair_set(client, run.id) == brute_force()


async def test_two_samplers_never_work_on_one_run(world: SamplerWorld):
    world.oracle.delay_s = 0.01
    async with world.sampler(wave_nodes=4) as one, world.sampler(wave_nodes=4) as other:
        run = await one.start_run(HYPOTHESES, **CONFIG)
        assert (await other.wait(run.id)).state == types_pb2.WORK_STATE_SUCCEEDED
        assert await pair_set(other, run.id) == brute_force()
    assert len(world.oracle.asked) == len(set(world.oracle.asked))


@pytest.mark.parametrize("request_id", ["", "i1"])
async def test_an_import_is_seen_with_all_its_pairs_or_not_at_all_wherever_its_sampler_dies(
    client, dies_after, request_id: str
) -> None:
    pair = types_pb2.Pair(query="q", premise="fact 1", premise_id="p1", sign=types_pb2.PAIR_SIGN_POSITIVE)
    message = sampler_pb2.ImportPairsRequest(corpus="science", pairs=[pair] * 1010, request_id=request_id)
    for moment in itertools.count():
        dies_after(Sampling, "import_pairs", moment)
        with contextlib.suppress(errors.DataLoss):
            await client.channel.unary(client._stub.ImportPairs, message)
            break
        assert [one async for one in client.list_runs()] == [], f"it died after {moment} commands"
    [run] = [one async for one in client.list_runs()]
    assert run.progress.positives == len([pair async for pair in client.list_pairs(run.id)]) == 1010


@pytest.mark.slow
async def test_a_run_waits_for_a_killed_redis_and_keeps_what_it_held(world: SamplerWorld, until_progress):
    world.oracle.delay_s = 0.03
    with tempfile.TemporaryDirectory(prefix="aeenc-") as directory:
        redis = RedisProcess(Path(directory))
        async with world.sampler(redis_url=redis.url, wave_nodes=4) as client:
            run = await client.start_run(HYPOTHESES, **CONFIG)
            await until_progress(client, run.id, nodes_judged=8)
            kept = await pair_set(client, run.id)
            redis.kill()
            with pytest.raises(errors.Unavailable, match="is it running"):
                await client.channel.unary(
                    client._stub.GetRun, sampler_pb2.GetRunRequest(run_id=run.id), retry=False, timeout_s=10
                )
            with pytest.raises(errors.Unavailable):
                await client.start_run(HYPOTHESES, **CONFIG, timeout_s=2)
            world.oracle.asked.clear()
            await redis.restart()
            try:
                run = await asyncio.wait_for(client.wait(run.id), 20)
                assert run.state == types_pb2.WORK_STATE_SUCCEEDED
                assert await pair_set(client, run.id) == brute_force()
                assert not set(world.oracle.asked) & {(query, premise) for query, premise, _ in kept}
            finally:
                redis.stop()


TASK = Task("t", "run", "q", (), (), (Candidate("p1", "t1", 1, 0.9),), "v1")
ANSWER_KEYS = RunKeys("n")


async def test_an_answer_that_no_replica_has_is_not_acknowledged_when_it_is_sent_again(tmp_path: Path):
    pair = ReplicatedRedis(tmp_path, sentinels=0)
    url = f"redis://127.0.0.1:{pair.nodes[0].port}/0"
    patient, impatient = connect(url, replicas=1, replicas_s=10.0), connect(url, replicas=1, replicas_s=0.15)
    tasks, hasty = TaskStore(patient, ANSWER_KEYS), TaskStore(impatient, ANSWER_KEYS)

    def answer(old: TaskRecord, at: float) -> steps.Change:
        return steps.submit(old, "run.t.l", sent(seen_upto=1), 1, at)

    try:
        await patient.hset(ANSWER_KEYS.record("run"), "state", "RUNNING")
        await tasks.put([TaskRecord("run", TASK, 1, "majority")])
        await tasks.apply("run", "t", lambda old, _: steps.lease(old, "ann", "run.t.l", time.time(), 60.0))
        pair.nodes[1].signal(signal.SIGSTOP)
        for _ in range(3):  # the first attempt stands on the master alone, where the others find it
            with pytest.raises(errors.Unavailable, match="0 of 1 replicas"):
                await hasty.apply("run", "t", answer)
        pair.nodes[1].signal(signal.SIGCONT)
        record, answer_id = await tasks.apply("run", "t", answer)
        assert [one.answer.answer_id for one in record.answers] == [answer_id]
    finally:
        pair.nodes[1].signal(signal.SIGCONT)
        for redis in (patient, impatient):
            await redis.aclose()
        pair.stop()
