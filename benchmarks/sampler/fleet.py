"""A sampler as operators run it: its own process, a private Redis, an oracle in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc import Channel, SamplerClient
from aeenc.trees import Dataset
from aeenc.v1 import types_pb2
from benchmarks.encoder.fleet import EncoderFleet, running_encoder
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.entailmentbank import DATA
from benchmarks.harness.rows import ROOT
from benchmarks.index.fleet import IndexFleet, running_index
from services.launcher.processes import free_port
from services.store.artifacts import ArtifactStore
from support.service_process import RedisProcess, ServiceProcess

CORPUS = "entailmentbank"
KEPT = ROOT / ".aeenc" / "bench" / "sampler"  # generations, by encoder and number of premises


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
    premises = [types_pb2.Premise(id=one.id, text=one.text, splits=one.splits) for one in dataset.candidates()]
    async with (
        running_encoder(store, base) as encoder,
        running_index(KEPT / base.id / str(len(premises)), encoder_target=encoder.process.target) as index,
    ):
        client = index.client()
        corpora = [one async for one in client.list_corpora()]
        generation = corpora[0].active if corpora else await client.build(CORPUS, premises)
        await client.channel.close()
        yield RetrievalFleet(encoder, index, generation.id)


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
async def running_sampler(
    retrieval: RetrievalFleet, oracle: dict[str, Any], **settings: object
) -> AsyncIterator[SamplerFleet]:
    """Starts a sampler over a Redis of its own, with the oracle `gold`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        redis = RedisProcess(home / "redis")
        index_target = retrieval.index.process.target
        own = {"redis_url": redis.url, "namespace": "bench", "index_target": index_target, "oracles": {"gold": oracle}}
        try:
            async with ServiceProcess.of("sampler", home, **{**own, **settings}).running() as process:
                client = SamplerClient(Channel(process.target, timeout_s=120))
                yield SamplerFleet(process, client)
                await client.channel.close()
        finally:
            redis.stop()
