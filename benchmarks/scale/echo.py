"""An echo of Search: a server that parses the same requests and answers a prepared message, and does nothing else.

    python -m benchmarks.scale.echo bare|kit PORT ANSWER

It registers the contract's servicer by the generated code, so that it parses each request and serialises each answer,
as any server does. `bare` is grpc.aio's own server with no interceptor; `kit` is the one that our services share, with
admission, metrics, logs and traces. Both run on uvloop and tune the interpreter as a service does. ANSWER is a file
with the answer in bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpc
import uvloop

from aeenc.v1 import index_pb2, index_pb2_grpc
from services.index.settings import IndexSettings
from services.kit import server


class Echo(index_pb2_grpc.IndexServiceServicer):
    """Answers Search with the same message each time."""

    def __init__(self, answer: index_pb2.SearchResponse) -> None:
        self._answer = answer

    async def Search(self, _request: index_pb2.SearchRequest, _context: Any) -> index_pb2.SearchResponse:
        return self._answer


async def serve_bare(echo: Echo, port: int) -> None:
    """Serves until the process is ended."""
    bare = grpc.aio.server()
    index_pb2_grpc.add_IndexServiceServicer_to_server(echo, bare)
    bare.add_insecure_port(f"127.0.0.1:{port}")
    await bare.start()
    await server.tune_interpreter()
    await bare.wait_for_termination()


def serve_by_kit(echo: Echo, port: int) -> None:
    """Serves as `python -m services.index` does, until the process is ended."""

    def build() -> server.GrpcServer:
        kit = server.GrpcServer(IndexSettings(port=port, log_level="warning"))
        kit.add(index_pb2_grpc.add_IndexServiceServicer_to_server, echo, "aeenc.v1.IndexService")

        async def load() -> None:
            kit.readiness.serving()

        kit.on_start(load)
        return kit

    server.run(build)


def main(kind: str, port: str, answer: str) -> None:
    """Serves an echo."""
    echo = Echo(index_pb2.SearchResponse.FromString(Path(answer).read_bytes()))
    if kind == "bare":
        uvloop.run(serve_bare(echo, int(port)))
    else:
        serve_by_kit(echo, int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
