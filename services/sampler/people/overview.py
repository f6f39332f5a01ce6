"""What is open, held and done: trees node by node, queues in numbers, a person's own answers. Changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta

from aeenc.values import (
    Judgement,
    Qualification,
    Queue,
    TaskCounts,
    TaskState,
    TreeNode,
    TreeState,
    Verdict,
)
from aeenc.values.reading import EPOCH
from services.sampler.acs.algorithm import ROOT, Known, Node, Tree
from services.sampler.people.controls import ControlItems
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TASKS_READ, TaskRecord, check_annotator, decided
from services.sampler.records.node_store import Amended, NodeStore, explaining
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run
from services.sampler.settings import QueueSettings
from services.store.formats import NewerFormat

WATCH_WAIT_MS = 1000
_CHANGES_OTHERS = {"QUEUED", "SETTLED", "WITHDRAWN"}  # events after which a tree may have other tasks


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
            alone = [node.text for node, one in zip(some, ids, strict=True) if one not in by_id]
            known = dict(zip(alone, await self._nodes.answers(run_id, alone), strict=True))
            amended = await self._nodes.amended(run_id, [node.text for node in some])
            nodes += [
                _node(tree, node, by_id.get(one), known.get(node.text, Known()), changed, at)
                for node, one, changed in zip(some, ids, amended, strict=True)
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
        shown = await self.tree(run_id, hypothesis_id)
        yield shown
        while True:
            ended = (await self._runs.get(run_id)).ended
            events = await self._tasks.events(run_id, seq, wait_ms=0 if ended else WATCH_WAIT_MS)
            seq = events[-1].seq if events else seq
            mine = {one.task_id for one in shown.nodes}
            if events and not any(one.task_id in mine or one.kind.name in _CHANGES_OTHERS for one in events):
                continue
            now = await self.tree(run_id, hypothesis_id)
            if now != shown:
                shown = now
                yield shown
            if ended and not events:
                return

    async def queues(self, annotator: str) -> list[Queue]:
        """All queues with their counts, sorted by name; those of a person, where one is named."""
        live = await self._runs.live()
        return [
            await self._queue(name, [run for run in live if run.config.oracle == name], annotator)
            for name in sorted(self._queues)
        ]

    async def answers(self, run_id: str, annotator: str, limit: int, before: int) -> tuple[list[TaskRecord], int]:
        """A page of the tasks that a person has answered, the latest first, and the position to go on from (0: all).

        Position n is the n-th answer in order of time.
        """
        check_annotator(annotator)
        await self._runs.get(run_id)
        count = await self._tasks.answered(run_id, annotator)
        end = min(before - 1, count) if before else count
        start = max(0, end - limit)
        ids = await self._tasks.answered_by(run_id, annotator, start, end - 1) if end else []
        found, _ = await self._tasks.read_many(run_id, ids[::-1])
        return [record for record in found if not record.control], start + 1 if start else 0

    async def _queue(self, name: str, runs: Sequence[Run], annotator: str) -> Queue:
        counts: list[TaskCounts] = []
        standing: Qualification | None = None
        for run in runs:
            with contextlib.suppress(NewerFormat):  # of a task
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
