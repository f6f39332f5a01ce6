"""Fixtures of the whole suite: a private Redis, a Milvus, an empty registry and store, a tiny checkpoint."""

from __future__ import annotations

import gc
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import redis
import structlog
import typer.testing

from services.launcher.private_redis import start_private_redis
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from services.store.registry import Registry
from support.models.tiny_checkpoints import TinyCheckpoint, write_tiny_checkpoint
from support.servers.milvus_server import MilvusServer, need_milvus

OPERATIONS = Path(__file__).resolve().parents[1] / "docs" / "operations.md"


def pytest_configure() -> None:
    """Lets Ctrl-C end the processes that tests start; a shell ignores it for what it starts in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _log_plain_tracebacks()
    gc.disable()  # all that collection makes lives to the end
    hypothesis.settings.register_profile("suite", deadline=None)  # a busy machine takes longer over an example
    hypothesis.settings.load_profile("suite")
    # Else each command that a test runs is all commands made anew, which takes most of its time.
    typer.testing._get_command = cache(typer.testing._get_command)


def _log_plain_tracebacks() -> None:
    """Has structlog render what it does by default, but exceptions without their variables.

    With them each logged exception blocks the event loop for some hundred milliseconds. It writes past `sys.stdout`,
    which holds what a command prints that a test runs in this process.
    """
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer], logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the files that have most slow tests, so that none is left alone in the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish() -> None:
    """Keeps the garbage collector away from modules and tests: each look through them takes half a second."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def redis_admin_url() -> Iterator[str]:
    """A real redis-server on a private socket, by the user who may do everything."""
    with tempfile.TemporaryDirectory(prefix="aeenc-test-") as directory:
        server = start_private_redis(Path(directory))
        yield server.url
        server.stop()


@pytest.fixture(scope="session")
def redis_url(redis_admin_url: str) -> str:
    """The same by a user with the rights that docs/operations.md names, no others; tests keep apart by namespace."""
    [rights] = re.findall(r"^ +ACL SETUSER (aeenc .*>SECRET .*)$", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    with redis.Redis.from_url(redis_admin_url) as client:
        client.execute_command("ACL", "SETUSER", *rights.split())
    return redis_admin_url.replace("unix://", "unix://aeenc:SECRET@")


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    """One milvus-lite as a server; tests keep apart by prefix."""
    need_milvus()
    server = MilvusServer(tmp_path_factory.mktemp("milvus") / "data")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A Redis namespace of this test alone."""
    return f"{request.node.name[:40]}-{tmp_path.name}-{id(request)}".replace(":", "-")


@pytest.fixture
async def registry(redis_url: str, namespace: str) -> AsyncIterator[Registry]:
    """An empty registry."""
    client = connect(redis_url)
    yield Registry(client, namespace)
    await client.aclose()


@pytest.fixture
def artifact_store(tmp_path: Path) -> ArtifactStore:
    """An empty store."""
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def tiny_checkpoint(artifact_store: ArtifactStore) -> TinyCheckpoint:
    """The tiny space's pretrained checkpoint, committed to the store and not yet registered."""
    return write_tiny_checkpoint(artifact_store, seed=0)
