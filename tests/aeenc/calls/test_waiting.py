"""Who is waited for and how long: a run across restarts of the sampler, and nobody where no service is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from aeenc import PATIENT, AsyncClient, Channel, Retry, SamplerClient, errors
from aeenc.calls.waiting import wait_for_end
from aeenc.v1 import sampler_pb2, sampler_pb2_grpc, types_pb2
from aeenc.values import Pair
from support.relay import Relay
from support.worlds.sampler_world import connected, refuse, serving


class Runs(sampler_pb2_grpc.SamplerServiceServicer):
    """One run, and streams that break."""

    def __init__(self, state: int) -> None:
        self.state = state
        self.watched = asyncio.Event()
        self.pages: list[int] = []

    async def GetRun(self, request: Any, context: Any) -> Any:
        return sampler_pb2.GetRunResponse(run=sampler_pb2.Run(id=request.run_id, state=self.state))

    async def ListRuns(self, request: Any, context: Any) -> Any:
        """Three runs, in pages as large as asked for."""
        self.pages.append(request.page_size)
        begin = int(request.page_token or 0)
        end = min(begin + request.page_size, 3)
        runs = [sampler_pb2.Run(id=f"r{number}") for number in range(begin, end)]
        return sampler_pb2.ListRunsResponse(runs=runs, next_page_token=str(end) if end < 3 else "")

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.watched.set()
        await asyncio.sleep(60)
        yield


REGISTER = sampler_pb2_grpc.add_SamplerServiceServicer_to_server


async def test_a_restart_longer_than_the_patience_of_other_calls_is_waited_for() -> None:
    running = Runs(types_pb2.WORK_STATE_RUNNING)
    async with serving(REGISTER, running) as port:
        channel = Channel(f"127.0.0.1:{port}", timeout_s=10, retry=Retry(away_s=0.05))
        waiting = asyncio.ensure_future(SamplerClient(channel).wait("r"))
        await running.watched.wait()
    with pytest.raises(errors.Unavailable):
        await SamplerClient(channel).get_run("r")
    async with serving(REGISTER, Runs(types_pb2.WORK_STATE_SUCCEEDED), port):
        assert (await waiting).state == types_pb2.WORK_STATE_SUCCEEDED
        await channel.close()


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in items]


# Calls that take a list of any length, and one that waits, each with an item that it takes.
STREAMED: dict[str, tuple[Callable[[AsyncClient, Any], Awaitable[Any]], Any]] = {
    "build": (lambda client, item: client.index.build("c", ["ice is cold", item]), "heat melts ice"),
    "put_explanations": (lambda client, item: client.index.put_explanations("c", [("q", ["p"]), item]), ("q", ["p"])),
    "start_run": (lambda client, item: client.sampler.start_run([("h", "t"), item]), ("i", "u")),
    "import_pairs": (lambda client, item: client.sampler.import_pairs("c", [item]), Pair(query="q", premise="p")),
    "evaluate": (lambda client, item: client.trainer.evaluate("c", [("q", ["p"]), item]), ("r", ["p"])),
    "evaluate, training": (
        lambda client, item: client.trainer.evaluate("c", [("q", ["p"])], training=[item]),
        ("r", ["p"]),
    ),
    "wait": (lambda client, item: client.sampler.wait(item), "r"),  # the run of a sampler that never was there
    "encode_all": (lambda client, item: all_of(client.encoder.encode_all(["ice", item])), "heat"),
    "encode_stream": (lambda client, item: all_of(client.encoder.encode_stream([["ice", item]])), "heat"),
}
NOWHERE = dict.fromkeys(("encoder", "index", "sampler", "trainer"), "127.0.0.1:1")


@pytest.mark.parametrize("name", STREAMED)
async def test_a_wrong_item_is_named_without_a_service(name: str) -> None:
    call, _ = STREAMED[name]
    async with AsyncClient(**NOWHERE, retry=PATIENT) as client:
        with pytest.raises(errors.InvalidArgument, match="3"):
            await asyncio.wait_for(call(client, 3), 5)


@pytest.mark.parametrize("name", STREAMED)
async def test_a_list_for_a_service_that_is_not_there_is_given_up_as_soon_as_any_call(name: str) -> None:
    call, item = STREAMED[name]
    async with AsyncClient(**NOWHERE, timeout_s=60, retry=Retry(away_s=0.5)) as client:
        with pytest.raises(errors.Unavailable, match=r"no service answers at 127\.0\.0\.1:1 "):
            await asyncio.wait_for(call(client, item), 15)


class Refusing(Runs):
    """Refuses to be watched some `times`; then the run ends, and is seen to."""

    def __init__(self, refusal: errors.AeencError, times: int) -> None:
        super().__init__(types_pb2.WORK_STATE_RUNNING)
        self.watches = 0
        self._refusal, self._times = refusal, times

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.watches += 1
        if self.watches <= self._times:
            await refuse(context, self._refusal)
        self.state = types_pb2.WORK_STATE_SUCCEEDED
        yield sampler_pb2.WatchRunResponse(seq=1, run=sampler_pb2.Run(id=request.run_id, state=self.state))


@pytest.mark.parametrize(
    ("refusal", "times", "least_s"),
    [(errors.Overloaded("over the quota", retry_after_s=0.5), 1, 0.4), (errors.Unavailable("starting"), 4, 1.0)],
    ids=["as long as asked", "ever longer"],
)
async def test_a_watch_that_is_refused_is_begun_again_after_a_pause(
    refusal: errors.AeencError, times: int, least_s: float
) -> None:
    runs = Refusing(refusal, times)
    async with connected(REGISTER, runs) as channel:
        started = time.monotonic()
        assert (await SamplerClient(channel).wait("r")).state == types_pb2.WORK_STATE_SUCCEEDED
    assert time.monotonic() - started > least_s
    assert runs.watches == times + 1


async def test_a_run_is_asked_after_when_nothing_is_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aeenc.calls.waiting.SILENT_S", 0.2)
    runs = Runs(types_pb2.WORK_STATE_RUNNING)
    async with connected(REGISTER, runs) as channel:
        waiting = asyncio.ensure_future(SamplerClient(channel).wait("r"))
        await runs.watched.wait()
        runs.state = types_pb2.WORK_STATE_SUCCEEDED
        assert (await asyncio.wait_for(waiting, 30)).state == types_pb2.WORK_STATE_SUCCEEDED


@pytest.mark.parametrize("mine", [TimeoutError("mine"), errors.Unavailable("mine")])
async def test_what_the_callers_own_code_raises_is_raised(mine: Exception) -> None:
    def on_progress(run: Any) -> None:
        raise mine

    async with connected(REGISTER, Refusing(errors.Unavailable("never"), 0)) as channel:
        with pytest.raises(type(mine), match="mine"):
            await SamplerClient(channel).wait("r", on_progress=on_progress)


async def test_a_watch_that_ends_too_early_is_taken_up_again_until_the_work_has_ended() -> None:
    states = iter([types_pb2.WORK_STATE_RUNNING] * 2 + [types_pb2.WORK_STATE_SUCCEEDED])

    async def watch(_: int) -> AsyncIterator[Any]:
        for event in ():
            yield event

    async def get() -> Any:
        return sampler_pb2.Run(state=next(states))

    assert (await wait_for_end(watch, get, None)).state == types_pb2.WORK_STATE_SUCCEEDED


async def test_a_watch_ends_when_its_host_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aeenc.transport.channel.KEEPALIVE_S", 0.2)
    monkeypatch.setattr("aeenc.transport.channel.KEEPALIVE_TIMEOUT_S", 0.2)
    runs = Runs(types_pb2.WORK_STATE_RUNNING)
    async with serving(REGISTER, runs) as port, Relay(f"127.0.0.1:{port}") as relay:
        channel = Channel(relay.address, timeout_s=5)
        step = asyncio.ensure_future(anext(SamplerClient(channel).watch("r")))
        await runs.watched.wait()
        relay.silence()
        with pytest.raises(errors.Unavailable, match=relay.address):
            await asyncio.wait_for(step, 30)
        await channel.close()


async def test_a_list_asks_for_a_page_when_it_comes_to_it() -> None:
    runs = Runs(types_pb2.WORK_STATE_SUCCEEDED)
    async with connected(REGISTER, runs) as channel:
        listing = SamplerClient(channel).list_runs(page_size=2)
        assert runs.pages == [], "nothing is asked for before the first step"
        assert [(await anext(listing)).id, (await anext(listing)).id] == ["r0", "r1"]
        assert runs.pages == [2]
        assert [run.id async for run in listing] == ["r2"]
        assert runs.pages == [2, 2]
