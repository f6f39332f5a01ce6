"""Requests that break grpc's own machinery, sent as bytes."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.kit.server import GrpcServer
from services.kit.settings import ServiceSettings


def _request_with_path(path: bytes) -> bytes:
    """The beginning of an HTTP/2 connection with one gRPC request for `path`, as a client of bytes would send it."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def text(value: bytes) -> bytes:
        return bytes([len(value)]) + value

    post, http = b"\x83", b"\x86"
    headers = post + http + b"\x04" + text(path) + b"\x01" + text(b"localhost")
    headers += b"\x0f\x10" + text(b"application/grpc") + b"\x00" + text(b"te") + text(b"trailers")
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers)


async def test_a_request_that_ends_grpcs_own_loop_does_not_end_the_service() -> None:
    async with GrpcServer(ServiceSettings(port=0)) as server:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(_request_with_path(b"/\xff"))
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.close()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)
                assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
