"""Works on one run: keeps several flights of independent nodes in the air, so that no service waits for another.

A flight is a handful of nodes of many trees: retrieved for in one call, judged in a few, committed node by node.
While the oracle judges some, the encoder works on others, and a tree goes on as soon as its own level is judged. All
that a worker holds can be read from Redis again: one that takes a run over starts from there and asks nothing that is
recorded. What a judgement means is in `acs`, which also says why neither flights nor their order change the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aeenc import errors
from services.kit.concurrency import cancel_all, observe_failure
from services.kit.logs import get
from services.sampler import acs
from services.sampler.acs import Node, Outcome, Tree
from services.sampler.jobs import Job, batches
from services.sampler.node_store import NodeStore, TreeAdvance, Written
from services.sampler.oracle_budgets import OracleBudgets
from services.sampler.oracle_gateway import FEW, Judged, OracleFailed, Unanswered
from services.sampler.retrieval import Retrieval
from services.sampler.run_lease import RunLease
from services.sampler.run_store import RunStore
from services.sampler.runs import Run
from services.sampler.tasks.gateway import Gateway

log = get(__name__)
T = TypeVar("T")

REDIS_PAUSE_S = 0.5
FLIGHTS = 4  # into how many the nodes in the air are split at least, so that some are judged while others are encoded
AT_THE_ENCODER = 2  # flights that are retrieved for before a small one waits to become larger: it always has a next one


class RunStopped(Exception):
    """The run is no longer this worker's: cancelled, or taken over by another sampler."""


class RunFailed(Exception):
    """The run cannot go on; the message says why and what to do."""


class RunWorker:
    """Holds one run's window of open trees. `work` returns when no node is left."""

    def __init__(
        self,
        run: Run,
        lease: RunLease,
        store: RunStore,
        nodes: NodeStore,
        retrieval: Retrieval,
        oracle: Gateway,
        budgets: OracleBudgets,
        wave_nodes: int,
    ) -> None:
        self._run, self._lease = run, lease
        self._rules = run.config.rules
        self._store, self._nodes = store, nodes
        self._retrieval, self._oracle, self._budgets = retrieval, oracle, budgets
        self._wave_nodes = wave_nodes
        self._judgements = run.progress.judgements
        self._window: dict[int, Tree] = {}
        self._last_index = -1
        self._all_read = False
        self._flying: dict[tuple[int, int], str] = {}  # (tree, ordinal) -> query
        self._at_the_encoder = 0
        self._moved = asyncio.Event()  # something was stored, found or has ended
        self._unanswered: list[tuple[Job, Unanswered]] = []
        self._refused_by_budget = False

    async def work(self) -> None:
        """Judges nodes until none is left or the budget is spent. Raises RunFailed or RunStopped."""
        flights: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._moved.clear()
                for flight in [flight for flight in flights if flight.done()]:
                    flights.remove(flight)
                    flight.result()
                await self._give_up(landed=not flights)
                await self._fill_window()
                await self._advance()
                while wave := self._choose():
                    flight = asyncio.create_task(self._fly(wave))
                    flight.add_done_callback(observe_failure)
                    flights.add(flight)
                if flights:
                    await self._moved.wait()
                elif self._refused_by_budget:
                    raise RunFailed(self._budgets.describe(self._oracle.name, self._oracle.settings.max_judgements))
                elif self._window or self._all_read:
                    return
        finally:
            await cancel_all(flights)

    async def _fill_window(self) -> None:
        room = self._wave_nodes - len(self._window)
        if room <= 0 or self._all_read:
            return
        after = self._last_index
        found = await self._patiently(lambda: self._nodes.open_trees(self._run.id, after, room))
        for tree in found:
            self._window[tree.index] = tree
            self._last_index = tree.index
        self._all_read = len(found) < room

    def _choose(self) -> list[tuple[Tree, Node]]:
        """The nodes of the next flight, in order; none while it is open whose fault an unanswered node is.

        Of nodes with the same query only one is in the air: the others will find its answers. While the encoder has
        enough to do, a flight waits until it is full. What a budget may not cover is asked in order, in one flight at a
        time; conditioned nodes ask again, so each alone.
        """
        if self._unanswered or self._refused_by_budget:
            return []
        trees, safe = acs.affordable([self._window[i] for i in sorted(self._window)], self._rules, self._judgements)
        if self._flying and not safe:
            return []
        full = max(1, self._wave_nodes // FLIGHTS) if safe else 1 if self._rules.conditioned else self._wave_nodes
        most = min(full, self._wave_nodes - len(self._flying))
        wave: list[tuple[Tree, Node]] = []
        queries = set(self._flying.values())
        for tree in trees:
            for node in tree.pending():
                if (tree.index, node.ordinal) not in self._flying and node.text not in queries and len(wave) < most:
                    queries.add(node.text)
                    wave.append((tree, node))
        if not wave or (len(wave) < full and self._at_the_encoder >= AT_THE_ENCODER):
            return []
        self._flying.update(((tree.index, node.ordinal), node.text) for tree, node in wave)
        self._at_the_encoder += 1
        return wave

    async def _fly(self, wave: Sequence[tuple[Tree, Node]]) -> None:
        try:
            jobs = await self._first_round(wave)
            while jobs:
                jobs = await self._retrieve(await self._judge(self._within_budget(jobs)))
        finally:
            for tree, node in wave:
                self._flying.pop((tree.index, node.ordinal), None)
            self._moved.set()

    async def _first_round(self, wave: Sequence[tuple[Tree, Node]]) -> list[Job]:
        queries = [node.text for _, node in wave]
        try:
            known = await self._patiently(lambda: self._nodes.answers(self._run.id, queries))
            return await self._retrieve(
                [Job(tree, node, [], [], answers, []) for (tree, node), answers in zip(wave, known, strict=True)]
            )
        finally:
            self._at_the_encoder -= 1
            self._moved.set()

    async def _retrieve(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with what their round finds."""
        if not jobs:
            return []
        queries = [(job.node.text, job.accepted) for job in jobs]
        try:
            found = await self._retrieval.nearest(self._run, queries)
        except errors.AeencError as error:
            raise RunFailed(f"{error.message} (then resume the run)") from None
        return [job.with_found(nearest) for job, nearest in zip(jobs, found, strict=True)]

    def _within_budget(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that the run's budget still covers, the last one perhaps in part."""
        if not self._rules.max_judgements:
            return list(jobs)
        within: list[Job] = []
        left = self._rules.max_judgements - self._judgements
        for job in jobs:
            if left <= 0:
                break
            within.append(job.asking(left))
            left -= len(within[-1].asked)
        return within

    async def _judge(self, jobs: Sequence[Job]) -> list[Job]:
        """Asks the oracle in batches side by side, each committed as soon as it is answered. Returns what goes on."""
        granted = await self._within_oracle_budget([job for job in jobs if job.asked])
        calls = [self._commit([(job, None) for job in jobs if not job.asked])]
        calls += [self._judge_batch(batch) for batch in batches(granted, self._oracle.settings.batch_tasks)]
        tasks = [asyncio.create_task(call) for call in calls]
        try:
            return [job for going_on in await asyncio.gather(*tasks) for job in going_on]
        except OracleFailed as error:
            raise RunFailed(str(error)) from None
        finally:
            await cancel_all(tasks)

    async def _within_oracle_budget(self, jobs: list[Job]) -> list[Job]:
        """The jobs that the oracle's own budget covers; once it refuses one, no further flight starts."""
        limit = self._oracle.settings.max_judgements
        if not limit or not jobs:
            return jobs
        wanted = [(f"{job.node_id}:{job.round}", len(job.asked)) for job in jobs]
        name = self._oracle.name
        granted = await self._patiently(lambda: self._budgets.reserve(name, limit, self._run.id, wanted))
        self._refused_by_budget |= not all(granted)
        return [job for job, may in zip(jobs, granted, strict=True) if may]

    async def _judge_batch(self, jobs: Sequence[Job]) -> list[Job]:
        if not self._lease.sure:  # or we might ask what a successor has asked and stored
            await self._make_sure()
        by_task = {job.node_id: job for job in jobs}
        outcomes = await self._oracle.judge(self._run.id, [job.task(self._run.id) for job in jobs])
        going_on = await self._commit([(by_task[o.task.task_id], o) for o in outcomes if isinstance(o, Judged)])
        self._unanswered += [(by_task[o.task.task_id], o) for o in outcomes if isinstance(o, Unanswered)]
        return going_on

    async def _give_up(self, *, landed: bool) -> None:
        """Counts nodes as failed whose fault it is: the oracle answered others meanwhile, or they failed alone before.

        In every other case the run fails and keeps them, once all flights have landed without an answer.
        """
        unanswered, self._unanswered = self._unanswered, []  # flights in the air may add to it meanwhile
        guilty = [job for job, outcome in unanswered if self._oracle.last_answer_at > outcome.since]
        doubtful = [(job, outcome) for job, outcome in unanswered if self._oracle.last_answer_at <= outcome.since]
        if landed and 0 < len(doubtful) <= FEW:
            ids = [job.node_id for job, _ in doubtful]
            if await self._patiently(lambda: self._store.suspect(self._run.id, ids)):
                guilty, doubtful = [*guilty, *(job for job, _ in doubtful)], []
        await self._store_rounds([(job, job.failed(self._rules), None, True) for job in guilty])
        self._unanswered += doubtful
        if landed and doubtful:
            job, outcome = doubtful[0]
            raise RunFailed(f"{self._oracle.describe(outcome.reason)} (first unanswered node: {job.node_id})")

    async def _commit(self, judged: Sequence[tuple[Job, Judged | None]]) -> list[Job]:
        """Stores what was judged. Returns the jobs whose nodes go on with another round."""
        rounds: list[tuple[Job, Outcome, Judged | None, bool]] = []
        going_on: list[Job] = []
        for job, answer in judged:
            outcome = job.settle(answer, self._rules)
            next_round = job.goes_on(outcome, self._rules)
            rounds.append((job, outcome, answer, next_round is None))
            if next_round is not None:
                going_on.append(next_round)
        await self._store_rounds(rounds)
        return going_on

    async def _store_rounds(self, rounds: Sequence[tuple[Job, Outcome, Judged | None, bool]]) -> None:
        commits = [job.commit(self._run, outcome, judged, last=last) for job, outcome, judged, last in rounds]
        await self._write(lambda: self._nodes.commit(self._run.id, self._lease.owner, commits))
        for (job, outcome, _, last), commit in zip(rounds, commits, strict=True):
            self._judgements += commit.judgements
            if last:
                job.tree.results[job.node.ordinal] = outcome.result
                self._flying.pop((job.tree.index, job.node.ordinal), None)
                self._moved.set()

    async def _advance(self) -> None:
        """Opens the next level of each tree whose level is judged, and closes the trees that have none."""
        while ready := [tree for tree in self._window.values() if not tree.pending()]:
            steps = [TreeAdvance(tree.index, tree.depth, tuple(tree.next_level(self._rules))) for tree in ready]
            await self._open_levels(steps)
            for tree, step in zip(ready, steps, strict=True):
                if not step.nodes:
                    del self._window[tree.index]
                tree.nodes.extend(step.nodes)
                tree.depth += 1

    async def _open_levels(self, steps: Sequence[TreeAdvance]) -> None:
        await self._write(lambda: self._nodes.advance(self._run.id, self._lease.owner, steps))

    async def _write(self, write: Callable[[], Awaitable[list[Written]]]) -> None:
        """Writes until all is stored. What was stored by an attempt whose answer got lost is not stored twice."""
        while True:
            written = await self._patiently(write)
            if "STOPPED" in written:
                raise RunStopped
            if "LOST" not in written:
                return
            await self._make_sure()

    async def _make_sure(self) -> None:
        """Returns once the run is ours for sure. Raises RunStopped when another sampler has it."""
        if not await self._patiently(self._lease.renew):
            raise RunStopped

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Waits for Redis as long as it takes: what the oracle has answered must not be lost."""
        while True:
            try:
                return await call()
            except errors.Unavailable as error:
                log.warning("run waits for redis", run=self._run.id, reason=error.message)
                await asyncio.sleep(REDIS_PAUSE_S)
