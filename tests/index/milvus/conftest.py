"""Indexes on a Milvus of their own, over the encoder of the other tests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aeenc import AsyncClient
from services.index.__main__ import build
from services.index.settings import IndexSettings
from services.kit.readiness import Readiness
from services.store.artifacts import ArtifactStore
from support.waiting import until


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """Where builds are under way, and where the files of generations stay."""
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def start(encoder, milvus, prefix, store):
    """`async with start(**settings) as index`: an index process's worth on Milvus; several share one prefix."""

    @asynccontextmanager
    async def one(**changes: Any) -> AsyncIterator[Any]:
        settings = IndexSettings(
            **{
                "port": 0,
                "backend": "milvus",
                "milvus_uri": milvus.uri,
                "milvus_prefix": prefix,
                "milvus_timeout_s": 10.0,
                "milvus_refresh_s": 0.1,
                "artifacts_dir": store.root,
                "encoder_target": encoder.target,
                "encode_timeout_s": 10.0,
                "build_encode_timeout_s": 10.0,
                "build_batch": 8,
                **changes,
            }
        )
        server = build(settings)
        async with server:
            await until(lambda: server.readiness.answers, timeout_s=20)
            async with AsyncClient(index=f"127.0.0.1:{server.port}", retry=False) as client:
                yield Running(server.readiness, client)

    return one


class Running:
    def __init__(self, readiness: Readiness, client: AsyncClient) -> None:
        self.readiness = readiness
        self.client = client.index


@pytest.fixture
def raw(milvus) -> Iterator[Any]:
    """The Milvus as somebody else's client sees it."""
    from pymilvus import MilvusClient

    client = MilvusClient(milvus.uri, dedicated=True)
    yield client
    client.close()


@pytest.fixture
def named(raw: Any, prefix: str) -> Callable[[str], list[str]]:
    """`named("g")`: the collections of this test whose kind the letter stands for, in the order of their names.

    milvus-lite reads a name and then its state, and fails if the collection is dropped in between; it is asked again.
    """

    from pymilvus.exceptions import MilvusException

    def of(kind: str) -> list[str]:
        for _ in range(20):
            with suppress(MilvusException):
                return [name for name in raw.list_collections() if name.startswith(f"{prefix}_{kind}_")]
        raise AssertionError("Milvus does not list its collections")

    return of


@pytest.fixture
def collections(named: Callable[[str], list[str]]) -> Callable[[], list[str]]:
    """The collections of generations, finished or not."""
    return lambda: named("g")
