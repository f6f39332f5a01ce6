"""Jobs that nobody fails: those whose process or trainer was asked to end, and those that wait for another service."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aeenc import errors
from services.store.artifacts import ArtifactStore
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs import runner
from services.trainer.jobs.files import JobFiles
from services.trainer.jobs.job import Job
from services.trainer.jobs.training_set import JudgedPair
from services.trainer.registry.checkpoints import Checkpoints
from support.waiting import eventually, until
from support.worlds.job_bench import Bench, StandInServices, starting

ENDS_WHEN_ASKED_ONCE = """
import json, os, pathlib, signal, sys
directory = pathlib.Path(sys.argv[1])
if (directory / "asked").exists():
    (directory / "result.json").write_text(json.dumps({"version": "v1"}))
else:
    (directory / "asked").touch()
    os.kill(os.getpid(), int(sys.argv[2]))
"""


CANNOT_REACH_THE_STORE_ONCE = """
import json, pathlib, sys
directory = pathlib.Path(sys.argv[1])
result = {"version": "v1"} if (directory / "asked").exists() else {"error": "it is away", "transient": True}
(directory / "asked").touch()
(directory / "result.json").write_text(json.dumps(result))
"""


MAKES_BOTH_ENCODERS = """
import json, pathlib, sys
result = json.dumps({"version": "v1", "premise_version": "v2"})
(pathlib.Path(sys.argv[1]) / "result.json").write_text(result)
"""


@pytest.mark.parametrize(
    "script",
    [
        (ENDS_WHEN_ASKED_ONCE, str(int(signal.SIGINT))),
        (ENDS_WHEN_ASKED_ONCE, str(int(signal.SIGTERM))),
        (CANNOT_REACH_THE_STORE_ONCE,),
    ],
    ids=["SIGINT", "SIGTERM", "no store"],
)
async def test_a_job_whose_process_was_asked_to_end_or_lacked_the_store_goes_on_instead_of_failing(
    bench: Bench, monkeypatch, script: tuple[str, ...]
):
    children = starting(monkeypatch, *script)
    bench.runner.start()
    assert (await bench.until("SUCCEEDED")).version == "v1"
    assert "FAILED" not in [job.state async for _, job in bench.store.cycles.watch(bench.job.id, 0)]
    assert len(children) == 2


async def test_a_trainer_that_drains_lets_go_of_its_job_and_begins_none(bench: Bench, monkeypatch):
    children = starting(monkeypatch, "import sys; sys.stdin.read()")
    bench.runner.start()
    await until(lambda: len(children) == 1)
    bench.readiness.draining()
    children[0]._process.kill()
    await eventually(lambda: bench.store.cycles.lease(bench.job.id, "another", 60.0).renew())
    await bench.store.cycles.lease(bench.job.id, "another", 60.0).release()
    await asyncio.sleep(0.3)
    assert (await bench.store.get(bench.job.id)).state == "RUNNING"
    assert await bench.store.cycles.active() == [bench.job.id]
    assert len(children) == 1


@pytest.mark.parametrize("part", ["pairs", "tandems"])
@pytest.mark.parametrize("kind", [errors.Unavailable, errors.Overloaded, errors.DeadlineExceeded])
async def test_a_job_waits_for_a_service_that_is_away(bench: Bench, monkeypatch, part: str, kind: Any):
    monkeypatch.setattr(runner, "FIRST_S", 0.1)
    away = StandInServices(*[kind("nobody answers there")] * 2)
    setattr(bench.runner, f"_{part}", away)
    children = starting(monkeypatch, MAKES_BOTH_ENCODERS)
    bench.runner.start()
    await until(lambda: bench.readiness.state == "DEGRADED")
    assert bench.readiness.reason == f"job {bench.job.id} waits: nobody answers there"
    assert (await bench.store.get(bench.job.id)).state == "RUNNING"
    assert (await bench.until("SUCCEEDED")).version == "v1"
    assert (away.left, len(children)) == ([], 1)
    await until(lambda: bench.readiness.state == "SERVING")


async def test_a_job_that_waits_has_no_lease_and_keeps_nobody_else_waiting(bench: Bench):
    async def compute(job: Job) -> str:
        if job.id == bench.job.id:
            raise errors.Unavailable("nobody answers there")
        return "v2"

    bench.runner._compute = compute  # type: ignore[method-assign]
    bench.runner.start()
    await until(lambda: bench.readiness.state == "DEGRADED")
    await eventually(lambda: bench.store.cycles.lease(bench.job.id, "another", 60.0).renew())
    other = replace(bench.job, id="other")
    await bench.store.create(other, [])
    await eventually(lambda: bench.store.state(other.id), is_so="SUCCEEDED".__eq__)


@pytest.mark.parametrize("by", ["cancellation", "another trainer"])
async def test_a_job_that_waits_is_no_longer_told_of_once_it_is_cancelled_or_taken_over(
    bench: Bench, monkeypatch, by: str
):
    monkeypatch.setattr(runner, "FIRST_S", 0.1)
    bench.runner._backoff.postpone(bench.job.id, "nobody answers there")
    assert bench.readiness.state == "DEGRADED"
    if by == "cancellation":
        await bench.runner.drop(bench.job.id)
    else:
        assert await bench.store.cycles.lease(bench.job.id, "another", 60.0).renew()
        bench.runner.start()
    await until(lambda: bench.readiness.state == "SERVING")


ALWAYS_ENDS = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
ENDS_AFTER_EACH_EPOCH = """
import json, os, pathlib, signal, sys
directory = pathlib.Path(sys.argv[1])
progress = directory / "progress.json"
done = json.loads(progress.read_text())["epochs_done"] + 1 if progress.exists() else 1
progress.write_text(json.dumps({"epochs_done": done}))
if done == 6:
    (directory / "result.json").write_text(json.dumps({"version": "v1"}))
else:
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("script", "state", "starts"),
    [(ALWAYS_ENDS, "FAILED", 5), (ENDS_AFTER_EACH_EPOCH, "SUCCEEDED", 6)],
    ids=["nothing done", "epochs done"],
)
async def test_a_job_whose_process_is_asked_to_end_again_and_again_fails_with_a_remedy_unless_it_finishes_epochs(
    bench: Bench, monkeypatch, script: str, state: str, starts: int
):
    monkeypatch.setattr(runner, "FIRST_S", 0.01)
    children = starting(monkeypatch, script)
    bench.runner.start()
    assert ("asked to end 5 times (signal 15)" in (await bench.until(state)).error) is (state == "FAILED")
    assert len(children) == starts


async def test_a_tandem_whose_generation_is_deleted_meanwhile_fails_with_its_name_and_the_remedy(
    bench: Bench, monkeypatch
):
    gone = errors.NotFound("corpus 'c' has no generation 'g'; ListGenerations shows them")
    monkeypatch.setattr(bench.runner, "_tandems", StandInServices(gone))
    starting(monkeypatch, MAKES_BOTH_ENCODERS)
    bench.runner.start()
    remedy = "if generation g of corpus 'c' has been deleted, start a new job"
    assert (await bench.until("FAILED")).error == f"{gone.message}; {remedy}"


FAILS = """
import json, pathlib, sys
(pathlib.Path(sys.argv[1]) / "result.json").write_text(json.dumps({"error": "as always"}))
"""
BEFORE = [JudgedPair("q", "p", "a premise", "POSITIVE"), JudgedPair("q", "p2", "another", "NEGATIVE")]
SINCE = [*BEFORE, JudgedPair("q2", "p", "a premise", "POSITIVE")]


class PairLog:
    """A sampler whose runs have got a further pair since the job began."""

    async def read(self, run_ids: tuple[str, ...]) -> list[JudgedPair]:
        return list(SINCE)


async def failed_again(bench: Bench, monkeypatch: Any) -> str:
    monkeypatch.setattr(bench.runner, "_pairs", PairLog())
    starting(monkeypatch, FAILS)
    bench.runner.start()
    return (await bench.until("FAILED")).error


DAMAGE = {
    "nothing": lambda data: data,
    "the end": lambda data: data[:-5],
    "a line": lambda data: data[: data.index(b"\n") + 1],
    "a letter": lambda data: data.replace(b"another", b"enother"),
    "all": lambda _: b"",
}


@pytest.mark.parametrize("lost", DAMAGE)
async def test_inputs_that_are_damaged_before_anything_is_learned_are_written_anew(bench: Bench, monkeypatch, lost):
    files = JobFiles(bench.directory)
    files.write_inputs(BEFORE, [])
    path = bench.directory / "inputs.jsonl"
    path.write_bytes(DAMAGE[lost](path.read_bytes()))
    assert await failed_again(bench, monkeypatch) == "as always"
    assert list(files.pairs()) == (BEFORE if lost == "nothing" else SINCE)
    assert files.plan().serving == ("base", "cross-encoders: False"), "which it measures beside its own version"


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", ["inputs.jsonl", "inputs.json"])
async def test_a_job_that_has_learned_from_inputs_damaged_or_lost_since_fails_with_their_name(
    bench: Bench, monkeypatch, name: str, is_there: bool
):
    files, path = JobFiles(bench.directory), bench.directory / name
    files.write_inputs(BEFORE, [EvaluationQuery("q", ("a premise",))])
    (bench.directory / "epoch.safetensors").touch()
    path.write_text('["q", "p') if is_there else path.unlink()
    error = await failed_again(bench, monkeypatch)
    told = "or its hash, inputs.json, is missing or damaged, and the job has learned from it"
    assert error.startswith(f"{bench.directory / 'inputs.jsonl'} {told}")
    if name == "inputs.jsonl" and is_there:
        with pytest.raises(errors.DataLoss, match=r"inputs.jsonl cannot be read at line 1 .*; start a new job$"):
            list(files.pairs())


async def test_a_progress_that_a_power_cut_has_emptied_does_not_end_a_job(bench: Bench, monkeypatch):
    bench.directory.mkdir(parents=True)
    (bench.directory / "progress.json").touch()
    starting(monkeypatch, MAKES_BOTH_ENCODERS)
    bench.runner.start()
    assert (await bench.until("SUCCEEDED")).version == "v1"


async def test_a_result_whose_checkpoint_is_damaged_is_computed_again(bench: Bench, monkeypatch):
    bench.directory.mkdir(parents=True)
    (bench.directory / "result.json").write_text('{"version": "v0"}')
    store = ArtifactStore(bench.jobs_dir.parent)
    with store.writer("checkpoint", "checkpoints") as writer:
        (writer.path / "model.onnx").write_text("weights")
        version = writer.commit({"a": 1}, id_prefix="q").id
    (bench.directory / "result.json").write_text(json.dumps({"version": version}))
    store.path("checkpoints", version).joinpath("model.onnx").write_text("weightz")
    bench.runner._checkpoints.is_intact = Checkpoints(store, None).is_intact  # type: ignore[method-assign, arg-type]
    children = starting(monkeypatch, MAKES_BOTH_ENCODERS)
    bench.runner.start()
    assert (await bench.until("SUCCEEDED")).version == "v1"
    assert len(children) == 1
    assert store.list("checkpoints") == [], "another one can be made in its place"


def test_two_owners_of_a_directory_report_their_progress_beside_each_other(tmp_path: Path, monkeypatch):
    files, write = JobFiles(tmp_path), Path.write_bytes

    def meanwhile(path: Path, data: bytes) -> int:
        monkeypatch.setattr(Path, "write_bytes", write)
        done = write(path, data)
        JobFiles(tmp_path).write_progress({"phase": "training", "epochs_done": 1})
        return done

    monkeypatch.setattr(Path, "write_bytes", meanwhile)
    files.write_progress({"phase": "loading"})
    assert files.progress() == {"phase": "loading"}
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
