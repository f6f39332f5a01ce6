"""Reads over a list of servers: a silent one costs a moment, and one that is merely busy costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

from aeenc import Channel, EncoderClient, Retry, errors, vectors
from aeenc.transport import spreading
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from support.waiting import until
from support.worlds.sampler_world import refuse

SOON_S = 0.1
HEDGED = Retry(attempts=2, hedge_s=SOON_S)
PATIENT = Retry(attempts=2, hedge_s=60.0)


class Scripted(encoder_pb2_grpc.EncoderServiceServicer):
    """Answers a text when `answer` returns, with an error if it returns one."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.cancelled: list[str] = []
        self.answer: Callable[[str], Awaitable[errors.AeencError | None]] = at_once

    async def Encode(self, request: encoder_pb2.EncodeRequest, context: Any) -> encoder_pb2.EncodeResponse:
        text = request.texts[0]
        self.texts.append(text)
        try:
            error = await self.answer(text)
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        if error is not None:
            await refuse(context, error)
        return encoder_pb2.EncodeResponse(embeddings=vectors.to_proto(np.ones((1, 2), np.float32)))


async def at_once(_: str) -> None:
    return None


async def never(_: str) -> None:
    await asyncio.Event().wait()


class Fleet:
    """Two servers and a client of both."""

    def __init__(self) -> None:
        self.first, self.second = Scripted(), Scripted()
        self.servers = [grpc.aio.server(), grpc.aio.server()]
        self.targets: list[str] = []
        self.channels: list[Channel] = []

    async def client(self, retry: Retry | bool = HEDGED) -> EncoderClient:
        """A client that is connected to both."""
        client = EncoderClient(channel := Channel(",".join(self.targets), timeout_s=20, retry=retry))
        self.channels.append(channel)
        async with asyncio.timeout(10):
            while not (self.first.texts and self.second.texts):
                await client.encode(["warm"])
        return client


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    for server, servicer in zip(fleet.servers, (fleet.first, fleet.second), strict=True):
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)
        fleet.targets.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
    yield fleet
    for channel in fleet.channels:
        await channel.close()
    for server in fleet.servers:
        await server.stop(0)


async def test_a_read_leaves_a_silent_server_and_later_ones_pass_over_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spreading, "SILENT_S", 60.0)
    client = await fleet.client()
    assert client.channel.grpc.get_state() is grpc.ChannelConnectivity.READY
    fleet.first.answer = never
    await client.encode(["asked"])
    await client.encode(["asked"])  # one of the two went to the silent server first
    assert fleet.second.texts[-2:] == ["asked", "asked"]
    await until(lambda: fleet.first.cancelled == ["asked"])
    later = EncoderClient(client.channel.with_options(retry=PATIENT))
    await asyncio.gather(*(later.encode([f"later {number}"]) for number in range(10)))
    assert fleet.first.texts[-1] == "asked"


@pytest.mark.parametrize(("code", "answers"), [("UNAVAILABLE", 0), ("DEADLINE_EXCEEDED", 0), ("INVALID_ARGUMENT", 1)])
async def test_a_refusal_is_an_answer_and_silence_none(code: str, answers: int) -> None:
    async def refuses(_: Any) -> None:
        raise grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), grpc.aio.Metadata())

    server = Mock()
    with pytest.raises(grpc.aio.AioRpcError):
        await spreading.SpreadMethod({server: refuses}, Mock(), name="Encode")._answer(server, None)
    assert server.has_answered.call_count == answers


async def test_a_silent_server_is_tried_again_by_and_by(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "SILENT_S", 0.05)
    client = await fleet.client()
    fleet.first.answer = never
    await client.encode(["asked"])
    await client.encode(["asked"])
    fleet.first.answer = at_once
    count = len(fleet.first.texts)

    async def is_back() -> bool:
        await client.encode(["back"])
        return len(fleet.first.texts) > count + 2

    async with asyncio.timeout(10):
        while not await is_back():
            pass


async def test_a_server_that_is_still_loading_is_passed_over_by_later_calls(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spreading, "UNREADY_S", 60.0)
    client = await fleet.client(PATIENT)

    async def loading(_: str) -> errors.AeencError:
        return errors.Unavailable("the service is not ready", retry_after_s=0.01)

    fleet.first.answer = loading
    await client.encode(["asked"])
    await client.encode(["asked"])  # one of the two went to the first server
    asked = len(fleet.first.texts)
    await asyncio.gather(*(client.encode(["later"]) for _ in range(20)))
    assert len(fleet.first.texts) == asked
    fleet.second.answer = loading
    fleet.first.answer = at_once
    assert (await client.encode(["asked"])).vectors.shape == (1, 2), "without any other it is asked again"


async def test_a_call_that_takes_long_at_a_server_that_answers_others_is_sent_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, finish = 1.0, asyncio.Event()
    monkeypatch.setattr(spreading, "time", SimpleNamespace(monotonic=lambda: now))

    async def slowly(text: str) -> None:
        nonlocal now
        if text == "long":
            await finish.wait()
        now += SOON_S / 20  # the time that passes from answer to answer

    client = await fleet.client()
    fleet.first.answer = fleet.second.answer = slowly
    long = asyncio.ensure_future(client.encode(["long"]))
    begun, loop = now, asyncio.get_running_loop()
    end = loop.time() + 3 * SOON_S
    while now < begun + 10 * SOON_S or loop.time() < end:
        await asyncio.gather(*(client.encode(["short"]) for _ in range(4)))
    assert [*fleet.first.texts, *fleet.second.texts].count("long") == 1
    finish.set()
    await long


@pytest.mark.parametrize("cls", [errors.Unavailable, errors.Overloaded])
async def test_a_second_server_that_refuses_does_not_decide_while_the_first_may_answer(
    fleet: Fleet, cls: type[errors.AeencError]
) -> None:
    client = await fleet.client(Retry(attempts=2, hedge_s=0.05))
    asked: list[str] = []
    refused = asyncio.Event()

    async def answer(text: str) -> errors.AeencError | None:
        asked.append(text)
        if len(asked) == 1:
            await refused.wait()
            return None
        asyncio.get_running_loop().call_later(0.05, refused.set)  # after the refusal has arrived
        return cls("full")

    fleet.first.answer = fleet.second.answer = answer
    await client.encode(["asked"])
    assert asked == ["asked", "asked"]


async def test_a_read_fails_with_its_reason_when_both_servers_do(fleet: Fleet) -> None:
    client = await fleet.client(Retry(attempts=2, hedge_s=0.05))
    refused = asyncio.Event()

    async def answer(_: str) -> errors.AeencError:
        asyncio.get_running_loop().call_later(0.15, refused.set)
        await refused.wait()
        return errors.InvalidArgument("too long")

    fleet.first.answer = fleet.second.answer = answer
    with pytest.raises(errors.InvalidArgument, match="too long"):
        await client.encode(["asked"])


@pytest.mark.parametrize(("retry", "sent"), [(False, 1), (HEDGED, 2), (Retry(hedge_s=60.0), 2)])
async def test_a_call_ends_in_time_and_one_that_may_be_made_once_only_is_sent_to_one_server(
    fleet: Fleet, retry: Retry | bool, sent: int
) -> None:
    client = await fleet.client(retry)
    fleet.first.answer = fleet.second.answer = never
    async with asyncio.timeout(10):
        with pytest.raises(errors.DeadlineExceeded):
            await client.encode(["asked"], timeout_s=0.5)
    assert [*fleet.first.texts, *fleet.second.texts].count("asked") == sent


@pytest.mark.parametrize("is_closed", [False, True], ids=["cancelled by its caller", "its connection closed"])
async def test_a_read_that_is_given_up_ends_at_both_servers_and_says_why(fleet: Fleet, is_closed: bool) -> None:
    client = await fleet.client()
    fleet.first.answer = fleet.second.answer = never
    call = asyncio.ensure_future(client.encode(["asked"]))
    await until(lambda: [*fleet.first.texts, *fleet.second.texts].count("asked") == 2)
    if is_closed:
        await client.channel.close()
        with pytest.raises(errors.FailedPrecondition, match="is closed"):
            await call
    else:
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await until(lambda: fleet.first.cancelled == fleet.second.cancelled == ["asked"])
