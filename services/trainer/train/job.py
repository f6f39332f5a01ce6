"""One training job from its directory, in the child process: load, train, evaluate, export.

JobFiles ──► JobInputs ──► Objective ──► Training (loop/) ──► BEST weights
                                            │ progress.json        │ evaluated before and after
                                            ▼                      ▼
                                        Curves                 checkpoint ──► result.json
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar, text

from services.kit.logs import get
from services.trainer.evaluation.protocol import Report
from services.trainer.jobs.files import JobFiles, TrainingPlan
from services.trainer.jobs.job import JobProgress
from services.trainer.registry.checkpoints import METRICS_VERSION, Metrics
from services.trainer.registry.quality_gate import Comparison, compared
from services.trainer.train.data import Objective
from services.trainer.train.encoder import Encoders, prepare_torch
from services.trainer.train.inputs import EncoderTask, JobInputs
from services.trainer.train.loop import Diverged, Training, TrainingState, schedule, usual_epochs
from services.trainer.train.ranks import Rank, together
from services.trainer.train.reranking import RerankingTask

# Parts of the configuration left out of a checkpoint's lineage: they are in the manifest already, or irrelevant.
_ELSEWHERE = ("base_version", "idempotency_key")
LOSS, RATE, VALIDATION = "train/loss", "train/learning_rate", "validation/map"
FILE_VERSION = "brain.Event:2"  # with an older one TensorBoard ignores resumptions
CONFIGURATION = "configuration"

log = get(__name__)
Task = EncoderTask | RerankingTask  # what a job trains on its inputs


def run_job(files: JobFiles) -> None:
    """Computes a job and writes its result. Raises what makes it fail.

    If the loss diverges after a good epoch, the best epoch becomes a checkpoint and the result has version and error.
    """
    plan = files.plan()
    rank = Rank(0, plan.means.processes)
    prepare_torch(plan.means.threads // rank.processes, plan.means.device)
    files.write_progress({**(files.progress() or {}), "phase": "loading"})  # an earlier attempt's epochs stay done
    task, objective = load(files, rank)
    failure = ""
    try:
        state = train(files, task, task.encoders(), objective, rank)
    except Diverged as error:
        if not error.state.best_epoch:
            raise
        failure, state = str(error), error.state
    before = task.before()
    best: Encoders[Any] = task.encoders(files.directory)
    after, trial = task.judged(best)
    metrics = _metrics(task, before, after)
    recorded = None if metrics is None else {"format_version": METRICS_VERSION, **asdict(metrics)}
    made = task.write(best, _meta(task.inputs, objective, state, failure, after), recorded, trial)
    if gain := _gain(task.inputs, metrics):
        files.write_progress({**(files.progress() or {}), "gain": asdict(gain)})
    kept = f"; version {made['version']} is epoch {state.best_epoch}, the last good one"
    files.write_result({**made, **({"error": failure + kept} if failure else {})})


def load(files: JobFiles, rank: Rank) -> tuple[Task, Objective]:
    """Loads what a job learns from, and how; chooses its epochs where its configuration does not.

    Raises as JobInputs.load does.
    """
    task = load_task(files, rank)
    objective, plan = task.objective(), task.inputs.plan
    config = replace(plan.config, epochs=plan.config.epochs or usual_epochs(plan.config, objective.size))
    task.inputs = replace(task.inputs, plan=replace(plan, config=config))
    return task, objective


def load_task(files: JobFiles, rank: Rank) -> Task:
    """Loads what a job trains. Raises as JobInputs.load does."""
    inputs = JobInputs.load(files, rank)
    return RerankingTask(inputs) if inputs.plan.config.mode == "CROSS_ENCODER" else EncoderTask(inputs)


def run_rank(files: JobFiles, number: int) -> None:
    """Trains as one of the processes of a job that rank 0 leads."""
    means = files.plan().means
    rank = Rank(number, means.processes)
    prepare_torch(means.threads // rank.processes, means.device)
    task, objective = load(files, rank)
    train(files, task, task.encoders(), objective, rank)


def train(files: JobFiles, task: Task, encoders: Encoders[Any], objective: Objective, rank: Rank) -> TrainingState:
    """Trains; the best weights then lie in the job's directory."""
    inputs = task.inputs
    curves = Curves(inputs.plan, validated=bool(inputs.validation))
    training = Training(
        inputs.plan,
        encoders,
        objective,
        (lambda: _quality_of(task, encoders)) if inputs.validation and not inputs.plan.holds_back else None,
        files.directory,
        lambda progress: _report(files, inputs, objective, curves, progress),
        rank,
    )
    premises = 0 if encoders.premise is None else len(inputs.generation.premises)
    with together(files.directory, rank, inputs.device, premises), closing(curves):
        return training.run()


def _quality_of(task: Task, encoders: Encoders[Any]) -> tuple[float, float]:
    """Measures strict MAP, and what the best epoch has most of: where grades are learned and known, graded NDCG."""
    report, _ = task.judged(encoders)
    found = report.strict.map if report else 0.0
    if report is None or report.graded is None or task.inputs.plan.config.targets == "BINARY":
        return found, found
    return found, report.graded.ndcg_linear


def _meta(
    inputs: JobInputs, objective: Objective, state: TrainingState, failure: str, after: Report | None
) -> dict[str, Any]:
    plan, base = inputs.plan, inputs.base
    recipe = {name: value for name, value in asdict(plan.config).items() if name not in _ELSEWHERE}
    return {
        "base_version": base.id,
        "job_id": plan.job_id,
        "validation_map": after.strict.map if plan.holds_back and after else state.best_map,
        "lineage": {
            **recipe,
            "generation": plan.generation,
            "precision": inputs.precision,
            "processes": plan.means.processes,
            "best_epoch": state.best_epoch,
            **_counts(inputs, objective),
            **({"failure": failure} if failure else {}),
        },
    }


def _counts(inputs: JobInputs, objective: Objective) -> dict[str, int]:
    training_set = inputs.training_set
    return {
        "queries": len(training_set.examples) - objective.skipped,
        "positives": training_set.positives,
        "negatives": training_set.negatives,
        "dropped": training_set.dropped,
        "skipped": objective.skipped,
        "outside": len(training_set.outside),
    }


def _metrics(task: Task, before: Report | None, after: Report | None) -> Metrics | None:
    """Returns the quality by validation query, so that a paired test can compare two checkpoints."""
    if before is None or after is None:
        return None
    inputs = task.inputs
    asked = [[query.text, sorted(query.gold)] for query in inputs.validation]
    measured = {inputs.base.id: before, **dict(_serving(task))}
    return Metrics(
        after.average_precisions.tolist(),
        {version: report.average_precisions.tolist() for version, report in measured.items()},
        inputs.generation.id,
        hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
        task.rankings,
    )


def _serving(task: Task) -> Iterator[tuple[str, Report]]:
    """Measures the versions that served when the job was taken up, on the gold queries; those that can be read."""
    for version in task.inputs.plan.serving:
        if version != task.inputs.base.id:  # that one is measured before
            try:
                yield version, task.served(version)
            except Exception as error:
                log.warning("a serving version was not measured", version=version, reason=str(error), exc_info=error)


def _gain(inputs: JobInputs, metrics: Metrics | None) -> Comparison | None:
    """Compares the result with what the job began with; None where there was nothing to measure it by."""
    if metrics is not None:
        return compared(metrics.average_precisions, inputs.base.id, metrics.measured[inputs.base.id])
    return compared((), inputs.base.id, ()) if inputs.plan.holds_back else None


def _report(files: JobFiles, inputs: JobInputs, objective: Objective, curves: Curves, progress: JobProgress) -> None:
    curves.add(progress)
    files.write_progress({**asdict(progress), **_counts(inputs, objective)})


class Curves:
    """A job's curves as TensorBoard events, by optimiser step: one run for each job, named by its id.

    The steps of a resumed job replace those that it repeats. Records are written synchronously: the library's event
    writer has a thread and a queue, and a full disk would end the thread and then block training. A failed write stops
    the curves with a line in the log, never the job.
    """

    def __init__(self, plan: TrainingPlan, *, validated: bool) -> None:
        self._plan, self._validated = plan, validated
        directory = plan.means.tensorboard_dir
        self._run = Path(directory) / plan.job_id if directory else None
        self._writer: RecordWriter | None = None
        self._epochs = 0

    def add(self, progress: JobProgress) -> None:
        """Adds what is new since the last report; durable when it returns. Never raises for a disk's sake."""
        if self._run is None:
            return
        try:
            after_epoch = progress.epochs_done * progress.steps // progress.epochs  # each epoch has as many steps
            self._writer = self._writer or self._opened(self._run, after_epoch)
            self._add(progress, after_epoch)
            self._writer.flush()
        except OSError as error:
            log.warning("TensorBoard events stop", directory=str(self._run), reason=str(error))
            self._run = None
            self.close()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    def _opened(self, run: Path, first: int) -> RecordWriter:
        """Opens a file that holds from step `first` on. It repeats the last epoch's MAP, not its loss."""
        run.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files of such names in order; the number separates attempts within one second.
        attempt = f"{int(time.time()):010}.{socket.gethostname()}.{len(list(run.iterdir()))}"
        self._writer = RecordWriter(str(run / f"events.out.tfevents.{attempt}"))
        self._write(first, file_version=FILE_VERSION)
        self._write(first, session_log=SessionLog(status=SessionLog.START))
        if first == 0:
            plan = self._plan
            record = {"generation": plan.generation, **asdict(plan.config), "means": asdict(plan.means)}
            told = json.dumps(record, indent=1, ensure_ascii=False)
            self._write(0, summary=text(CONFIGURATION, f"```\n{told}\n```"))  # in Markdown
        return self._writer

    def _add(self, progress: JobProgress, after_epoch: int) -> None:
        if progress.epochs_done > self._epochs and self._validated:
            self._epochs = progress.epochs_done
            self._write(after_epoch, summary=scalar(VALIDATION, progress.validation_map))
        if progress.phase == "training":
            rate = self._plan.config.learning_rate * schedule(progress.steps_done - 1, progress.steps)
            self._write(progress.steps_done, summary=scalar(LOSS, progress.loss))
            self._write(progress.steps_done, summary=scalar(RATE, rate))

    def _write(self, step: int, **content: Any) -> None:
        assert self._writer is not None
        self._writer.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
