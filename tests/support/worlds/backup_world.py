"""A deployment to back up and one to restore into: each a Redis and a store of artifacts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.corpus.active import write_active
from services.corpus.generation import KIND, folder_of
from services.launcher.backups import making
from services.launcher.backups.archive import Backup
from services.launcher.backups.keys import pattern
from services.launcher.backups.making import make_backup
from services.launcher.backups.restoring import check
from services.launcher.private_redis import start_private_redis
from services.store.artifacts import Artifact, ArtifactStore
from services.store.redis import connect
from services.store.registry import Registry
from services.store.registry_rows import CheckpointRow

CORPUS = "science"


@dataclass
class Deployment:
    """A Redis and a store of artifacts; keys of one namespace."""

    redis: Redis
    store: ArtifactStore
    namespace: str

    @property
    def registry(self) -> Registry:
        return Registry(self.redis, self.namespace)

    def artifact(self, folder: str, content: str) -> Artifact:
        with self.store.writer(KIND, folder) as writer:
            (writer.path / "vectors.npy").write_text(content)
            return writer.commit({"content": content[:100]})

    async def register(self, content: str) -> Artifact:
        made = self.artifact("checkpoints", content)
        digest, created = made.manifest_sha256, made.created_at
        await self.registry.checkpoints.add(CheckpointRow(made.id, "s", False, "", "", 0.0, digest, created, 1, 32))
        return made

    def activate(self, content: str) -> str:
        made = self.artifact(folder_of(CORPUS), content)
        write_active(self.store, CORPUS, made.id)
        return made.id

    async def keys(self) -> dict[str, bytes]:
        found = [key async for key in self.redis.scan_iter(pattern(self.namespace))]
        return {key: await self.redis.type(key) for key in sorted(found)}

    async def back_up(self, target: Path) -> making.Made:
        return await make_backup(self.redis, self.store, target, self.namespace, lambda _: None)


@pytest.fixture(scope="module")
def other_redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Redis of another machine."""
    server = start_private_redis(tmp_path_factory.mktemp("redis"))
    yield server.url
    server.stop()


@pytest.fixture
async def here(redis_admin_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    redis = connect(redis_admin_url)
    yield Deployment(redis, ArtifactStore(tmp_path / "here"), namespace)
    await redis.aclose()


@pytest.fixture
async def there(other_redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    redis = connect(other_redis_url)
    yield Deployment(redis, ArtifactStore(tmp_path / "there"), namespace)
    await redis.aclose()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def opened(source: Path) -> Backup:
    backup = Backup(source)
    check(backup)
    return backup
