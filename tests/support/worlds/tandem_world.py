"""An encoder, an index and a trainer over the tiny space, and tandems that no job had to train."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aeenc import EncoderClient, IndexClient, RegistryClient, TrainerClient
from aeenc.v1 import types_pb2
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from services.store.registry import Registry
from services.trainer.jobs.job import Job, JobConfig, JobProgress, JobStore
from services.trainer.jobs.tandem_building import TandemBuilder
from services.trainer.registry.checkpoints import Checkpoints
from services.trainer.registry.tandems import Tandem, Tandems
from support.models.tiny_checkpoints import write_tiny_checkpoint
from support.worlds.trainer_world import FACTS, Space, serve_fleet, untouched_space

PREMISES = [types_pb2.Premise(id=f"f{n}", text=text, splits=("facts", "train")) for n, text in enumerate(FACTS)]
CORPUS = "science"


@dataclass(frozen=True)
class TandemCheckpoints:
    """The two checkpoints of a tandem, and their space."""

    version: str
    premise_version: str
    space_id: str


def make_pair(space: Space, seed: int, metrics: dict[str, Any] | None = None) -> TandemCheckpoints:
    """Two encoders in a space of their own, as a job in mode DUAL leaves them; `metrics` are the query encoder's."""
    space_id = f"s{seed:016x}"
    premise = write_tiny_checkpoint(space.store, seed=100 + seed, space_id=space_id)
    query = write_tiny_checkpoint(space.store, seed=200 + seed, base_version=space.version, space_id=space_id)
    if metrics is None:
        return TandemCheckpoints(query.version, premise.version, space_id)
    with space.store.writer("checkpoint", "checkpoints") as writer:
        for name in query.artifact.files:
            shutil.copyfile(query.artifact.path / name, writer.path / name)
        (writer.path / "metrics.json").write_text(json.dumps(metrics))
        return TandemCheckpoints(writer.commit(query.artifact.meta, id_prefix="q").id, premise.version, space_id)


@pytest.fixture
def tandem_space(tmp_path: Path) -> Space:
    """A space without torch; its base model is never looked into, since it was exported already."""
    store = ArtifactStore(tmp_path / "artifacts")
    return untouched_space(write_tiny_checkpoint(store, seed=0), store, tmp_path / "base")


@pytest.fixture
def pairs(tandem_space: Space) -> list[TandemCheckpoints]:
    """Three pairs of encoders in the store."""
    return [make_pair(tandem_space, seed) for seed in (1, 2, 3)]


@dataclass
class TandemWorld:
    """The running services, and the way to each."""

    space: Space
    trainer: TrainerClient
    registry: RegistryClient
    encoder: EncoderClient
    index: IndexClient
    rows: Registry
    tandems: Tandems
    checkpoints: Checkpoints
    building: TandemBuilder
    base: str
    corpus: str

    def job(self, **fields: Any) -> Job:
        """A job over the corpus that has trained already."""
        config = JobConfig(corpus=self.corpus, run_ids=("r",), mode="DUAL", loss="TRIPLET_MARGIN")
        now = datetime.now(UTC)
        options = {"generation": self.base, "state": "RUNNING", "error": "", "progress": JobProgress(), "version": ""}
        return Job(uuid.uuid4().hex[:16], config, created_at=now, ended_at=None, **{**options, **fields})

    async def tandem(self, made: TandemCheckpoints, job: Job | None = None) -> Tandem:
        """Has the generation built, as the last step of a job does."""
        for version in dict.fromkeys((made.premise_version, made.version)):
            await self.checkpoints.register(version)
        return await self.building.build(job or self.job(), made.space_id, made.version, made.premise_version)

    async def active(self) -> str:
        """The generation that serves."""
        return (await anext(one async for one in self.index.list_corpora() if one.corpus == self.corpus)).active.id

    async def spaces(self) -> set[str]:
        """The spaces that the encoder has loaded."""
        return {version.space_id for version in (await self.encoder.info()).versions}

    async def served(self) -> tuple[str, str]:
        """Version and generation that answer now."""
        found = await self.index.retrieve(self.corpus, ["the sun"], k=3)
        return found.model_version, found.generation


@pytest.fixture
async def world(tandem_space: Space, redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[TandemWorld]:
    """All three services over one store, with a corpus of their own that the pre-trained encoder serves."""
    redis = connect(redis_url)
    rows, tandems = Registry(redis, namespace), Tandems(redis, namespace)
    corpus = f"c-{uuid.uuid4().hex[:8]}"
    options = {
        "encoder": {"poll_s": 0.2, "instance": "encoder-1"},
        "index": {"instance": "index-1", "replica_wait_s": 0.2, "replica_lease_s": 60.0},
    }
    async with aclosing(redis), serve_fleet(tandem_space, redis_url, namespace, tmp_path, **options) as fleet:
        client = fleet.client
        base = (await client.index.build(corpus, PREMISES)).id
        building = TandemBuilder(
            rows, client.index, tandems, JobStore(redis, namespace), tandem_space.store, patience_s=20.0
        )
        yield TandemWorld(
            tandem_space,
            client.trainer,
            client.registry,
            client.encoder,
            client.index,
            rows,
            tandems,
            Checkpoints(tandem_space.store, rows),
            building,
            base,
            corpus,
        )
