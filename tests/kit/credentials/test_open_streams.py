"""Streams end with the credential that opened them, of each kind of method and whatever they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.test_credentials import credential, write
from kit.test_server import Settings

from aeenc import Channel, errors
from services.kit.credentials import gate
from services.kit.server import GrpcServer
from support.waiting import until

METHODS = {"WatchJob": "unary_stream", "Evaluate": "stream_unary"}
STREAM = "/aeenc.v1.EncoderService/EncodeStream"


class Streams:
    """Counts the calls that are open; none of them ends by itself. `flood` writes without end."""

    def __init__(self) -> None:
        self.open = 0
        self.flood = False

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def answers(self, _request: Any, _context: Any) -> AsyncIterator[bytes]:
        async with self.counted():
            yield b"first"
            while self.flood:
                yield bytes(100_000)
            await asyncio.Event().wait()

    async def answer(self, requests: Any, _context: Any) -> bytes:
        async with self.counted():
            async for _ in requests:
                pass
            return b""

    async def echo(self, requests: Any, _context: Any) -> AsyncIterator[bytes]:
        async with self.counted():
            async for request in requests:
                yield request

    def register(self, service: str) -> Any:
        handlers = {
            "TrainerService": {
                "WatchJob": grpc.unary_stream_rpc_method_handler(self.answers, bytes, bytes),
                "Evaluate": grpc.stream_unary_rpc_method_handler(self.answer, bytes, bytes),
            },
            "EncoderService": {"EncodeStream": grpc.stream_stream_rpc_method_handler(self.echo, bytes, bytes)},
        }[service]
        handler = grpc.method_handlers_generic_handler(f"aeenc.v1.{service}", handlers)
        return lambda _, server: server.add_generic_rpc_handlers((handler,))


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[GrpcServer, Streams]]:
    server, streams = GrpcServer(Settings(tokens_file=path, token="of-the-settings")), Streams()
    for service in ("TrainerService", "EncoderService"):
        server.add(streams.register(service), None, f"aeenc.v1.{service}")
    async with server:
        server.readiness.serving()
        yield server, streams


async def silence() -> AsyncIterator[bytes]:
    """Sends one message, and then nothing."""
    yield b"hello"
    await asyncio.Event().wait()


async def outcome(channel: Channel, name: str) -> str:
    """How a stream ends."""
    method = f"/aeenc.v1.TrainerService/{name}" if name in METHODS else STREAM
    make = getattr(channel.grpc, METHODS.get(name, "stream_stream"))
    try:
        if name == "Evaluate":
            await channel.send_stream(make(method), silence, retry=False)
        else:
            async for _ in channel.stream(make(method), silence() if name == "EncodeStream" else b""):
                pass
    except errors.AeencError as error:
        return f"{error.code}: {error.message}"
    return "OK"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "POLL_S", 0.05)


@pytest.mark.parametrize("name", [*METHODS, "EncodeStream"])
@pytest.mark.parametrize(
    ("change", "end"),
    [
        (None, "UNAUTHENTICATED: an unknown token was sent"),
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC)}, "UNAUTHENTICATED: the token of 'ann' expired at 2020"),
        ({"services": ["index"]}, "PERMISSION_DENIED: the test is not open to 'ann'"),
    ],
    ids=["removed", "expired", "moved"],
)
async def test_a_stream_ends_when_its_credential_does(
    tmp_path: Path, name: str, change: dict[str, Any] | None, end: str
) -> None:
    everybody = [credential("ann"), credential("bob")]
    path = write(tmp_path / "t", *everybody)
    async with serving(path) as (server, streams):
        channels = [
            Channel(f"127.0.0.1:{server.port}", token=token, retry=False) for token in ("ann", "bob", "of-the-settings")
        ]
        calls = [asyncio.ensure_future(outcome(channel, name)) for channel in channels]
        await until(lambda: streams.open == 3, 5)
        write(path, *([credential("ann", **change)] if change else []), credential("bob"), text="\n")
        assert (await asyncio.wait_for(calls[0], 10)).startswith(end)
        await until(lambda: streams.open == 2)
        assert not [call for call in calls[1:] if call.done()], "the streams of others go on"
        for call, channel in zip(calls, channels, strict=True):
            call.cancel()
            await channel.close()


async def test_a_stream_ends_at_the_hour_at_which_its_token_does(tmp_path: Path) -> None:
    path = write(tmp_path / "t", credential("ann", expires=datetime.now(UTC) + timedelta(seconds=1.5)))
    async with serving(path) as (server, streams):
        channel = Channel(f"127.0.0.1:{server.port}", token="ann", retry=False)
        call = asyncio.ensure_future(outcome(channel, "WatchJob"))
        await until(lambda: streams.open == 1)
        assert "the token of 'ann' expired" in await asyncio.wait_for(call, 10)
        await channel.close()


async def test_a_stream_whose_caller_reads_nothing_ends_with_its_credential_too(tmp_path: Path) -> None:
    path = write(tmp_path / "t", credential("ann"))
    async with serving(path) as (server, streams):
        streams.flood = True
        channel = Channel(f"127.0.0.1:{server.port}", token="ann", retry=False)
        call = channel.grpc.unary_stream("/aeenc.v1.TrainerService/WatchJob")(b"", metadata=channel.metadata())
        assert await call.read() == b"first"
        await until(lambda: streams.open == 1)
        write(path, credential("bob"))
        await until(lambda: streams.open == 0)
        await channel.close()
