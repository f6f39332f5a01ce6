"""The tasks of human queues in Redis: read with Redis's own time, written only if nobody else has meanwhile.

Every method raises Unavailable when Redis is away. What `write` has acknowledged is stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis

from services.sampler.tasks import record as records
from services.sampler.tasks import task_scripts
from services.sampler.tasks.record import TaskRecord
from services.sampler.tasks.steps import Change
from services.sampler.tasks.task_keys import TaskKeys
from services.store.redis import unavailable_if_down

REQUEST_TTL_S = 86_400
EVENTS_KEPT = 100_000  # of all queues together, or a few more; about 150 bytes each
# A task's place orders the queue: what was taken back comes first, then what others have begun, then what is new, then
# what was given back.
_BACK, _BEGUN, _FIRST = 10**7, 10**9, 10**12


@dataclass(frozen=True)
class TaskEvent:
    """One event of a queue; `seq` counts from 1 in the run's events, or in all."""

    seq: int
    event: str
    run_id: str
    task_id: str
    annotator: str
    at: float


@dataclass(frozen=True)
class Read:
    """A task as it is, the time, and what an earlier attempt of the same request has made."""

    record: TaskRecord | None
    at: float
    made: str = ""


class TaskStore:
    """Tasks of one namespace."""

    def __init__(self, redis: Redis, keys: TaskKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self._put: Any = redis.register_script(task_scripts.PUT)
        self._write: Any = redis.register_script(task_scripts.WRITE)

    async def put(self, new: Sequence[TaskRecord]) -> None:
        """Queues tasks; those that exist stay as they are."""
        if not new:
            return
        keys = self._keys
        async with unavailable_if_down("queue tasks"):
            at = await self._now()
            pipe = self._redis.pipeline(transaction=False)
            for one in new:
                run_id, task_id = one.run_id, one.task.task_id
                await self._put(
                    keys=[
                        keys.task(run_id, task_id),
                        keys.index(run_id),
                        keys.waiting(run_id),
                        keys.events(run_id),
                        keys.all_events,
                    ],
                    args=[
                        task_id,
                        run_id,
                        records.task_json(one.task),
                        one.to_json(),
                        at,
                        int(not one.control),
                        EVENTS_KEPT,
                    ],
                    client=pipe,
                )
            await pipe.execute()

    async def read(self, run_id: str, task_id: str, request: Sequence[str] = ()) -> Read:
        """One task, the time, and what the request has made before."""
        async with unavailable_if_down(f"read task {task_id} of run {run_id}"):
            pipe = self._redis.pipeline(transaction=False)
            pipe.time()
            pipe.hgetall(self._keys.task(run_id, task_id))
            if request:
                pipe.get(self._keys.request(*request))
            (seconds, microseconds), row, *made = await pipe.execute()
        return Read(_record(row) if row else None, seconds + microseconds / 1e6, (made[0] or "") if made else "")

    async def read_many(self, run_id: str, task_ids: Sequence[str]) -> tuple[list[TaskRecord], float]:
        """Tasks by id, and the time."""
        async with unavailable_if_down(f"read tasks of run {run_id}"):
            pipe = self._redis.pipeline(transaction=False)
            pipe.time()
            for task_id in task_ids:
                pipe.hgetall(self._keys.task(run_id, task_id))
            (seconds, microseconds), *rows = await pipe.execute()
        return [_record(row) for row in rows if row], seconds + microseconds / 1e6

    async def write(self, change: Change, queue: str, at: float, request: Sequence[str] = ()) -> bool:
        """Writes a change of the record that was read. False: somebody was faster; read again."""
        after = change.record
        run_id, task_id, keys = after.run_id, after.task.task_id, self._keys
        plan = {
            "run": run_id,
            "task": task_id,
            "at": _iso(at),
            "waiting": _score(after, at),
            "leases": [[held.id, _ms(held.expires_at)] for held in after.leases if not held.ended],
            "ended": [held.id for held in after.leases if held.ended],
            "decided": _ms(after.decided_at) if after.state == "DECIDED" else "",
            "log": [json.dumps(entry) for entry in change.log],
            "events": change.events,
            "events_kept": EVENTS_KEPT,
            "elapsed_ms": "" if change.elapsed_s is None else str(int(change.elapsed_s * 1000)),
            "answered": change.answered,
            "undone": change.undone,
            "request": change.id if request else "",
            "request_ttl_s": REQUEST_TTL_S,
        }
        async with unavailable_if_down(f"store task {task_id} of run {run_id}"):
            written = await self._write(
                keys=[
                    keys.task(run_id, task_id),
                    keys.waiting(run_id),
                    keys.leases(run_id),
                    keys.decided(run_id),
                    keys.verdicts(run_id),
                    keys.events(run_id),
                    keys.all_events,
                    keys.pace(queue),
                    keys.answered_by(run_id, change.person),
                    keys.request(*request),
                ],
                args=[after.revision, after.to_json(), json.dumps(plan)],
            )
        return bool(written)

    async def made(self, request: Sequence[str]) -> str:
        """The id that a request has made before; empty when it has not."""
        async with unavailable_if_down("look a request up"):
            return await self._redis.get(self._keys.request(*request)) or ""

    async def waiting(self, run_id: str) -> list[str]:
        """The tasks that somebody may take, best first."""
        async with unavailable_if_down(f"read the queue of run {run_id}"):
            found: list[str] = await self._redis.zrange(self._keys.waiting(run_id), 0, -1)
            return found

    async def overdue(self, run_id: str) -> list[str]:
        """The tasks of the leases whose time is over."""
        async with unavailable_if_down(f"read the leases of run {run_id}"):
            at = await self._now_s()
            leases = await self._redis.zrangebyscore(self._keys.leases(run_id), "-inf", _ms(at))
        return sorted({lease.split(".")[1] for lease in leases})

    async def decided(self, run_id: str, undo_s: float) -> list[str]:
        """The tasks whose decision can no longer be taken back and has not gone to the run."""
        async with unavailable_if_down(f"read the decisions of run {run_id}"):
            at = await self._now_s()
            found: list[str] = await self._redis.zrangebyscore(self._keys.decided(run_id), "-inf", _ms(at - undo_s))
            return found

    async def task_ids(self, run_id: str, after: int, limit: int) -> list[str]:
        """Tasks of a run in the order in which they were queued, from a position on."""
        async with unavailable_if_down(f"list the tasks of run {run_id}"):
            found: list[str] = await self._redis.lrange(self._keys.index(run_id), after, after + limit - 1)
            return found

    async def answered_by(self, run_id: str, annotator: str) -> list[str]:
        """The ids of a person's answers in a run that hold, oldest first."""
        async with unavailable_if_down(f"read the answers of {annotator}"):
            found: list[str] = await self._redis.lrange(self._keys.answered_by(run_id, annotator), 0, -1)
            return found

    async def mean_answer_s(self, queue: str) -> float:
        """How long an answer takes on average; 0 before the first one."""
        async with unavailable_if_down(f"read the pace of queue {queue}"):
            answers, elapsed_ms = await self._redis.hmget(self._keys.pace(queue), "answers", "elapsed_ms")
        return int(elapsed_ms) / int(answers) / 1000 if answers else 0.0

    async def events(self, run_id: str, after_seq: int, *, limit: int = 500, wait_ms: int = 0) -> list[TaskEvent]:
        """The events after a sequence number, of one run or (empty) of all; waits for the first if there is none."""
        key = self._keys.events(run_id) if run_id else self._keys.all_events
        async with unavailable_if_down("read the events of tasks"):
            answer = await self._redis.xread({key: f"{after_seq}-0"}, count=limit, block=wait_ms or None)
        return [_event(entry_id, values) for entry_id, values in (answer[0][1] if answer else [])]

    async def verdict_log(self, run_id: str) -> list[dict[str, Any]]:
        """The whole verdict log of a run, oldest first."""
        async with unavailable_if_down(f"read the verdict log of run {run_id}"):
            entries = await self._redis.xrange(self._keys.verdicts(run_id))
        return [{"task": values["task"], **json.loads(values["entry"])} for _, values in entries]

    async def _now_s(self) -> float:
        seconds, microseconds = await self._redis.time()
        return float(seconds + microseconds / 1e6)

    async def _now(self) -> str:
        return _iso(await self._now_s())


def _record(row: dict[str, str]) -> TaskRecord:
    task = records.task_from_json(row["task"])
    return records.from_json(task, row["record"], int(row["place"]), int(row["revision"]))


def _event(entry_id: str, values: dict[str, str]) -> TaskEvent:
    at = datetime.fromisoformat(values["at"]).timestamp()
    seq = int(entry_id.partition("-")[0])
    return TaskEvent(seq, values["event"], values["run"], values["task"], values["annotator"], at)


def _score(record: TaskRecord, at: float) -> str:
    """Where the task stands in the queue; empty: nobody may take it."""
    if record.control or record.state != "WAITING" or record.free(at) <= 0:
        return ""
    begun = _BEGUN if record.answers else 0
    return str(record.place + _BACK * record.returned - begun - (_FIRST if record.undone else 0))


def _ms(at: float) -> str:
    return str(int(at * 1000))


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
