"""A sampler as operators run it: its own process, a private Redis, an oracle in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc import Channel, EncoderClient, IndexClient, SamplerClient
from aeenc.trees import Dataset
from aeenc.v1 import types_pb2
from benchmarks.encoder.encoder_fleet import Fleet, running_encoder
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.entailmentbank import DATA
from benchmarks.harness.processes import Child, listens
from benchmarks.harness.rows import ROOT
from benchmarks.index.index_fleet import IndexProcess, running_index
from services.launcher.private_redis import start_private_redis
from services.launcher.processes import free_port
from services.store.artifacts import ArtifactStore

CORPUS = "entailmentbank"
KEPT = ROOT / ".aeenc" / "bench" / "sampler"  # generations, by encoder and number of premises


@dataclass
class Retrieving:
    """An encoder and an index over the data's candidates."""

    encoder: Fleet
    index: IndexProcess
    generation: str


@asynccontextmanager
async def running_retrieval(dataset: Dataset) -> AsyncIterator[Retrieving]:
    """Starts the encoder and the index, and builds the corpus unless an earlier benchmark has."""
    store = ArtifactStore(STORE)
    base = base_checkpoint(store)
    premises = [types_pb2.Premise(id=one.id, text=one.text, splits=one.splits) for one in dataset.candidates()]
    async with (
        running_encoder(store, base) as encoder,
        running_index(KEPT / base.id / str(len(premises)), encoder_target=encoder.target) as index,
    ):
        client = index.client()
        corpora = (await client.info()).corpora
        generation = corpora[0].active if corpora else await client.build(CORPUS, premises)
        await client.channel.close()
        yield Retrieving(encoder, index, generation.id)


@asynccontextmanager
async def running_oracle(home: Path, split: str = "train", *options: str) -> AsyncIterator[str]:
    """`aeenc oracle gold` over the data; gives its address."""
    address = f"127.0.0.1:{free_port(set())}"
    command = ["-m", "aeenc.cli.main", "oracle", "gold", "--trees", str(DATA), "--split", split, "--address", address]
    oracle = Child("oracle", [*command, *options], {}, home)
    oracle.start()
    try:
        await listens(address)
        yield address
    finally:
        await oracle.stop()


def sampler_process(
    name: str, home: Path, *, redis_url: str, index_target: str, oracles: dict[str, dict[str, Any]], **settings: object
) -> Child:
    """A sampler, not yet started; `oracles` as in AEENC_SAMPLER_ORACLES."""
    port = free_port(set())
    chosen = {
        "port": port,
        "redis_url": redis_url,
        "namespace": "bench",
        "index_target": index_target,
        "oracles": json.dumps(oracles),
        "log_level": "warning",
        **settings,
    }
    environment = {f"AEENC_SAMPLER_{key.upper()}": value for key, value in chosen.items()}
    child = Child(name, ["-m", "services.sampler"], environment, home)
    child.target = f"127.0.0.1:{port}"
    return child


@dataclass
class Sampling:
    """A running sampler, and a client of it."""

    process: Child
    client: SamplerClient


@asynccontextmanager
async def running_sampler(retrieval: Retrieving, oracle: dict[str, Any], **settings: object) -> AsyncIterator[Sampling]:
    """Starts a sampler over a Redis of its own, with the oracle `gold`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        redis = start_private_redis(home / "redis")
        process = sampler_process(
            "sampler",
            home,
            redis_url=redis.url,
            index_target=retrieval.index.target,
            oracles={"gold": oracle},
            **settings,
        )
        process.start()
        try:
            await process.ready()
            client = SamplerClient(Channel(process.target, timeout_s=120))
            yield Sampling(process, client)
            await client.channel.close()
        finally:
            await process.stop()
            redis.stop()


def encoder_client(retrieval: Retrieving) -> EncoderClient:
    """A client of the encoder."""
    return retrieval.encoder.client(retry=True, timeout_s=120)


def index_client(retrieval: Retrieving) -> IndexClient:
    """A client of the index."""
    return retrieval.index.client()
