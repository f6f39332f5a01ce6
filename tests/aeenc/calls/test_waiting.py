"""Runs: waited for across restarts of the sampler, listed page by page, and by the methods' former names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import aeenc
from aeenc import Channel, Retry, SamplerClient, blocking, errors
from aeenc.calls.renamed import FORMER
from aeenc.v1 import sampler_pb2, sampler_pb2_grpc


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


async def served(runs: Runs, address: str) -> tuple[Any, int]:
    server = grpc.aio.server()
    sampler_pb2_grpc.add_SamplerServiceServicer_to_server(runs, server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, port


async def test_a_restart_longer_than_the_patience_of_other_calls_is_waited_for() -> None:
    running = Runs(sampler_pb2.RUN_STATE_RUNNING)
    server, port = await served(running, "127.0.0.1:0")
    channel = Channel(f"127.0.0.1:{port}", timeout_s=10, retry=Retry(away_s=0.05))
    waiting = asyncio.ensure_future(SamplerClient(channel).wait("r"))
    await running.watched.wait()
    await server.stop(0)
    with pytest.raises(errors.Unavailable):
        await SamplerClient(channel).get_run("r")
    server, _ = await served(Runs(sampler_pb2.RUN_STATE_SUCCEEDED), f"127.0.0.1:{port}")
    assert (await waiting).state == sampler_pb2.RUN_STATE_SUCCEEDED
    await channel.close()
    await server.stop(0)


async def test_a_sampler_that_is_away_from_the_beginning_is_not_waited_for() -> None:
    channel = Channel("127.0.0.1:1", timeout_s=10, retry=Retry(away_s=0.1))
    started = time.monotonic()
    with pytest.raises(errors.Unavailable, match="no service answers"):
        await SamplerClient(channel).wait("r")
    assert time.monotonic() - started < 2
    await channel.close()


async def test_a_list_asks_for_a_page_when_it_comes_to_it() -> None:
    runs = Runs(sampler_pb2.RUN_STATE_SUCCEEDED)
    server, port = await served(runs, "127.0.0.1:0")
    async with aeenc.AsyncClient(sampler=f"127.0.0.1:{port}") as client:
        listing = client.sampler.list_runs(page_size=2)
        assert runs.pages == [], "nothing is asked for before the first step"
        assert [(await anext(listing)).id, (await anext(listing)).id] == ["r0", "r1"]
        assert runs.pages == [2]
        assert [run.id async for run in listing] == ["r2"]
        assert runs.pages == [2, 2]
    await server.stop(0)


async def test_a_former_name_warns_and_does_what_it_did() -> None:
    server, port = await served(Runs(sampler_pb2.RUN_STATE_SUCCEEDED), "127.0.0.1:0")

    def blocking() -> list[str]:
        with aeenc.connect(sampler=f"127.0.0.1:{port}") as client:
            with pytest.warns(DeprecationWarning, match=r"BlockingSamplerClient.runs is now list_runs") as warned:
                runs: Any = client.sampler.runs()  # type: ignore[attr-defined]
            assert warned[0].filename == __file__
            assert [run.id for run in client.sampler.list_runs()] == [run.id for run in runs]
            return [run.id for run in runs]

    async with aeenc.AsyncClient(sampler=f"127.0.0.1:{port}") as client:
        old: Any = client.sampler
        with pytest.warns(DeprecationWarning, match="SamplerClient.run is now get_run"):
            assert (await old.run("r")).id == "r"
        with pytest.warns(DeprecationWarning, match="SamplerClient.runs is now list_runs"):
            assert [run.id for run in await old.runs()] == await asyncio.to_thread(blocking) == ["r0", "r1", "r2"]
        with pytest.raises(AttributeError, match="'SamplerClient' object has no attribute 'rnu'"):
            _ = old.rnu
    await server.stop(0)


@pytest.mark.parametrize("name", FORMER)
def test_every_former_name_has_a_successor_in_both_clients(name: str) -> None:
    for client in (getattr(aeenc, name), getattr(blocking, f"Blocking{name}")):
        assert all(hasattr(client, new) and not hasattr(client, old) for old, new in FORMER[name].items())
