"""A job's curves as TensorBoard events: one run for each job, named by its id, in the operator's directory.

Records are written synchronously: the library's event writer has a thread and a queue, and a full disk would end the
thread and then block training. A failed write stops the curves with a line in the log, never the job.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from dataclasses import asdict
from pathlib import Path

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import scalar, text

from services.kit.logs import get
from services.trainer.jobs.files import TrainingPlan
from services.trainer.train.loop import Step, schedule

LOSS, RATE, VALIDATION = "train/loss", "train/learning_rate", "validation/map"
CONFIGURATION = "configuration"
FILE_VERSION = "brain.Event:2"  # with an older one TensorBoard ignores resumptions

log = get(__name__)


class Curves:
    """The events of one job, by optimiser step. The steps of a resumed job replace those that it repeats."""

    def __init__(self, plan: TrainingPlan, *, validated: bool) -> None:
        self._plan, self._validated = plan, validated
        directory = plan.means.tensorboard_dir
        self._directory = Path(directory) / plan.job_id if directory else None
        self._writer: RecordWriter | None = None
        self._epochs = 0

    def add(self, step: Step) -> None:
        """Adds what is new in a step; durable when it returns. Never raises for a disk's sake."""
        if self._directory is None:
            return
        try:
            self._add(self._writer or self._begin(self._directory, step), step)
        except OSError as error:
            log.warning("TensorBoard events stop", directory=str(self._directory), reason=str(error))
            self._directory = None
            self.close()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    def _begin(self, directory: Path, step: Step) -> RecordWriter:
        """Opens a file that holds from the current step on. It repeats the last epoch's MAP, not its loss."""
        directory.mkdir(parents=True, exist_ok=True)
        first, now = step.state.steps_done, time.time()
        # TensorBoard reads files of such names in order; the number separates attempts within one second.
        attempt = f"{int(now):010}.{socket.gethostname()}.{len(list(directory.iterdir()))}"
        self._writer = RecordWriter(str(directory / f"events.out.tfevents.{attempt}"))
        for event in (
            Event(wall_time=now, step=first, file_version=FILE_VERSION),
            Event(wall_time=now, step=first, session_log=SessionLog(status=SessionLog.START)),
        ):
            self._writer.write(event.SerializeToString())
        if first == 0:
            self._write(self._writer, text(CONFIGURATION, _configuration(self._plan)), 0)
        return self._writer

    def _add(self, writer: RecordWriter, step: Step) -> None:
        state = step.state
        if state.epochs_done > self._epochs and self._validated:
            self._epochs = state.epochs_done
            self._write(writer, scalar(VALIDATION, state.validation_map), state.steps_done)
        if step.phase == "training":
            rate = self._plan.config.learning_rate * schedule(step.steps_done - 1, step.steps)
            self._write(writer, scalar(LOSS, step.loss), step.steps_done)
            self._write(writer, scalar(RATE, rate), step.steps_done)
        writer.flush()

    @staticmethod
    def _write(writer: RecordWriter, summary: Summary, step: int) -> None:
        writer.write(Event(wall_time=time.time(), step=step, summary=summary).SerializeToString())


def _configuration(plan: TrainingPlan) -> str:
    """Describes the job in Markdown for TensorBoard."""
    record = {"generation": plan.generation, **asdict(plan.config), "means": asdict(plan.means)}
    return f"```\n{json.dumps(record, indent=1, ensure_ascii=False)}\n```"
