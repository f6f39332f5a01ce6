"""The names of the sampler's keys in Redis."""

from __future__ import annotations

import hashlib

from services.store.redis import key_prefix


class RunKeys:
    """Keys of one namespace. All that belongs to a run starts `aeenc:<namespace>:1:run:<id>:`."""

    def __init__(self, namespace: str) -> None:
        self._prefix = key_prefix(namespace)
        self.runs = f"{self._prefix}runs"
        self.active = f"{self._prefix}runs:active"
        self.number = f"{self._prefix}runs:number"

    def idempotency(self, key: str) -> str:
        """From a caller's idempotency key to the run it started."""
        return f"{self._prefix}run-key:{hashlib.sha256(key.encode()).hexdigest()}"

    def import_request(self, request_id: str) -> str:
        """From the request id of an import to the run that it made; with `:added`, to what it added."""
        return f"{self._prefix}import:{hashlib.sha256(request_id.encode()).hexdigest()}"

    def record(self, run_id: str) -> str:
        """The run's record and counters (hash)."""
        return f"{self._prefix}run:{run_id}:record"

    def lease(self, run_id: str) -> str:
        """Which sampler works on it (string with a time to live)."""
        return f"{self._prefix}run:{run_id}:lease"

    def events(self, run_id: str) -> str:
        """Its events (stream, ids `<seq>-0`)."""
        return f"{self._prefix}run:{run_id}:events"

    def pairs(self, run_id: str) -> str:
        """Its pair log (stream, ids `<seq>-0`)."""
        return f"{self._prefix}run:{run_id}:pairs"

    def amended(self, run_id: str) -> str:
        """The last amended pair of each query and premise (hash); absent without amendments."""
        return f"{self._prefix}run:{run_id}:amended"

    def hypotheses(self, run_id: str) -> str:
        """Its hypotheses in order (list)."""
        return f"{self._prefix}run:{run_id}:hypotheses"

    def open(self, run_id: str) -> str:
        """The trees with nodes left to judge (sorted set by index)."""
        return f"{self._prefix}run:{run_id}:open"

    def tree(self, run_id: str, index: int) -> str:
        """A tree's nodes `n:<ordinal>`, results `r:<ordinal>` and depth (hash). Absent until a node is judged."""
        return f"{self._prefix}run:{run_id}:tree:{index}"

    def answers(self, run_id: str) -> str:
        """What the oracle said, by query (hash)."""
        return f"{self._prefix}run:{run_id}:answers"

    def asked(self, run_id: str) -> str:
        """The verdicts that its nodes took from the oracle's budget (hash); absent without a budget."""
        return f"{self._prefix}run:{run_id}:asked"

    def oracle_spent(self, oracle: str) -> str:
        """How many verdicts an oracle with a budget was asked for in all (string)."""
        return f"{self._prefix}oracle:{hashlib.sha256(oracle.encode()).hexdigest()}:spent"

    def suspects(self, run_id: str) -> str:
        """Nodes that failed alone in an earlier attempt (set)."""
        return f"{self._prefix}run:{run_id}:suspects"
