"""Works on one run: retrieves a wave of independent nodes of many trees at once, has them judged, commits node by node.

All that it holds can be read from Redis again: a worker that takes a run over starts from there and asks nothing that
is recorded. What a wave decides is in `acs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aeenc import errors
from aeenc.oracle import Candidate as OracleCandidate
from aeenc.oracle import Task
from services.kit.logs import get
from services.kit.tasks import cancel_all
from services.sampler import acs
from services.sampler.acs import Candidate, Node, Outcome, Result, Ruling, Tree
from services.sampler.node_store import NodeCommit, NodeStore, TreeAdvance, Written
from services.sampler.oracle_gateway import FEW, Judged, OracleFailed, Unanswered
from services.sampler.retrieval import Retrieval
from services.sampler.run_store import RunStore
from services.sampler.runs import Pair, Run, Sign, now
from services.sampler.tasks.gateway import Gateway

log = get(__name__)
T = TypeVar("T")

REDIS_PAUSE_S = 0.5
CALL_BYTES = 1024 * 1024  # an oracle's server may accept no more than gRPC's default of 4 MiB


class RunStopped(Exception):
    """The run is no longer this worker's: cancelled, or taken over by another sampler."""


class RunFailed(Exception):
    """The run cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Job:
    """One node of a wave: what was retrieved for it, what is known, and what is asked now."""

    tree: Tree
    node: Node
    nearest: list[Candidate]
    candidates: list[Candidate]
    known: dict[str, Ruling]
    asked: list[Candidate]

    @property
    def node_id(self) -> str:
        """Names the node in tasks and pairs."""
        return f"{self.tree.index}-{self.node.ordinal}"

    def task(self, run_id: str) -> Task:
        """The node as the oracle sees it."""
        accepted = [c for c in self.nearest if (ruling := self.known.get(c.id)) is not None and ruling.accepted]
        return Task(
            task_id=self.node_id,
            run_id=run_id,
            query=self.node.text,
            path=self.tree.path(self.node),
            accepted=tuple(_shown(candidate) for candidate in accepted),
            candidates=tuple(_shown(candidate) for candidate in self.asked),
        )


class RunWorker:
    """Holds one run's window of open trees. `work` returns when no node is left."""

    def __init__(
        self,
        run: Run,
        owner: str,
        lease_s: float,
        store: RunStore,
        nodes: NodeStore,
        retrieval: Retrieval,
        oracle: Gateway,
        wave_nodes: int,
    ) -> None:
        self._run, self._owner, self._lease_s = run, owner, lease_s
        self._rules = run.config.rules
        self._store, self._nodes = store, nodes
        self._retrieval, self._oracle = retrieval, oracle
        self._wave_nodes = wave_nodes
        self._judgements = run.progress.judgements
        self._window: dict[int, Tree] = {}
        self._last_index = -1

    async def work(self) -> None:
        """Judges nodes until none is left or the budget is spent. Raises RunFailed or RunStopped."""
        while True:
            await self._fill_window()
            if not self._window:
                return
            await self._advance()
            trees = acs.affordable([self._window[i] for i in sorted(self._window)], self._rules, self._judgements)
            wave = self._choose(trees)
            if wave:
                await self._judge(await self._prepare(wave))
            elif self._window and not trees:
                return

    async def _fill_window(self) -> None:
        room = self._wave_nodes - len(self._window)
        if room <= 0:
            return
        after = self._last_index
        for tree in await self._patiently(lambda: self._nodes.open_trees(self._run.id, after, room)):
            self._window[tree.index] = tree
            self._last_index = tree.index

    def _choose(self, trees: Sequence[Tree]) -> list[tuple[Tree, Node]]:
        """The next wave, in order. Of nodes with the same query only the first: the others will find its answers."""
        queries: set[str] = set()
        wave: list[tuple[Tree, Node]] = []
        for tree in trees:
            for node in tree.pending():
                if len(wave) < self._wave_nodes and node.text not in queries:
                    queries.add(node.text)
                    wave.append((tree, node))
        return wave

    async def _prepare(self, wave: Sequence[tuple[Tree, Node]]) -> list[Job]:
        try:
            nearest = await self._retrieval.nearest(self._run, [node.text for _, node in wave])
        except errors.AeencError as error:
            raise RunFailed(f"{error.message} (then resume the run)") from None
        queries = [node.text for _, node in wave]
        known = await self._patiently(lambda: self._nodes.answers(self._run.id, queries))
        jobs: list[Job] = []
        budget = self._rules.max_judgements
        left = budget - self._judgements
        for (tree, node), found, answers in zip(wave, nearest, known, strict=True):
            if budget and left <= 0:
                break
            candidates = acs.choose(tree.path(node), node.text, found)
            asked = [candidate for candidate in candidates if candidate.id not in answers]
            if budget:
                asked = asked[:left]
                left -= len(asked)
            jobs.append(Job(tree, node, found, candidates, answers, asked))
        return jobs

    async def _judge(self, jobs: Sequence[Job]) -> None:
        """Asks the oracle in batches side by side; each batch is committed as soon as it is answered."""
        await self._commit([(job, self._settle(job, None), None) for job in jobs if not job.asked])
        batches = _batches([job for job in jobs if job.asked], self._oracle.settings.batch_tasks)
        tasks = [asyncio.create_task(self._judge_batch(batch)) for batch in batches]
        try:
            unanswered = [outcome for outcomes in await asyncio.gather(*tasks) for outcome in outcomes]
        except OracleFailed as error:
            raise RunFailed(str(error)) from None
        finally:
            await cancel_all(tasks)
        await self._give_up(unanswered)

    async def _judge_batch(self, jobs: Sequence[Job]) -> list[tuple[Job, Unanswered]]:
        by_task = {job.node_id: job for job in jobs}
        outcomes = await self._oracle.judge(self._run.id, [job.task(self._run.id) for job in jobs])
        answered = [(by_task[o.task.task_id], o) for o in outcomes if isinstance(o, Judged)]
        await self._commit([(job, self._settle(job, outcome), outcome) for job, outcome in answered])
        return [(by_task[o.task.task_id], o) for o in outcomes if isinstance(o, Unanswered)]

    async def _give_up(self, unanswered: Sequence[tuple[Job, Unanswered]]) -> None:
        """Counts nodes as failed whose fault it is: the oracle answered others meanwhile, or they failed alone before.

        In every other case the run fails and keeps them.
        """
        guilty = [job for job, outcome in unanswered if self._oracle.last_answer_at > outcome.since]
        doubtful = [(job, outcome) for job, outcome in unanswered if self._oracle.last_answer_at <= outcome.since]
        if 0 < len(doubtful) <= FEW:
            ids = [job.node_id for job, _ in doubtful]
            if await self._patiently(lambda: self._store.suspect(self._run.id, ids)):
                guilty, doubtful = [*guilty, *(job for job, _ in doubtful)], []
        failed = Outcome(Result(failed=True), (), (), (), {})
        await self._commit([(job, failed, None) for job in guilty])
        if doubtful:
            job, outcome = doubtful[0]
            raise RunFailed(f"{self._oracle.describe(outcome.reason)} (first unanswered node: {job.node_id})")

    def _settle(self, job: Job, judged: Judged | None) -> Outcome:
        answered = judged.rulings if judged else {}
        return acs.settle(job.candidates, job.nearest, job.known, answered, self._rules)

    async def _commit(self, settled: Sequence[tuple[Job, Outcome, Judged | None]]) -> None:
        commits = [
            NodeCommit(
                tree=job.tree.index,
                ordinal=job.node.ordinal,
                query=job.node.text,
                result=outcome.result,
                known=outcome.known,
                pairs=(
                    *(self._pair(job, candidate, "POSITIVE", judged) for candidate in outcome.positives),
                    *(self._pair(job, candidate, "NEGATIVE", judged) for candidate in outcome.negatives),
                    *(self._pair(job, candidate, "SKIPPED", judged) for candidate in outcome.skipped),
                ),
                skipped=len(outcome.skipped) + (judged.unknown if judged else 0),
                judgements=len(job.asked) if judged else 0,
            )
            for job, outcome, judged in settled
        ]
        await self._write(lambda: self._nodes.commit(self._run.id, self._owner, commits))
        for job, outcome, judged in settled:
            job.tree.results[job.node.ordinal] = outcome.result
            self._judgements += len(job.asked) if judged else 0

    def _pair(self, job: Job, candidate: Candidate, sign: Sign, judged: Judged | None) -> Pair:
        return Pair(
            query=job.node.text,
            premise_id=candidate.id,
            premise=candidate.text,
            sign=sign,
            run_id=self._run.id,
            node_id=job.node_id,
            rank=candidate.rank,
            score=candidate.score,
            model_version=self._run.model_version,
            generation=self._run.generation,
            oracle=self._run.config.oracle,
            annotator=(judged.annotator_of(candidate.id) if judged else "") or self._run.config.oracle,
            judged_at=now(),
            grade=judged.grades.get(candidate.id, 0.0) if judged else 0.0,
        )

    async def _advance(self) -> None:
        """Opens the next level of each tree whose level is judged, and closes the trees that have none."""
        while ready := [tree for tree in self._window.values() if not tree.pending()]:
            steps = [TreeAdvance(tree.index, tree.depth, tuple(tree.next_level(self._rules))) for tree in ready]
            await self._write(lambda steps=steps: self._nodes.advance(self._run.id, self._owner, steps))  # type: ignore[misc]
            for tree, step in zip(ready, steps, strict=True):
                if not step.nodes:
                    del self._window[tree.index]
                tree.nodes.extend(step.nodes)
                tree.depth += 1

    async def _write(self, write: Callable[[], Awaitable[list[Written]]]) -> None:
        """Writes until all is stored. What was stored by an attempt whose answer got lost is not stored twice."""
        while True:
            written = await self._patiently(write)
            if "STOPPED" in written:
                raise RunStopped
            if "LOST" not in written:
                return
            if not await self._patiently(lambda: self._store.take_lease(self._run.id, self._owner, self._lease_s)):
                raise RunStopped

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Waits for Redis as long as it takes: what the oracle has answered must not be lost."""
        while True:
            try:
                return await call()
            except errors.Unavailable as error:
                log.warning("run waits for redis", run=self._run.id, reason=error.message)
                await asyncio.sleep(REDIS_PAUSE_S)


def _shown(candidate: Candidate) -> OracleCandidate:
    return OracleCandidate(candidate.id, candidate.text, candidate.rank, candidate.score)


def _batches(jobs: Sequence[Job], most_tasks: int) -> list[list[Job]]:
    """Jobs in calls of at most `most_tasks` tasks and about CALL_BYTES."""
    batches: list[list[Job]] = []
    size_bytes = 0
    for job in jobs:
        job_bytes = sum(len(candidate.text) + 64 for candidate in job.asked)
        if not batches or len(batches[-1]) >= most_tasks or size_bytes + job_bytes > CALL_BYTES:
            batches.append([])
            size_bytes = 0
        batches[-1].append(job)
        size_bytes += job_bytes
    return batches
