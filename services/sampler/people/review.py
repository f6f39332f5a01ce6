"""Handles tasks once they are there: undo, amend, adjudicate, close, retrieve again, list, measure agreement, watch.

amend or adjudicate ─▶ the run has recorded the node? ─▶ step, stored with the pairs that replace those of the run
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import timedelta
from functools import partial
from statistics import median

from aeenc import errors
from aeenc.values import Agreement, AnnotatorReport, Answer, TaskEvent, TaskState
from services.sampler.oracles.answers import state_of
from services.sampler.people import steps
from services.sampler.people.agreement import agreement_of, agreement_of_pairs, edge_f1
from services.sampler.people.controls import control_report, right_and_judged
from services.sampler.people.queue import TaskQueue, Wanted, numbered
from services.sampler.people.task_store import HOUR_S, Step, TaskStore
from services.sampler.people.tasks import (
    TASKS_READ,
    SentAnswer,
    TaskRecord,
    accepts,
    check_annotator,
    corrections,
    decides,
    moment_of,
    parts_of,
)
from services.sampler.records.node_store import NodeStore
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import MAX_NOTE, Pair, Run
from services.store.requests import Request

WATCH_WAIT_MS = 1000
MAX_COMPARED = 200  # annotators: each is compared with each

Follow = Callable[..., Awaitable[Run]]  # lets a run follow its label: `execution.holds.Following.follow`


class Review:
    """The answers of the human queues of one namespace. Raises the classes of `aeenc.errors`."""

    def __init__(
        self,
        runs: RunStore,
        nodes: NodeStore,
        tasks: TaskStore,
        queue: TaskQueue,
        follow: Follow,
    ) -> None:
        self._runs, self._nodes, self._tasks = runs, nodes, tasks
        self._queue, self._follow = queue, follow

    async def undo(self, run_id: str, annotator: str, count: int, request_id: str) -> list[str]:
        """Takes back as many of a person's last answers as it can. Raises the obstacle to the first."""
        check_annotator(annotator)
        await self._runs.get(run_id)
        undone: list[str] = []
        asked = Request(request_id, "UndoVerdicts", {"run_id": run_id, "annotator": annotator, "count": count or 1})
        for number in range(count or 1):
            request = numbered(asked, number)
            if earlier := await self._tasks.made(request):
                undone.append(earlier)
                continue
            try:
                taken_back = await self._undo_last(run_id, annotator, request)
            except errors.FailedPrecondition:
                if not undone:
                    raise
                break
            if not taken_back:
                break
            undone.append(taken_back)
        if not undone:
            raise errors.NotFound(f"{annotator} has no answers in run {run_id} to take back")
        return undone

    async def _undo_last(self, run_id: str, annotator: str, request: Request) -> str:
        """Takes a person's last answer back; empty: they have none. Where another call was faster, the one before."""

        def step(old: TaskRecord, at: float) -> steps.Change:
            given = old.answer_of(annotator)
            return steps.undo(old, given.answer.answer_id, at) if given else steps.Change(old)

        while last := await self._tasks.answered_by(run_id, annotator, -1):
            if taken_back := (await self._tasks.apply(run_id, last[0], step, request))[1]:
                return taken_back
        return ""

    async def amend(
        self, answer_id: str, sent: SentAnswer, annotator: str, request_id: str, *, others: bool = True
    ) -> str:
        """Replaces single verdicts of an answer or adds to it, and so do the pairs that the run has made of it.

        The run's worker then lets the tree grow below what is accepted now.
        """
        check_annotator(annotator)
        run_id, task_id = parts_of(answer_id, "answer")
        run = await self._runs.get(run_id)
        asked = {"answer_id": answer_id, "annotator": annotator, "answer": sent.said}
        sent = await self._queue.with_premises(run, (await self._tasks.read(run_id, task_id))[0].task, sent)
        return await self._change(
            run,
            task_id,
            lambda old, at: steps.amend(old, answer_id, sent, annotator, at, others=others),
            Request(request_id, "AmendVerdicts", asked),
        )

    async def adjudicate(self, run_id: str, decision: Answer, request_id: str) -> str:
        """Decides a conflict, or changes what was decided. Gives the id of the decision."""
        task_id, adjudicator = decision.task_id, decision.annotator
        check_annotator(adjudicator, "adjudicator")
        if replace(decision, verdicts=()) != Answer(task_id=task_id, annotator=adjudicator):
            problem = "holds more than verdicts, which alone are adjudicated; amend it"
            raise errors.InvalidArgument.field("answer", problem)
        run = await self._runs.get(run_id)
        said = SentAnswer(decision).said
        asked = {"run_id": run_id, "task_id": task_id, "annotator": adjudicator, "answer": said}
        request = Request(request_id, "Adjudicate", asked)
        return await self._change(run, task_id, lambda old, at: steps.adjudicate(old, decision, at), request)

    async def close(
        self,
        run_id: str,
        task_id: str,
        who: str,
        reason: str = "",
        request_id: str = "",
        overlap: int = 0,
        *,
        settle: bool = False,
        others: bool = True,
    ) -> TaskRecord:
        """Lets the answers that there are, or `overlap` of them, decide a task. Gives the task.

        With `settle` the run goes on with a decision at once; it can then only be amended. Without `others` a person
        may do nothing else.
        """
        check_annotator(who)
        if settle and overlap:
            raise errors.InvalidArgument.field("overlap", f"is {overlap}, and settle is set; give one of them")
        if not settle and not others:
            raise errors.PermissionDenied("this credential may only settle what its person has answered (settle)")
        await self._runs.get(run_id)
        asked = {"run_id": run_id, "task_id": task_id, "annotator": who, "settle": settle, "overlap": overlap}
        request = Request(request_id, "CloseTask", {**asked, "reason": reason})

        def step(old: TaskRecord, at: float) -> steps.Change:
            if settle:
                return steps.hasten(old, who)
            return steps.lower(old, overlap, at, who) if overlap else steps.close(old, who, reason[:MAX_NOTE], at)

        return (await self._tasks.apply(run_id, task_id, step, request))[0]

    async def retrieve_again(
        self, wanted: Wanted, lease_id: str, who: str, *, dry_run: bool
    ) -> tuple[Run, Sequence[str]]:
        """Lets a run follow its label, and withdraws the wanted tasks that nobody has begun, or that `who` holds.

        Gives the run with its version, and the tasks; a dry run changes nothing.
        """
        if lease_id and parts_of(lease_id, "lease")[0] != wanted.run_id:
            raise errors.InvalidArgument.field("lease_id", f"{lease_id} is not of run {wanted.run_id!r}")
        before = await self._runs.get(wanted.run_id)
        await self._queue.send_back(before, wanted, lease_id, who, dry_run=True)  # refuses what there is not
        run = await self._follow(wanted.run_id, dry_run=dry_run)
        tasks = await self._queue.send_back(run, wanted, lease_id, who, dry_run=dry_run)
        return run, tasks

    async def changes(self, run_id: str, task_id: str, limit: int, after: int) -> tuple[list[TaskEvent], int]:
        """A page of the verdict log of a run, and the position to go on from (0: that was all)."""
        await self._runs.get(run_id)
        found = await self._tasks.verdict_log(run_id, after, limit)
        shown = [one for one in found if not task_id or one.task_id == task_id]
        tasks, _ = await self._tasks.read_many(run_id, list({one.task_id for one in shown}))
        queries = {record.task.task_id: record.task.query for record in tasks}
        named = [replace(one, query=queries.get(one.task_id, "")) for one in shown]
        return named, found[-1].seq if len(found) == limit else 0

    async def _change(self, run: Run, task_id: str, step: Step, request: Request) -> str:
        """Applies a step that may change what a run has recorded, with the pairs that replace those. Gives its id."""
        before, _ = await self._tasks.read(run.id, task_id)
        await self._await_commit(run, before)

        def recorded(old: TaskRecord, at: float) -> steps.Change:
            if old.settled and not before.settled:
                raise _about_to_record(run, old)
            return step(old, at)

        return (await self._tasks.apply(run.id, task_id, recorded, request, pairs=partial(corrected_pairs, run)))[1]

    async def _await_commit(self, run: Run, record: TaskRecord) -> None:
        """Raises until the run has recorded the node: a pair that replaces another must follow it in the log."""
        if not record.settled:
            return
        tree, _, ordinal = record.node_id.partition("-")
        [found] = await self._nodes.trees(run.id, [int(tree)])
        if int(ordinal) in found.results:
            return
        if (await self._runs.get(run.id)).ended:
            raise errors.FailedPrecondition(
                f"run {run.id} ended before it recorded node {record.node_id}; resume it first (aeenc resume {run.id})"
            )
        raise _about_to_record(run, record)

    async def tasks(self, run_id: str, state: TaskState | None, limit: int, after: int) -> tuple[list[TaskRecord], int]:
        """A page of a run's tasks without its control items, and the position to go on from (0: that was all)."""
        await self._runs.get(run_id)
        ids = await self._tasks.task_ids(run_id, after, limit)
        found, _ = await self._tasks.read_many(run_id, ids)
        shown = [record for record in found if not record.control and (state is None or record.state is state)]
        return shown, after + limit if len(ids) == limit else 0

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
                    right, judged = right_and_judged(record, given.own_verdicts) if record.control else (0, 0)
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
                        {name: accepts(one[asked.id]) for name, one in said.items() if decides(one[asked.id])}
                        for asked in record.task.candidates
                    ]
                    edges.append(
                        {name: {key for key, one in given.items() if accepts(one)} for name, given in said.items()}
                    )
                elif record.answers:
                    items[record.task.query, frozenset(record.gold)].append(record)
        agreed = await asyncio.to_thread(agreement_of, ratings)
        reports = await asyncio.to_thread(_reports, people, elapsed_s, ratings)
        controls = sorted(map(control_report, items.values()), key=lambda one: one.correct - one.verdicts)
        return replace(agreed, edge_f1=edge_f1(edges), reports=reports, controls=tuple(controls))

    async def watch(self, run_id: str, from_seq: int, *, from_now: bool = False) -> AsyncIterator[TaskEvent]:
        """The events of a run's tasks until it has ended, or (empty) of all, without end; or those from now on.

        Raises FailedPrecondition (EVENTS_GONE) when one of all was trimmed before it could be read.
        """
        if run_id:
            await self._runs.get(run_id)
        seq = await self._tasks.last_event(run_id) if from_now else max(from_seq, 1) - 1
        while True:
            ended = bool(run_id) and (await self._runs.get(run_id)).ended
            events = await self._tasks.events(run_id, seq, wait_ms=0 if ended else WATCH_WAIT_MS)
            for event in events:
                if seq and event.seq != seq + 1:
                    raise errors.FailedPrecondition(
                        f"event {seq + 1} is no longer kept, the first one is {event.seq}; watch from there, or a run",
                        reason="EVENTS_GONE",
                    )
                yield event
                seq = event.seq
            if ended and not events:
                return


def _reports(
    sums: Mapping[str, Mapping[str, int]],
    elapsed_s: Mapping[str, Sequence[float]],
    ratings: Sequence[Mapping[str, bool]],
) -> tuple[AnnotatorReport, ...]:
    """The reports on the people of the sums, by name."""
    names = sorted(sums)
    compared = names if len(names) <= MAX_COMPARED else []
    pairs = agreement_of_pairs(ratings)
    said: dict[str, Counter[bool]] = defaultdict(Counter)
    for rated in ratings:
        for name, yes in rated.items():
            said[name][yes] += 1
    return tuple(
        AnnotatorReport(
            annotator=name,
            median_elapsed=timedelta(seconds=median(elapsed_s[name])),
            refused_share=said[name][False] / said[name].total() if said[name] else math.nan,
            positive_agreement=tuple(pairs.get((min(name, one), max(name, one)), math.nan) for one in compared),
            **sums[name],
        )
        for name in names
    )


def _about_to_record(run: Run, record: TaskRecord) -> errors.Unavailable:
    return errors.Unavailable(f"run {run.id} is about to record node {record.node_id}; try again in a moment")


def corrected_pairs(run: Run, record: TaskRecord, who: str) -> list[Pair]:
    """A pair for each candidate whose verdict or grade has changed since the run went on, best rank first."""
    changed = corrections(record)
    return [
        run.pair(
            record.task.query,
            candidate,
            state_of(verdict),
            node_id=record.node_id,
            annotator=who,
            grade=verdict.grade or 0.0,
            note=record.note[:MAX_NOTE],
            amended=True,
            version=record.task.model_version,
        )
        for candidate in record.candidates
        if (verdict := changed.get(candidate.id)) is not None
    ]
