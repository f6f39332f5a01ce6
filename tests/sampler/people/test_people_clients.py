"""Thirty-two people at one queue, with a sampler that stays, and with one that is killed under them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import aeenc
from aeenc.v1 import types_pb2
from services.kit.concurrency import cancel_all
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import RunKeys
from services.store.redis import connect
from support.service_process import RedisProcess, ServiceProcess
from support.waiting import until
from support.worlds.people_world import DECK, People, agreement_differs, check
from support.worlds.sampler_world import HYPOTHESES, SamplerWorld

PEOPLE = 32
WAIT_S = 200.0  # on a busy machine; on an idle one it takes a few seconds
TEAM = {"undo_s": 0.3, "min_lease_s": 0.6, "first_lease_s": 0.6}
CONFIG = {"corpus": "science", "oracle": "team", "k": 6}


@asynccontextmanager
async def crowd(people: People) -> AsyncIterator[list[asyncio.Task[None]]]:
    """All of them at work, until the body ends."""
    names = [f"person-{n}" for n in range(PEOPLE)]
    tasks = [asyncio.create_task(people.person(name)) for name in names]
    tasks.append(asyncio.create_task(people.adjudicator()))
    try:
        yield tasks
        people.done.set()
        await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def finished(sampler: aeenc.SamplerClient, run_id: str, crowd: list[asyncio.Task[None]]) -> None:
    """Waits for the end of the run, or of somebody who should not have ended."""
    waiting = asyncio.create_task(sampler.wait(run_id))
    done, _ = await asyncio.wait([waiting, *crowd], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert done == {waiting}, done or "the run did not end"
    assert waiting.result().state == types_pb2.WORK_STATE_SUCCEEDED


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_thirty_two_people_lose_nothing_and_hold_nothing_twice(world: SamplerWorld):
    redis = connect(world.settings["redis_url"])
    store = TaskStore(redis, RunKeys(world.settings["namespace"]))
    async with world.sampler(queues={"team": {**TEAM, "overlap": 2}}) as sampler:
        run = await sampler.start_run(HYPOTHESES, **CONFIG)
        people = People(aeenc.PeopleClient(sampler.channel), run.id, flip=0.1, wait_s=0.25)
        async with crowd(people) as tasks:
            await finished(sampler, run.id, tasks)
        assert (await check(people, sampler, store, 2, HYPOTHESES)).all() == []
        counts = people.ledger.counts
        assert min(counts[what] for what in (*DECK, "undo", "adjudicated")) > 0, counts
        assert agreement_differs(await people.client.get_agreement(run.id), people.ledger) < 1e-9
    await redis.aclose()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_acknowledged_verdict_is_lost_when_sampler_and_redis_are_killed(world: SamplerWorld):
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-")))
        redis = RedisProcess(directory)
        stack.callback(redis.stop)
        settings = {**world.settings, "redis_url": redis.url, "queues": {"team": TEAM}}
        process = ServiceProcess.of("sampler", directory, **settings)
        stack.callback(process.kill)
        process.start()
        channels = [aeenc.Channel(process.target, timeout_s=seconds, retry=aeenc.PATIENT) for seconds in (60.0, 2.0)]
        for channel in channels:
            stack.push_async_callback(channel.close)
        sampler = aeenc.SamplerClient(channels[0])
        [run async for run in sampler.list_runs()]  # it answers from now on; starting a run is not tried again
        run = await sampler.start_run(HYPOTHESES, **CONFIG)
        people = People(aeenc.PeopleClient(channels[1]), run.id, wait_s=0.25)
        async with crowd(people) as tasks:
            for kill_redis in (False, True, False):
                enough = len(people.ledger.said) + 6
                await until(lambda: len(people.ledger.said) >= enough, WAIT_S)  # noqa: B023 -- awaited at once
                process.kill()
                if kill_redis:
                    redis.kill()
                    await redis.restart()
                process.start()
            await finished(sampler, run.id, tasks)
        client = connect(redis.url)
        stack.push_async_callback(client.aclose)
        store = TaskStore(client, RunKeys(world.settings["namespace"]))
        assert (await check(people, sampler, store, 1, HYPOTHESES)).all() == []
