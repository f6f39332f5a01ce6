"""Puts a run's nodes into a queue of people, and returns them once they are decided for good.

    judge ─▶ put tasks ─▶ people lease and answer (`queue`) ─▶ decided for undo_s ─▶ settle ─▶ NodeAnswer

It is a `Gateway` like that of a remote oracle, so a worker does not know whom it asks. It waits as long as people take.
Their answers are in Redis, so a worker that takes the run over finds them there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from aeenc import errors
from aeenc.oracle import Task
from aeenc.values import Answer, Judgement, Verdict
from services.kit.concurrency import cancel_all
from services.kit.logs import get
from services.sampler.acs.nodes import Amendment, NodeAnswer
from services.sampler.oracles.answers import WithdrawnTask, admitted, read_answers
from services.sampler.people import steps
from services.sampler.people.decisions import verdict_of
from services.sampler.people.queue import TaskQueue, Wanted
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord, VerdictKind, explaining, task_name
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run
from services.sampler.settings import QueueSettings
from services.store.formats import NewerFormat

log = get(__name__)

POLL_S = 0.25
RECHECK_S = 5.0
AWAY_PAUSE_S = 1.0


@dataclass
class _Asked:
    """A task that the run waits for: whom to tell, and the revision of the task that was looked at last."""

    task: Task
    told: asyncio.Future[TaskRecord]
    revision: int = -1


class PeopleGateway:
    """One human queue, shared by all runs of this process."""

    asks_people = True

    def __init__(self, name: str, settings: QueueSettings, runs: RunStore, tasks: TaskStore, queue: TaskQueue) -> None:
        self.name = name
        self.settings = settings
        self.last_answer_at = 0.0  # never read: people leave no task unanswered for good
        self._runs, self._tasks, self._queue = runs, tasks, queue
        self._known: dict[str, Run] = {}
        self._new: dict[tuple[str, str], _Asked] = {}
        self._waiting: dict[tuple[str, str], _Asked] = {}
        self._serving: asyncio.Task[None] | None = None
        self._awake = asyncio.Event()

    def begin(self) -> None:
        """Does nothing: people are always there."""

    def wake(self) -> None:
        """Looks at once for what was decided; otherwise it does so every POLL_S."""
        self._awake.set()

    async def send_back(self, run: Run) -> None:
        """Withdraws the tasks that nobody has begun and that another than the run's version has retrieved."""
        if await self._queue.send_back(run, Wanted(run.id)):
            self.wake()

    async def amended(self, run_id: str) -> list[Amendment]:
        """The judged nodes of a run of which people have changed what explains them, until `grown` says it is done."""
        return [
            Amendment(
                record.node_id,
                explaining(record),
                record.task.task_id,
                record.revision,
                frozenset(premise_id for premise_id, kind in record.decision.items() if not kind.accepts),
            )
            for record in await self._tasks.amended(run_id)
            if not record.conflicts
        ]

    async def withdraw(self, run_id: str, node_ids: Collection[str]) -> None:
        """Withdraws what these nodes ask, as far as nobody has begun it."""
        waiting = self._waiting.items()
        asked = [name for (of_run, name), one in waiting if of_run == run_id and one.task.task_id in node_ids]
        run = await self._run(run_id)
        for name in asked:
            await self._tasks.apply(run, name, lambda old, at: steps.send_back(old, None, at))
        self.wake()

    async def grown(self, run_id: str, amendment: Amendment) -> None:
        """Notes that the run's tree has what was amended."""
        await self._tasks.grown(run_id, amendment.task_id, amendment.revision)

    async def judge(self, run_id: str, tasks: Sequence[Task]) -> list[NodeAnswer | WithdrawnTask]:
        """Puts tasks before people and waits until each is withdrawn, or decided and can no longer be taken back."""
        futures = [asyncio.get_running_loop().create_future() for _ in tasks]
        keys = [(run_id, task_name(task.query, task.candidates)) for task in tasks]
        for key, task, future in zip(keys, tasks, futures, strict=True):
            self._new[key] = _Asked(task, future)
        self.wake()
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        try:
            records = await asyncio.gather(*futures)
        finally:
            for key in keys:
                self._new.pop(key, None)
                self._waiting.pop(key, None)
        ended = list(zip(records, tasks, strict=True))
        settled = [(record, task) for record, task in ended if not record.withdrawn]
        asked = {task.task_id: (record, task) for record, task in settled}
        answers = [
            _admitted(*asked[given.task_id], given)
            for given in read_answers([task for _, task in settled], [_answer(*one) for one in asked.values()])
        ]
        return [*answers, *(WithdrawnTask(task.task_id) for record, task in ended if record.withdrawn)]

    def describe(self, reason: str) -> str:
        """The message of a run that failed because of this queue."""
        return f"queue {self.name!r} failed: {reason}; resume the run: nothing that was answered is asked again"

    def waiting(self, run_id: str) -> str:
        """The reason why a run waits; empty when it does not."""
        tasks = sum(of_run == run_id for of_run, _ in (*self._new, *self._waiting))
        return f"{tasks} task{'s' * (tasks != 1)} before the people of queue {self.name!r}" if tasks else ""

    async def close(self) -> None:
        """Stops waiting; what waits stays in Redis."""
        if self._serving is not None:
            await cancel_all([self._serving])

    async def _serve(self) -> None:
        """Queues what is new and looks for what is decided, for all callers of `judge` together."""
        checked_at = time.monotonic()
        while self._new or self._waiting:
            if is_due := time.monotonic() - checked_at >= RECHECK_S:
                checked_at = time.monotonic()
            try:
                await self._put_new()
                for run_id in {run_id for run_id, _ in (*self._new, *self._waiting)}:
                    try:
                        await self._take_over(run_id)
                        await self._look(await self._run(run_id))
                        if is_due:
                            await self._recheck(run_id)
                    except NewerFormat as error:
                        self._leave(run_id, error)
            except errors.Unavailable as error:
                log.warning("human queue waits for redis", queue=self.name, reason=error.message)
                await asyncio.sleep(AWAY_PAUSE_S)
            except Exception:  # one task must not keep all others from their answers
                log.exception("human queue failed; it tries again", queue=self.name)
                await asyncio.sleep(AWAY_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), POLL_S)
            self._awake.clear()

    async def _put_new(self) -> None:
        await self._tasks.put(
            [
                TaskRecord(
                    run_id,
                    replace(asked.task, task_id=name),
                    self.settings.overlap,
                    self.settings.policy,
                    node_id=asked.task.task_id,
                )
                for (run_id, name), asked in self._new.items()
            ]
        )

    async def _take_over(self, run_id: str) -> None:
        """Waits from now on for those new tasks of a run that are in the queue."""
        ids = [task_id for of_run, task_id in self._new if of_run == run_id]
        found, _ = await self._tasks.read_many(run_id, ids) if ids else ([], 0.0)
        for stored in found:
            record = await self._lowered(stored)
            key = (run_id, record.task.task_id)
            record = await self._put_back(record, self._new.get(key))
            if waiting := self._new.pop(key, None):
                waiting.revision = record.revision
                self._waiting[key] = waiting
                if record.settled:  # by a worker that died before it committed it
                    self._resolve(record)

    async def _put_back(self, record: TaskRecord, asked: _Asked | None) -> TaskRecord:
        """The task, which waits again if it was withdrawn before it was asked now."""
        if asked is None or not record.withdrawn:
            return record
        task = asked.task
        if record.withdrawn == "ASKED" and record.task.model_version == task.model_version:
            return record  # sent back since it was put
        run = await self._run(record.run_id)
        return (await self._tasks.apply(run, record.task.task_id, lambda old, _: steps.put_back(old, task)))[0]

    def _leave(self, run_id: str, error: NewerFormat) -> None:
        """Tells those who wait for a run's tasks that this release cannot read them."""
        for asked in (self._new, self._waiting):
            for key in [key for key in asked if key[0] == run_id]:
                told = asked.pop(key).told
                if not told.done():
                    told.set_exception(error)

    async def _lowered(self, record: TaskRecord) -> TaskRecord:
        """The task, for no more people than the queue wants now: one of those it was put before may have left."""
        overlap = self.settings.overlap
        if record.settled or record.overlap <= overlap:
            return record
        run = await self._run(record.run_id)
        lowered, _ = await self._tasks.apply(run, record.task.task_id, lambda old, at: steps.lower(old, overlap, at))
        return lowered

    async def _look(self, run: Run) -> None:
        await self._queue.sweep(run)
        for name in await self._tasks.decided(run.id, self.settings.undo_s):
            if waiting := self._waiting.get((run.id, name)):
                settle = partial(steps.settle, undo_s=self.settings.undo_s, node_id=waiting.task.task_id)
                record, _ = await self._tasks.apply(run, name, settle)
                if record.settled or record.withdrawn:
                    self._resolve(record)

    async def _recheck(self, run_id: str) -> None:
        """Hands out what was settled by a write whose answer was lost, or by another sampler: it is due no longer."""
        asked = {name: one for (of_run, name), one in self._waiting.items() if of_run == run_id}
        revisions = await self._tasks.revisions(run_id, list(asked))
        changed = [name for name, revision in revisions.items() if revision != asked[name].revision]
        for record in (await self._tasks.read_many(run_id, changed))[0] if changed else ():
            asked[record.task.task_id].revision = record.revision
            if record.settled or record.withdrawn == "DONE":
                self._resolve(record)

    def _resolve(self, record: TaskRecord) -> None:
        asked = self._waiting.pop((record.run_id, record.task.task_id), None)
        if asked is not None and not asked.told.done():
            asked.told.set_result(record)

    async def _run(self, run_id: str) -> Run:
        if run_id not in self._known:
            self._known[run_id] = await self._runs.get(run_id)
        return self._known[run_id]


def _answer(record: TaskRecord, task: Task) -> Answer:
    """The decision as the oracle protocol has it: given by all who answered, except where an adjudicator decided."""
    who = ", ".join(sorted(answer.annotator for answer in record.answers))
    asked = [candidate.id for candidate in task.candidates]  # a resumed run may ask for fewer than at first
    verdicts = tuple(_verdict(record, one, record.adjudicator * (one in record.adjudicated)) for one in asked)
    additions = []
    for premise in record.candidates[len(record.task.candidates) :]:
        if record.settled.get(premise.id, VerdictKind.UNSEEN).accepts:  # an adjudicator may have refused it
            author = ", ".join(sorted(answer.annotator for answer in record.answers if premise in answer.added))
            additions.append(_verdict(record, premise.id, author))
    return Answer(task_id=task.task_id, verdicts=verdicts, annotator=who, note=record.note, additions=tuple(additions))


def _verdict(record: TaskRecord, premise_id: str, annotator: str) -> Verdict:
    said = verdict_of(record.settled.get(premise_id, VerdictKind.UNSEEN), record.grade(premise_id))
    judgement = Judgement(said.judgement)
    return Verdict(premise_id=premise_id, judgement=judgement, leaf=said.leaf, grade=said.grade, annotator=annotator)


def _admitted(record: TaskRecord, task: Task, answer: NodeAnswer) -> NodeAnswer:
    """The answer with what people added and wrote. What else they say stays with their task."""
    found = {premise.id: premise for premise in record.candidates}
    return replace(admitted(task, replace(answer, statement=None), found), written=record.intermediates)
