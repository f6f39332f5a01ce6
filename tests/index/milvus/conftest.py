"""Indexes whose generations a Milvus searches, and the Milvus as somebody else's client sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def over(milvus: Any, prefix: str) -> dict[str, Any]:
    """The settings of `serve`."""
    return {**milvus.settings(prefix), "milvus_timeout_s": 10.0, "milvus_refresh_s": 0.1, "retry": False}


@pytest.fixture
def raw(milvus: Any) -> Iterator[Any]:
    """A client of the Milvus."""
    from pymilvus import MilvusClient

    client = MilvusClient(milvus.uri, dedicated=True)
    yield client
    client.close()


@pytest.fixture
def collections(raw: Any, prefix: str) -> Callable[[], set[str]]:
    """The collections of this test.

    milvus-lite reads a name and then its state, and fails if the collection is dropped in between; it is asked again.
    """
    from pymilvus.exceptions import MilvusException

    def of_prefix() -> set[str]:
        for _ in range(20):
            with suppress(MilvusException):
                return {name for name in raw.list_collections() if name.startswith(f"{prefix}_")}
        raise AssertionError("Milvus does not list its collections")

    return of_prefix
