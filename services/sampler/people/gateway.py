"""Puts a run's nodes into a queue of people, and returns them once they are decided for good.

    judge ─▶ put tasks ─▶ people lease and answer (`queue`) ─▶ decided for undo_s ─▶ settle ─▶ NodeAnswer

It is a `Gateway` like that of a remote oracle, so a worker does not know whom it asks. It waits as long as people take.
Their answers are in Redis, so a worker that takes the run over finds them there. It looks at a run when an event of its
tasks tells of a change, and when the next lease ends or the next decision stands; a run in which nothing happens costs
next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from aeenc import errors
from aeenc.oracle import Task
from aeenc.values import NodeVerdict, TaskEventKind
from services.kit.concurrency import cancel_all
from services.kit.logs import get
from services.sampler.acs.algorithm import MAX_ANNOTATOR, Amendment, NodeAnswer, explains
from services.sampler.oracles.answers import UNSEEN, WithdrawnTask
from services.sampler.oracles.gateway import Gateway
from services.sampler.people import steps
from services.sampler.people.queue import TaskQueue, Wanted
from services.sampler.people.task_store import READ, TaskStore
from services.sampler.people.tasks import TaskRecord, decided, task_name
from services.sampler.records.runs import MAX_NOTE, Run
from services.sampler.settings import QueueSettings
from services.store.formats import UNREADABLE

log = get(__name__)

RECHECK_S = 15.0  # the longest time between two looks at a run
LISTEN_MS = 2000
GATHER_S = 0.05  # so that many events at once make one look
AWAY_PAUSE_S = 1.0
_ENDS = (TaskEventKind.SETTLED, TaskEventKind.WITHDRAWN)  # whoever waits for a task is told of these


@dataclass
class _Asking:
    """The tasks that a run waits for, each with whom to tell; the `new` ones are not in the queue yet.

    `changed` are those that an event says have ended, `look_at` is the time of the next look at all of it. `version` is
    the one that others were sent back for, if any were. Up to so many `changes` nothing is amended: `looked_for`.
    """

    waiting: dict[str, tuple[Task, asyncio.Future[TaskRecord]]] = field(default_factory=dict)
    new: dict[str, None] = field(default_factory=dict)  # in order
    changed: set[str] = field(default_factory=set)
    look_at: float = 0.0
    version: str = ""
    changes: int = 0
    looked_for: int = -1


class PeopleGateway(Gateway):
    """One human queue, shared by all runs of this process."""

    asks_people = True
    settings: QueueSettings

    def __init__(self, name: str, settings: QueueSettings, tasks: TaskStore, queue: TaskQueue) -> None:
        self.name = name
        self.settings = settings
        self._tasks, self._queue = tasks, queue
        self._asking: dict[str, _Asking] = {}  # by run
        self._serving: list[asyncio.Task[None]] = []
        self._awake = asyncio.Event()

    async def send_back(self, run: Run) -> None:
        """Withdraws the tasks that nobody has begun and that another than the run's version has retrieved."""
        asking = self._asking.get(run.id)
        if asking is not None and asking.version != run.version:
            await self._queue.send_back(run, Wanted(run.id))
            asking.version = run.version

    async def amended(self, run_id: str) -> list[Amendment]:
        """The judged nodes of a run of which people have changed what explains them, until `grown` says it is done."""
        asking = self._asking.get(run_id, _Asking())
        if asking.looked_for == (changes := asking.changes):
            return []
        if not (found := await self._tasks.amended(run_id)):
            asking.looked_for = changes  # what is amended from now on, an event tells
        return [
            Amendment(
                record.node_id,
                decided(record),
                record.task.task_id,
                record.revision,
                frozenset(premise_id for premise_id, verdict in record.decision.items() if not explains(verdict)),
            )
            for record in found
            if not record.conflicts
        ]

    async def asked(self, run_id: str, queries: Mapping[str, str]) -> dict[str, Task]:
        """Returns by node id what the run has not recorded, never the task of another tree's node."""
        ids = [one for one in await self._tasks.asking(run_id, list(queries.values())) if one]
        found, _ = await self._tasks.read_many(run_id, ids)
        return {one.node_id: one.task for one in found if one.node_id in queries and not one.withdrawn}

    async def withdraw(self, run_id: str, node_ids: Collection[str]) -> None:
        """Withdraws what these nodes ask, as far as nobody has begun it."""
        asking = self._asking.get(run_id, _Asking())
        queued = [one for one in asking.waiting.items() if one[0] not in asking.new]
        for name in [name for name, (task, _) in queued if task.task_id in node_ids]:
            await self._tasks.apply(run_id, name, lambda old, at: steps.send_back(old, None, at))

    async def grown(self, run_id: str, amendment: Amendment) -> None:
        """Notes that the run's tree has what was amended."""
        await self._tasks.grown(run_id, amendment.task_id, amendment.revision)

    async def judge(self, run_id: str, tasks: Sequence[Task]) -> list[NodeAnswer | WithdrawnTask]:
        """Puts one task before people and waits until it is withdrawn, or decided and can no longer be taken back."""
        [task], told = tasks, asyncio.get_running_loop().create_future()  # one, by QueueSettings.batch_tasks
        asking, name = self._asking.setdefault(run_id, _Asking()), task_name(task.query, task.candidates)
        asking.waiting[name], asking.new[name] = (task, told), None
        self._awake.set()
        if not self._serving:
            self._serving = [asyncio.create_task(self._serve()), asyncio.create_task(self._listen())]
        try:
            record = await told
        finally:
            asking.new.pop(name, None)
            asking.waiting.pop(name, None)
            if not asking.waiting:
                self._asking.pop(run_id, None)
        return [WithdrawnTask(task.task_id) if record.withdrawn else _answer(record, task)]

    def waiting(self, run_id: str) -> str:
        """The reason why a run waits; empty when it does not."""
        tasks = len(self._asking.get(run_id, _Asking()).waiting)
        return f"{tasks} task{'s' * (tasks != 1)} before the people of queue {self.name!r}" if tasks else ""

    async def close(self) -> None:
        """Stops waiting; what waits stays in Redis."""
        await cancel_all(self._serving)

    async def _serve(self) -> None:
        """Queues what is new and looks for what is decided, for all callers of `judge` together."""
        while True:
            try:
                for run_id, asking in list(self._asking.items()):
                    try:
                        await self._put_new(run_id, asking)
                        if asking.changed or asking.look_at <= time.monotonic():
                            await self._look(run_id, asking)
                    except UNREADABLE as error:
                        self._leave(asking, error)
            except Exception as error:  # one task must not keep all others from their answers
                if isinstance(error, errors.Unavailable):
                    log.warning("human queue waits for redis", queue=self.name, reason=error.message)
                else:
                    log.exception("human queue failed; it tries again", queue=self.name)
                self._all_changed()
                await asyncio.sleep(AWAY_PAUSE_S)
            next_look = min((one.look_at for one in self._asking.values()), default=math.inf)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), max(next_look - time.monotonic(), 0.0))
            self._awake.clear()

    def _all_changed(self) -> None:
        for asking in self._asking.values():
            asking.changes += 1
            asking.changed.update(asking.waiting)
        self._awake.set()

    async def _listen(self) -> None:
        """Notes which tasks have changed, whoever has changed them."""
        seq = -1
        while True:
            try:
                if seq < 0:
                    seq = await self._tasks.last_event("")
                    self._all_changed()
                events = await self._tasks.events("", seq, wait_ms=LISTEN_MS)
            except Exception as error:  # such as an event of a newer release
                if not isinstance(error, errors.Unavailable):
                    log.exception("events of the human queue could not be read", queue=self.name)
                seq = -1
                await asyncio.sleep(AWAY_PAUSE_S)
                continue
            for event in events:
                if event.seq != seq + 1:  # those between are no longer kept
                    self._all_changed()
                seq = event.seq
                if asking := self._asking.get(event.run_id):
                    asking.look_at, asking.changes = 0.0, asking.changes + 1
                    if event.kind in _ENDS:
                        asking.changed.update({event.task_id} & asking.waiting.keys())
            if events:
                self._awake.set()
                await asyncio.sleep(GATHER_S)

    async def _put_new(self, run_id: str, asking: _Asking) -> None:
        """Waits from now on for the new tasks of a run, which are put into the queue unless they are there."""
        settings = self.settings
        while names := list(itertools.islice(asking.new, READ)):
            part = {name: asking.waiting[name][0] for name in names if name in asking.waiting}
            found, _ = await self._tasks.read_many(run_id, list(part))
            there = {record.task.task_id for record in found}
            await self._tasks.put(
                [
                    TaskRecord(
                        run_id, replace(task, task_id=name), settings.overlap, settings.policy, node_id=task.task_id
                    )
                    for name, task in part.items()
                    if name not in there
                ]
            )
            for record in found:
                await self._take_over(asking, record, part[record.task.task_id])
            for name, task in part.items():
                if asking.version not in ("", task.model_version):  # it was retrieved while others were sent back
                    await self._tasks.apply(run_id, name, lambda old, at: steps.send_back(old, asking.version, at))
            for name in names:
                asking.new.pop(name, None)
            asking.look_at = 0.0

    async def _take_over(self, asking: _Asking, record: TaskRecord, task: Task) -> None:
        """Lets a task that is in the queue already wait again, for no more people than the queue wants now."""
        name, overlap = record.task.task_id, self.settings.overlap
        if record.settled:  # by a worker that died before it committed it
            self._resolve(asking, record)
        if record.withdrawn:
            await self._tasks.apply(record.run_id, name, lambda old, _: steps.put_back(old, task))
        if record.overlap > overlap:  # one of those it was put before may have left
            await self._tasks.apply(record.run_id, name, lambda old, at: steps.lower(old, overlap, at))

    def _leave(self, asking: _Asking, error: errors.AeencError) -> None:
        """Tells those who wait for a run's tasks that they cannot be read."""
        for _, told in asking.waiting.values():
            if not told.done():
                told.set_exception(error)
        asking.look_at = math.inf

    async def _look(self, run_id: str, asking: _Asking) -> None:
        """Ends the leases that are over, settles what stands, and hands out what was settled or withdrawn."""
        asking.look_at = time.monotonic() + RECHECK_S
        while names := list(itertools.islice(asking.changed, READ)):
            asking.changed.difference_update(names)  # before they are read: what changes meanwhile is read again
            for record in (await self._tasks.read_many(run_id, names))[0]:
                if record.settled or record.withdrawn:
                    self._resolve(asking, record)
        over, decided, next_s = await self._tasks.due(run_id, self.settings.undo_s)
        for name in over:
            await self._tasks.apply(run_id, name, steps.expire)
        for name in decided:
            if waiting := asking.waiting.get(name):
                settle = partial(steps.settle, undo_s=self.settings.undo_s, node_id=waiting[0].task_id)
                record, _ = await self._tasks.apply(run_id, name, settle)
                if record.settled:
                    self._resolve(asking, record)
        asking.look_at = min(asking.look_at, time.monotonic() + next_s)

    def _resolve(self, asking: _Asking, record: TaskRecord) -> None:
        _, told = asking.waiting.pop(record.task.task_id, (None, None))
        if told is not None and not told.done():
            told.set_result(record)


def _answer(record: TaskRecord, task: Task) -> NodeAnswer:
    """The decision, given by all who answered, except where an adjudicator decided; with what they added and wrote.

    What else they say stays with their task.
    """
    found = record.candidates[len(record.task.candidates) :]
    added = tuple(one for one in found if explains(record.settled.get(one.id, UNSEEN)))
    verdicts = {one.id: record.settled[one.id] for one in (*task.candidates, *added)}
    for one in added:
        finders = sorted(given.annotator for given in record.answers if one.id in given.verdicts)
        verdicts[one.id] = replace(verdicts[one.id], annotator=", ".join(finders)[:MAX_ANNOTATOR])
    said = {one.answer.node_verdict for one in record.answers}
    return NodeAnswer(
        task.task_id,
        verdicts,
        ", ".join(sorted(one.annotator for one in record.answers))[:MAX_ANNOTATOR],
        note=record.note[:MAX_NOTE],
        added=added,
        written=record.intermediates,
        node_verdict=said.pop() if len(said) == 1 else NodeVerdict.UNSPECIFIED,
    )
