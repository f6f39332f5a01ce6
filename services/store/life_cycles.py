"""Work with a life cycle in Redis, such as runs and jobs: records, states, leases, and an event log.

    create ──▶ PENDING ──▶ RUNNING ──▶ SUCCEEDED | FAILED | CANCELLED
                  ▲                              │ (of FAILED and CANCELLED)
                  └─────────── resume ───────────┘
    each arrow: one script writes the record and appends event `<seq>-0`
    ended ── delete ──▶ tombstone, seen by nobody ── clear ──▶ nothing

A watcher sees a step and its event together or not at all. Sequence numbers count from 1 without gaps. A log drops
the oldest events beyond EVENTS_KEPT. The module does not know what a run or a job is: records are flat hashes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from redis.asyncio import Redis

from aeenc import errors
from services.kit.logs import get
from services.store.formats import RESTORE, UNREADABLE, check_format, damage_is_data_loss
from services.store.redis import WorkLease, key_prefix, once_redis_answers, raising_unavailable, run_script
from services.store.requests import NOTE, REQUEST_TTL_S, UNNAMED, Request, Requests

log = get(__name__)

T = TypeVar("T")

State = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
Step = Callable[[Any], Awaitable[Any]]  # carries out a script by the client or within the transaction that it is given
LIVE: tuple[State, ...] = ("PENDING", "RUNNING")
WATCH_WAIT_MS = 1000
FORMAT_VERSION = 1
EVENTS_KEPT = 10_000  # of each piece of work, or a few more; about a hundred bytes each
READ = 1000  # records read in one round trip
UNFINISHED_TTL_S = 3600  # what an interrupted start has written expires
STAMP = "'ended_s', redis.call('TIME')[1]"  # Redis's clock: retention never compares those of two hosts
# A record of a newer release is refused by name, and left as it is; a damaged one, too.
REFUSED = f"if redis.call('HGET', KEYS[1], 'format_version') ~= '{FORMAT_VERSION}' then return 'REFUSED' end"

# KEYS: record, idempotency key, all, active, events, number; then those that stay from now on; the tombstone
# ARGV: id, whether there is an idempotency key, now, whether it waits for work, then the record's fields and values
_CREATE = f"""
if redis.call('EXISTS', KEYS[#KEYS]) == 1 then return '' end
if ARGV[2] == '1' then
  local existing = redis.call('GET', KEYS[2])
  if existing and redis.call('ZSCORE', KEYS[3], existing) then return existing end
  redis.call('SET', KEYS[2], ARGV[1])
end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[6]), ARGV[1])
if ARGV[4] == '1' then redis.call('SADD', KEYS[4], ARGV[1]) else redis.call('HSET', KEYS[1], {STAMP}) end
for i = 7, #KEYS - 1 do redis.call('PERSIST', KEYS[i]) end
emit(KEYS[1], KEYS[5], ARGV[3])
return ARGV[1]
"""

# KEYS: record, lease, active, events, the request's record
# ARGV: owner or '', id, now, allowed states, state, error, whether it is an end, the id of the request that asks for it
#       or '', what that asks for, how long it is known, states in which nothing is to do, then fields and values
_TRANSITION = f"""
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'MISSING' end
{REFUSED}
local before = ARGV[8] ~= '' and redis.call('HGET', KEYS[5], 'content')
if before then return before == ARGV[9] and 'OK' or 'USED' end
local function note_answer()
  local values, fields = redis.call('HMGET', KEYS[1], unpack(NAMES)), {{}}
  for i, name in ipairs(NAMES) do fields[2 * i - 1], fields[2 * i] = name, values[i] or '' end
  note(KEYS[5], ARGV[8] ~= '' and ARGV[9] or '', ARGV[10], unpack(fields))
end
if string.find(ARGV[11], ' ' .. state .. ' ', 1, true) then
  note_answer()
  return 'OK'
end
if ARGV[1] ~= '' then
  local holder, worker = redis.call('GET', KEYS[2]), redis.call('HGET', KEYS[1], 'worker')
  if holder ~= ARGV[1] and (holder or needs_lease or worker and worker ~= ARGV[1]) then return 'LOST' end
end
if not string.find(ARGV[4], ' ' .. state .. ' ', 1, true) then return state end
redis.call('HSET', KEYS[1], 'state', ARGV[5], 'error', ARGV[6],
  'ended_at', ARGV[7] == '1' and ARGV[3] or '', unpack(ARGV, 12))
if ARGV[7] == '1' then redis.call('HSET', KEYS[1], {STAMP}) end
if ARGV[7] == '1' then redis.call('SREM', KEYS[3], ARGV[2]) else redis.call('SADD', KEYS[3], ARGV[2]) end
emit(KEYS[1], KEYS[4], ARGV[3])
note_answer()
return 'OK'
"""

# KEYS: record, lease, all, active, tombstone, deleted, idempotency key, request
# ARGV: id, live states, what the request asks for or '', how long it is known
_DELETE = f"""
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'MISSING' end
local is_live = string.find(ARGV[2], ' ' .. state .. ' ', 1, true)
local is_newer = (tonumber(redis.call('HGET', KEYS[1], 'format_version')) or 0) > {FORMAT_VERSION}
if is_live or is_newer then {REFUSED} end  -- a damaged record of ended work may go
if is_live then return state end
if redis.call('EXISTS', KEYS[2]) == 1 then return 'HELD' end
redis.call('RENAME', KEYS[1], KEYS[5])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('SREM', KEYS[4], ARGV[1])
redis.call('SADD', KEYS[6], ARGV[1])
if redis.call('GET', KEYS[7]) == ARGV[1] then redis.call('UNLINK', KEYS[7]) end
note(KEYS[8], ARGV[3], ARGV[4])
return 'OK'
"""


def emit_script(fields: Sequence[str]) -> str:
    """Lua for the head of a script: `emit(record, events, now)` appends an event of these fields of the record."""
    names = ", ".join(f"'{name}'" for name in fields)
    return f"""
local NAMES = {{{names}}}
local function emit(record, events, now)
  local seq = redis.call('HINCRBY', record, 'event_seq', 1)
  local values = redis.call('HMGET', record, unpack(NAMES))
  local entry = {{'format_version', {FORMAT_VERSION}, 'at', now}}
  for i, name in ipairs(NAMES) do
    entry[#entry + 1] = name
    entry[#entry + 1] = values[i] or ''
  end
  redis.call('XADD', events, 'MAXLEN', '~', {EVENTS_KEPT}, seq .. '-0', unpack(entry))
end
"""


class WorkKeys:
    """Keys of one kind of work. `noun` names it in keys and messages: all of a run start with `run:<id>:`."""

    def __init__(self, namespace: str, noun: str) -> None:
        self.namespace, self.prefix, self.noun = namespace, key_prefix(namespace), noun
        self.all = f"{self.prefix}{noun}s"
        self.active = f"{self.prefix}{noun}s:active"
        self.number = f"{self.prefix}{noun}s:number"
        self.deleted = f"{self.prefix}{noun}s:deleted"  # of which something may be left (set)
        self.holds = f"{self.prefix}{noun}s:holds"  # the corpus and the generation that each holds (hash)

    def idempotency(self, key: str) -> str:
        """Maps a caller's idempotency key to the work that it started (string)."""
        return f"{self.prefix}{self.noun}-key:{digest(key)}"

    def part(self, work_id: str, name: str) -> str:
        """A part of one piece of work."""
        return f"{self.prefix}{self.noun}:{work_id}:{name}"

    def record(self, work_id: str) -> str:
        """Its record (hash)."""
        return self.part(work_id, "record")

    def tombstone(self, work_id: str) -> str:
        """Its last record, from its deletion until all of it is removed (hash)."""
        return self.part(work_id, "deleted")

    def lease(self, work_id: str) -> str:
        """Which process works on it (string with a time to live)."""
        return self.part(work_id, "lease")

    def events(self, work_id: str) -> str:
        """Its events (stream, ids `<seq>-0`)."""
        return self.part(work_id, "events")


@dataclass(frozen=True)
class Entry:
    """One entry of an event log: the fields of the record as they were after the step."""

    seq: int
    at: datetime
    values: Mapping[str, str]


@dataclass(frozen=True)
class Expired:
    """Ended work that need not be kept, and the reason."""

    id: str
    reason: str


@raising_unavailable("records")
class LifeCycles(Generic[T]):
    """Records, states, leases and events of one kind of work. Raises Unavailable when Redis is away.

    `event_fields` are the fields of a record that an event holds, `state` among them. `read` makes work from an id and
    a record. Without `needs_lease` an owner may write while nobody holds the lease.
    """

    def __init__(
        self,
        redis: Redis,
        keys: WorkKeys,
        event_fields: Sequence[str],
        read: Callable[[str, Mapping[str, str]], T],
        *,
        needs_lease: bool = True,
    ) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys, self._noun, self._read = keys, keys.noun, read
        emit = emit_script(event_fields)
        self._create = emit + _CREATE
        self._transition = f"{emit}{NOTE}local needs_lease = {'true' if needs_lease else 'false'}\n{_TRANSITION}"
        self.requests = Requests(redis, keys.namespace)

    async def create(
        self,
        work_id: str,
        idempotency_key: str,
        record: Mapping[str, Any],
        *,
        waits: bool,
        keys: Sequence[str] = (),
        also: Step | None = None,
    ) -> str:
        """Stores new work, or finds what its idempotency key started. Returns the id of what is stored.

        `waits` adds it to the active work. `keys` of its own, which were written to expire after UNFINISHED_TTL_S, stay
        from now on. `also` is a step of the same transaction.
        """
        own = self._keys
        first = [own.record(work_id), own.idempotency(idempotency_key), own.all, own.active, own.events(work_id)]
        fields = [part for field in record.items() for part in field]
        pipe = self._redis.pipeline(transaction=True)
        arguments = [work_id, int(bool(idempotency_key)), now(), int(waits), *fields]
        await run_script(pipe, self._create, [*first, own.number, *keys, own.tombstone(work_id)], arguments)
        if also:
            await also(pipe)
        stored: str = (await pipe.execute())[0]
        if not stored:
            raise errors.Unavailable(f"{self._noun} {work_id} is being deleted; try again in a moment")
        return stored

    async def started_by(self, idempotency_key: str) -> str | None:
        """The id of the work that an idempotency key has started."""
        pipe = self._redis.pipeline(transaction=False, settles=True)
        pipe.get(self._keys.idempotency(idempotency_key))
        work_id: str | None = (await pipe.execute())[0]
        # The key of work that was deleted although its record was damaged may still be there.
        return work_id if work_id and await self._redis.zscore(self._keys.all, work_id) is not None else None

    async def get(self, work_id: str) -> dict[str, str]:
        """A record. Raises NotFound, NewerFormat for one of a newer release, DataLoss for a damaged one."""
        record: dict[str, str] = await self._redis.hgetall(self._keys.record(work_id))
        if not record:
            raise errors.NotFound(_unknown(self._noun, work_id))
        self._check(work_id, record)
        return record

    def _check(self, work_id: str, record: Mapping[str, str]) -> None:
        check_format(record, FORMAT_VERSION, f"{self._noun} {work_id}")

    async def page(self, limit: int, before: int) -> tuple[list[T], int]:
        """At most `limit` pieces of work older than number `before` (0: the newest), and the next number (0: none).

        Those of a newer release and damaged ones are left out; `get` says why.
        """
        top = f"({before}" if before else "+inf"
        found = await self._redis.zrevrangebyscore(self._keys.all, top, 0, start=0, num=limit + 1, withscores=True)
        pipe = self._redis.pipeline(transaction=False)
        for work_id, _ in found[:limit]:
            pipe.hgetall(self._keys.record(work_id))
        records = await pipe.execute()
        page = []
        for (work_id, _), record in zip(found, records, strict=False):
            try:
                if record:
                    self._check(work_id, record)
                    page.append(self._read(work_id, record))
            except UNREADABLE as error:
                log.warning("left out of a list", id=work_id, reason=error.message)
        return page, int(found[limit - 1][1]) if len(found) > limit else 0

    async def active(self) -> list[str]:
        """The ids of the work that waits for a process or has one, the oldest first."""
        active = sorted(await self._redis.smembers(self._keys.active))
        numbers = await self._redis.zmscore(self._keys.all, active) if active else []
        return [work_id for _, work_id in sorted(zip((n or 0 for n in numbers), active, strict=True))]

    async def transition(
        self,
        work_id: str,
        allowed: Sequence[State],
        state: State,
        *,
        error: str = "",
        owner: str = "",
        request: Request = UNNAMED,
        already: Sequence[State] = (),
        fields: Mapping[str, Any] | None = None,
    ) -> str:
        """Moves work to a state and sets further fields. Returns OK, MISSING, LOST, or the state that forbids the move.

        LOST: `owner` does not hold the lease. Work in a state of `already` stays as it is, which is OK. In the same
        step a `request` with an id is noted, with the event fields: its retry changes nothing and is OK, whatever has
        happened since. Raises AlreadyExists when it has asked for something else before, NewerFormat for the record of
        a newer release.
        """
        keys = self._keys
        further = [part for field in (fields or {}).items() for part in field]
        end = int(state not in LIVE)
        moved = [owner, work_id, now(), f" {' '.join(allowed)} ", state, error, end]
        noted = [request.id, request.text, REQUEST_TTL_S, f" {' '.join(already)} "]
        own = [keys.record(work_id), keys.lease(work_id), keys.active, keys.events(work_id), self.requests.key(request)]
        answer: str = await run_script(self._redis, self._transition, own, [*moved, *noted, *further])
        if answer == "REFUSED":
            await self.get(work_id)
        if answer != "USED":
            return answer
        await self.requests.answer(request, bool)  # raises unless a release has only added to what they ask for
        return "OK"

    async def end(self, work_id: str, state: State, pause_s: float, **how: Any) -> bool:
        """Moves work from RUNNING to the state in which it has ended, once Redis answers, as `transition` does.

        True where it has that state, maybe by an attempt whose answer was lost: nobody else works on it.
        """
        ending = partial(self.transition, work_id, ("RUNNING",), state, **how)
        return await once_redis_answers(ending, pause_s) in {"OK", state}

    async def size_bytes(self, keys: Sequence[str]) -> int:
        """About how much memory keys take."""
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.memory_usage(key)
        return sum(size or 0 for size in await pipe.execute())

    async def events(self, work_id: str, after_seq: int, *, limit: int = 500, wait_ms: int = 0) -> list[Entry]:
        """The events after a sequence number. Waits up to `wait_ms` for the first if there is none yet.

        Raises NewerFormat for those of a newer release, DataLoss for damaged ones.
        """
        key = self._keys.events(work_id)
        answer = await self._redis.xread({key: f"{after_seq}-0"}, count=limit, block=wait_ms or None)
        entries = []
        for entry_id, values in answer[0][1] if answer else []:
            with damage_is_data_loss(what := f"an event of {self._noun} {work_id}", RESTORE):
                check_format(values, FORMAT_VERSION, what)
                at = datetime.fromisoformat(values["at"])
            entries.append(Entry(int(entry_id.partition("-")[0]), at, values))
        return entries

    async def watch(self, work_id: str, from_seq: int) -> AsyncIterator[tuple[Entry, T]]:
        """The events from a sequence number on, each with the work after it, until it has ended. Raises NotFound."""
        started, seq = await self.get(work_id), max(from_seq, 1) - 1
        while True:
            entries = await self.events(work_id, seq, wait_ms=WATCH_WAIT_MS)
            for entry in entries:
                yield entry, self._read(work_id, {**started, **entry.values})
                seq = entry.seq
            if not entries or entries[-1].values["state"] not in LIVE:
                record = await self.get(work_id)
                if record["state"] not in LIVE and int(record.get("event_seq", 0)) <= seq:
                    return

    async def delete(self, work_id: str, key_of: Callable[[dict[str, str]], str], request: Request) -> None:
        """Takes ended work out of sight in one step, and forgets its idempotency key; `clear` removes the rest.

        `key_of` reads the idempotency key from the record; of a damaged one, the key stays and stands for nothing. A
        retry of the `request` does nothing for a day. Raises NotFound, FailedPrecondition for live work, Unavailable
        while a process still holds its lease, and AlreadyExists when the request has asked for something else.
        """
        if await self.requests.answer(request, bool):
            return
        keys = self._keys
        live = " ".join(LIVE)
        own = [keys.record(work_id), keys.lease(work_id), keys.all, keys.active, keys.tombstone(work_id), keys.deleted]
        record, key = await self._redis.hgetall(keys.record(work_id)), ""
        with contextlib.suppress(errors.DataLoss):
            key = key_of(record) if record else ""
        own += [keys.idempotency(key), self.requests.key(request)]
        arguments = [work_id, f" {live} ", request.text, REQUEST_TTL_S]
        answer: str = await run_script(self._redis, NOTE + _DELETE, own, arguments)
        if answer == "REFUSED":
            await self.get(work_id)
        if answer == "HELD":
            raise errors.Unavailable(f"a process has not let go of {self._noun} {work_id} yet; try again in a moment")
        if answer in LIVE:
            raise errors.FailedPrecondition(f"{self._noun} {work_id} is {answer}; cancel it first, then delete it")
        if answer == "MISSING" and not await self.requests.answer(request, bool):  # else a retry was faster
            raise errors.NotFound(_unknown(self._noun, work_id))

    async def deleted(self) -> list[str]:
        """The ids of deleted work of which something may be left, sorted."""
        return sorted(await self._redis.smembers(self._keys.deleted))

    async def clear(self, work_id: str, remove: Callable[[dict[str, str]], Awaitable[None]]) -> None:
        """Removes all that deleted work has left; whoever is interrupted here is followed by the next `clear`.

        `remove` gets the last record, and removes all that the work has beside record, lease and events. It may have
        done so before, in part or in whole.
        """
        keys = self._keys
        record = await self._redis.hgetall(keys.tombstone(work_id))
        if record:
            with contextlib.suppress(errors.DataLoss):  # it was damaged before it was deleted
                self._check(work_id, record)
            await remove(record)
        pipe = self._redis.pipeline(transaction=True)
        if record:
            pipe.unlink(keys.events(work_id), keys.lease(work_id), keys.tombstone(work_id))
        pipe.srem(keys.deleted, work_id)
        await pipe.execute()

    async def expired(self, keep_s: float, kept: int) -> list[Expired]:
        """Ended work that is to go, the longest ended first: after `keep_s`, and all but the `kept` that ended last.

        0 sets no limit. Live work is never among it. Ages are by Redis's clock.
        """
        if not (keep_s or kept):
            return []
        ended: list[tuple[float, str]] = []
        seconds, _ = await self._redis.time()
        for start in itertools.count(0, READ):
            ids = await self._redis.zrange(self._keys.all, start, start + READ - 1)
            pipe = self._redis.pipeline(transaction=False)
            for work_id in ids:
                pipe.hmget(self._keys.record(work_id), "state", "ended_s", "format_version")
            for work_id, (state, ended_s, version) in zip(ids, await pipe.execute(), strict=True):
                if state not in LIVE and ended_s and version == str(FORMAT_VERSION):
                    ended.append((float(ended_s), work_id))
            if len(ids) < READ:
                break
        ended.sort()
        surplus = len(ended) - kept if kept else 0
        found = []
        for place, (at_s, work_id) in enumerate(ended):
            if keep_s and seconds - at_s > keep_s:
                found.append(Expired(work_id, f"ended {seconds - at_s:,.0f} s ago, kept for {keep_s:,.0f} s"))
            elif place < surplus:
                found.append(Expired(work_id, f"not among the {kept:,} that ended last"))
        return found

    def lease(self, work_id: str, owner: str, lease_s: float) -> WorkLease:
        """The lease of one piece of work, not taken yet."""
        return WorkLease(self._redis, self._keys.lease(work_id), owner, lease_s, self._keys.record(work_id))


def _unknown(noun: str, work_id: str) -> str:
    return f"no {noun} {work_id!r}; List{noun.title()}s (`aeenc {noun}s`) names those there are"


def digest(text: str) -> str:
    """A text as part of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    """The time as records and events hold it."""
    return datetime.now(UTC).isoformat()
