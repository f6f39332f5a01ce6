"""A gateway in the test's own process, over real sockets: before the running fleet, or before a double of one."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import uvicorn
from aeenc_gateway import make_app

from aeenc import errors
from aeenc.adapters.http import listen
from aeenc.transport import status
from aeenc.transport.targets import Targets
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, index_pb2, index_pb2_grpc, types_pb2

Serve = Callable[..., AbstractAsyncContextManager[str]]


@asynccontextmanager
async def serving(targets: Targets, **options: Any) -> AsyncIterator[str]:
    """Serves on a free port; yields the URL."""
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(make_app(targets, **options), log_level="critical", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def certify(folder: Path, name: str) -> tuple[Path, Path]:
    """Makes a self-signed certificate for localhost; returns it and its key. Skips the test without openssl."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -addext"
    words = [*command.split(), "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A gateway before the running fleet."""
    async with serving(Targets.find()) as served:
        yield served


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url) as client:
        yield client


class Double(encoder_pb2_grpc.EncoderServiceServicer, index_pb2_grpc.IndexServiceServicer):
    """Encoder and index that answer as told, and remember the metadata of each call."""

    def __init__(self) -> None:
        self.error: errors.AeencError | None = None
        self.after = 0  # calls that go well, before `error` and `hold` count
        self.has_labels = True
        self.scores: dict[str, list[float]] = {}  # of the cross-encoders that label stable names
        self.unknown_splits: list[str] = []
        self.metadata: list[dict[str, Any]] = []
        self.requests: list[Any] = []
        self.asked = asyncio.Semaphore(0)  # released by each call
        self.hold: asyncio.Event | None = None
        self.cancelled = asyncio.Event()

    async def Encode(self, request: Any, context: Any) -> encoder_pb2.EncodeResponse:
        no_label = errors.VersionNotLoaded(f"label {request.model.label!r} names nothing here")
        await self._answer(request, context, no_label if request.model.label and not self.has_labels else self.error)
        vectors = types_pb2.Embeddings(
            data=bytes(8 * len(request.texts)), dtype=types_pb2.D_TYPE_FLOAT32, rows=len(request.texts), dim=2
        )
        return encoder_pb2.EncodeResponse(embeddings=vectors, model_version="q1", tokens=3 * len(request.texts))

    async def Score(self, request: Any, context: Any) -> encoder_pb2.ScoreResponse:
        await self._answer(request, context, self.error)
        version = request.model.version or next(iter(self.scores))
        ensemble = list(self.scores) if request.first_of_ensemble and len(self.scores) > 1 else []
        return encoder_pb2.ScoreResponse(scores=self.scores[version], model_version=version, ensemble=ensemble)

    async def GetInfo(self, request: Any, context: Any) -> encoder_pb2.EncoderServiceGetInfoResponse:
        await self._answer(request, context, self.error)
        versions = [
            encoder_pb2.LoadedVersion(version=version, space_id=space_id)
            for version, space_id in (("q1", "s1"), ("q2", "s2"), ("x1", "cross"))
        ]
        labels = [
            types_pb2.Label(space_id=space_id, name=name, versions=[version])
            for space_id, name, version in (("s1", "stable", "q1"), ("s2", "other", "q2"))
        ]
        return encoder_pb2.EncoderServiceGetInfoResponse(default_space_id="s1", versions=versions, labels=labels)

    async def Retrieve(self, request: Any, context: Any) -> index_pb2.RetrieveResponse:
        await self._answer(request, context, self.error)
        results = [index_pb2.RetrievedPremises() for _ in request.texts]
        return index_pb2.RetrieveResponse(
            results=results, model_version="q1", generation="g1", unknown_splits=self.unknown_splits
        )

    async def _answer(self, request: Any, context: Any, error: errors.AeencError | None) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        self.requests.append(request)
        self.asked.release()
        if len(self.requests) <= self.after:
            return
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if error is not None:
            context.set_trailing_metadata(((status.DETAILS_KEY, status.details_of(error)),))
            await context.abort(status.code_of(error), error.message)

    @asynccontextmanager
    async def listening(
        self, port: int = 0, credentials: grpc.ServerCredentials | None = None
    ) -> AsyncIterator[Targets]:
        server = grpc.aio.server()
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(self, server)
        index_pb2_grpc.add_IndexServiceServicer_to_server(self, server)
        if credentials:
            target = f"localhost:{server.add_secure_port('localhost:0', credentials)}"
        else:
            target = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        await server.start()
        try:
            yield Targets(encoder=target, index=target)
        finally:
            await server.stop(None)


@pytest.fixture
def double() -> Double:
    return Double()


@pytest.fixture
async def before(double: Double) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of a gateway before the double."""
    async with (
        double.listening() as targets,
        serving(targets) as served,
        httpx.AsyncClient(base_url=served) as client,
    ):
        yield client
