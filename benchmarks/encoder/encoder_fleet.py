"""One encoder as operators run it: its own process, a private Redis, a store on disk, calls over loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from aeenc import Channel, EncoderClient
from benchmarks.harness.checkpoints import register
from benchmarks.harness.rows import ROOT
from services.launcher.private_redis import start_private_redis
from services.launcher.processes import free_port
from services.store.artifacts import Artifact, ArtifactStore
from services.store.redis import connect
from services.store.registry import LabelRow, Registry, RolloutRow


@dataclass
class Fleet:
    """A running encoder. `starting_s` is the time from its start to health SERVING."""

    process: subprocess.Popen[bytes]
    target: str
    metrics_port: int
    registry: Registry
    log: Path
    starting_s: float = 0.0

    def client(self, *, retry: bool = False, timeout_s: float = 30.0) -> EncoderClient:
        """A client on a connection of its own; without retries, so that every refusal is seen."""
        return EncoderClient(Channel(self.target, retry=retry, timeout_s=timeout_s))

    def resident_mb(self) -> float:
        """Resident memory of the encoder's process, in MB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6

    def peak_mb(self) -> float:
        """The highest resident memory so far, in MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) / 1e3
        return 0.0

    def maps(self, name: str) -> bool:
        """Whether the process has a file of that name mapped."""
        return name in Path(f"/proc/{self.process.pid}/maps").read_text()

    async def point(
        self, artifact: Artifact, label: str = "stable", timeout_s: float = 20.0
    ) -> tuple[LabelRow, RolloutRow]:
        """Points a label at a checkpoint and waits until the encoder has dealt with it."""
        return await self.point_at(artifact.meta["space_id"], artifact, label, timeout_s)

    async def point_at(
        self, space_id: str, artifact: Artifact, label: str = "stable", timeout_s: float = 20.0
    ) -> tuple[LabelRow, RolloutRow]:
        """As `point`, in a space that may not be the checkpoint's own."""
        await register(self.registry, artifact)
        row = await self.registry.set_label(space_id, label, artifact.id)
        rollouts = await self.registry.await_rollout(row, timeout_s)
        return row, rollouts[0]


@asynccontextmanager
async def running_encoder(
    store: ArtifactStore, base: Artifact, stable: Artifact | None = None, **settings: object
) -> AsyncIterator[Fleet]:
    """Starts the encoder with `stable` on `stable` or `base`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        redis_server = start_private_redis(home / "redis")
        redis = connect(redis_server.url)
        registry = Registry(redis, "bench")
        await register(registry, base)
        if stable is not None:
            await register(registry, stable)
        await registry.set_label(base.meta["space_id"], "stable", (stable or base).id)
        port, metrics_port = free_port(set()), free_port(set())
        chosen = {
            "port": port,
            "metrics_port": metrics_port,
            "redis_url": redis_server.url,
            "namespace": "bench",
            "artifacts_dir": store.root,
            "state_dir": home / "state",
            "log_level": "warning",
            **settings,
        }
        environment = {**os.environ, **{f"AEENC_ENCODER_{name.upper()}": str(value) for name, value in chosen.items()}}
        log = home / "encoder.log"
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: ASYNC220 -- nothing else runs on this loop yet
                [sys.executable, "-m", "services.encoder"], cwd=ROOT, env=environment, stdout=output, stderr=output
            )
        fleet = Fleet(process, f"127.0.0.1:{port}", metrics_port, registry, log)
        try:
            await serving(fleet.target, process, log)
            fleet.starting_s = time.monotonic() - started
            yield fleet
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(end, process)
            await redis.aclose()
            redis_server.stop()


async def serving(target: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for health SERVING; ends the benchmark when the service ends or does not get there."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with grpc.aio.insecure_channel(
        target,
        options=[
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 50),
        ],
    ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for _ in range(1200):
            if process.poll() is not None:
                sys.exit(f"the service ended:\n{_last_words(log)}")
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest())
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)
                continue
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(0.02)
    sys.exit(f"the service does not serve:\n{_last_words(log)}")


def _last_words(log: Path) -> str:
    return log.read_text()[-2000:]


def end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a process that was asked to end, and kills one that does not."""
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
