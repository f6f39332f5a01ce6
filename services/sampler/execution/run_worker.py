"""Works on one run in waves of independent nodes, so that no service waits for another.

                  one wave: nodes of many trees                       each node on its own
    open trees ─▶ retrieve, one call ─▶ ask the oracle, a few calls ─▶ commit: pairs, result, event ─▶ next level
                         ▲                      │ abstained, missing, unseen: skipped, never a negative
                         └── conditioned nodes, after new acceptances ◀──┘

What people accept of judged nodes later is looked for now and then; the tree grows below it.

While the oracle judges some waves, the encoder works on others, and a tree goes on as soon as its own level is judged.
Everything that a worker holds is also in Redis: another one that takes the run over starts from there and repeats no
recorded question. `acs` defines what answers mean, and why neither waves nor their order change the result.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from aeenc import errors
from aeenc.oracle import Candidate, Task
from services.kit.concurrency import cancel_all, observe_failure
from services.kit.logs import get
from services.sampler.acs.algorithm import Node, Outcome, RetrievedPremise, Tree, affordable
from services.sampler.acs.nodes import Amendment, NodeAnswer, NodeRound
from services.sampler.execution.retrieval import Retrieval
from services.sampler.oracles.answers import UnansweredTask, WithdrawnTask, admitted
from services.sampler.oracles.budgets import OracleBudgets
from services.sampler.oracles.gateway import FEW, Gateway, OracleFailed
from services.sampler.oracles.statements import MAX_ADDED
from services.sampler.records.node_store import NodeCommit, NodeStore, TreeAdvance, Written
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run
from services.store.life_cycles import WorkLease

log = get(__name__)
T = TypeVar("T")

REDIS_PAUSE_S = 0.5
LOOK_S = 1.0  # between two looks for what people have amended
READ_TREES = 16  # at once: reading those of a run that is taken over takes 0.1 ms each
CALL_BYTES = 1024 * 1024  # an oracle's server may accept no more than gRPC's default of 4 MiB
LAST_NODES = 50  # of those asked: when more than this share gets no answer, it is the oracle that fails
MOST_FAILED = 0.2
WAVES = 4  # the nodes in work make at least this many waves, so that some are judged while others are encoded
WAVES_AT_ENCODER = 2  # with this many, a small wave waits to grow: the encoder always has a next one


class RunStopped(Exception):
    """The run no longer belongs to this worker: it was cancelled, or another sampler took it over."""


class RunFailed(Exception):
    """The run cannot go on; the message says why and what to do."""


class RunWorker:
    """Holds one run's open trees. `work` returns when no node is left."""

    def __init__(
        self,
        run: Run,
        lease: WorkLease,
        store: RunStore,
        nodes: NodeStore,
        retrieval: Retrieval,
        oracle: Gateway,
        budgets: OracleBudgets,
        max_nodes: int,
    ) -> None:
        self._run, self._lease = run, lease
        self._rules = run.config.rules
        self._store, self._nodes = store, nodes
        self._retrieval, self._oracle, self._budgets = retrieval, oracle, budgets
        self._max_nodes = max_nodes
        self._max_in_work = oracle.settings.open_tasks or max_nodes
        self._judgements = run.progress.judgements
        self._open_trees: dict[int, Tree] = {}
        self._judged: set[int] = set()  # those of them whose level is judged
        self._to_ask: dict[int, list[Node]] = {}  # by tree, in order, the pending nodes that are not in work
        self._last_index = -1
        self._all_read = False
        self._in_work: dict[tuple[int, int], str] = {}  # (tree, ordinal) -> query
        self._waves_at_encoder = 0
        self._progressed = asyncio.Event()  # something was stored or retrieved, or a wave has ended
        self._unanswered: list[tuple[NodeRound, UnansweredTask]] = []
        self._last: deque[bool] = deque(maxlen=LAST_NODES)  # whether the nodes asked last were answered
        self._refused_by_budget = False
        self._amended: Sequence[Amendment] = ()

    async def work(self) -> None:
        """Judges nodes until none is left or the budget is spent. Raises RunFailed or RunStopped."""
        waves: set[asyncio.Task[None]] = set()
        looking = []
        if self._oracle.asks_people:
            self._amended = await self._patiently(lambda: self._oracle.amended(self._run.id))
            looking = [asyncio.create_task(self._look_for_amendments())]
        try:
            while True:
                self._progressed.clear()
                for ended in [wave for wave in waves if wave.done()]:
                    waves.remove(ended)
                    ended.result()
                await self._give_up(idle=not waves)
                await self._read_trees()
                await self._grow()
                while await self._advance():
                    await self._read_trees()
                while nodes := self._next_wave():
                    wave = asyncio.create_task(self._run_wave(nodes))
                    wave.add_done_callback(observe_failure)
                    waves.add(wave)
                    await asyncio.sleep(0)  # else the first waves of thousands of trees hold the loop up
                if waves:
                    await self._progressed.wait()
                elif self._refused_by_budget:
                    raise RunFailed(self._budgets.describe(self._oracle.name, self._oracle.settings.max_judgements))
                elif self._open_trees or self._all_read:
                    return
        finally:
            await cancel_all([*waves, *looking])

    async def _look_for_amendments(self) -> None:
        """Looks now and then for what people have accepted of judged nodes since."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self._amended = await self._oracle.amended(self._run.id)
            except errors.AeencError as error:
                log.warning("trees do not grow for now", run=self._run.id, reason=error.message)
            if self._amended or self._cut_in_work():
                self._progressed.set()

    async def _grow(self) -> None:
        """Lets the trees grow below what was accepted later. One whose node is not stored yet grows another time."""
        amended, self._amended = self._amended, ()
        for one in amended:
            index, ordinal = map(int, one.node_id.split("-"))
            tree = self._open_trees.get(index)
            if tree is None:
                [tree] = await self._patiently(partial(self._nodes.trees, self._run.id, [index]))
            if ordinal not in tree.results:
                continue
            if growth := tree.growth(ordinal, one.accepted, self._rules, one.refused):
                await self._write(partial(self._nodes.grow, self._run.id, self._lease.owner, index, growth))
                tree.grow(growth)
                if self._all_read or index <= self._last_index:  # else it is read in its turn
                    self._open_trees[index] = tree
                    self._look_at([tree])
            await self._patiently(partial(self._oracle.grown, self._run.id, one))
        if cut := self._cut_in_work():  # a task that somebody holds is looked at again later
            await self._patiently(partial(self._oracle.withdraw, self._run.id, cut))

    def _cut_in_work(self) -> list[str]:
        """The ids of the nodes in work that nobody needs to be asked any more."""
        cut = {index: tree.cut for index, tree in self._open_trees.items() if tree.cut}
        return [f"{index}-{ordinal}" for index, ordinal in self._in_work if ordinal in cut.get(index, ())]

    async def _read_trees(self) -> None:
        while not self._all_read and (room := self._max_in_work - len(self._open_trees)) > 0:
            most = min(room, READ_TREES)
            found = await self._patiently(partial(self._nodes.open_trees, self._run.id, self._last_index, most))
            for tree in found:
                self._open_trees[tree.index] = tree
                self._last_index = tree.index
            self._look_at(found)
            self._all_read = len(found) < most

    def _look_at(self, trees: Iterable[Tree]) -> None:
        """Notes what is to be done in open trees, once their results, level or nodes in work have changed."""
        for index, tree in {tree.index: tree for tree in trees}.items():
            pending = tree.pending()
            if pending or (tree.cut and any(index == of_tree for of_tree, _ in self._in_work)):  # cut, but not let go
                self._judged.discard(index)
            else:
                self._judged.add(index)
            self._to_ask[index] = [node for node in pending if (index, node.ordinal) not in self._in_work]
            if not self._to_ask[index]:
                del self._to_ask[index]

    def _next_wave(self) -> list[tuple[Tree, Node]]:
        """The nodes of the next wave, in order; none until it is known who is to blame for an unanswered node.

        Of nodes with the same query only one is in work: the others will find its answers. While the encoder has
        enough to do, a wave waits until it is full. What a budget may not cover is asked in order, one wave at a time;
        conditioned nodes ask again, so each makes a wave of its own.
        """
        room = self._max_in_work - len(self._in_work)
        if self._unanswered or self._refused_by_budget or not self._to_ask or room <= 0:
            return []
        counted = self._open_trees if self._rules.max_judgements else self._to_ask  # a budget counts nodes in work, too
        in_order = [self._open_trees[index] for index in sorted(counted)]
        trees, safe = affordable(in_order, self._rules, self._judgements)
        if self._in_work and not safe:
            return []
        full = max(1, self._max_nodes // WAVES) if safe else 1 if self._rules.conditioned else self._max_nodes
        wave = list(itertools.islice(self._askable(trees), min(full, room)))
        if not wave or (len(wave) < full and self._waves_at_encoder >= WAVES_AT_ENCODER):
            return []
        self._in_work.update(((tree.index, node.ordinal), node.text) for tree, node in wave)
        self._look_at(tree for tree, _ in wave)
        self._waves_at_encoder += 1
        return wave

    def _askable(self, trees: Iterable[Tree]) -> Iterator[tuple[Tree, Node]]:
        """The nodes of trees that may be asked now, each query once, in order."""
        queries = set(self._in_work.values())
        for tree in trees:
            for node in self._to_ask.get(tree.index, ()):
                if node.text not in queries:
                    queries.add(node.text)
                    yield tree, node

    async def _run_wave(self, wave: Sequence[tuple[Tree, Node]]) -> None:
        try:
            rounds = await self._first_rounds(wave)
            while rounds:
                rounds = await self._retrieve(await self._judge(self._within_budget(rounds)))
        finally:
            unjudged = [tree for tree, node in wave if self._in_work.pop((tree.index, node.ordinal), None) is not None]
            self._look_at(unjudged)  # the trees of the others may be closed by now
            self._progressed.set()

    async def _first_rounds(self, wave: Sequence[tuple[Tree, Node]]) -> list[NodeRound]:
        queries = [node.text for _, node in wave]
        try:
            known = await self._patiently(lambda: self._nodes.answers(self._run.id, queries))
            return await self._retrieve(
                [NodeRound.first(tree, node, states) for (tree, node), states in zip(wave, known, strict=True)]
            )
        finally:
            self._waves_at_encoder -= 1
            self._progressed.set()

    async def _retrieve(self, rounds: Sequence[NodeRound]) -> list[NodeRound]:
        """The rounds with what they retrieve by the version that the run follows now."""
        if not rounds:
            return []
        queries = [(one.node.text, one.accepted) for one in rounds]
        run = await self._patiently(lambda: self._store.get(self._run.id))
        try:
            found = await self._retrieval.nearest(run, queries)
        except errors.NotFound as error:
            raise RunFailed(f"{error.message} (start a new run, or resume this one once it is there again)") from None
        except errors.AeencError as error:
            raise RunFailed(f"{error.message} (then resume the run)") from None
        return [
            one.with_nearest(nearest, self._rules.k, run.version) for one, nearest in zip(rounds, found, strict=True)
        ]

    def _within_budget(self, rounds: Sequence[NodeRound]) -> list[NodeRound]:
        """The rounds that the run's budget still covers, the last one perhaps in part."""
        if not self._rules.max_judgements:
            return list(rounds)
        within: list[NodeRound] = []
        left = self._rules.max_judgements - self._judgements
        for one in rounds:
            if left <= 0:
                break
            within.append(one.asking(left))
            left -= len(within[-1].asked)
        return within

    async def _judge(self, rounds: Sequence[NodeRound]) -> list[NodeRound]:
        """Asks the oracle in concurrent calls and commits each as soon as it is answered. Returns the next rounds."""
        granted = await self._within_oracle_budget([one for one in rounds if one.asked])
        calls = [self._commit([(one, None) for one in rounds if not one.asked])]
        calls += [self._judge_batch(batch) for batch in batches(granted, self._oracle.settings.batch_tasks)]
        tasks = [asyncio.create_task(call) for call in calls]
        try:
            return [one for following in await asyncio.gather(*tasks) for one in following]
        except OracleFailed as error:
            raise RunFailed(str(error)) from None
        finally:
            await cancel_all(tasks)

    async def _within_oracle_budget(self, rounds: list[NodeRound]) -> list[NodeRound]:
        """The rounds that the oracle's own budget covers; once it refuses one, no further wave starts."""
        limit = self._oracle.settings.max_judgements
        if not limit or not rounds:
            return rounds
        wanted = [(f"{one.node_id}:{one.round}", len(one.asked)) for one in rounds]
        name = self._oracle.name
        granted = await self._patiently(lambda: self._budgets.reserve(name, limit, self._run.id, wanted))
        self._refused_by_budget |= not all(granted)
        return [one for one, may in zip(rounds, granted, strict=True) if may]

    async def _judge_batch(self, rounds: Sequence[NodeRound]) -> list[NodeRound]:
        following: list[NodeRound] = []
        while rounds:
            if not self._lease.sure:  # else we might repeat what a successor has asked and stored
                await self._make_sure()
            by_task = {one.node_id: one for one in rounds}
            tasks = {one.node_id: _task(self._run, one) for one in rounds}
            outcomes = await self._oracle.judge(self._run.id, [*tasks.values()])
            given = [o for o in outcomes if isinstance(o, NodeAnswer)]
            answers = [(by_task[o.task_id], await self._admitted(tasks[o.task_id], o)) for o in given]
            following += await self._commit(answers)
            self._last.extend(True for _ in answers)
            self._unanswered += [(by_task[o.task_id], o) for o in outcomes if isinstance(o, UnansweredTask)]
            rounds = await self._again([by_task[o.task_id] for o in outcomes if isinstance(o, WithdrawnTask)])
        return following

    async def _admitted(self, task: Task, answer: NodeAnswer) -> NodeAnswer:
        """A remote oracle's answer with the premises that it adds, as far as it may; people have heard of theirs."""
        if answer.statement is None:
            return answer
        try:
            return admitted(task, answer, await self._retrieval.proposed(self._run, answer.proposed[:MAX_ADDED]))
        except errors.AeencError as error:
            raise RunFailed(f"{error.message} (then resume the run)") from None

    async def _again(self, withdrawn: Sequence[NodeRound]) -> list[NodeRound]:
        """Rounds that nobody has judged, retrieved again. They ask no more than before: a budget has covered that.

        Cut nodes are asked no more, and make room for others.
        """
        for one in withdrawn:
            if one.node.ordinal in one.tree.cut:
                del self._in_work[one.tree.index, one.node.ordinal]
                self._look_at([one.tree])
                self._progressed.set()
        withdrawn = [one for one in withdrawn if one.node.ordinal not in one.tree.cut]
        found = await self._retrieve([one.anew() for one in withdrawn])
        return [one.asking(len(before.asked)) for one, before in zip(found, withdrawn, strict=True)]

    async def _give_up(self, *, idle: bool) -> None:
        """Counts nodes as failed if they are to blame: the oracle answered others meanwhile, or they failed before.

        Otherwise the run fails and keeps them, once all waves have ended without an answer (`idle`).
        """
        unanswered, self._unanswered = self._unanswered, []  # waves in work may add to it meanwhile
        guilty = [one for one, outcome in unanswered if self._oracle.last_answer_at > outcome.since]
        doubtful = [(one, outcome) for one, outcome in unanswered if self._oracle.last_answer_at <= outcome.since]
        if idle and 0 < len(doubtful) <= FEW:
            ids = [one.node_id for one, _ in doubtful]
            if await self._patiently(lambda: self._store.suspect(self._run.id, ids)):
                guilty, doubtful = [*guilty, *(one for one, _ in doubtful)], []
        self._last.extend(False for _ in guilty)
        failed = self._last.count(False)
        if guilty and failed > max(FEW, MOST_FAILED * len(self._last)):
            reason = f"{failed} of the last {len(self._last)} nodes got no answer; the last: {unanswered[-1][1].reason}"
            raise RunFailed(self._oracle.describe(reason))
        await self._store_rounds([(one, one.failure(self._rules), None, True) for one in guilty])
        self._unanswered += doubtful
        if idle and doubtful:
            one, outcome = doubtful[0]
            raise RunFailed(f"{self._oracle.describe(outcome.reason)} (first unanswered node: {one.node_id})")

    async def _commit(self, judged: Sequence[tuple[NodeRound, NodeAnswer | None]]) -> list[NodeRound]:
        """Stores what was judged. Returns the next rounds of the nodes that have one."""
        ended: list[tuple[NodeRound, Outcome, NodeAnswer | None, bool]] = []
        following: list[NodeRound] = []
        for one, answer in judged:
            outcome = one.outcome(answer, self._rules)
            next_round = one.next_round(outcome, self._rules)
            ended.append((one, outcome, answer, next_round is None))
            if next_round is not None:
                following.append(next_round)
        await self._store_rounds(ended)
        return following

    async def _store_rounds(self, ended: Sequence[tuple[NodeRound, Outcome, NodeAnswer | None, bool]]) -> None:
        commits = [
            NodeCommit.of_round(self._run, one, outcome, answer, last=last) for one, outcome, answer, last in ended
        ]
        await self._write(lambda: self._nodes.commit(self._run.id, self._lease.owner, commits))
        for (one, outcome, _, last), commit in zip(ended, commits, strict=True):
            self._judgements += commit.judgements
            if last:
                one.tree.results[one.node.ordinal] = outcome.result
                self._in_work.pop((one.tree.index, one.node.ordinal), None)
                self._progressed.set()
        self._look_at(one.tree for one, *_ in ended)

    async def _advance(self) -> bool:
        """Opens the next level of each tree whose level is judged, and closes the trees that have none.

        True: it has closed some, so there is room for others.
        """
        before = len(self._open_trees)
        while ready := [self._open_trees[index] for index in sorted(self._judged)]:
            steps = [
                TreeAdvance(tree.index, tree.depth, tuple(tree.next_level(self._rules)), tree.deeper) for tree in ready
            ]
            await self._store_levels(steps)
            for tree, step in zip(ready, steps, strict=True):
                tree.nodes.extend(step.nodes)
                tree.depth += 1
                if step.finishes:
                    del self._open_trees[tree.index]
                    self._judged.remove(tree.index)
                else:
                    self._look_at([tree])
        return len(self._open_trees) < before

    async def _store_levels(self, steps: Sequence[TreeAdvance]) -> None:
        await self._write(lambda: self._nodes.advance(self._run.id, self._lease.owner, steps))

    async def _write(self, write: Callable[[], Awaitable[list[Written]]]) -> None:
        """Writes until all is stored. An attempt whose answer got lost does not store anything twice."""
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
        """Waits for Redis as long as it takes: the oracle's answers must not be lost."""
        while True:
            try:
                return await call()
            except errors.Unavailable as error:
                log.warning("run waits for redis", run=self._run.id, reason=error.message)
                await asyncio.sleep(REDIS_PAUSE_S)


def batches(rounds: Sequence[NodeRound], most_tasks: int) -> list[list[NodeRound]]:
    """Rounds in calls of at most `most_tasks` tasks and about CALL_BYTES."""
    found: list[list[NodeRound]] = []
    size_bytes = 0
    for one in rounds:
        round_bytes = sum(len(candidate.text.encode()) + 64 for candidate in one.asked)
        if not found or len(found[-1]) >= most_tasks or size_bytes + round_bytes > CALL_BYTES:
            found.append([])
            size_bytes = 0
        found[-1].append(one)
        size_bytes += round_bytes
    return found


def _task(run: Run, node_round: NodeRound) -> Task:
    """A round as the oracle sees it."""
    return Task(
        task_id=node_round.node_id,
        run_id=run.id,
        query=node_round.node.text,
        path=node_round.tree.path(node_round.node),
        accepted=_candidates(node_round.explaining(node_round.known)),
        candidates=_candidates(node_round.asked),
        model_version=node_round.version,
    )


def _candidates(premises: Sequence[RetrievedPremise]) -> tuple[Candidate, ...]:
    return tuple(Candidate(one.id, one.text, one.rank, one.score) for one in premises)
