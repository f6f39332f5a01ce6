"""The tasks of human queues in Redis: read with Redis's own time, written only if nobody else wrote meanwhile.

    apply: read record and time ─▶ step (pure) ─▶ write if the revision is still the same ─▶ done
              ▲                                        └── else again, at most ATTEMPTS times ──┐
              └─────────────────────────────────────────────────────────────────────────────────┘

`steps` decides what may happen; one script stores a step whole or not at all. Entries of streams are numbered one by
one. Those of a run are never trimmed; of the events of all queues the last ones are kept. Every method raises
Unavailable when Redis is away, and NewerFormat, naming it, for a task of a newer release. What `write` has acknowledged
is stored.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from aeenc.values import TaskCounts, TaskEvent, TaskEventKind, TaskState
from services.sampler.people import tasks as records
from services.sampler.people.steps import Change
from services.sampler.people.tasks import TaskRecord, moment_of
from services.sampler.records.keys import RunKeys
from services.sampler.records.runs import Pair
from services.sampler.records.task_scripts import DONE, DUE, FAIL, PUT, WRITE
from services.store.formats import RESTORE, check_format, damage_is_data_loss
from services.store.life_cycles import digest
from services.store.redis import raising_unavailable, run_script
from services.store.requests import REQUEST_TTL_S, UNNAMED, Request, Requests

Step = Callable[[TaskRecord, float], Change]
Corrected = Callable[[TaskRecord, str], Sequence[Pair]]  # by whom

ATTEMPTS = 50
READ = 32  # tasks at once: as many as a few milliseconds are enough for
PAUSE_S = 0.005
HOUR_S = 3600.0
EVENTS_KEPT = 100_000  # of all queues together, or a few more; about 150 bytes each
# A task's place orders the queue: what was taken back comes first, then what others have begun, then what is new, then
# what was given back.
_BACK, _BEGUN, _FIRST = 10**7, 10**9, 10**12
# What nobody has done or said stands among the events alone.
_UNLOGGED = {getattr(TaskEventKind, name) for name in ("QUEUED", "LEASED", "EXPIRED", "CONFLICT", "SETTLED")}


@raising_unavailable("tasks")
class TaskStore:
    """Tasks of one namespace."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self._requests = Requests(redis, keys.namespace)

    async def put(self, new: Sequence[TaskRecord]) -> None:
        """Queues tasks; those that exist stay as they are, and those of a run that was deleted are left out."""
        if not new:
            return
        keys = self._keys
        parts = (keys.tasks, keys.waiting, keys.task_events, keys.record, keys.asking, keys.counts)
        at = moment_of((await self.read_many(new[0].run_id, []))[1]).isoformat()
        pipe = self._redis.pipeline()  # one wait for the disk
        for one in new:
            run_id, task_id = one.run_id, one.task.task_id
            await run_script(
                pipe,
                PUT,
                keys=[keys.task(run_id, task_id), keys.all_events, *(part(run_id) for part in parts)],
                args=[
                    task_id,
                    run_id,
                    records.task_json(one.task),
                    one.to_json(),
                    at,
                    _counted(one),
                    EVENTS_KEPT,
                    digest(one.task.query),
                ],
            )
        await pipe.execute()

    async def read(self, run_id: str, task_id: str, *, settles: bool = False) -> tuple[TaskRecord, float]:
        """One task, and the time; `settles` as a pipeline has it. Raises NotFound."""
        found, at = await self.read_many(run_id, [task_id], settles=settles)
        if not found:
            raise errors.NotFound(
                f"run {run_id} has no task {task_id!r}; ListTasks (`aeenc tasks`) names those there are"
            )
        return found[0], at

    async def read_many(
        self, run_id: str, task_ids: Sequence[str], *, settles: bool = False
    ) -> tuple[list[TaskRecord], float]:
        """Tasks by id, and the time."""
        pipe = self._redis.pipeline(transaction=False, settles=settles)
        pipe.time()
        for task_id in task_ids:
            pipe.hgetall(self._keys.task(run_id, task_id))
        (seconds, microseconds), *rows = await pipe.execute()
        found = [records.from_row(run_id, task_id, row) for task_id, row in zip(task_ids, rows, strict=True) if row]
        return found, seconds + microseconds / 1e6

    async def write(
        self, change: Change, at: float, request: Request = UNNAMED, queue: str = "", pairs: Sequence[Pair] = ()
    ) -> bool:
        """Writes a change of the record that was read. False: read it again, for somebody, or this request, was faster.

        The time of an answer counts for the pace of the `queue`. The `pairs` replace some of the run's.
        """
        after = change.record
        run_id, task_id, keys = after.run_id, after.task.task_id, self._keys
        people = {event.kind: event.person for event in change.events}
        answered = people.get(TaskEventKind.ANSWERED, "")
        person = answered or people.get(TaskEventKind.UNDONE, "")
        holder = "control" if after.control else "task"
        plan = {
            "run": run_id,
            "task": task_id,
            "at": moment_of(at).isoformat(),
            "hour_ago": _ms(at - HOUR_S),
            "state": _counted(after),
            "control": after.control,
            "waiting": _score(after, at),
            "leases": [
                [f"{one.id} {holder} {one.annotator}", "" if one.ended else _ms(one.expires_at)] for one in after.leases
            ],
            "decided": "" if after.state is not TaskState.DECIDED else "0" if after.final else _ms(after.decided_at),
            "asks": records.task_json(after.task) if TaskEventKind.QUEUED in people else "",
            "log": [
                records.EVENT.dump_json(replace(event, at=moment_of(at)), exclude_defaults=True).decode()
                for event in change.events
                if event.kind not in _UNLOGGED
            ],
            "events": [[event.kind.name, event.person] for event in change.events],
            "events_kept": EVENTS_KEPT,
            "elapsed_ms": str(int(after.answers[-1].elapsed_s * 1000)) if answered else "",
            "person": person,
            "answered": _ms(at) if answered else "",
            "corrects": bool(change.corrects),
            "pairs": [pair.to_json() for pair in pairs],
            "request": request.text,
            "made": change.id,
            "request_ttl_s": REQUEST_TTL_S,
        }
        of_person = (keys.answered_by(run_id, person), keys.controls_by(run_id, person))
        of_tasks = (keys.waiting, keys.leases, keys.decided, keys.verdicts, keys.task_events, keys.answers_hour)
        of_run = (keys.growing, keys.counts, keys.record, keys.pairs, keys.events, keys.amended)
        written = await run_script(
            self._redis,
            WRITE,
            keys=[
                *(keys.task(run_id, task_id), keys.all_events, keys.pace(queue), self._requests.key(request)),
                *of_person,
                *(part(run_id) for part in (*of_tasks, *of_run)),
            ],
            args=[after.revision, after.to_json(), json.dumps(plan)],
        )
        return bool(written)

    async def apply(
        self,
        run_id: str,
        task_id: str,
        step: Step,
        request: Request = UNNAMED,
        queue: str = "",
        pairs: Corrected | None = None,
    ) -> tuple[TaskRecord, str]:
        """The task after a step, and the id that the step made; a retried request gets that of its first attempt.

        `pairs` makes those that replace the run's, where the step corrects what it has recorded.

        Raises NotFound for an unknown task, AlreadyExists when the request's id was used for another one, Aborted when
        others keep changing the task, and whatever the step raises.
        """
        settles = not self._redis.replicas
        for _ in range(ATTEMPTS):
            before, at = await self.read(run_id, task_id, settles=settles)
            if made := await self.made(request):  # after the task was read: else an earlier attempt may lie between
                return before, made
            change = step(before, at)
            if change.record is before or change.record == before:
                if settles:
                    return before, change.id
                settles = True  # an earlier attempt, which was perhaps not answered, may have made it
                continue
            corrected = pairs(change.record, change.corrects) if pairs and change.corrects else ()
            if await self.write(change, at, request, queue, corrected):
                return replace(change.record, revision=change.record.revision + 1), change.id
            await asyncio.sleep(random.uniform(0, PAUSE_S))  # noqa: S311 -- spreads writers out, protects nothing
        raise errors.Aborted(f"task {task_id} of run {run_id} is changed by too many at once; try again")

    async def made(self, request: Request) -> str:
        """The id that a request has made before; empty when it has not. Raises AlreadyExists for another request."""
        return await self._requests.answer(request, lambda record: record["made"]) or ""

    async def amended(self, run_id: str) -> list[TaskRecord]:
        """The settled tasks of a run that people have changed, until `grown` says that their trees have it."""
        ids = await self._redis.hkeys(self._keys.growing(run_id))
        return (await self.read_many(run_id, ids))[0] if ids else []

    async def grown(self, run_id: str, task_id: str, revision: int) -> None:
        """Notes that the run's tree has what was changed up to a revision of a task; a later change stays noted."""
        await run_script(self._redis, DONE, [self._keys.growing(run_id)], [task_id, revision])

    async def waiting(self, run_id: str, start: int = 0, count: int = 0) -> list[str]:
        """So many tasks that somebody may take, best first, from a position on; 0: all."""
        return list(await self._redis.zrange(self._keys.waiting(run_id), start, start + count - 1))

    async def waiting_of(self, run_id: str, task_ids: Collection[str]) -> list[str]:
        """Those of these tasks that somebody may take, best first."""
        if not task_ids:
            return []
        scores = await self._redis.zmscore(self._keys.waiting(run_id), named := sorted(task_ids))
        placed = sorted((score, task_id) for score, task_id in zip(scores, named, strict=True) if score is not None)
        return [task_id for _, task_id in placed]

    async def due(self, run_id: str, undo_s: float = 0.0) -> tuple[list[str], list[str], float]:
        """The tasks of leases whose time is over, those whose decision stands, and the seconds until the next such."""
        keys = [self._keys.leases(run_id), self._keys.decided(run_id)]
        leases, decided, next_ms = await run_script(self._redis, DUE, keys, [_ms(undo_s)])
        return sorted({one.split(".")[1] for one in leases}), decided, next_ms / 1000 if next_ms >= 0 else math.inf

    async def task_ids(self, run_id: str, after: int, limit: int) -> list[str]:
        """Tasks of a run in the order in which they were queued, from a position on."""
        return list(await self._redis.lrange(self._keys.tasks(run_id), after, after + limit - 1))

    async def asking(self, run_id: str, queries: Sequence[str]) -> list[str]:
        """The tasks of a run that ask these queries; empty for a query that was not put before people."""
        if not queries:
            return []
        found = await self._redis.hmget(self._keys.asking(run_id), [digest(query) for query in queries])
        return [task_id or "" for task_id in found]

    async def last_event(self, run_id: str) -> int:
        """The number of the last event of a run's tasks, or (empty) of all; 0 when there is none."""
        key = self._keys.task_events(run_id) if run_id else self._keys.all_events
        entries = await self._redis.xrevrange(key, count=1)
        return _seq(entries[0][0]) if entries else 0

    async def answered(self, run_id: str, annotator: str) -> int:
        """The number of a person's answers in a run that hold."""
        return int(await self._redis.zcard(self._keys.answered_by(run_id, annotator)))

    async def answered_by(
        self, run_id: str, annotator: str, start: int = 0, end: int = -1, *, controls: bool = False
    ) -> list[str]:
        """The tasks that a person has answered, oldest first, between two positions; or their control items."""
        key = self._keys.controls_by if controls else self._keys.answered_by
        return list(await self._redis.zrange(key(run_id, annotator), start, end))

    async def unanswered(self, run_id: str, annotator: str, task_ids: Sequence[str]) -> list[str]:
        """Those of these tasks that a person has not answered."""
        scores = await self._redis.zmscore(self._keys.answered_by(run_id, annotator), task_ids)
        return [task_id for task_id, score in zip(task_ids, scores, strict=True) if score is None]

    async def counts(self, run_id: str, annotator: str) -> TaskCounts:
        """The numbers of a run's tasks, and of a person's answers."""
        keys = self._keys
        waiting, mine = keys.waiting(run_id), keys.answered_by(run_id, annotator)
        controls = keys.controls_by(run_id, annotator)
        hour = _ms((await self.read_many(run_id, []))[1] - HOUR_S)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(keys.counts(run_id))
        pipe.zcard(waiting)
        pipe.zinter([waiting, mine])
        pipe.zrange(keys.leases(run_id), 0, -1)
        pipe.zcount(keys.answers_hour(run_id), hour, "+inf")
        for key in (mine, controls):
            pipe.zcard(key)
            pipe.zcount(key, hour, "+inf")
        found, room, answered, leases, hourly, given, given_hour, items, items_hour = await pipe.execute()
        by_state = {name: int(number) for name, number in found.items()}
        held = [
            (lease.split(".")[1], who) for lease, kind, who in (one.split(" ", 2) for one in leases) if kind == "task"
        ]
        held_by_me = await self.waiting_of(run_id, {task_id for task_id, who in held if who == annotator})
        return TaskCounts(
            tasks=sum(by_state.values()),
            waiting=by_state.get("WAITING", 0),
            free=room - len({*answered, *held_by_me}),
            leased=len({task_id for task_id, _ in held}),
            decided=by_state.get("DECIDED", 0),
            conflicts=by_state.get("CONFLICT", 0),
            settled=by_state.get("SETTLED", 0),
            mine=given - items,
            mine_hour=given_hour - items_hour,
            answers_hour=hourly,
            run_id=run_id,
        )

    async def mean_answer_s(self, queue: str) -> float:
        """The seconds that an answer takes on average; 0 before the first one."""
        answers, elapsed_ms = await self._redis.hmget(self._keys.pace(queue), "answers", "elapsed_ms")
        return int(elapsed_ms) / int(answers) / 1000 if answers else 0.0

    async def qualification(self, run_id: str, queue: str, annotator: str) -> bool | None:
        """Whether a person has passed the queue's qualification round, or failed that of the run; None: neither."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.sismember(self._keys.qualified(queue), annotator)
        pipe.sismember(self._keys.failed(run_id), annotator)
        passed, failed = await pipe.execute()
        return bool(passed) if passed or failed else None

    async def qualify(self, run_id: str, queue: str, annotator: str, *, passed: bool) -> None:
        """Notes that a person has passed the queue's qualification round, or failed that of a run that still exists."""
        if passed:
            await self._redis.sadd(self._keys.qualified(queue), annotator)
        else:
            keys = [self._keys.record(run_id), self._keys.failed(run_id)]
            await run_script(self._redis, FAIL, keys, [annotator])

    async def events(self, run_id: str, after_seq: int, *, limit: int = 500, wait_ms: int = 0) -> list[TaskEvent]:
        """The events after a sequence number, of one run or (empty) of all; waits for the first if there is none."""
        key = self._keys.task_events(run_id) if run_id else self._keys.all_events
        answer = await self._redis.xread({key: f"{after_seq}-0"}, count=limit, block=wait_ms or None)
        return [_event(entry_id, values) for entry_id, values in (answer[0][1] if answer else [])]

    async def verdict_log(self, run_id: str, after_seq: int = 0, limit: int | None = None) -> list[TaskEvent]:
        """The verdict log of a run after a position, oldest first: its events with what was said."""
        entries = await self._redis.xrange(self._keys.verdicts(run_id), min=f"({after_seq}-0", count=limit)
        for _, values in entries:
            check_format(values, records.FORMAT_VERSION, f"a verdict of run {run_id}")
        return [
            replace(
                records.EVENT.validate_json(values["entry"]), seq=_seq(entry_id), run_id=run_id, task_id=values["task"]
            )
            for entry_id, values in entries
        ]

    async def keys_of(self, run_id: str) -> AsyncIterator[list[str]]:
        """The keys of a run's tasks and of what people did with them, in parts; what finds others comes last."""
        keys, people = self._keys, set[str]()
        for start in itertools.count(0, READ):
            ids = await self.task_ids(run_id, start, READ)
            found, _ = await self.read_many(run_id, ids)
            new = {given.annotator for one in found for given in one.answers} - people
            people |= new
            by_person = (part(run_id, one) for one in sorted(new) for part in (keys.answered_by, keys.controls_by))
            yield [*(keys.task(run_id, one) for one in ids), *by_person]
            if len(ids) < READ:
                break
        work = (keys.waiting, keys.leases, keys.decided, keys.growing, keys.counts, keys.answers_hour)
        yield [part(run_id) for part in (keys.tasks, *work, keys.verdicts, keys.task_events, keys.asking, keys.failed)]


def _event(entry_id: str, values: dict[str, str]) -> TaskEvent:
    with damage_is_data_loss("an event of a task", RESTORE):
        check_format(values, records.FORMAT_VERSION, "an event of a task")
        return TaskEvent(
            seq=_seq(entry_id),
            kind=TaskEventKind.__members__.get(values["event"], TaskEventKind.UNSPECIFIED),  # of a later minor release
            run_id=values["run"],
            task_id=values["task"],
            person=values["annotator"],
            at=datetime.fromisoformat(values["at"]),
        )


def _seq(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


def _counted(record: TaskRecord) -> str:
    """The state in which a task counts; empty: it does not."""
    return "" if record.control or record.withdrawn else record.state.name


def _score(record: TaskRecord, at: float) -> str:
    """Where the task stands in the queue; empty: nobody may take it."""
    if record.control or record.state is not TaskState.WAITING or record.free(at) <= 0:
        return ""
    begun = _BEGUN if record.answers else 0
    return str(record.place + _BACK * record.returned - begun - (_FIRST if record.undone else 0))


def _ms(at: float) -> str:
    return str(math.ceil(at * 1000))  # not before: what is due by it is over by the record, too
