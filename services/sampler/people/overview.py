"""What is open, held and done: trees node by node, queues in numbers, a person's own answers. Changes nothing.

tree ─▶ nodes of the run's tree + the task that asks each query ─▶ one state a node
counts ─▶ all tasks once, then only those that an event names
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.sampler.acs.algorithm import AcceptedPremise, Known, Node, Statement, Tree
from services.sampler.people.controls import ControlItems, Qualification
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord, TaskState, check_annotator, explaining, parts_of
from services.sampler.records.node_store import NodeStore
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run
from services.sampler.settings import QueueSettings
from services.store.formats import NewerFormat

NodeState = Literal["PENDING", "OPEN", "LEASED", "DECIDED", "CONFLICT", "JUDGED", "FAILED"]
HOUR_S = 3600.0
PAGE = 100
EVENTS = 500
RUNS_COUNTED = 64  # whose tasks are remembered; about 200 bytes each
WATCH_WAIT_MS = 1000
_CHANGES_OTHERS = {"QUEUED", "SETTLED", "WITHDRAWN"}  # events after which a tree may have other tasks


@dataclass(frozen=True)
class NodeNow:
    """A node, what has become of it, and the task that asks its query (empty: it was not put before people).

    What people say of the node as a whole is empty until the task is decided: nobody sees it before their own answer.
    `version` is the encoder version that its candidates were retrieved with; empty: none yet, or it was not noted.
    """

    node: Node
    state: NodeState
    accepted: tuple[AcceptedPremise, ...]
    task_id: str = ""
    holders: tuple[str, ...] = ()
    answers: int = 0
    overlap: int = 0
    said: tuple[Statement, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class TreeNow:
    """A tree as it is. `finished`: nothing of it is left to judge."""

    run_id: str
    hypothesis_id: str
    index: int
    nodes: tuple[NodeNow, ...]
    finished: bool
    question: str = ""
    answer: str = ""


@dataclass
class Counts:
    """The tasks of a run or queue, without control items; `mine` and `free` are those of one person.

    `waiting` lack answers, `free` of them may be taken by the person, `leased` are held by somebody. `answers_hour` are
    all answers of the last hour.
    """

    tasks: int = 0
    waiting: int = 0
    free: int = 0
    leased: int = 0
    decided: int = 0
    conflicts: int = 0
    settled: int = 0
    mine: int = 0
    mine_hour: int = 0
    answers_hour: int = 0

    def add(self, other: Counts) -> None:
        """Adds the counts of another run."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)


@dataclass(frozen=True)
class QueueNow:
    """A queue of people, its settings, and its counts: of all its live runs, and of each.

    `qualification` is that of the person who asks, in the oldest of these runs.
    """

    name: str
    settings: QueueSettings
    guideline: str
    total: Counts
    runs: Mapping[str, Counts]
    qualification: Qualification | None = None


@dataclass(frozen=True)
class _Brief:
    """The part of a task that is counted."""

    state: TaskState
    overlap: int
    answers: tuple[tuple[str, float], ...]
    leases: tuple[tuple[str, float], ...]  # annotator and end, of those that nothing has ended


@dataclass
class _Counted:
    seq: int = 0  # of the last event that `tasks` has whole
    tasks: dict[str, _Brief | None] = field(default_factory=dict)  # None: a control item, or withdrawn
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Overview:
    """Reads trees and queues of one namespace. Raises the classes of `aeenc.errors`."""

    def __init__(
        self,
        runs: RunStore,
        nodes: NodeStore,
        tasks: TaskStore,
        queues: Mapping[str, QueueSettings],
        controls: ControlItems,
    ) -> None:
        self._runs, self._nodes, self._tasks, self._controls = runs, nodes, tasks, controls
        self._queues = queues
        self._guidelines = {name: one.guideline_text() for name, one in queues.items()}
        self._counted: OrderedDict[str, _Counted] = OrderedDict()

    async def tree(self, run_id: str, hypothesis_id: str) -> TreeNow:
        """The tree of a hypothesis. Raises NotFound."""
        await self._runs.get(run_id)
        tree = await self._nodes.tree_of(run_id, hypothesis_id)
        hanging = [node for node in tree.nodes if node.ordinal in tree.results or node.ordinal not in tree.cut]
        ids = await self._tasks.asking(run_id, [node.text for node in hanging])
        found, at = await self._tasks.read_many(run_id, sorted({one for one in ids if one}))
        by_id = {record.task.task_id: record for record in found}
        alone = [node.text for node, one in zip(hanging, ids, strict=True) if one not in by_id]
        known = dict(zip(alone, await self._nodes.answers(run_id, alone), strict=True))
        nodes = [
            _node(tree, node, by_id.get(one), known.get(node.text, Known()), at)
            for node, one in zip(hanging, ids, strict=True)
        ]
        nodes.sort(key=lambda now: now.node.depth)  # a tree that has grown has its last nodes higher up
        return TreeNow(
            run_id,
            hypothesis_id,
            tree.index,
            tuple(nodes),
            finished=await self._nodes.is_finished(run_id, tree.index),
            question=tree.question,
            answer=tree.answer,
        )

    async def watch_tree(self, run_id: str, hypothesis_id: str) -> AsyncIterator[TreeNow]:
        """The tree now and whenever it has changed, until its run has ended."""
        seq = await self._tasks.last_event(run_id)
        shown = await self.tree(run_id, hypothesis_id)
        yield shown
        while True:
            ended = (await self._runs.get(run_id)).ended
            events = await self._tasks.events(run_id, seq, wait_ms=0 if ended else WATCH_WAIT_MS)
            seq = events[-1].seq if events else seq
            mine = {one.task_id for one in shown.nodes}
            if events and not any(one.task_id in mine or one.event in _CHANGES_OTHERS for one in events):
                continue
            now = await self.tree(run_id, hypothesis_id)
            if now != shown:
                shown = now
                yield shown
            if ended and not events:
                return

    async def queues(self, annotator: str) -> list[QueueNow]:
        """All queues with their counts, sorted by name; those of a person, where one is named."""
        runs: dict[str, list[Run]] = {name: [] for name in self._queues}
        for run_id in await self._runs.active():
            with contextlib.suppress(NewerFormat):  # the samplers of the newer release count it
                run = await self._runs.get(run_id)
                if run.config.oracle in runs:
                    runs[run.config.oracle].append(run)
        return [
            await self._queue(name, sorted(runs[name], key=lambda run: run.created_at), annotator)
            for name in sorted(self._queues)
        ]

    async def answers(self, run_id: str, annotator: str, before: int, limit: int) -> tuple[list[TaskRecord], int]:
        """A page of the tasks that a person has answered, the latest first, and the position to go on from (0: all).

        Position n is the n-th answer in order of time.
        """
        check_annotator(annotator)
        await self._runs.get(run_id)
        ids = await self._tasks.answered_by(run_id, annotator)
        end = min(before - 1, len(ids)) if before else len(ids)
        start = max(0, end - min(limit or PAGE, EVENTS))
        wanted = [parts_of(one, "answer")[1] for one in reversed(ids[start:end])]
        found, _ = await self._tasks.read_many(run_id, wanted)
        return [record for record in found if not record.control], start + 1 if start else 0

    async def _queue(self, name: str, runs: Sequence[Run], annotator: str) -> QueueNow:
        total, by_run = Counts(), dict[str, Counts]()
        standing: Qualification | None = None
        for run in runs:
            with contextlib.suppress(NewerFormat):  # of a task, or an event of one
                counts = await self._counts(run.id, annotator)
                if annotator and not by_run:
                    standing = await self._controls.qualification(run, annotator)
                by_run[run.id] = counts
                total.add(counts)
        return QueueNow(name, self._queues[name], self._guidelines[name], total, by_run, standing)

    async def _counts(self, run_id: str, annotator: str) -> Counts:
        counted = self._counted.setdefault(run_id, _Counted())
        self._counted.move_to_end(run_id)
        while len(self._counted) > RUNS_COUNTED:
            self._counted.popitem(last=False)
        async with counted.reading:
            at = await self._refresh(run_id, counted)
        counts = Counts()
        for brief in counted.tasks.values():
            if brief is not None:
                counts.add(_counts_of(brief, annotator, at))
        return counts

    async def _refresh(self, run_id: str, counted: _Counted) -> float:
        """Reads what has changed since the last time; what breaks off is read again. Returns Redis's time."""
        if not counted.seq:
            seq, position = await self._tasks.last_event(run_id), 0
            while ids := await self._tasks.task_ids(run_id, position, PAGE):
                position += len(ids)
                await self._read(run_id, ids, counted)
            counted.seq = seq
        while events := await self._tasks.events(run_id, counted.seq, limit=EVENTS):
            await self._read(run_id, sorted({event.task_id for event in events}), counted)
            counted.seq = events[-1].seq
        return (await self._tasks.read_many(run_id, []))[1]

    async def _read(self, run_id: str, ids: Sequence[str], counted: _Counted) -> None:
        for record in (await self._tasks.read_many(run_id, ids))[0]:
            counted.tasks[record.task.task_id] = None if record.control or record.withdrawn else _brief(record)


def _node(tree: Tree, node: Node, record: TaskRecord | None, known: Known, at: float) -> NodeNow:
    result = tree.results.get(node.ordinal)
    accepted = result.accepted if result else ()
    if record is not None and record.decision:
        accepted = explaining(record, accepted)
    holders = () if record is None else tuple(lease.annotator for lease in record.held(at))
    decided = record.answers if record is not None and record.state in ("DECIDED", "SETTLED") else ()
    state: NodeState
    if result is not None:
        state = "FAILED" if result.failed else "JUDGED"
    elif record is None or record.withdrawn:
        state = "PENDING"
    elif record.state == "WAITING":
        state = "LEASED" if holders else "OPEN"
    else:
        state = "CONFLICT" if record.state == "CONFLICT" else "DECIDED"
    return NodeNow(
        node,
        state,
        accepted,
        task_id=record.task.task_id if record else "",
        holders=holders,
        answers=len(record.answers) if record else 0,
        overlap=record.overlap if record else 0,
        said=(*decided, *(known.statements if result is not None else ())),
        version=(result.version if result else "") or (record.task.model_version if record else ""),
    )


def _brief(record: TaskRecord) -> _Brief:
    answers = tuple((answer.annotator, answer.at) for answer in record.answers)
    leases = tuple((lease.annotator, lease.expires_at) for lease in record.leases if not lease.ended)
    return _Brief(record.state, record.overlap, answers, leases)


def _counts_of(brief: _Brief, annotator: str, at: float) -> Counts:
    recent = [who for who, when in brief.answers if when > at - HOUR_S]
    holders = [who for who, _ in brief.leases]
    people = {*holders, *(who for who, _ in brief.answers)}
    waits = brief.state == "WAITING"
    return Counts(
        tasks=1,
        waiting=waits,
        free=waits and annotator not in people and len(brief.answers) + len(holders) < brief.overlap,
        leased=bool(holders),
        decided=brief.state == "DECIDED",
        conflicts=brief.state == "CONFLICT",
        settled=brief.state == "SETTLED",
        mine=sum(who == annotator for who, _ in brief.answers),
        mine_hour=recent.count(annotator),
        answers_hour=len(recent),
    )
