"""The names of keys in Redis: of runs, and of the tasks of people."""

from __future__ import annotations

from services.store.life_cycles import WorkKeys, digest
from services.store.redis import key_prefix


class RunKeys(WorkKeys):
    """Keys of one namespace. All that belongs to a run starts with `aeenc:<namespace>:1:run:<id>:`."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace, "run")
        self.retention = f"{self.prefix}runs:retention"  # the lease of who removes old runs

    def import_request(self, request_id: str) -> str:
        """Maps an import's request id to the run that it made; with `:added`, to the pairs that it added (string)."""
        return f"{self.prefix}import:{digest(request_id)}"

    def import_requests(self, run_id: str) -> str:
        """The keys that remember which requests have added pairs to it (set)."""
        return self.part(run_id, "import-requests")

    def oracle_spent(self, oracle: str) -> str:
        """The number of verdicts that an oracle with a budget was asked for in all (string)."""
        return f"{self.prefix}oracle:{digest(oracle)}:spent"

    def pairs(self, run_id: str) -> str:
        """Its pair log (stream, ids `<seq>-0`)."""
        return self.part(run_id, "pairs")

    def amended(self, run_id: str) -> str:
        """By query, the last amended pair of each premise (hash); absent without amendments."""
        return self.part(run_id, "amended")

    def hypotheses(self, run_id: str) -> str:
        """Its hypotheses in order (list)."""
        return self.part(run_id, "hypotheses")

    def open(self, run_id: str) -> str:
        """The trees with nodes left to judge (sorted set by index)."""
        return self.part(run_id, "open")

    def tree(self, run_id: str, index: int) -> str:
        """A tree's nodes `n:<ordinal>`, results `r:<ordinal>` and depth (hash). Absent until a node is judged."""
        return self.part(run_id, f"tree:{index}")

    def answers(self, run_id: str) -> str:
        """What is known of each query before amendments (hash)."""
        return self.part(run_id, "answers")

    def asked(self, run_id: str) -> str:
        """The verdicts that its nodes took from the oracle's budget (hash); absent without a budget."""
        return self.part(run_id, "asked")

    def suspects(self, run_id: str) -> str:
        """Nodes that failed alone in an earlier attempt (set)."""
        return self.part(run_id, "suspects")


class TaskKeys:
    """Keys of one namespace. All of one run's start with `aeenc:<namespace>:1:run:<id>:`."""

    def __init__(self, namespace: str) -> None:
        self._prefix = key_prefix(namespace)
        self._run = f"{self._prefix}run:"
        self.all_events = f"{self._prefix}task-events"
        self.corrections = f"{self._prefix}task-corrections"  # changes that may not be in the pair log yet (hash)

    def task(self, run_id: str, task_id: str) -> str:
        """A task: what it asks, its record, its revision, its place in the queue (hash)."""
        return f"{self._run}{run_id}:task:{task_id}"

    def run(self, run_id: str) -> str:
        """The run's record, which a deletion takes away first (hash)."""
        return f"{self._run}{run_id}:record"

    def index(self, run_id: str) -> str:
        """The ids of the run's tasks in the order in which they were queued (list)."""
        return f"{self._run}{run_id}:tasks"

    def waiting(self, run_id: str) -> str:
        """The tasks that somebody may take, best first (sorted set)."""
        return f"{self._run}{run_id}:tasks:waiting"

    def leases(self, run_id: str) -> str:
        """The leases that nothing has ended yet, with their holders, by the millisecond of their end (sorted set)."""
        return f"{self._run}{run_id}:tasks:leases"

    def decided(self, run_id: str) -> str:
        """The tasks whose decision can still be taken back, by the millisecond of the decision (sorted set)."""
        return f"{self._run}{run_id}:tasks:decided"

    def amended(self, run_id: str) -> str:
        """The settled tasks that people have changed, whose trees may not have it yet, by revision (hash)."""
        return f"{self._run}{run_id}:tasks:amended"

    def verdicts(self, run_id: str) -> str:
        """The verdict log: every answer, undo, amendment and adjudication (stream, ids `<seq>-0`)."""
        return f"{self._run}{run_id}:verdicts"

    def events(self, run_id: str) -> str:
        """The events of the run's tasks (stream, ids `<seq>-0`)."""
        return f"{self._run}{run_id}:task-events"

    def answered_by(self, run_id: str, annotator: str) -> str:
        """The tasks that a person has answered, by the millisecond of their answer (sorted set)."""
        return f"{self._run}{run_id}:answered-by:{digest(annotator)}"

    def controls_by(self, run_id: str, annotator: str) -> str:
        """Those of them that are control items (sorted set)."""
        return f"{self._run}{run_id}:controls-by:{digest(annotator)}"

    def answers_hour(self, run_id: str) -> str:
        """The answers of the last hour, control items left out: task and person, by the millisecond (sorted set)."""
        return f"{self._run}{run_id}:tasks:answers-hour"

    def counts(self, run_id: str) -> str:
        """The number of its tasks in each state, without control items and what is withdrawn (hash)."""
        return f"{self._run}{run_id}:tasks:counts"

    def asked(self, run_id: str) -> str:
        """The task that asks a query, by the query's digest; the latest where there are several (hash)."""
        return f"{self._run}{run_id}:tasks:asked"

    def pace(self, queue: str) -> str:
        """The pace of answers: their number and their milliseconds (hash)."""
        return f"{self._prefix}queue:{queue}:pace"

    def qualified(self, queue: str) -> str:
        """The people who have passed the queue's qualification round (set)."""
        return f"{self._prefix}queue:{queue}:qualified"

    def failed(self, run_id: str) -> str:
        """The people who have failed the run's qualification round (set); absent without any."""
        return f"{self._run}{run_id}:tasks:failed"

    def request(self, *parts: str) -> str:
        """Maps a caller's request id to the id of what it made (string with a time to live)."""
        return f"{self._prefix}task-request:{digest(repr(parts))}"
