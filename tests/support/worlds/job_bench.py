"""A job runner over a real Redis, whose checkpoints, sampler and index are stand-ins and whose children are scripts."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.kit.readiness import Readiness
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from services.trainer.jobs import runner as job_runner
from services.trainer.jobs.files import ComputeOptions
from services.trainer.jobs.job import Job, JobConfig, JobStore
from services.trainer.jobs.pair_sources import DataSets
from services.trainer.jobs.runner import JobRunner
from services.trainer.registry.child import Child
from support.waiting import eventually


class StandInServices:
    """A sampler without pairs and an index that builds anything. The first of their answers are errors."""

    def __init__(self, *errors: Exception) -> None:
        self.left = list(errors)

    async def read(self, run_ids: tuple[str, ...]) -> list[Any]:
        await self.build()
        return []

    async def build(self, *_: Any) -> None:
        if self.left:
            raise self.left.pop(0)


class NoHolds:
    """Holds nothing."""

    async def hold(self, *_: str) -> None:
        """Does nothing."""

    async def release(self, _: str) -> bool:
        """Does nothing."""
        return True


class Checkpoints:
    """A store of files that is empty, and a registry that takes anything."""

    def __init__(self, root: Path) -> None:
        self.store = ArtifactStore(root)

    async def register(self, version: str) -> Any:
        """Takes it."""
        return SimpleNamespace(space_id="s")

    async def serving(self, base_version: str, *, cross_encoders: bool) -> tuple[str, ...]:
        return (base_version or "base", f"cross-encoders: {cross_encoders}")

    async def is_intact(self, version: str) -> bool:
        del version
        return True


class Bench:
    """A job, its store and a runner of it."""

    def __init__(self, store: JobStore, jobs_dir: Path, job: Job) -> None:
        self.store, self.jobs_dir, self.job = store, jobs_dir, job
        self.readiness = Readiness()
        self.runner = JobRunner(
            store,
            Checkpoints(jobs_dir.parent),  # type: ignore[arg-type]
            StandInServices(),  # type: ignore[arg-type]
            DataSets({}, 1024),
            self.readiness,
            tandems=StandInServices(),  # type: ignore[arg-type]
            index=StandInServices(),  # type: ignore[arg-type]
            holds=NoHolds(),  # type: ignore[arg-type]
            instance="i",
            jobs_dir=jobs_dir,
            means=ComputeOptions(),
            lease_s=3,
            poll_s=0.05,
        )

    @property
    def directory(self) -> Path:
        return self.jobs_dir / self.job.id

    async def until(self, state: str) -> Job:
        await eventually(lambda: self.store.state(self.job.id), 30, is_so=state.__eq__)  # a process may start slowly
        return await self.store.get(self.job.id)


@pytest.fixture
async def bench(redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    redis = connect(redis_url)
    store = JobStore(redis, namespace)
    config = JobConfig("c", ("r",))
    job = Job(uuid.uuid4().hex[:8], config, "g", "PENDING", datetime.now(UTC), fingerprint="f")
    await store.create(job, [])
    made = Bench(store, tmp_path / "jobs", job)
    yield made
    await made.runner.stop()
    await redis.aclose()


def computing(bench: Bench, meanwhile: Callable[[], Awaitable[Any]]) -> list[int]:
    """Replaces the computation: it leaves a file, and something happens before it ends. Returns how often it ran."""
    times: list[int] = []

    async def compute(job: Job) -> str:
        times.append(1)
        bench.directory.mkdir(parents=True, exist_ok=True)
        (bench.directory / "epoch.safetensors").write_text("state")
        await meanwhile()
        return f"v{len(times)}"

    bench.runner._compute = compute  # type: ignore[method-assign]
    return times


def starting(monkeypatch: pytest.MonkeyPatch, script: str, *further: str) -> list[Child]:
    """Replaces the child by a script, which gets the job's directory. Returns those that were started."""
    children: list[Child] = []

    async def start(cls: type[Child], command: str, directory: str) -> Child:
        children.append(cls(sys.executable, "-c", script, directory, *further))
        return children[-1]

    monkeypatch.setattr(job_runner.Child, "start", classmethod(start))
    return children
