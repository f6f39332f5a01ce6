"""The runner against a real Redis: leases that lapse, cancellations from elsewhere, children that are slow to end."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aeenc import errors
from services.kit.limits import Limits
from services.store.artifacts import ArtifactStore
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.files import JobFiles
from services.trainer.jobs.garbage import finished_directories
from services.trainer.jobs.job import LIVE, JobConfig
from services.trainer.jobs.runner import JobFailed
from services.trainer.jobs.training_jobs import TrainingJobs
from support.waiting import eventually, until
from support.worlds.job_bench import Bench, NoHolds, computing, starting

SLOW_TO_END = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.0), os._exit(0)))
pathlib.Path(sys.argv[1], "ready").touch()
while True:
    time.sleep(0.05)
"""


async def test_a_lease_that_lapsed_without_a_successor_costs_nothing_and_the_directory_goes_at_once(bench: Bench):
    times = computing(bench, lambda: bench.store._redis.delete(bench.store._keys.lease(bench.job.id)))
    bench.runner.start()
    assert (await bench.until("SUCCEEDED")).version == "v1"
    await until(lambda: not bench.directory.exists())
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


@pytest.mark.parametrize("who", ["the trainer", "the job's process"])
async def test_a_job_that_misses_a_file_of_a_lost_volume_is_tried_again(bench: Bench, tmp_path: Path, who: str):
    volume = tmp_path / "volume"
    bench.runner._checkpoints.store = ArtifactStore(volume, is_known=True)

    async def missing() -> None:
        if not volume.exists():
            asyncio.get_running_loop().call_later(0.2, (volume / "checkpoints").mkdir, 0o777, True)
            of_process = JobFailed("no model is there; restore it")  # as its result says
            raise FileNotFoundError(volume / "manifest.json") if who == "the trainer" else of_process

    times = computing(bench, missing)
    bench.runner.start()
    assert (await bench.until("SUCCEEDED")).error == ""
    assert len(times) == 2


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
            await bench.store._redis.delete(bench.store._keys.record(bench.job.id))
        try:
            await asyncio.Event().wait()  # loading, evaluating, exporting: nothing is reported
        finally:
            stopped.set()

    computing(bench, long_phase)
    with capture_logs() as logs:
        bench.runner.start()
        await asyncio.wait_for(stopped.wait(), 30)
        await eventually(lambda: bench.store.cycles.lease(bench.job.id, "another", 60.0).renew())
        await until(lambda: "job was stopped" in [line["event"] for line in logs])
    assert [line["log_level"] for line in logs if line["event"] == "job was stopped"] == ["info"]


async def test_a_cancelled_job_is_let_go_only_after_its_process_has_ended(bench: Bench, monkeypatch):
    children = starting(monkeypatch, SLOW_TO_END)
    bench.runner.start()
    await until(lambda: bool(children) and (bench.directory / "ready").exists())  # its signal handler stands
    await bench.store.transition(bench.job.id, LIVE, "CANCELLED")
    await bench.runner.drop(bench.job.id)
    assert children[0]._process.poll() is not None, "nobody may start another one in its directory before"
    assert await bench.store.cycles.lease(bench.job.id, "another", 1.0).renew(), "the lease is given back"


async def test_a_look_that_fails_is_not_the_last_one(bench: Bench, monkeypatch):
    computing(bench, lambda: asyncio.sleep(0))
    active, looks = bench.store.cycles.active, []

    async def fail_once() -> list[str]:
        looks.append(1)
        if len(looks) == 1:
            raise ZeroDivisionError
        return await active()

    monkeypatch.setattr(bench.store.cycles, "active", fail_once)
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
    found = [directory.name for directory, _ in await finished_directories(bench.jobs_dir, bench.store)]
    assert found == ["elsewhere", "unknown-old"]


async def test_a_repeated_request_cancels_or_resumes_a_job_once_and_gets_the_first_answer(bench: Bench):
    jobs = TrainingJobs(bench.store, *[None] * 3, bench.runner, NoHolds(), None)  # type: ignore[arg-type]
    cancelled = await jobs.cancel(bench.job.id, "c")
    resumed = await jobs.resume(bench.job.id, "r")
    again = await jobs.cancel(bench.job.id, "c")
    assert (again.state, again.ended_at) == ("CANCELLED", cancelled.ended_at)
    assert (await bench.store.get(bench.job.id)).state == resumed.state == "PENDING"
    await jobs.cancel(bench.job.id, "c2")
    assert (await jobs.resume(bench.job.id, "r")).state == "PENDING", "the first answer"
    assert (await bench.store.get(bench.job.id)).state == "CANCELLED"
    with pytest.raises(errors.AlreadyExists, match="was used with rpc 'CancelJob', now with 'ResumeJob'"):
        await jobs.resume(bench.job.id, "c")
    with pytest.raises(errors.AlreadyExists, match=f"was used with job_id '{bench.job.id}', now with 'other'"):
        await jobs.cancel("other", "c")


async def test_an_idempotency_key_with_another_configuration_is_refused_and_what_differs_named(bench: Bench):
    limits = Limits(10_000, 10, 1_000, tokens=64)
    jobs = TrainingJobs(bench.store, *[None] * 3, bench.runner, NoHolds(), limits)  # type: ignore[arg-type]
    config = JobConfig("c", ("r",), idempotency_key="k")
    stored = replace(config, base_version="q1")
    await bench.store.create(replace(bench.job, id="keyed", config=stored, fingerprint=config.fingerprint([])), [])
    assert (await jobs.start(config, [])).id == "keyed"
    with pytest.raises(errors.AlreadyExists, match=r"epochs 0, now 4; choose another key"):
        await jobs.start(replace(config, epochs=4), [])
    with pytest.raises(errors.AlreadyExists, match="other `validation`; choose another key"):
        await jobs.start(config, [EvaluationQuery("a query", ("a fact",))])


async def test_a_job_whose_record_is_damaged_waits_and_is_named_and_the_log_does_not_fill(bench: Bench):
    await bench.store._redis.hset(bench.store._keys.record(bench.job.id), "config", "{")
    with capture_logs() as logs:
        bench.runner.start()
        await until(lambda: f"job {bench.job.id} cannot be read" in bench.readiness.reason)
        bench.runner.wake()
        await until(lambda: [line["event"] for line in logs].count("job waits") == 2)
    assert {line["seconds"] for line in logs if line["event"] == "job waits"} == {1.0, 2.0}


async def test_a_job_of_a_newer_release_is_refused_by_name_and_the_others_go_on(bench: Bench):
    await bench.store._redis.hset(bench.store._keys.record(bench.job.id), "format_version", 2)
    other = replace(bench.job, id="other")
    await bench.store.create(other, [])
    computing(bench, lambda: asyncio.sleep(0))
    bench.runner.start()
    await eventually(lambda: bench.store.state(other.id), is_so="SUCCEEDED".__eq__)
    jobs = TrainingJobs(bench.store, *[None] * 3, bench.runner, NoHolds(), None)  # type: ignore[arg-type]
    for call in (jobs.store.get(bench.job.id), jobs.cancel(bench.job.id, "c"), jobs.resume(bench.job.id)):
        with pytest.raises(errors.FailedPrecondition, match=f"job {bench.job.id} has format_version 2"):
            await call
    assert await bench.store.state(bench.job.id) == "PENDING", "nobody has touched it"
    assert f"job {bench.job.id} has format_version 2" in bench.readiness.reason


@pytest.mark.parametrize("what", ["validation", "inputs"])
async def test_a_job_whose_inputs_a_newer_release_has_written_waits_and_names_them(bench: Bench, what: str):
    if what == "validation":
        await bench.store._redis.set(bench.store._validation(bench.job.id), "[2, []]")
        newer = f"the validation of job {bench.job.id}"
    else:
        JobFiles(bench.directory).write_inputs([], [])
        newer = str(bench.directory / "inputs.json")
        (bench.directory / "inputs.json").write_text('{"format_version": 2}')
    bench.runner.start()
    await until(lambda: f"{newer} has format_version 2" in bench.readiness.reason)
    assert await bench.store.state(bench.job.id) == "RUNNING"


@pytest.mark.parametrize("step", ["write_plan", "write_inputs"])
async def test_a_cancelled_job_writes_no_inputs_beside_its_successor(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
):
    go_on, entered, left = threading.Event(), threading.Event(), list[str]()

    def slowly(self: JobFiles, *_: object) -> None:
        entered.set()
        assert go_on.wait(20)
        left.append("written")

    monkeypatch.setattr(JobFiles, step, slowly)
    bench.runner.start()
    await until(entered.is_set)
    await bench.store.transition(bench.job.id, LIVE, "CANCELLED")
    dropping = asyncio.create_task(bench.runner.drop(bench.job.id))
    _, pending = await asyncio.wait([dropping], timeout=0.5)
    successor = bench.store.cycles.lease(bench.job.id, "another", 60.0)
    is_taken_over = await successor.renew()
    go_on.set()
    await dropping
    assert pending, "the job is let go only when the thread has written"
    assert not is_taken_over
    assert left == ["written"]
    assert await successor.renew()
