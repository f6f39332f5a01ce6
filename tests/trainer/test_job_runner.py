"""The runner against a real Redis: leases that lapse, cancellations from elsewhere, children that are slow to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually, until

from services.kit.readiness import Readiness
from services.kit.redis import connect
from services.trainer import job_runner
from services.trainer.child import Child
from services.trainer.data_sets import DataSets
from services.trainer.job_files import Means
from services.trainer.job_runner import JobRunner
from services.trainer.job_store import JobStore
from services.trainer.jobs import LIVE, Job, JobConfig, Progress

SLOW_TO_END = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.0), os._exit(0)))
while True:
    time.sleep(0.05)
"""


ENDS_WHEN_ASKED_ONCE = """
import json, os, pathlib, signal, sys
directory = pathlib.Path(sys.argv[1])
if (directory / "asked").exists():
    (directory / "result.json").write_text(json.dumps({"version": "v1"}))
else:
    (directory / "asked").touch()
    os.kill(os.getpid(), int(sys.argv[2]))
"""


class NoPairs:
    async def read(self, run_ids: tuple[str, ...]) -> AsyncIterator[Any]:
        for nothing in ():
            yield nothing


class Checkpoints:
    """A store of files that is empty, and a registry that takes anything."""

    def __init__(self, root: Path) -> None:
        self.store = type("Store", (), {"root": root})()

    async def register(self, version: str) -> None:
        """Takes it."""

    def has(self, version: str) -> bool:
        return True


class Bench:
    """A job, its store and a runner of it."""

    def __init__(self, store: JobStore, jobs_dir: Path, job: Job) -> None:
        self.store, self.jobs_dir, self.job = store, jobs_dir, job
        self.readiness = Readiness()
        self.runner = JobRunner(
            store,
            Checkpoints(jobs_dir.parent),  # type: ignore[arg-type]
            NoPairs(),  # type: ignore[arg-type]
            DataSets({}, 1024),
            self.readiness,
            tandems=None,  # type: ignore[arg-type]
            instance="i",
            jobs_dir=jobs_dir,
            means=Means(),
            lease_s=3,
            poll_s=0.05,
        )

    @property
    def directory(self) -> Path:
        return self.jobs_dir / self.job.id

    async def until(self, state: str) -> Job:
        for _ in range(200):
            job = await self.store.get(self.job.id)
            if job.state == state:
                return job
            await asyncio.sleep(0.02)
        raise AssertionError(f"the job is {job.state}, not {state}")


@pytest.fixture
async def bench(redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    redis = connect(redis_url)
    store = JobStore(redis, namespace)
    config = JobConfig("c", ("r",))
    job = Job(uuid.uuid4().hex[:8], config, "g", "PENDING", "", Progress(), "", datetime.now(UTC), None, "f")
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


async def test_a_lease_that_lapsed_without_a_successor_costs_nothing(bench: Bench):
    times = computing(bench, lambda: bench.store._redis.delete(bench.store._lease(bench.job.id)))
    bench.runner.start()
    assert (await bench.until("SUCCEEDED")).version == "v1"
    await asyncio.sleep(0.3)
    assert len(times) == 1


async def test_a_trainer_serves_while_it_works_on_a_job_that_was_left_behind(bench: Bench):
    begun, served = asyncio.Event(), asyncio.Event()

    async def long_phase() -> None:
        begun.set()
        await served.wait()

    computing(bench, long_phase)
    bench.runner.start()
    await asyncio.wait_for(begun.wait(), 30)
    assert bench.readiness.state == "SERVING"
    served.set()
    await bench.until("SUCCEEDED")


async def test_a_job_cancelled_elsewhere_keeps_what_it_has_computed(bench: Bench):
    computing(bench, lambda: bench.store.transition(bench.job.id, LIVE, "CANCELLED"))
    bench.runner.start()
    await bench.until("CANCELLED")
    await asyncio.sleep(0.2)
    assert (bench.directory / "epoch.safetensors").exists()


@pytest.mark.parametrize("end", ["cancel", "delete"])
async def test_work_ends_at_the_next_renewal_when_somebody_else_has_ended_the_job(bench: Bench, end: str):
    stopped = asyncio.Event()

    async def long_phase() -> None:
        if end == "cancel":
            await bench.store.transition(bench.job.id, LIVE, "CANCELLED")
        else:
            await bench.store._redis.delete(bench.store._key(bench.job.id, "record"))
        try:
            await asyncio.Event().wait()  # loading, evaluating, exporting: nothing is reported
        finally:
            stopped.set()

    computing(bench, long_phase)
    bench.runner.start()
    await asyncio.wait_for(stopped.wait(), 30)
    await eventually(lambda: bench.store.take_lease(bench.job.id, "another", 60.0))


async def test_a_cancelled_job_is_let_go_only_after_its_process_has_ended(bench: Bench, monkeypatch):
    children: list[Child] = []

    async def start(cls: type[Child], *arguments: str) -> Child:
        children.append(cls(sys.executable, "-c", SLOW_TO_END))
        return children[0]

    monkeypatch.setattr(job_runner.Child, "start", classmethod(start))
    bench.runner.start()
    await asyncio.sleep(0.8)  # it runs, and its signal handler stands
    await bench.store.transition(bench.job.id, LIVE, "CANCELLED")
    await bench.runner.drop(bench.job.id)
    assert children[0]._process.poll() is not None, "nobody may start another one in its directory before"
    assert await bench.store.take_lease(bench.job.id, "another", 1.0), "the lease is given back"


def starting(monkeypatch: pytest.MonkeyPatch, script: str, *further: str) -> list[Child]:
    """Replaces the child by a script, which gets the job's directory. Returns those that were started."""
    children: list[Child] = []

    async def start(cls: type[Child], command: str, directory: str) -> Child:
        children.append(cls(sys.executable, "-c", script, directory, *further))
        return children[-1]

    monkeypatch.setattr(job_runner.Child, "start", classmethod(start))
    return children


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_job_whose_process_was_asked_to_end_goes_on_instead_of_failing(bench: Bench, monkeypatch, number: int):
    children = starting(monkeypatch, ENDS_WHEN_ASKED_ONCE, str(int(number)))
    bench.runner.start()
    assert (await bench.until("SUCCEEDED")).version == "v1"
    states = [event.job.state for event in await bench.store.events(bench.job, 0)]
    assert "FAILED" not in states
    assert len(children) == 2


async def test_a_trainer_that_drains_lets_go_of_its_job_and_begins_none(bench: Bench, monkeypatch):
    children = starting(monkeypatch, "import sys; sys.stdin.read()")
    bench.runner.start()
    await until(lambda: len(children) == 1)
    bench.readiness.draining()
    children[0]._process.kill()
    await eventually(lambda: bench.store.take_lease(bench.job.id, "another", 60.0))
    await bench.store.release_lease(bench.job.id, "another")
    await asyncio.sleep(0.3)
    assert (await bench.store.get(bench.job.id)).state == "RUNNING"
    assert await bench.store.active() == [bench.job.id]
    assert len(children) == 1


async def test_a_look_that_fails_is_not_the_last_one(bench: Bench, monkeypatch):
    computing(bench, lambda: asyncio.sleep(0))
    active, looks = bench.store.active, []

    async def fail_once() -> list[str]:
        looks.append(1)
        if len(looks) == 1:
            raise ZeroDivisionError
        return await active()

    monkeypatch.setattr(bench.store, "active", fail_once)
    bench.runner.start()
    await bench.until("SUCCEEDED")


async def test_only_directories_that_nobody_can_resume_are_removed(bench: Bench):
    async def job(name: str, *states: str) -> None:
        made = replace(bench.job, id=name)
        await bench.store.create(made, [])
        for state in states:
            assert await bench.store.transition(name, LIVE, state) == "OK"  # type: ignore[arg-type]

    await job("failed", "FAILED")
    await job("cancelled", "CANCELLED")
    await job("elsewhere", "RUNNING", "SUCCEEDED")
    names = ["failed", "cancelled", "elsewhere", "unknown", "unknown-old"]
    for name in names:
        (bench.jobs_dir / name).mkdir(parents=True)
        (bench.jobs_dir / name / "epoch.safetensors").write_text("state")
    for path in (bench.jobs_dir / "unknown-old" / "epoch.safetensors", bench.jobs_dir / "unknown-old"):
        os.utime(path, (0, 0))
    computing(bench, lambda: asyncio.sleep(0))
    bench.runner.start()
    await bench.until("SUCCEEDED")
    await until(lambda: sorted(path.name for path in bench.jobs_dir.iterdir()) == ["cancelled", "failed", "unknown"])
