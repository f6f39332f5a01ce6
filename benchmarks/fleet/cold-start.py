"""How long a new host takes: an encoder and an index with empty directories, from their start to the first answer.

Their artifacts lie in a bucket, a directory by default (`--url s3://…` for another): MiniLM, and EntailmentBank's facts
with their vectors. Both processes start alone, one after the other. `make bench NAME=cold-start`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aeenc import Channel, EncoderClient, IndexClient
from aeenc.values import Premise
from benchmarks.harness.checkpoints import STORE, base_checkpoint, register
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows
from services.store.artifacts import ArtifactStore
from services.store.objects import open_store
from services.store.redis import connect
from services.store.registry import Registry
from support.service_process import RedisProcess, ServiceProcess

CORPUS, QUERY = "facts", "an animal requires warmth for survival"
BAR_S = 10.0


async def first_answer(process: ServiceProcess, service: str) -> float:
    """Starts a process and returns the seconds until it has answered a call."""
    begun = time.monotonic()
    async with process.running(), connected(process) as channel:
        if service == "encoder":
            await EncoderClient(channel).encode([QUERY])
        else:
            assert len((await IndexClient(channel).retrieve(CORPUS, [QUERY], k=10)).results[0]) == 10
        return time.monotonic() - begun


@asynccontextmanager
async def connected(process: ServiceProcess, timeout_s: float = 30.0) -> AsyncIterator[Channel]:
    """Connects to a process for a block."""
    channel = Channel(process.target, timeout_s=timeout_s)
    try:
        yield channel
    finally:
        await channel.close()


async def main(rounds: int, url: str) -> None:
    """Fills the bucket, then starts both with empty directories, again and again."""
    rows = Rows("cold-start")
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        url = url or f"file://{home / 'bucket'}"
        base = base_checkpoint(ArtifactStore(STORE))
        open_store(STORE, url).push("checkpoints", base.id)
        redis_process = RedisProcess(home / "redis")
        redis = connect(redis_process.url)
        registry = Registry(redis, "bench")
        await register(registry, base)
        await registry.set_label(base.meta["space_id"], "stable", base.id)

        def encoder(name: str) -> ServiceProcess:
            own = {"artifacts_dir": home / name, "state_dir": home / f"{name}-state", "namespace": "bench"}
            return ServiceProcess.of("encoder", home, name=name, redis_url=redis_process.url, artifacts_url=url, **own)

        def index(name: str, target: str) -> ServiceProcess:
            own = {"artifacts_dir": home / name, "encoder_target": target}
            return ServiceProcess.of("index", home, name=name, artifacts_url=url, **own)

        try:
            warm = encoder("encoder")
            async with warm.running():
                facts = [Premise(id=one.id, text=one.text) for one in entailmentbank().candidates()]
                first = index("index", warm.target)
                async with first.running(), connected(first) as channel:
                    built = await IndexClient(channel).build(CORPUS, facts)
                indexes = [await first_answer(index(f"index-{n}", warm.target), "index") for n in range(rounds)]
            encoders = [await first_answer(encoder(f"encoder-{n}"), "encoder") for n in range(rounds)]
        finally:
            await redis.aclose()
            redis_process.stop()
    rows.add("premises", built.premises, "", "", True)
    for service, seconds in (("an encoder", encoders), ("an index", indexes)):
        told = " ".join(f"{one:.2f}" for one in seconds)
        rows.at_most(
            f"{service} with an empty directory: start to first answer", statistics.median(seconds), "s", BAR_S, told
        )
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", default="", help="a bucket or a prefix that is empty (default: a directory)")
    options = parser.parse_args()
    asyncio.run(main(options.rounds, options.url))
