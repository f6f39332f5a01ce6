"""One encoder as operators run it: its own process, a private Redis, a store on disk, calls over loopback."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aeenc import Channel, EncoderClient, Retry
from benchmarks.harness.checkpoints import register
from services.store.artifacts import Artifact, ArtifactStore
from services.store.redis import connect
from services.store.registry import LabelRow, Registry, RolloutRow
from support.service_process import RedisProcess, ServiceProcess


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
        """Points a label at a checkpoint and waits until the encoder has dealt with it.

        `space_id` is the checkpoint's own unless another is named.
        """
        await register(self.registry, artifact)
        row = await self.registry.set_label(space_id or artifact.meta["space_id"], label, artifact.id)
        rollouts = await self.registry.await_rollout(row, timeout_s)
        return row, rollouts[0]


@asynccontextmanager
async def running_encoder(
    store: ArtifactStore, base: Artifact, stable: Artifact | None = None, **settings: object
) -> AsyncIterator[EncoderFleet]:
    """Starts the encoder with `stable` on `stable` or `base`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        redis_process = RedisProcess(home / "redis")
        redis = connect(redis_process.url)
        registry = Registry(redis, "bench")
        await register(registry, base)
        if stable is not None:
            await register(registry, stable)
        await registry.set_label(base.meta["space_id"], "stable", (stable or base).id)
        own = {"namespace": "bench", "artifacts_dir": store.root, "state_dir": home / "state"}
        process = ServiceProcess.of("encoder", home, redis_url=redis_process.url, **{**own, **settings})
        try:
            async with process.running():
                yield EncoderFleet(process, registry)
        finally:
            await redis.aclose()
            redis_process.stop()
