"""Thirty-two people at one queue, with a sampler that stays, and with one that is killed under them."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc.oracle import EXPLAINS, REFUSES
from aeenc.v1 import types_pb2
from services.kit.concurrency import cancel_all
from services.sampler.people.gateway import PeopleGateway
from services.sampler.people.task_store import TaskStore
from services.sampler.records.keys import RunKeys
from services.store.redis import connect
from services.store.requests import Request
from support.service_process import RedisProcess, ServiceProcess
from support.waiting import eventually, until
from support.worlds.people_world import DECK, People, agreement_differs, check
from support.worlds.sampler_world import HYPOTHESES, NEVER, SamplerWorld, at_work

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
        queues = {"team": {**TEAM, "overlap": 2}}
        settings = {**world.settings, "redis_url": redis.url, "queues": queues}
        process = ServiceProcess.of("sampler", directory, **settings)
        stack.callback(process.kill)
        process.start()
        channels = [aeenc.Channel(process.target, timeout_s=seconds, retry=aeenc.PATIENT) for seconds in (60.0, 2.0)]
        for channel in channels:
            stack.push_async_callback(channel.close)
        sampler = aeenc.SamplerClient(channels[0])
        [run async for run in sampler.list_runs()]  # it answers from now on; starting a run is not tried again
        run = await sampler.start_run(HYPOTHESES, **CONFIG)
        people = People(aeenc.PeopleClient(channels[1]), run.id, flip=0.1, wait_s=0.25)
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
        assert (await check(people, sampler, store, 2, HYPOTHESES)).all() == []


class Lossy:
    """A channel whose every call is made twice, as by a caller who lost the first answer; `between`, things happen."""

    def __init__(self, channel: aeenc.Channel, between: Callable[[], Awaitable[Any]]) -> None:
        self._channel, self._between, self.grpc = channel, between, channel.grpc

    async def unary(self, method: Any, request: Any) -> Any:
        await self._channel.unary(method, request)
        await self._between()
        return await self._channel.unary(method, request)


async def test_a_call_whose_answer_was_lost_is_made_again_and_does_what_one_does(world: SamplerWorld):
    async with at_work(world, 2, overlap=2, undo_s=NEVER) as (people, sampler, run_id):
        twice = aeenc.PeopleClient(Lossy(people.channel, partial(asyncio.sleep, 0)))

        async def take(name: str, tree: int = 0) -> Any:
            [lease] = await twice.lease(name, run_id=run_id, hypothesis_id=f"tree-{tree}")
            return lease

        await twice.release((await take("ann")).lease_id)
        await twice.submit(await take("ann"), [])
        await twice.undo("ann", run_id)
        lease = await take("ann")
        await twice.renew(lease.lease_id)
        task_id, ids = lease.task.task_id, [one.premise.id for one in lease.task.candidates]
        answer = await twice.submit(lease, ids[:1])
        await twice.submit(await take("bob"), [])
        await twice.adjudicate(run_id, task_id, {ids[0]: EXPLAINS}, "judge")
        await twice.amend(answer.answer_id, {ids[1]: EXPLAINS}, "ann")
        await twice.close(run_id, task_id, "chief")
        await twice.settle(run_id, task_id, "bob")
        lease = await take("cid", 1)
        await twice.submit(lease, [])
        await twice.close(run_id, lease.task.task_id, "chief", overlap=1)
        await twice.settle(run_id, lease.task.task_id, "cid")
        await sampler.wait(run_id)
        events = Counter([event.kind.name async for event in people.watch(run_id)])
    several = {"LEASED": 5, "ANSWERED": 4, "QUEUED": 2, "CONFLICT": 2, "HASTENED": 2, "SETTLED": 2}
    once = ("RELEASED", "UNDONE", "ADJUDICATED", "AMENDED", "CLOSED", "LOWERED")
    assert events == several | dict.fromkeys(once, 1)


@pytest.mark.parametrize("overtakes", [False, True], ids=["made again later", "made again before it was noted"])
async def test_a_decision_whose_answer_was_lost_is_known_after_its_run_has_ended_without_it(
    world: SamplerWorld, monkeypatch: pytest.MonkeyPatch, overtakes: bool
):
    monkeypatch.setattr(PeopleGateway, "_resolve", lambda *_: None)
    looked_up, meanwhile = TaskStore.made, list[Callable[[], Awaitable[Any]]]()

    async def made(store: TaskStore, request: Request) -> str:
        known = await looked_up(store, request)
        if meanwhile:
            await meanwhile.pop()()
        return known

    monkeypatch.setattr(TaskStore, "made", made)
    async with at_work(world, 1, overlap=2) as (people, sampler, run_id):

        async def ends() -> None:
            await eventually(people.list_queues, is_so=lambda queues: queues[0].total.settled == 1)
            await sampler.cancel(run_id)

        [ann] = await people.lease("ann", run_id=run_id)
        [bob] = await people.lease("bob", run_id=run_id)
        premise_id = ann.task.candidates[0].premise.id
        await people.submit(ann, [premise_id])
        await people.submit(bob, [])
        decision = (run_id, ann.task.task_id, {premise_id: REFUSES}, "judge")

        async def first() -> None:
            await people.adjudicate(*decision, request_id="same")
            await ends()

        if overtakes:
            meanwhile.append(first)
        else:
            await first()
        await people.adjudicate(*decision, request_id="same")
        changes = Counter([change.kind.name async for change in people.list_changes(run_id)])
    assert changes["ADJUDICATED"] == 1
