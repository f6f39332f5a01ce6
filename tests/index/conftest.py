"""An index over a real socket, beside a hashed encoder that is as real a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aeenc import AsyncClient
from services.index.__main__ import build
from services.index.catalogue.catalogue import Catalogue
from services.index.settings import IndexSettings
from services.store.artifacts import ArtifactStore
from support.waiting import until
from support.worlds.index_world import RunningEncoder, facts


class RunningIndex:
    """An index and a client of it."""

    def __init__(self, server: Any, client: AsyncClient, store: ArtifactStore) -> None:
        self.server = server
        self.aeenc = client
        self.client = client.index
        self.store = store

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue inside the server."""
        return next(one._catalogue for _, one in self.server._servicers if hasattr(one, "_catalogue"))


Serve = Callable[..., Any]


@pytest.fixture
async def encoder() -> AsyncIterator[RunningEncoder]:
    running = RunningEncoder()
    await running.server.start()
    yield running
    await running.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of a module over each engine that it names."""
    if "over" in metafunc.fixturenames and (engines := getattr(metafunc.module, "OVER", ())):
        metafunc.parametrize("over", engines, indirect=True)


@pytest.fixture
def over(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of the engine that a test runs over: those that its module names in `OVER`."""
    if getattr(request, "param", "files") == "files":
        return {}
    return {**request.getfixturevalue("milvus").settings(), "milvus_timeout_s": 10.0, "milvus_refresh_s": 0.1}


@pytest.fixture
def serve(encoder: RunningEncoder, artifact_store: ArtifactStore, over: dict[str, Any]) -> Serve:
    """`async with serve(**settings) as index`: each starts a new process's worth of index over the same store."""

    @asynccontextmanager
    async def start(**changes: Any) -> AsyncIterator[RunningIndex]:
        given = {**over, **changes}
        retry = given.pop("retry", True)
        settings = IndexSettings(
            **{
                "port": 0,
                "artifacts_dir": artifact_store.root,
                "encoder_target": encoder.target,
                "encode_timeout_s": 10.0,
                "build_encode_timeout_s": 10.0,
                "build_batch": 8,
                **given,
            }
        )
        server = build(settings)
        async with server:
            await until(lambda: server.readiness.answers)
            async with AsyncClient(index=f"127.0.0.1:{server.port}", retry=retry) as client:
                yield RunningIndex(server, client, artifact_store)

    return start


@pytest.fixture
async def index(serve: Serve) -> AsyncIterator[RunningIndex]:
    async with serve() as running:
        yield running


@pytest.fixture
async def built(index: RunningIndex) -> RunningIndex:
    """An index whose corpus `science` serves."""
    await index.client.build("science", facts())
    return index
