"""Single services as operators run them: each a process, with a private Redis or files on disk, over loopback."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc import Channel, EncoderClient, IndexClient, Retry, SamplerClient, values
from aeenc.trees import Dataset
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.entailmentbank import DATA
from benchmarks.harness.rows import ROOT
from services.launcher.processes import free_port
from services.store.artifacts import Artifact, ArtifactStore
from services.store.redis import connect
from services.store.registry import LabelRow, Registry, RolloutRow
from support.models.tiny_checkpoints import register
from support.service_process import RedisProcess, ServiceProcess

CORPUS = "entailmentbank"
KEPT = ROOT / ".aeenc" / "bench" / "sampler"  # generations, by encoder and number of premises


@dataclass
class EncoderFleet:
    """A running encoder and the registry that it follows."""

    process: ServiceProcess
    registry: Registry

    def client(self, *, retry: Retry | bool = False, timeout_s: float = 30.0) -> EncoderClient:
        """A client on a connection of its own; without retries, so that every refusal is seen."""
        return EncoderClient(Channel(self.process.target, retry=retry, timeout_s=timeout_s))

    async def point(
        self, artifact: Artifact, label: str = "stable", *, space_id: str = "", timeout_s: float = 20.0
    ) -> tuple[LabelRow, RolloutRow]:
        """Points a label at a checkpoint, in its own space unless another is named; waits for the encoder's answer."""
        await register(self.registry, artifact)
        row = await self.registry.set_label(space_id or artifact.meta["space_id"], label, artifact.id)
        rollouts = await self.registry.await_rollout(row, timeout_s)
        return row, rollouts[0]


@asynccontextmanager
async def running_encoder(
    store: ArtifactStore, base: Artifact, stable: Artifact | None = None, *, precision: str = "", **settings: object
) -> AsyncIterator[EncoderFleet]:
    """Starts the encoder with `stable` on `stable` or `base`, in a `precision`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        redis_process = RedisProcess(home / "redis")
        redis = connect(redis_process.url)
        registry = Registry(redis, "bench")
        for artifact in filter(None, (base, stable)):
            await register(registry, artifact)
        await registry.set_label(base.meta["space_id"], "stable", (stable or base).id, precision=precision)
        own = {"namespace": "bench", "artifacts_dir": store.root, "state_dir": home / "state"}
        process = ServiceProcess.of("encoder", home, redis_url=redis_process.url, **{**own, **settings})
        try:
            async with process.running():
                yield EncoderFleet(process, registry)
        finally:
            await redis.aclose()
            redis_process.stop()


@dataclass(frozen=True)
class IndexFleet:
    """An index's process and the directory of its corpora."""

    process: ServiceProcess
    metrics_port: int
    artifacts_dir: Path

    def client(self, *, retry: bool = True, timeout_s: float = 60.0) -> IndexClient:
        """A client on a connection of its own."""
        return IndexClient(Channel(self.process.target, retry=retry, timeout_s=timeout_s))


def index_fleet(home: Path, **settings: object) -> IndexFleet:
    """Describes an index whose log lies in `home`, not yet started; `artifacts_dir` is `home`/artifacts unless set."""
    chosen = {"metrics_port": free_port(set()), "artifacts_dir": home / "artifacts", **settings}
    process = ServiceProcess.of("index", home, **chosen)
    return IndexFleet(process, int(str(chosen["metrics_port"])), Path(str(chosen["artifacts_dir"])))


@asynccontextmanager
async def running_index(artifacts_dir: Path | None = None, **settings: object) -> AsyncIterator[IndexFleet]:
    """Starts an index over a directory of its own, or over `artifacts_dir`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        index = index_fleet(home, **{"artifacts_dir": artifacts_dir or home / "artifacts", **settings})
        async with index.process.running():
            yield index


@dataclass
class RetrievalFleet:
    """An encoder and an index over the data's candidates."""

    encoder: EncoderFleet
    index: IndexFleet
    generation: str


@asynccontextmanager
async def running_retrieval(dataset: Dataset) -> AsyncIterator[RetrievalFleet]:
    """Starts the encoder and the index, and builds the corpus unless an earlier benchmark has."""
    store = ArtifactStore(STORE)
    base = base_checkpoint(store)
    premises = premises_of(dataset)
    async with (
        running_encoder(store, base) as encoder,
        running_index(KEPT / base.id / str(len(premises)), encoder_target=encoder.process.target) as index,
    ):
        client = index.client()
        corpora = [one async for one in client.list_corpora()]
        generation = corpora[0].active if corpora else await client.build(CORPUS, premises)
        await client.channel.close()
        yield RetrievalFleet(encoder, index, generation.id)


def premises_of(dataset: Dataset) -> list[values.Premise]:
    """The candidates of a data set as premises."""
    return [
        values.Premise(id=one.id, text=one.text, aliases=one.aliases, splits=one.splits) for one in dataset.candidates()
    ]


@asynccontextmanager
async def running_oracle(home: Path, split: str = "train") -> AsyncIterator[str]:
    """`aeenc oracle gold` over the data; gives its address."""
    port = free_port(set())
    command = ["-m", "aeenc.cli.main", "oracle", "gold", "--trees", str(DATA), "--split", split]
    command += ["--address", f"127.0.0.1:{port}"]
    async with ServiceProcess("oracle", command, home, port=port, has_health=False).running() as oracle:
        yield oracle.target


@dataclass
class SamplerFleet:
    """A running sampler, and a client of it."""

    process: ServiceProcess
    client: SamplerClient


@asynccontextmanager
async def running_sampler(index_target: str, oracle: dict[str, Any], **settings: object) -> AsyncIterator[SamplerFleet]:
    """Starts a sampler over a Redis of its own, with the oracle `gold`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        redis = RedisProcess(home / "redis")
        own = {"redis_url": redis.url, "namespace": "bench", "index_target": index_target, "oracles": {"gold": oracle}}
        try:
            async with ServiceProcess.of("sampler", home, **{**own, **settings}).running() as process:
                client = SamplerClient(Channel(process.target, timeout_s=120))
                yield SamplerFleet(process, client)
                await client.channel.close()
        finally:
            redis.stop()
