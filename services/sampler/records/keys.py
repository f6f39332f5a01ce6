"""The names of a run's keys in Redis."""

from __future__ import annotations

from services.store.life_cycles import WorkKeys, digest


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
        """The last amended pair of each query and premise (hash); absent without amendments."""
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
        """The states of each query's pairs (hash)."""
        return self.part(run_id, "answers")

    def asked(self, run_id: str) -> str:
        """The verdicts that its nodes took from the oracle's budget (hash); absent without a budget."""
        return self.part(run_id, "asked")

    def suspects(self, run_id: str) -> str:
        """Nodes that failed alone in an earlier attempt (set)."""
        return self.part(run_id, "suspects")
