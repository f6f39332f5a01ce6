"""The names of keys in Redis: of runs, and of the tasks of people. Each takes a run's id, unless it says otherwise.

All that belongs to a run starts with `aeenc:<namespace>:1:run:<id>:`.
"""

from __future__ import annotations

from functools import partialmethod

from services.store.life_cycles import WorkKeys, digest


class RunKeys(WorkKeys):
    """Keys of the runs of one namespace."""

    pairs = partialmethod(WorkKeys.part, name="pairs")  # its pair log (stream, ids `<seq>-0`)
    amended = partialmethod(WorkKeys.part, name="amended")  # by query, each premise's last amended pair (hash), if any
    hypotheses = partialmethod(WorkKeys.part, name="hypotheses")  # in order (list)
    places = partialmethod(WorkKeys.part, name="places")  # in that order, by their ids (hash)
    open = partialmethod(WorkKeys.part, name="open")  # the trees with nodes left to judge (sorted set by index)
    answers = partialmethod(WorkKeys.part, name="answers")  # what is known of each query before amendments (hash)
    asked = partialmethod(WorkKeys.part, name="asked")  # what its nodes took of the oracle's budget (hash)
    suspects = partialmethod(WorkKeys.part, name="suspects")  # nodes that failed alone in an earlier attempt (set)
    # the keys that remember which requests have added pairs to it (set)
    import_requests = partialmethod(WorkKeys.part, name="import-requests")

    tasks = partialmethod(WorkKeys.part, name="tasks")  # their ids in the order in which they were queued (list)
    waiting = partialmethod(WorkKeys.part, name="tasks:waiting")  # those that may be taken, best first (sorted set)
    # the leases that nothing has ended yet, with their holders, by the millisecond of their end (sorted set)
    leases = partialmethod(WorkKeys.part, name="tasks:leases")
    # those whose decision can still be taken back, by the millisecond of the decision (sorted set)
    decided = partialmethod(WorkKeys.part, name="tasks:decided")
    # the settled ones that people have changed, whose trees may not have it yet, by revision (hash)
    growing = partialmethod(WorkKeys.part, name="tasks:amended")
    # the answers of the last hour, control items left out: task and person, by the millisecond (sorted set)
    answers_hour = partialmethod(WorkKeys.part, name="tasks:answers-hour")
    # the number of them in each state, without control items and what is withdrawn (hash)
    counts = partialmethod(WorkKeys.part, name="tasks:counts")
    # the task that asks a query, by the query's digest; the latest where there are several (hash)
    asking = partialmethod(WorkKeys.part, name="tasks:asked")
    failed = partialmethod(WorkKeys.part, name="tasks:failed")  # who has failed the qualification round (set), if any
    # the verdict log: every answer, undo, amendment and adjudication (stream, ids `<seq>-0`)
    verdicts = partialmethod(WorkKeys.part, name="verdicts")
    task_events = partialmethod(WorkKeys.part, name="task-events")  # (stream, ids `<seq>-0`)

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace, "run")
        self.all_events = f"{self.prefix}task-events"

    def tree(self, run_id: str, index: int) -> str:
        """A tree's nodes `n:<ordinal>`, results `r:<ordinal>` and depth (hash). Absent until a node is judged."""
        return self.part(run_id, f"tree:{index}")

    def oracle_spent(self, oracle: str) -> str:
        """The number of verdicts that an oracle with a budget was asked for in all (string)."""
        return f"{self.prefix}oracle:{digest(oracle)}:spent"

    def task(self, run_id: str, task_id: str) -> str:
        """A task: what it asks, its record, its revision, its place in the queue (hash)."""
        return self.part(run_id, f"task:{task_id}")

    def answered_by(self, run_id: str, annotator: str) -> str:
        """The tasks that a person has answered, by the millisecond of their answer (sorted set)."""
        return self.part(run_id, f"answered-by:{digest(annotator)}")

    def controls_by(self, run_id: str, annotator: str) -> str:
        """Those of them that are control items (sorted set)."""
        return self.part(run_id, f"controls-by:{digest(annotator)}")

    def pace(self, queue: str) -> str:
        """The pace of answers: their number and their milliseconds (hash)."""
        return f"{self.prefix}queue:{queue}:pace"

    def qualified(self, queue: str) -> str:
        """The people who have passed the queue's qualification round (set)."""
        return f"{self.prefix}queue:{queue}:qualified"
