"""The names of the human queues' keys in Redis. All of one run's start `aeenc:<namespace>:1:run:<id>:`."""

from __future__ import annotations

import hashlib

from services.store.redis import key_prefix


class TaskKeys:
    """Keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._prefix = key_prefix(namespace)
        self.all_events = f"{self._prefix}task-events"

    def task(self, run_id: str, task_id: str) -> str:
        """A task: what it asks, its record, its revision, its place in the queue (hash)."""
        return f"{self._prefix}run:{run_id}:task:{task_id}"

    def index(self, run_id: str) -> str:
        """The ids of the run's tasks in the order in which they were queued (list)."""
        return f"{self._prefix}run:{run_id}:tasks"

    def waiting(self, run_id: str) -> str:
        """The tasks that somebody may take, best first (sorted set)."""
        return f"{self._prefix}run:{run_id}:tasks:waiting"

    def leases(self, run_id: str) -> str:
        """The leases that nothing has ended yet, by the millisecond at which they end (sorted set)."""
        return f"{self._prefix}run:{run_id}:tasks:leases"

    def decided(self, run_id: str) -> str:
        """The tasks whose decision can still be taken back, by the millisecond of the decision (sorted set)."""
        return f"{self._prefix}run:{run_id}:tasks:decided"

    def verdicts(self, run_id: str) -> str:
        """The verdict log: every answer, undo, amendment and adjudication (stream, ids `<seq>-0`)."""
        return f"{self._prefix}run:{run_id}:verdicts"

    def events(self, run_id: str) -> str:
        """What happened to the run's tasks (stream, ids `<seq>-0`)."""
        return f"{self._prefix}run:{run_id}:task-events"

    def answered_by(self, run_id: str, annotator: str) -> str:
        """The ids of a person's answers that hold, oldest first (list)."""
        return f"{self._prefix}run:{run_id}:answered-by:{hashlib.sha256(annotator.encode()).hexdigest()}"

    def pace(self, queue: str) -> str:
        """How long answers take: their number and their milliseconds (hash)."""
        return f"{self._prefix}queue:{queue}:pace"

    def request(self, *parts: str) -> str:
        """From a caller's request id to the id of what it made (string with a time to live)."""
        return f"{self._prefix}task-request:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
