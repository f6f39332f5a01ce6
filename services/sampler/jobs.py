"""One node in work: what was retrieved for it, what is known, what is asked now, and the records of its judgement."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aeenc.oracle import Candidate as OracleCandidate
from aeenc.oracle import Task
from services.sampler import acs
from services.sampler.acs import Candidate, Node, Outcome, Rules, Ruling, Tree
from services.sampler.node_store import NodeCommit
from services.sampler.oracle_gateway import Judged
from services.sampler.runs import Pair, Run, Sign, now

UNDECIDED = "undecided"
CALL_BYTES = 1024 * 1024  # an oracle's server may accept no more than gRPC's default of 4 MiB


@dataclass(frozen=True)
class Job:
    """A node in one round of retrieval; a run that is not conditioned has one round a node.

    `nearest` and `candidates` are those of all rounds so far. `accepted` (ids) is what this round was conditioned on.
    """

    tree: Tree
    node: Node
    nearest: list[Candidate]
    candidates: list[Candidate]
    known: Mapping[str, Ruling]
    asked: list[Candidate]
    accepted: tuple[str, ...] = ()
    round: int = 0

    @property
    def node_id(self) -> str:
        """Names the node in tasks and pairs."""
        return f"{self.tree.index}-{self.node.ordinal}"

    def explaining(self, known: Mapping[str, Ruling]) -> list[Candidate]:
        """The candidates that are known to explain the query, best first."""
        return [c for c in self.candidates if (ruling := known.get(c.id)) is not None and ruling.accepted]

    def task(self, run_id: str) -> Task:
        """The node as the oracle sees it."""
        return Task(
            task_id=self.node_id,
            run_id=run_id,
            query=self.node.text,
            path=self.tree.path(self.node),
            accepted=tuple(_shown(candidate) for candidate in self.explaining(self.known)),
            candidates=tuple(_shown(candidate) for candidate in self.asked),
        )

    def settle(self, judged: Judged | None, rules: Rules) -> Outcome:
        """What the round's judgement means; None: nothing had to be asked."""
        answered = judged.rulings if judged else {}
        return acs.settle(self.node.text, self.candidates, self.nearest, self.known, answered, rules)

    def failed(self, rules: Rules) -> Outcome:
        """The outcome of a node that the oracle leaves unanswered: what was known before, and nothing is recorded."""
        return Outcome(replace(self.settle(None, rules).result, failed=True))

    def goes_on(self, outcome: Outcome, rules: Rules) -> Job | None:
        """The node's next round, not yet retrieved for; None after one that accepted nothing new, or the last one."""
        accepted = tuple(candidate.id for candidate in self.explaining(outcome.known))
        if not rules.conditioned or self.round + 1 >= acs.ROUNDS or len(accepted) == len(self.accepted):
            return None
        return replace(self, known=outcome.known, asked=[], accepted=accepted, round=self.round + 1)

    def with_found(self, found: Sequence[Candidate]) -> Job:
        """The job with what its round has found beyond the rounds before, which is what it asks."""
        before = {candidate.id for candidate in self.nearest}
        nearest = [*self.nearest, *(candidate for candidate in found if candidate.id not in before)]
        candidates = acs.choose(self.tree.path(self.node), self.node.text, nearest)
        asked = [candidate for candidate in candidates if candidate.id not in self.known]
        return replace(self, nearest=nearest, candidates=candidates, asked=asked)

    def asking(self, most: int) -> Job:
        """The job with its `most` best candidates asked only."""
        return replace(self, asked=self.asked[:most])

    def commit(self, run: Run, outcome: Outcome, judged: Judged | None, *, last: bool) -> NodeCommit:
        """The records of the round; `last` completes the node."""
        return NodeCommit(
            tree=self.tree.index,
            ordinal=self.node.ordinal,
            query=self.node.text,
            result=outcome.result if last else None,
            part=self._part(),
            known=outcome.known,
            pairs=tuple(self._pairs(run, outcome, judged)),
            filtered=len(outcome.filtered),
            skipped=len(outcome.skipped) + (judged.unknown if judged else 0),
            judgements=len(self.asked) if judged else 0,
        )

    def _part(self) -> str:
        """Names the round by what it asks: stored again by a successor, it is the same; asked differently, another."""
        return f"{self.round}:{hashlib.sha256(' '.join(c.id for c in self.asked).encode()).hexdigest()[:16]}"

    def _pairs(self, run: Run, outcome: Outcome, judged: Judged | None) -> Iterator[Pair]:
        for candidate in outcome.positives:
            yield self._pair(run, candidate, "POSITIVE", judged)
        for candidate in outcome.negatives:
            yield self._pair(run, candidate, "NEGATIVE", judged)
        for candidate, reason in outcome.filtered:
            yield self._pair(run, candidate, "SKIPPED", judged, reason)
        for candidate in outcome.skipped:
            yield self._pair(run, candidate, "SKIPPED", judged, UNDECIDED)

    def _pair(self, run: Run, candidate: Candidate, sign: Sign, judged: Judged | None, reason: str = "") -> Pair:
        return Pair(
            query=self.node.text,
            premise_id=candidate.id,
            premise=candidate.text,
            sign=sign,
            reason=reason,
            run_id=run.id,
            node_id=self.node_id,
            rank=candidate.rank,
            score=candidate.score,
            model_version=run.model_version,
            generation=run.generation,
            oracle=run.config.oracle,
            annotator=(judged.annotator_of(candidate.id) if judged else "") or run.config.oracle,
            judged_at=now(),
            grade=judged.grades.get(candidate.id, 0.0) if judged else 0.0,
            note=judged.note if judged else "",
        )


def batches(jobs: Sequence[Job], most_tasks: int) -> list[list[Job]]:
    """Jobs in calls of at most `most_tasks` tasks and about CALL_BYTES."""
    found: list[list[Job]] = []
    size_bytes = 0
    for job in jobs:
        job_bytes = sum(len(candidate.text.encode()) + 64 for candidate in job.asked)
        if not found or len(found[-1]) >= most_tasks or size_bytes + job_bytes > CALL_BYTES:
            found.append([])
            size_bytes = 0
        found[-1].append(job)
        size_bytes += job_bytes
    return found


def _shown(candidate: Candidate) -> OracleCandidate:
    return OracleCandidate(candidate.id, candidate.text, candidate.rank, candidate.score)
