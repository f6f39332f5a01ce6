"""What is open, held and done: trees, tasks, answers, queues in numbers, agreement, events. Changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import fields, replace
from datetime import timedelta
from statistics import median

import numpy as np

from aeenc import errors
from aeenc.values import (
    Agreement,
    AnnotatorReport,
    Judgement,
    Qualification,
    Queue,
    TaskCounts,
    TaskEvent,
    TaskState,
    TreeNode,
    TreeState,
    Verdict,
)
from aeenc.values.reading import EPOCH
from services.sampler.acs.algorithm import ROOT, Known, Node, Tree, explains
from services.sampler.people.agreement import agreement_of, agreement_of_pairs, edge_f1
from services.sampler.people.controls import ControlItems, control_report, right_and_judged
from services.sampler.people.task_store import HOUR_S, TaskStore
from services.sampler.people.tasks import (
    TASKS_READ,
    TaskRecord,
    check_annotator,
    decided,
    moment_of,
)
from services.sampler.records.node_store import Amended, NodeStore, explaining
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Hypothesis, Run
from services.sampler.settings import QueueSettings
from services.store.formats import UNREADABLE

WATCH_WAIT_MS = 1000
MAX_COMPARED = 200  # annotators: each is compared with each
_CHANGES_OTHERS = {"QUEUED", "SETTLED", "WITHDRAWN"}  # events after which a tree may have other tasks
Asked = tuple[TaskRecord, Hypothesis]  # a task, and the root of the tree that asks it first


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

    async def tree(self, run_id: str, hypothesis_id: str) -> TreeState:
        """The tree of a hypothesis. Raises NotFound."""
        await self._runs.get(run_id)
        tree = await self._nodes.tree_of(run_id, hypothesis_id)
        hanging = [node for node in tree.nodes if node.ordinal in tree.results or node.ordinal not in tree.cut]
        nodes: list[TreeNode] = []
        for start in range(0, len(hanging), TASKS_READ):
            some = hanging[start : start + TASKS_READ]
            ids = await self._tasks.asking(run_id, [node.text for node in some])
            found, at = await self._tasks.read_many(run_id, sorted({one for one in ids if one}))
            by_id = {record.task.task_id: record for record in found}
            known = await self._nodes.answers(run_id, [node.text for node in some])
            amended = await self._nodes.amended(run_id, [node.text for node in some])
            nodes += [
                _node(tree, node, by_id.get(one), said, changed, at)
                for node, one, said, changed in zip(some, ids, known, amended, strict=True)
            ]
        nodes.sort(key=lambda now: now.depth)  # a tree that has grown has its last nodes higher up
        return TreeState(
            run_id=run_id,
            hypothesis_id=hypothesis_id,
            nodes=tuple(nodes),
            finished=await self._nodes.is_finished(run_id, tree.index),
            question=tree.question,
            answer=tree.answer,
        )

    async def watch_tree(self, run_id: str, hypothesis_id: str) -> AsyncIterator[TreeState]:
        """The tree now and whenever it has changed, until its run has ended."""
        seq = await self._tasks.last_event(run_id)
        shown, before = await self.tree(run_id, hypothesis_id), None
        yield shown
        async for events, run in self._looks(run_id, seq):
            mine = {one.task_id for one in shown.nodes}
            is_changed = any(one.task_id in mine or one.kind.name in _CHANGES_OTHERS for one in events)
            if not is_changed and (events or run == before):  # no event tells what the run has recorded
                continue
            now, before = await self.tree(run_id, hypothesis_id), run
            if now != shown:
                shown = now
                yield shown

    async def queues(self, annotator: str) -> list[Queue]:
        """All queues with their counts, sorted by name; those of a person, where one is named."""
        live = await self._runs.live()
        return [
            await self._queue(name, [run for run in live if run.config.oracle == name], annotator)
            for name in sorted(self._queues)
        ]

    async def answers(self, run_id: str, annotator: str, limit: int, before: int) -> tuple[list[Asked], int]:
        """A page of the tasks that a person has answered, the latest first, and the position to go on from (0: all).

        Position n is the n-th answer in order of time.
        """
        check_annotator(annotator, "answered_by")
        await self._runs.get(run_id)
        count = await self._tasks.answered(run_id, annotator)
        end = min(before - 1, count) if before else count
        start = max(0, end - limit)
        ids = await self._tasks.answered_by(run_id, annotator, start, end - 1) if end else []
        found, _ = await self._tasks.read_many(run_id, ids[::-1])
        shown = [record for record in found if not record.control]
        return await self._asked(run_id, shown), start + 1 if start else 0

    async def tasks(self, run_id: str, state: TaskState | None, limit: int, after: int) -> tuple[list[Asked], int]:
        """A page of a run's tasks without its control items, and the position to go on from (0: that was all)."""
        await self._runs.get(run_id)
        ids = await self._tasks.task_ids(run_id, after, limit)
        found, _ = await self._tasks.read_many(run_id, ids)
        shown = [record for record in found if not record.control and (state is None or record.state is state)]
        return await self._asked(run_id, shown), after + limit if len(ids) == limit else 0

    async def _asked(self, run_id: str, records: Sequence[TaskRecord]) -> list[Asked]:
        roots = await self._nodes.hypotheses(run_id, [record.node_id for record in records])
        return list(zip(records, roots, strict=True))

    async def changes(self, run_id: str, task_id: str, limit: int, after: int) -> tuple[list[TaskEvent], int]:
        """A page of the verdict log of a run, and the position to go on from (0: that was all)."""
        await self._runs.get(run_id)
        found = await self._tasks.verdict_log(run_id, after, limit)
        shown = [one for one in found if not task_id or one.task_id == task_id]
        queries: dict[str, str] = {}
        ids = list({one.task_id for one in shown})
        for start in range(0, len(ids), TASKS_READ):
            tasks, _ = await self._tasks.read_many(run_id, ids[start : start + TASKS_READ])
            queries |= {record.task.task_id: record.task.query for record in tasks}
        named = [replace(one, query=queries.get(one.task_id, "")) for one in shown]
        return named, found[-1].seq if len(found) == limit else 0

    async def agreement(self, run_id: str) -> Agreement:
        """The agreement of a run's annotators, a report on each, and on its control items, those done worst first."""
        await self._runs.get(run_id)
        ratings: list[Mapping[str, bool]] = []
        edges: list[Mapping[str, Set[str]]] = []
        people: dict[str, Counter[str]] = defaultdict(Counter)
        elapsed_s: dict[str, list[float]] = defaultdict(list)
        items: dict[tuple[str, frozenset[str]], list[TaskRecord]] = defaultdict(list)
        position = 0
        while ids := await self._tasks.task_ids(run_id, position, TASKS_READ):
            position += len(ids)
            found, at = await self._tasks.read_many(run_id, ids)
            for record in found:
                said = {given.annotator: given.own_verdicts for given in record.answers}
                for given in record.answers:
                    right, judged = right_and_judged(record, given.own_verdicts)
                    elapsed_s[given.annotator].append(given.elapsed_s)
                    people[given.annotator].update(
                        answers=1,
                        late=int(given.answer.late),
                        control_verdicts=judged,
                        control_correct=right,
                        answers_hour=int(given.answer.at > moment_of(at - HOUR_S)),
                    )
                if not record.control:
                    ratings += [
                        {name: yes for name, one in said.items() if (yes := explains(one[asked.id])) is not None}
                        for asked in record.task.candidates
                    ]
                    edges.append(
                        {name: {key for key, one in given.items() if explains(one)} for name, given in said.items()}
                    )
                elif record.answers:
                    items[record.task.query, frozenset(record.gold)].append(record)

        def figures() -> Agreement:
            controls = sorted(map(control_report, items.values()), key=lambda one: one.correct - one.verdicts)
            reports = _reports(people, elapsed_s, ratings)
            return replace(agreement_of(ratings), edge_f1=edge_f1(edges), reports=reports, controls=tuple(controls))

        return await asyncio.to_thread(figures)

    async def watch(self, run_id: str, from_seq: int, *, from_now: bool = False) -> AsyncIterator[TaskEvent]:
        """The events of a run's tasks until it has ended, or (empty) of all, without end; or those from now on.

        Raises FailedPrecondition (EVENTS_GONE) when one of all was trimmed before it could be read.
        """
        seq = await self._tasks.last_event(run_id) if from_now else max(from_seq, 1) - 1
        async for events, _ in self._looks(run_id, seq):
            for event in events:
                if seq and event.seq != seq + 1:
                    raise errors.FailedPrecondition(
                        f"event {seq + 1} is no longer kept, the first one is {event.seq}; watch from there, or a run",
                        reason="EVENTS_GONE",
                    )
                yield event
                seq = event.seq

    async def _looks(self, run_id: str, seq: int) -> AsyncIterator[tuple[list[TaskEvent], Run | None]]:
        """The events after a number, sometimes none, of a run and with it until it has ended, or (empty) of all."""
        run = await self._runs.get(run_id) if run_id else None
        while True:
            ended = run is not None and run.ended
            events = await self._tasks.events(run_id, seq, wait_ms=0 if ended else WATCH_WAIT_MS)
            run = await self._runs.get(run_id) if run_id else None
            yield events, run
            if events:
                seq = events[-1].seq
            elif ended:
                return

    async def _queue(self, name: str, runs: Sequence[Run], annotator: str) -> Queue:
        counts: list[TaskCounts] = []
        standing: Qualification | None = None
        for run in runs:
            with contextlib.suppress(*UNREADABLE):  # of a task
                if annotator and not counts:
                    standing = await self._controls.qualification(run, annotator)
                counts.append(await self._tasks.counts(run.id, annotator))
        numbers = [one.name for one in fields(TaskCounts) if one.name != "run_id"]
        total = TaskCounts(**{name: sum(getattr(one, name) for one in counts) for name in numbers})
        settings = self._queues[name]
        return Queue(
            name=name,
            overlap=settings.overlap,
            undo=timedelta(seconds=settings.undo_s),
            guideline=self._guidelines[name],
            total=total,
            runs=tuple(counts),
            max_grade=settings.max_grade,
            qualification=standing or Qualification(),
        )


def _reports(
    sums: Mapping[str, Mapping[str, int]],
    elapsed_s: Mapping[str, Sequence[float]],
    ratings: Sequence[Mapping[str, bool]],
) -> tuple[AnnotatorReport, ...]:
    """The reports on the people of the sums, by name."""
    names = sorted(sums)
    agree = agreement_of_pairs(ratings, names) if len(names) <= MAX_COMPARED else np.empty((len(names), 0))
    said = Counter(one for rated in ratings for one in rated.items())
    return tuple(
        AnnotatorReport(
            annotator=name,
            median_elapsed=timedelta(seconds=median(elapsed_s[name])),
            refused_share=said[name, False] / given if (given := said[name, False] + said[name, True]) else math.nan,
            positive_agreement=tuple(row.tolist()),
            **sums[name],
        )
        for name, row in zip(names, agree, strict=True)
    )


def _node(tree: Tree, node: Node, record: TaskRecord | None, known: Known, amended: Amended, at: float) -> TreeNode:
    result = tree.results.get(node.ordinal)
    by_task = () if record is None else decided(record)
    accepted = by_task if result is None else explaining(tree, node, amended)
    holders = () if record is None else tuple(lease.annotator for lease in record.held(at))
    said = [] if result is None else [*known.statements]
    if record is not None and record.state in (TaskState.DECIDED, TaskState.SETTLED):
        said += [
            replace(one.answer, verdicts=(), additions=(), answer_id="", late=False, at=EPOCH) for one in record.answers
        ]
    if result is not None:
        state = TaskState.FAILED if result.failed else TaskState.SETTLED
    elif record is None or record.withdrawn:
        state = TaskState.PENDING
    else:  # the run goes on when it has recorded the node
        state = TaskState.DECIDED if record.state is TaskState.SETTLED else record.state
    return TreeNode(
        node_id=f"{tree.index}-{node.ordinal}",
        parent_id=f"{tree.index}-{node.parent}" if node.ordinal != ROOT else "",
        premise_id=node.premise_id,
        text=node.text,
        depth=node.depth,
        state=state,
        task_id=record.task.task_id if record else "",
        accepted=tuple(
            Verdict(premise_id=one.id, text=one.text, judgement=Judgement.EXPLAINS, leaf=one.leaf, annotator=one.author)
            for one in accepted
        ),
        holders=holders,
        answered=len(record.answers) if record else 0,
        overlap=record.overlap if record else 0,
        answers=tuple(said),
        model_version=(result.version if result else "") or (record.task.model_version if record else ""),
        author=node.author,
    )
