"""One step on one task, as an exchange: read, decide, write if nobody was faster, else again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from aeenc import errors
from services.sampler.runs import Run
from services.sampler.tasks.record import TaskRecord
from services.sampler.tasks.steps import Change
from services.sampler.tasks.task_store import TaskStore

ATTEMPTS = 50
PAUSE_S = 0.005

Step = Callable[[TaskRecord, float], Change]


class TaskChanges:
    """Applies steps to stored tasks."""

    def __init__(self, tasks: TaskStore) -> None:
        self._tasks = tasks

    async def apply(self, run: Run, task_id: str, step: Step, request: Sequence[str] = ()) -> tuple[TaskRecord, str]:
        """The task after a step, and the id that the step has made; a retried request gets that of its first attempt.

        Raises NotFound for an unknown task, Aborted when others change it all the time, and what the step raises.
        """
        for _ in range(ATTEMPTS):
            read = await self._tasks.read(run.id, task_id, request)
            if read.record is None:
                raise errors.NotFound(f"run {run.id} has no task {task_id!r}; ListTasks names those there are")
            if read.made:
                return read.record, read.made
            change = step(read.record, read.at)
            if change.record is read.record or change.record == read.record:
                return read.record, change.id
            if await self._tasks.write(change, run.config.oracle, read.at, request):
                return replace(change.record, revision=change.record.revision + 1), change.id
            await asyncio.sleep(random.uniform(0, PAUSE_S))  # noqa: S311 -- spreads writers out, protects nothing
        raise errors.Aborted(f"task {task_id} of run {run.id} is changed by too many at once; try again")


def parts_of(made_id: str, what: str) -> tuple[str, str]:
    """Run and task of a lease or an answer. Raises NotFound for what is no id of ours."""
    parts = made_id.split(".")
    if len(parts) != 3 or not all(parts):
        raise errors.NotFound(f"no {what} {made_id!r}")
    return parts[0], parts[1]


def check_annotator(annotator: str, field: str = "annotator") -> None:
    """Refuses nobody, and names that are no names."""
    if not annotator.strip() or len(annotator) > 200:
        raise errors.InvalidArgument.field(field, "is empty or over 200 characters; say who judges")
