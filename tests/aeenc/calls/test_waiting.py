"""Waiting for the end of a run: across restarts of the sampler, but not for one that was never there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from aeenc import Channel, Retry, SamplerClient, errors
from aeenc.v1 import sampler_pb2, sampler_pb2_grpc


class Runs(sampler_pb2_grpc.SamplerServiceServicer):
    """One run, and streams that break."""

    def __init__(self, state: int) -> None:
        self.state = state
        self.watched = asyncio.Event()

    async def GetRun(self, request: Any, context: Any) -> Any:
        return sampler_pb2.GetRunResponse(run=sampler_pb2.Run(id=request.run_id, state=self.state))

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
        await SamplerClient(channel).run("r")
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
