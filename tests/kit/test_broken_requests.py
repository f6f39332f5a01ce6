"""Requests that break grpc's own machinery: paths that are not text, and messages sent on after a refusal."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aeenc import errors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from services.encoder.servicer import ordered
from services.kit.calls.grpcio_workarounds import RequestStream
from services.kit.concurrency import observe_failure
from services.kit.server import GrpcServer
from services.kit.settings import ServiceSettings

SERVE = """
import asyncio, sys
from services.kit import logs
from services.kit.server import GrpcServer
from services.kit.settings import ServiceSettings

async def main():
    logs.configure(log_format="console", log_level="info", service="test", instance="1")
    async with GrpcServer(ServiceSettings(port=0)) as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def call_frame(path: bytes, request_id: bytes = b"1") -> bytes:
    """The headers of a gRPC call, as a client of bytes would send them."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        b"x-request-id": request_id,
    }
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers.items())
    return frame(1, 4, 1, block)


async def test_a_request_that_ends_grpcs_own_loop_does_not_end_the_service() -> None:
    async with GrpcServer(ServiceSettings(port=0)) as server:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(OPENING + frame(4, 0, 0) + call_frame(b"/\xff"))
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.close()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)
                assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_header_that_is_not_utf8_is_logged_without_its_value() -> None:
    script = [sys.executable, "-c", SERVE]
    process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
        connection.sendall(OPENING + frame(4, 0, 0) + call_frame(b"/grpc.health.v1.Health/Check", b"secret\xff"))
        while lines[-1:] != [""] and "not UTF-8" not in "".join(lines):  # "": the process has ended
            lines.append(process.stderr.readline())
    _, rest = process.communicate("", 20)
    told = "".join(lines) + rest
    assert "a header that is not UTF-8" in told
    assert "secret" not in told
    assert "Traceback" not in told


class Refusing(encoder_pb2_grpc.EncoderServiceServicer):
    """Refuses the first message of a stream while it reads the next ones."""

    async def EncodeStream(self, request_iterator: Any, context: Any) -> Any:
        async def refuse(_: Any) -> encoder_pb2.EncodeStreamResponse:
            raise errors.InvalidArgument("texts: is empty; send one")

        async for answer in ordered(request_iterator, refuse, window=4):
            yield answer


def resident_mb() -> float:
    """The memory of this process now: its peak may be that of an earlier test."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory of a process in /proc")
async def test_what_is_sent_on_after_a_refusal_does_not_stay_in_memory() -> None:
    batch = encoder_pb2.EncodeRequest(texts=["x" * 100_000])
    message = encoder_pb2.EncodeStreamRequest(batch=batch).SerializeToString()
    server = GrpcServer(ServiceSettings(port=0))
    server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, Refusing(), "aeenc.v1.EncoderService")
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        server.readiness.serving()
        method = channel.stream_stream("/aeenc.v1.EncoderService/EncodeStream")

        async def call() -> None:
            with pytest.raises(grpc.aio.AioRpcError, match=r"is empty|Internal error from Core"):
                async for _ in method([message] * 5, timeout=10):
                    pass

        async def rounds(count: int) -> float:
            for _ in range(count):
                await asyncio.gather(*(call() for _ in range(20)))
            return resident_mb()

        before = await rounds(10)
        assert await rounds(20) - before < 25, "MB; 20 rounds took 45 when reads were cancelled"


async def test_a_message_that_a_reader_gave_up_on_goes_to_the_next_reader() -> None:
    sent: asyncio.Queue[str] = asyncio.Queue()

    async def source() -> Any:
        while (message := await sent.get()) != "end":
            yield message

    requests = RequestStream(source(), AsyncMock(), lambda _: None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(requests), 0.01)
    for message in ("one", "two", "end"):
        sent.put_nowait(message)
    assert [message async for message in requests] == ["one", "two"]
    assert [message async for message in requests] == []


class Collecting(trainer_pb2_grpc.TrainerServiceServicer):
    """Takes what a caller sends, up to the end; any call that takes a stream would do.

    It reads in a task of its own, which the call's cancellation does not reach: that may come before or after the end.
    """

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.reading: list[asyncio.Task[None]] = []

    async def Evaluate(self, request_iterator: Any, _context: Any) -> trainer_pb2.EvaluateResponse:
        self.reading.append(asyncio.create_task(self._read(request_iterator)))
        self.reading[-1].add_done_callback(observe_failure)  # most of them fail: their callers have gone
        await asyncio.shield(self.reading[-1])
        return trainer_pb2.EvaluateResponse()

    async def _read(self, requests: Any) -> None:
        self.taken.append(len([request async for request in requests]))


async def test_a_caller_who_goes_away_in_the_middle_has_not_sent_everything() -> None:
    servicer, server = Collecting(), GrpcServer(ServiceSettings(port=0))
    server.add(trainer_pb2_grpc.add_TrainerServiceServicer_to_server, servicer, "aeenc.v1.TrainerService")
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        server.readiness.serving()
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)

        async def leave() -> None:
            async def requests() -> Any:
                yield trainer_pb2.EvaluateRequest()
                await asyncio.sleep(60)

            call = stub.Evaluate(requests())
            await asyncio.sleep(0.01)
            call.cancel()

        for _ in range(10):
            await asyncio.gather(*(leave() for _ in range(10)))
        await stub.Evaluate(iter([trainer_pb2.EvaluateRequest()] * 3), timeout=10)
        await asyncio.wait(servicer.reading, timeout=10)
    assert servicer.taken == [3]
