"""Works on one run: each node is a coroutine, and what many of them ask at once goes into common calls.

    open trees ─▶ judge_node, many at once:  candidates ─▶ asked ─▶ answer ─▶ commit ─▶ children: the tree's next level
                                             one call of     │      one call    one round trip
                                             the index       │      of the oracle   └─▶ a conditioned node: once more
                                                             └─ the run's budget is taken here, in the order of asking

What people accept of judged nodes later is looked for now and then; the tree grows below it.

Everything that a worker holds is also in Redis: another one that takes the run over starts from there and repeats no
recorded question. `acs` defines what answers mean, and why without a budget no order of nodes changes the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from aeenc import errors
from aeenc.oracle import Task, all_of
from aeenc.trees import EVERYTHING
from services.kit.concurrency import cancel_all, observe_failure
from services.kit.logs import get
from services.sampler.acs.algorithm import MAX_REACH, Amendment, Node, NodeAnswer, NodeRound, Outcome, Tree
from services.sampler.execution.retrieval import Retrieval, in_calls
from services.sampler.oracles.answers import MAX_ADDED, UnansweredTask, WithdrawnTask, admitted
from services.sampler.oracles.gateway import FEW, Gateway, RunFailed
from services.sampler.records.node_store import NodeCommit, NodeStore, Written
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run
from services.store.redis import WorkLease

log = get(__name__)
T = TypeVar("T")
Asked = TypeVar("Asked")

REDIS_PAUSE_S = 0.5
LOOK_S = 1.0  # the longest time between two looks for what people have amended
READ_TREES = 16  # at once: reading those of a run that is taken over takes 0.1 ms each
LAST_NODES = 50  # of those asked: when more than this share gets no answer, it is the oracle that fails
MOST_FAILED = 0.2
CALLS = 4  # the nodes in work make at least this many calls, so that some are judged while the index has others
CALLS_AT_INDEX = 2  # with this many, those that wait fill the next call: the encoder always has one
COMMITS = 4  # round trips to Redis at once


class RunStopped(Exception):
    """The run no longer belongs to this worker: it was cancelled, or another sampler took it over."""


class Calls(Generic[Asked, T]):
    """Puts what many coroutines ask at once into common calls: of `most`, and `at_once` of them; the rest waits."""

    def __init__(
        self, call: Callable[[list[Asked]], Coroutine[Any, Any, Sequence[T]]], most: int, at_once: int
    ) -> None:
        self._call, self._most, self._at_once = call, most, at_once
        self._waiting: deque[tuple[Asked, asyncio.Future[T]]] = deque()
        self._open: set[asyncio.Task[Sequence[T]]] = set()

    async def ask(self, asked: Asked) -> T:
        """The answer to one of them. Raises what its call raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if not self._waiting:  # else it begins soon, or when a call has ended
            loop.call_soon(self._begin)  # after all others that go on now
        self._waiting.append((asked, answer))
        return await answer

    def end(self) -> set[asyncio.Task[Sequence[T]]]:
        """Begins no further call. Returns those that are open."""
        self._waiting.clear()
        return self._open

    def _begin(self) -> None:
        while self._waiting and len(self._open) < self._at_once:
            together = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            self._open.add(call := asyncio.create_task(self._call([asked for asked, _ in together])))
            call.add_done_callback(partial(self._ended, [answer for _, answer in together]))

    def _ended(self, answers: Sequence[asyncio.Future[T]], call: asyncio.Task[Sequence[T]]) -> None:
        self._open.discard(call)
        if call.cancelled():  # with all who wait for it
            return
        error = call.exception()
        for place, answer in enumerate(answers):
            if error is not None and not answer.done():
                answer.set_exception(error)
            elif not answer.done():
                answer.set_result(call.result()[place])
        self._begin()


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
        max_nodes: int,
    ) -> None:
        self._run, self._lease = run, lease
        self._config = run.config
        self._store, self._nodes = store, nodes
        self._retrieval, self._oracle = retrieval, oracle
        self._max_in_work = oracle.settings.open_tasks or max_nodes
        self._taken = run.progress.judgements  # of the run's budget, by what was asked
        self._open_trees: dict[int, Tree] = {}
        self._pending: dict[int, list[Node]] = {}  # of each of them, in order; none where its level is judged
        self._last_index = -1
        self._all_read = False
        self._in_work: dict[tuple[int, int], str] = {}  # (tree, ordinal) -> query
        self._changing = asyncio.Lock()  # what people say, and levels, change trees one after the other
        self._renewing = asyncio.Lock()  # what asks at once renews the lease once
        self._progressed = asyncio.Event()  # something was stored, or a node has ended
        self._unanswered: list[tuple[NodeRound, UnansweredTask]] = []
        self._last: deque[bool] = deque(maxlen=LAST_NODES)  # whether the nodes asked last were answered
        self._refused_by_budget = False
        share = max(1, self._max_in_work // CALLS)
        self._retrievals = Calls(self._retrieve, share, CALLS_AT_INDEX)
        self._questions = Calls(self._ask, oracle.settings.batch_tasks, self._max_in_work)
        self._commits = Calls(self._store_nodes, share, COMMITS)

    async def work(self) -> None:
        """Judges nodes until none is left or the budget is spent. Raises RunFailed, RunStopped, or as Retrieve does."""
        nodes: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._progressed.clear()
                for ended in [node for node in nodes if node.done()]:
                    nodes.remove(ended)
                    ended.result()
                await self._give_up(idle=not nodes)
                await self._read_trees()
                if self._oracle.asks_people:
                    await self._grow()
                while await self._advance():
                    await self._read_trees()
                for tree, node in self._put_to_work():
                    nodes.add(task := asyncio.create_task(self.judge_node(tree, node)))
                    task.add_done_callback(observe_failure)
                if nodes:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S if self._oracle.asks_people else None):
                            await self._progressed.wait()
                elif self._refused_by_budget:
                    limit = self._oracle.settings.max_judgements
                    raise RunFailed(
                        f"oracle {self._oracle.name!r} may be asked for {limit:,} verdicts in all, and what is left "
                        "does not cover the next node; raise its max_judgements in AEENC_SAMPLER_ORACLES or _QUEUES, "
                        "then resume the run"
                    )
                elif self._open_trees or self._all_read:
                    return
        finally:
            calls = (*self._retrievals.end(), *self._questions.end(), *self._commits.end())
            await cancel_all([*nodes, *calls])

    async def judge_node(self, tree: Tree, node: Node) -> None:
        """Candidates, the question, its answer, what is stored: once, or as often as a conditioned node asks again."""
        due: NodeRound | None = NodeRound(tree, node)
        try:
            while due is not None:
                due = due if due.asked else await self._retrievals.ask(due)
                covered = self._within_budget(due)
                if covered is None and due.round:  # the node has answers, though not to all
                    await self._record(due, due.outcome(None), None, last=True)
                due = await self._judge(covered) if covered else None
        finally:
            tree.begun -= {node.ordinal}
            if self._in_work.pop((tree.index, node.ordinal), None) is not None:
                self._pending[tree.index] = tree.pending()  # else it may be closed by now
            self._progressed.set()

    async def _grow(self) -> None:
        """Lets all trees that ask an amended query grow."""
        async with self._changing:
            due: list[tuple[str, Amendment]] = []
            for one in await self._patiently(partial(self._oracle.amended, self._run.id)):
                index, ordinal = map(int, one.node_id.split("-"))
                [tree] = await self._patiently(partial(self._nodes.trees, self._run.id, [index]))
                if ordinal in tree.results:
                    due.append((tree.nodes[ordinal].text, one))
            for start in range(0, self._run.progress.trees if due else 0, READ_TREES):
                indexes = range(start, min(start + READ_TREES, self._run.progress.trees))
                for tree in await self._patiently(partial(self._nodes.trees, self._run.id, indexes)):
                    await self._grow_tree(self._open_trees.get(tree.index, tree), due)
            if due:
                await self._make_sure()  # else a successor's trees may have what ours lack
            for _, one in due:
                await self._patiently(partial(self._oracle.grown, self._run.id, one))
        cut = [f"{tree.index}-{one}" for tree in self._open_trees.values() for one in tree.begun & tree.cut]
        if cut:  # nobody needs them any more; a task that somebody holds is looked at again later
            await self._patiently(partial(self._oracle.withdraw, self._run.id, cut))

    async def _grow_tree(self, tree: Tree, due: Sequence[tuple[str, Amendment]]) -> None:
        for query, one in due:
            for ordinal in [node.ordinal for node in tree.nodes if node.text == query]:
                ids = [premise.id for premise in one.accepted]
                barred = await self._retrieval.barred(self._run, ids, tree.accessible(tree.nodes[ordinal]))
                here = replace(one, accepted=tuple(each for each in one.accepted if each.id not in barred))
                if growth := tree.growth(ordinal, here, self._config):
                    await self._write(partial(self._nodes.grow, self._run.id, self._lease.owner, tree, growth))
                    tree.grow(growth)
                    if self._all_read or tree.index <= self._last_index:  # else it is read in its turn
                        await self._open(tree)

    async def _read_trees(self) -> None:
        while not self._all_read and (room := self._max_in_work - len(self._open_trees)) > 0:
            most = min(room, READ_TREES)
            found = await self._patiently(partial(self._nodes.open_trees, self._run.id, self._last_index, most))
            for tree in found:
                await self._open(tree)
                self._last_index = tree.index
            self._all_read = len(found) < most

    async def _open(self, tree: Tree) -> None:
        """Works on a tree from now on. Its cut nodes stay in work that this or an earlier worker has asked."""
        cut = {one: f"{tree.index}-{one}" for one in tree.cut - tree.results.keys()}
        queries = {node_id: tree.nodes[one].text for one, node_id in cut.items()}
        asked = await self._patiently(partial(self._oracle.asked, self._run.id, queries)) if cut else {}
        tree.begun = frozenset(one for one, name in cut.items() if name in asked or (tree.index, one) in self._in_work)
        self._open_trees[tree.index], self._pending[tree.index] = tree, tree.pending()

    def _put_to_work(self) -> list[tuple[Tree, Node]]:
        """The nodes to begin now, in order; none until it is known who is to blame for an unanswered node.

        Of nodes with the same query only one is in work: the others will find its answers.
        """
        if self._unanswered or self._refused_by_budget or self._left <= 0:
            return []
        found = list(itertools.islice(self._askable(), self._max_in_work - len(self._in_work)))
        self._in_work.update(((tree.index, node.ordinal), node.text) for tree, node in found)
        return found

    def _askable(self) -> Iterator[tuple[Tree, Node]]:
        """The nodes that may be asked now, each query once, in order."""
        queries = set(self._in_work.values())
        for index in sorted(self._pending):
            for node in self._pending[index]:
                if node.text not in queries:
                    queries.add(node.text)
                    yield self._open_trees[index], node

    async def _retrieve(self, rounds: Sequence[NodeRound]) -> list[NodeRound]:
        """The rounds with what the run knows, and what they retrieve by the version that it follows now."""
        queries = [(one.node.text, one.accepted, one.tree.accessible(one.node)) for one in rounds]
        texts = [one.node.text for one in rounds]
        version, known = await self._patiently(lambda: self._nodes.current(self._run.id, texts))
        run = replace(self._run, current_version=version)
        found = await self._retrieval.nearest(run, queries)
        nodes = {one.node_id: one.node.text for one in rounds}
        begun = await self._patiently(partial(self._oracle.asked, run.id, nodes))
        k, step = self._config.k, self._config.step
        return [
            await self._without_barred(
                replace(one, known=now).with_nearest(nearest, k, run.version, step).begun_by(begun.get(one.node_id))
            )
            for one, nearest, now in zip(rounds, found, known, strict=True)
        ]

    async def _without_barred(self, one: NodeRound) -> NodeRound:
        """The round without what other trees have accepted and is not accessible here."""
        if one.tree.within == EVERYTHING:
            return one
        new = {premise.id for premise in one.explaining(one.known)} - {candidate.id for candidate in one.candidates}
        barred = await self._retrieval.barred(self._run, sorted(new), one.tree.accessible(one.node))
        return replace(one, barred=one.barred | barred)

    @property
    def _left(self) -> int:
        """The verdicts that the run's budget still covers; without one, more than any node asks for."""
        return self._config.max_judgements - self._taken if self._config.max_judgements else MAX_REACH

    def _within_budget(self, one: NodeRound) -> NodeRound | None:
        """The round as far as the run's budget covers it, taken from the budget. None: nothing is left for it.

        One that was withdrawn asks no more than before: a budget has covered that.
        """
        self._taken -= one.reserved
        most = min(max(self._left, 0), one.reserved or MAX_REACH)
        whole = len(one.asked) <= most and not one.reserved
        covered = one if whole else replace(one, asked=one.asked[:most], reserved=0)
        if one.asked and not covered.asked:
            return None
        self._taken += len(covered.asked)
        return covered

    async def _judge(self, one: NodeRound) -> NodeRound | None:
        """Asks what has to be asked, and stores it. Returns what is to be retrieved for next, if the node goes on."""
        answer: NodeAnswer | None = None
        if one.asked:
            outcome = await self._questions.ask(one)
            if isinstance(outcome, WithdrawnTask) and one.node.ordinal not in one.tree.cut:
                return one.anew()
            if not isinstance(outcome, NodeAnswer):
                self._taken -= len(one.asked)
                if isinstance(outcome, UnansweredTask):
                    self._unanswered.append((one, outcome))
                return None
            self._last.append(True)
            answer = await self._admitted(one, outcome)
        return await self._commit(one, answer)

    async def _ask(self, rounds: Sequence[NodeRound]) -> list[NodeAnswer | UnansweredTask | WithdrawnTask | None]:
        """Asks the oracle in a call, or several where texts are long. None: its own budget does not cover the node."""
        granted = await self._within_oracle_budget(rounds)
        await self._make_sure()  # else we might repeat what a successor has asked and stored
        parts = in_calls(granted, lambda one: sum(len(c.text.encode()) + 64 for c in one.asked), len(granted))
        calls = [self._oracle.judge(self._run.id, [_task(self._run, one) for one in part]) for part in parts]
        found = [await calls[0]] if len(calls) == 1 else await all_of(calls)
        outcomes = {one.task_id: one for part in found for one in part}
        return [outcomes.get(one.node_id) for one in rounds]

    async def _within_oracle_budget(self, rounds: Sequence[NodeRound]) -> Sequence[NodeRound]:
        """The rounds that the oracle's own budget covers; once it refuses one, no further node begins."""
        limit = self._oracle.settings.max_judgements
        if not limit:
            return rounds
        # By what is known: a run that is resumed counts its rounds anew, and may have other candidates.
        known = [sum(candidate.id in one.known.pairs for candidate in one.candidates) for one in rounds]
        wanted = [(f"{one.node_id}:{n}", len(one.asked)) for one, n in zip(rounds, known, strict=True)]
        granted = await self._patiently(partial(self._store.reserve, self._oracle.name, limit, self._run.id, wanted))
        self._refused_by_budget |= not all(granted)
        return [one for one, may in zip(rounds, granted, strict=True) if may]

    async def _admitted(self, one: NodeRound, answer: NodeAnswer) -> NodeAnswer:
        """A remote oracle's answer with the premises that it adds, as far as it may; people have heard of theirs."""
        if answer.statement is None and not answer.proposed:
            return answer
        found = await self._retrieval.proposed(self._run, answer.proposed[:MAX_ADDED], one.tree.accessible(one.node))
        return admitted(_task(self._run, one), answer, found)

    async def _give_up(self, *, idle: bool) -> None:
        """Counts nodes as failed if they are to blame: the oracle answered others meanwhile, or they failed before.

        Otherwise the run fails and keeps them, once nothing is in work (`idle`).
        """
        unanswered, self._unanswered = self._unanswered, []  # nodes in work may add to it meanwhile
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
        for one in guilty:  # what was known before explains it, and nothing is recorded
            known_before = replace(one.outcome(None).result, failed=True)
            await self._record(one, Outcome(known_before), None, last=True)
        self._unanswered += doubtful
        if idle and doubtful:
            one, outcome = doubtful[0]
            raise RunFailed(f"{self._oracle.describe(outcome.reason)} (first unanswered node: {one.node_id})")

    async def _commit(self, one: NodeRound, answer: NodeAnswer | None) -> NodeRound | None:
        """Stores what was judged. Returns the node's next round, if it has one."""
        async with self._changing if self._oracle.asks_people else contextlib.nullcontext():
            if self._oracle.asks_people:  # they may have changed their mind in another tree since
                [known] = await self._patiently(lambda: self._nodes.answers(self._run.id, [one.node.text]))
                one, answer = one.after(known, answer)
                one = await self._without_barred(one)
            outcome = one.outcome(answer)
            following = one.next_round(outcome, self._config, answer)
            await self._record(one, outcome, answer, last=following is None)
        return following

    async def _record(self, one: NodeRound, outcome: Outcome, answer: NodeAnswer | None, *, last: bool) -> None:
        growth = one.tree.judged(one.node.ordinal, outcome.result)
        await self._commits.ask(NodeCommit(one, outcome, answer, growth if last else None))
        if last:
            one.tree.grow(growth)
            self._in_work.pop((one.tree.index, one.node.ordinal), None)
            self._pending[one.tree.index] = one.tree.pending()
            self._progressed.set()

    async def _store_nodes(self, commits: Sequence[NodeCommit]) -> list[Written]:
        return await self._write(lambda: self._nodes.commit(self._run, self._lease.owner, commits))

    async def _advance(self) -> bool:
        """Opens the next level of each tree whose level is judged, and closes the trees that have none.

        True: it has closed some, so there is room for others.
        """
        before = len(self._open_trees)
        async with self._changing:
            while ready := sorted(index for index, left in self._pending.items() if not left):
                levels = [(tree, tree.next_level(self._config)) for tree in (self._open_trees[one] for one in ready)]
                await self._write(partial(self._nodes.advance, self._run.id, self._lease.owner, levels))
                for tree, nodes in levels:
                    finishes = not nodes and not tree.deeper
                    tree.nodes.extend(nodes)
                    tree.depth += 1
                    self._pending[tree.index] = tree.pending()
                    if finishes:
                        del self._open_trees[tree.index], self._pending[tree.index]
        return len(self._open_trees) < before

    async def _write(self, write: Callable[[], Awaitable[list[Written]]]) -> list[Written]:
        """Writes until all is stored. An attempt whose answer got lost does not store anything twice."""
        while True:
            written = await self._patiently(write)
            if "STOPPED" in written:
                raise RunStopped
            if "LOST" not in written:
                return written
            await self._make_sure(lost=True)

    async def _make_sure(self, *, lost: bool = False) -> None:
        """Returns once the run is ours for sure. Raises RunStopped when another sampler has it."""
        async with self._renewing:
            if (lost or not self._lease.sure) and not await self._patiently(self._lease.renew):
                raise RunStopped

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Waits for Redis as long as it takes: the oracle's answers must not be lost."""
        while True:
            try:
                return await call()
            except errors.Unavailable as error:
                log.warning("run waits for redis", run=self._run.id, reason=error.message)
                await asyncio.sleep(REDIS_PAUSE_S)


def _task(run: Run, node_round: NodeRound) -> Task:
    """A round as the oracle sees it."""
    return Task(
        task_id=node_round.node_id,
        run_id=run.id,
        query=node_round.node.text,
        path=node_round.tree.path(node_round.node),
        accepted=tuple(node_round.explaining(node_round.known)),
        candidates=tuple(node_round.asked),
        model_version=node_round.version,
    )
