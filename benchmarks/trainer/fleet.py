"""One trainer as operators run it, and the needs of its jobs: a base model, a corpus in its space, a private Redis."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from aeenc import PATIENT, Channel, TrainerClient
from aeenc.cli.corpus import corpus_name
from aeenc.trees import Dataset
from benchmarks.harness.checkpoints import FOLDER
from benchmarks.harness.rows import ROOT
from services.corpus.active import read_active, write_active
from services.corpus.generation import (
    KIND,
    VECTORS,
    PremiseRecord,
    folder_of,
    generation_meta,
    write_premises,
)
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model
from support.service_process import RedisProcess, ServiceProcess

STORE = ROOT / ".aeenc" / "bench" / "trainer" / "artifacts"


def build_corpus(store: ArtifactStore, base: Artifact, dataset: Dataset) -> tuple[str, str]:
    """The candidates of a data set as a corpus named after them; made once. Returns its name and generation."""
    corpus = corpus_name(dataset)
    if (known := read_active(store, corpus)) is not None:
        return corpus, known
    from services.trainer.learning.query_encoder import TextBatches, encode, load_encoder
    from services.trainer.models.space import SpaceSpec

    spec = SpaceSpec.of_meta(base.meta)
    batches = TextBatches(base.path, spec, base.meta["pad_id"])
    records = [PremiseRecord(c.id, c.text, c.aliases, c.splits) for c in dataset.candidates()]
    vectors = encode(load_encoder(base.path, spec), batches, [record.text for record in records], spec.premise_prefix)
    with store.writer(KIND, folder_of(corpus)) as writer:
        write_premises(writer.path, records)
        np.save(writer.path / VECTORS, vectors, allow_pickle=False)
        meta = generation_meta(
            corpus=corpus,
            space_id=base.meta["space_id"],
            premise_version=base.id,
            dim=spec.dim,
            premises=len(records),
        )
        generation = writer.commit(meta, id_prefix="g").id
    write_active(store, corpus, generation)
    return corpus, generation


@dataclass(frozen=True)
class TrainerFleet:
    """A trainer's process, which can be killed and started again, beside a Redis that stays."""

    process: ServiceProcess

    def client(self, timeout_s: float = 30.0) -> TrainerClient:
        """A client that waits for a trainer that restarts."""
        return TrainerClient(Channel(self.process.target, timeout_s=timeout_s, retry=PATIENT))

    def kill_job(self) -> bool:
        """Kills the process of the running job by SIGKILL. False: no job has a process now."""
        for child in psutil.Process(self.process.pid).children():
            try:
                if "job" in child.cmdline():
                    child.kill()
                    return True
            except psutil.NoSuchProcess:
                continue
        return False


@asynccontextmanager
async def running_trainer(store: ArtifactStore, base: Artifact, **settings: Any) -> AsyncIterator[TrainerFleet]:
    """Starts a trainer that finds the base model exported already; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        (home / "state").mkdir()
        source = {
            "artifacts_dir": str(store.root.resolve()),
            "directory": str(find_base_model(DEFAULT_NAME)),
            "base_model": DEFAULT_NAME,
            "max_tokens": base.meta["max_tokens"],
            "query_prefix": "",
            "premise_prefix": "",
            "pooling": "",
        }
        (home / "state" / "pretrained.json").write_text(json.dumps(source))
        (home / "state" / "pretrained.result").write_text(json.dumps({"version": base.id}))
        redis = RedisProcess(home / "redis")
        own = {"redis_url": redis.url, "artifacts_dir": store.root, "state_dir": home / "state"}
        pace = {"lease_s": 2.0, "poll_s": 0.1}
        try:
            async with ServiceProcess.of("trainer", home, **{**own, **pace, **settings}).running() as process:
                yield TrainerFleet(process)
        finally:
            redis.stop()


def weights_digest(store: ArtifactStore, version: str) -> str:
    """The SHA-256 of a checkpoint's weights, as its manifest has it."""
    return store.open(FOLDER, version, verify="size").files["model.safetensors"].sha256
