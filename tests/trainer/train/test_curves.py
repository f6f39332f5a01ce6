"""A job's TensorBoard events, read back as TensorBoard reads them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tensorboardX.proto.event_pb2 import Event, SessionLog

from services.trainer.jobs.files import ComputeOptions, JobFiles
from services.trainer.train import job as curves
from services.trainer.train import loop as training
from services.trainer.train.job import CONFIGURATION, LOSS, RATE, VALIDATION, train
from services.trainer.train.loop import TrainingState
from services.trainer.train.ranks import Rank
from support.worlds.trainer_world import Killed, MakeJob, load

STEPS = 3  # an epoch


@pytest.fixture(autouse=True)
def every_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TELL_S", 0.0)


def trained(files: JobFiles) -> TrainingState:
    task = load(files)
    return train(files, task, task.encoders(), task.objective(), Rank())


def records(path: Path) -> Iterator[Event]:
    """The events of a file, which has for each: length, its checksum, the message, its checksum."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        [size] = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + size])
        at += size + 16


def shown(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run: the start of a session takes away what has its step or a later one."""
    kept: list[Event] = []
    for path in sorted(run.iterdir()):
        for event in records(path):
            if event.session_log.status == SessionLog.START:
                kept = [one for one in kept if one.step < event.step]
            kept.append(event)
    found: dict[str, list[tuple[int, float]]] = {}
    for event in kept:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_a_job_draws_loss_rate_and_map_by_step_under_its_id(make_job: MakeJob, tmp_path: Path):
    files = make_job(epochs=3, means=ComputeOptions(tensorboard_dir=str(tmp_path / "events")))
    state = trained(files)
    drawn = shown(tmp_path / "events" / files.plan().job_id)
    assert set(drawn) == {LOSS, RATE, VALIDATION, f"{CONFIGURATION}/text_summary"}
    assert [step for step, _ in drawn[LOSS]] == list(range(1, 3 * STEPS + 1))
    assert drawn[LOSS][0][1] > drawn[LOSS][-1][1] > 0
    rates = [1e-3 * training.schedule(step, 3 * STEPS) for step in range(3 * STEPS)]
    assert [rate for _, rate in drawn[RATE]] == pytest.approx(rates)
    assert [step for step, _ in drawn[VALIDATION]] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert drawn[VALIDATION][-1][1] == pytest.approx(state.validation_map)
    assert max(value for _, value in drawn[VALIDATION]) == pytest.approx(state.best_map)
    [path] = (tmp_path / "events" / files.plan().job_id).iterdir()
    [told] = [one for event in records(path) for one in event.summary.value if one.tag.startswith(CONFIGURATION)]
    for name in asdict(files.plan().config):
        assert f'"{name}"'.encode() in told.tensor.string_val[0]


@pytest.mark.parametrize("step", [2, 5])
def test_a_job_that_was_killed_goes_on_in_its_run_and_no_step_stands_there_twice(
    make_job: MakeJob, tmp_path: Path, step: int
):
    directory = tmp_path / "events"
    files, other = (make_job(epochs=3, means=ComputeOptions(tensorboard_dir=str(directory))) for _ in range(2))
    trained(other)
    taken = training.Training._step

    def die(self, learner, units, done):
        if done == step:
            raise Killed
        return taken(self, learner, units, done)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(training.Training, "_step", die)
        trained(files)
    before = shown(directory / files.plan().job_id)
    assert [at for at, _ in before[LOSS]] == list(range(1, step + 1))
    trained(files)
    drawn, whole = (shown(directory / one.plan().job_id) for one in (files, other))
    assert len(list((directory / files.plan().job_id).iterdir())) == 2
    saved = step // STEPS * STEPS  # the point at which it goes on is told anew, but for its loss
    for tag in (LOSS, RATE):
        assert drawn[tag] == [(at, value) for at, value in whole[tag] if at != saved]
    assert drawn[VALIDATION] == whole[VALIDATION]
    assert len(drawn[f"{CONFIGURATION}/text_summary"]) == 1


def test_without_a_directory_nothing_is_drawn_and_without_validation_queries_no_map(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    files = make_job(epochs=1)
    trained(files)
    assert [path.name for path in tmp_path.iterdir()] == [files.directory.name]
    files = make_job(epochs=1, validation=[], means=ComputeOptions(tensorboard_dir=str(tmp_path / "events")))
    trained(files)
    assert VALIDATION not in shown(tmp_path / "events" / files.plan().job_id)


def test_a_disk_that_fills_up_ends_the_curves_and_not_the_job(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flushed: list[int] = []

    class Filling(curves.RecordWriter):
        """Its third write finds the disk full."""

        def flush(self) -> None:
            flushed.append(1)
            if len(flushed) == 3:
                os.dup2(os.open("/dev/full", os.O_WRONLY), self._writer.fileno())
            super().flush()

    monkeypatch.setattr(curves, "RecordWriter", Filling)
    files = make_job(epochs=2, means=ComputeOptions(tensorboard_dir=str(tmp_path / "events")))
    with capture_logs() as logged:
        assert trained(files).epochs_done == 2
    assert len(flushed) <= 4, "nothing more is tried"
    assert "No space left on device" in str(logged)
    assert [step for step, _ in shown(tmp_path / "events" / files.plan().job_id)[LOSS]] == [1, 2]
