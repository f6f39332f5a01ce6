"""What callers may have in work at once: connections, streams, bytes of requests, scrapes; and how often they ping."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kit.test_broken_requests import OPENING, call_frame, frame
from kit.test_credentials import credential, write
from kit.test_server import Servicer, build

from aeenc import Channel, EncoderClient, errors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from services.kit import server as server_module
from services.kit.convert import bounded
from services.kit.server import GrpcServer
from support.waiting import eventually, until

OWN = [("grpc.use_local_subchannel_pool", 1)]
WATCH = health_pb2.HealthCheckRequest()


@asynccontextmanager
async def serving(**fields: Any) -> AsyncIterator[tuple[GrpcServer, Servicer]]:
    server, servicer = build(**fields)
    async with server:
        server.readiness.serving()
        yield server, servicer


@asynccontextmanager
async def connected(server: GrpcServer, token: str | None = None) -> AsyncIterator[Channel]:
    channel = Channel(f"127.0.0.1:{server.port}", token=token, timeout_s=5, retry=False)
    yield channel
    await channel.close()


def stream_of(channel: Channel, count: int, text: str = "x" * 100_000, *, stays: bool = False) -> Any:
    """A stream of so many batches, which then ends or stays open."""

    async def requests() -> AsyncIterator[encoder_pb2.EncodeStreamRequest]:
        for _ in range(count):
            yield encoder_pb2.EncodeStreamRequest(batch=encoder_pb2.EncodeRequest(texts=["a", text]))
        if stays:
            await asyncio.Event().wait()

    return channel.stream(encoder_pb2_grpc.EncoderServiceStub(channel.grpc).EncodeStream, requests())


async def opened(channel: Channel) -> Any:
    """A stream that has answered and stays open."""
    stream = stream_of(channel, 1, "b", stays=True)
    await anext(stream)
    return stream


async def answers_of(stream: Any) -> int:
    return len([answer async for answer in stream])


async def is_let_in(call: Awaitable[Any]) -> bool:
    """Whether a call is answered instead of refused."""
    try:
        await call
    except (errors.Overloaded, grpc.aio.AioRpcError):
        return False
    return True


async def test_health_watches_beyond_a_quarter_of_the_streams_are_refused_until_others_end() -> None:
    async with serving(max_streams=12) as (server, _), connected(server) as channel:
        watch = health_pb2_grpc.HealthStub(channel.grpc).Watch
        watches = [watch(WATCH) for _ in range(3)]
        for one in watches:
            await one.read()
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"3 streams are open, of at most 12.* 3, of at most 3"
        ) as raised:
            await watch(WATCH).read()
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        stream = await opened(channel)  # there is room for others
        assert len((await EncoderClient(channel).encode(["a"])).vectors) == 1
        watches[0].cancel()
        await eventually(lambda: is_let_in(watch(WATCH).read()))
        await stream.aclose()


async def test_one_caller_has_a_quarter_of_the_streams_and_those_of_others_have_room(tmp_path: Path) -> None:
    path = write(tmp_path / "t", credential("ann"), credential("bob"), credential("web", on_behalf=True))
    async with (
        serving(max_streams=8, tokens_file=path) as (server, _),
        connected(server, "ann") as ann,
        connected(server, "bob") as bob,
        connected(server, "web") as web,
    ):
        mine = [await opened(ann) for _ in range(2)]
        with pytest.raises(errors.Overloaded, match=r"of 'ann' 2, of at most 2; .*come back later") as raised:
            await opened(ann)
        assert raised.value.retry_after_s
        await EncoderClient(ann).encode(["a"])
        theirs = [await opened(bob), *[await opened(web) for _ in range(5)]]
        with pytest.raises(errors.Overloaded, match="8 streams are open, of at most 8"):
            await opened(bob)
        for stream in (*mine, *theirs):
            await stream.aclose()
        await eventually(lambda: is_let_in(opened(ann)))


async def test_requests_beyond_the_bytes_in_work_are_refused_with_a_time_to_wait_and_come_in_later() -> None:
    async with serving(max_request_bytes=300_000) as (server, servicer), connected(server) as channel:
        client = EncoderClient(channel)
        waiting = [asyncio.ensure_future(client.encode(["wait", "x" * 100_000])) for _ in range(2)]
        await until(lambda: servicer.waiting == 2)
        with pytest.raises(errors.Overloaded, match=r"of at most 300,000 \(MAX_REQUEST_BYTES\), .*come back") as raised:
            await client.encode(["a", "x" * 100_000])
        assert raised.value.retry_after_s
        assert (await client.encode(["a"])).model_version == "v1", "small ones have room"
        waiting[0].cancel()  # whatever a call ends by, its bytes are free again
        await eventually(lambda: is_let_in(client.encode(["a", "x" * 100_000])))
        servicer.release.set()
        await waiting[1]
        for text in ("overloaded", "bug"):
            for _ in range(4):
                with pytest.raises(errors.AeencError):
                    await client.encode([text, "x" * 100_000])
        await client.encode(["a", "x" * 100_000])
        assert (await client.encode(["a", "x" * 1_000_000])).model_version == "v1", "alone, any is taken"


async def test_a_stream_waits_for_room_and_lets_go_of_each_message() -> None:
    async with serving(max_request_bytes=300_000) as (server, servicer), connected(server) as channel:
        client = EncoderClient(channel)
        assert await answers_of(stream_of(channel, 20)) == 20
        waiting = [asyncio.ensure_future(client.encode(["wait", "x" * 110_000])) for _ in range(2)]
        await until(lambda: servicer.waiting == 2)
        counting = asyncio.ensure_future(answers_of(stream_of(channel, 20)))
        await asyncio.sleep(0.2)
        assert not counting.done()
        servicer.release.set()
        assert await counting == 20
        await asyncio.gather(*waiting)


async def test_streams_that_are_read_whole_hold_all_their_bytes_and_keep_out_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, let_go = 0, asyncio.Event()

    async def read_whole(_self: Any, requests: Any, _context: Any) -> AsyncIterator[encoder_pb2.EncodeStreamResponse]:
        nonlocal held
        async for _ in bounded(requests, 10_000_000, "batch", "send less"):
            held += 1
            yield encoder_pb2.EncodeStreamResponse()
        await let_go.wait()

    monkeypatch.setattr(Servicer, "EncodeStream", read_whole)
    async with serving(max_request_bytes=1_000_000) as (server, _), connected(server) as channel:
        first = asyncio.ensure_future(answers_of(stream_of(channel, 4)))
        await until(lambda: held == 4)
        with pytest.raises(errors.Overloaded, match=r"of at most 500,000 \(half of MAX_REQUEST_BYTES\), .*come back"):
            await answers_of(stream_of(channel, 2))
        large = EncoderClient(channel).encode(["a", "x" * 900_000])
        assert (await large).model_version == "v1", "what is no such stream has its own room"
        second = asyncio.ensure_future(answers_of(stream_of(channel, 0)))
        let_go.set()
        assert await asyncio.gather(first, second) == [4, 0]
        assert await answers_of(stream_of(channel, 20)) == 20, "alone, any is taken, and what has ended holds nothing"


async def test_a_health_check_is_short() -> None:
    async with serving() as (server, _), connected(server) as channel:
        long = health_pb2.HealthCheckRequest(service="x" * 2000)
        health = health_pb2_grpc.HealthStub(channel.grpc)
        for call in (health.Check(long), health.Watch(long).read()):
            with pytest.raises(grpc.aio.AioRpcError, match="over the limit of 1,024"):
                await call


async def test_connections_beyond_the_limit_are_closed_and_those_that_are_open_go_on() -> None:
    async with serving(max_connections=2) as (server, _):
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", OWN) for _ in range(3)]

        def answers(channel: grpc.aio.Channel) -> Awaitable[bool]:
            return is_let_in(health_pb2_grpc.HealthStub(channel).Check(WATCH, timeout=2))

        assert [await answers(channel) for channel in channels] == [True, True, False]
        assert await answers(channels[0])
        await channels[1].close()
        await eventually(lambda: answers(channels[2]))
        await asyncio.gather(*(channel.close() for channel in channels))


WATCH_FRAMES = call_frame(b"/grpc.health.v1.Health/Watch") + frame(0, 1, 1, bytes(5))


async def frames_of(reader: asyncio.StreamReader) -> AsyncIterator[int]:
    """The kinds of the frames that arrive."""
    with suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            yield head[3]


@pytest.mark.parametrize("has_call", [True, False])
async def test_a_caller_of_any_language_may_ping_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, has_call: bool
) -> None:
    assert server_module.CALLER_PING_S < 10
    monkeypatch.setattr(server_module, "CALLER_PING_S", 0.02)
    async with serving(connection_age_s=0) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(OPENING + frame(4, 0, 0) + (WATCH_FRAMES if has_call else b""))
        for _ in range(10):
            await asyncio.sleep(0.06)
            writer.write(frame(6, 0, 0, bytes(8)))
        await asyncio.sleep(0.1)
        writer.write_eof()
        kinds = [kind async for kind in frames_of(reader)]
        assert kinds.count(6) >= 10, "each ping has its answer"
        assert 7 not in kinds, "nobody says GOAWAY"
        assert (1 in kinds) == has_call
        writer.close()


async def test_a_watcher_who_reads_nothing_holds_up_neither_other_watchers_nor_the_drain() -> None:
    async with serving() as (server, _), connected(server) as channel:
        _reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        no_window = frame(4, 0, 0, bytes([0, 4, 0, 0, 0, 0]))
        writer.write(OPENING + no_window + WATCH_FRAMES)
        watch = health_pb2_grpc.HealthStub(channel.grpc).Watch(WATCH)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await asyncio.sleep(0.1)
        stopping = asyncio.ensure_future(server.stop(0.2))
        answer = await asyncio.wait_for(watch.read(), 5)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await asyncio.wait_for(stopping, 5)
        writer.close()


async def test_half_requests_to_the_metrics_port_cost_few_threads_and_scrapes_are_answered() -> None:
    async with serving(metrics_port=0) as (server, _):
        address = ("127.0.0.1", server.metrics_port or 0)
        before = threading.active_count()
        half = [socket.create_connection(address) for _ in range(100)]
        for one in half:
            one.sendall(b"GET /metrics HT")
        url = f"http://127.0.0.1:{server.metrics_port}/metrics"

        def scrape() -> bytes:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bytes(answer.read())

        assert b"aeenc_state" in await asyncio.to_thread(scrape)
        await until(lambda: threading.active_count() - before <= server_module.SCRAPES + 2, 2.0)
        for one in half:
            one.close()
