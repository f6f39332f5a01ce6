"""Work with a life cycle in Redis, such as runs and jobs: records, states, leases, and an event log.

    create ──▶ PENDING ──▶ RUNNING ──▶ SUCCEEDED | FAILED | CANCELLED
                  ▲                              │ (of FAILED and CANCELLED)
                  └─────────── resume ───────────┘
    each arrow: one script writes the record and appends event `<seq>-0`

A watcher sees a step and its event together or not at all. Sequence numbers count from 1 without gaps. A log that keeps
a limited number of events drops the oldest. The module does not know what a run or a job is: records are flat hashes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from redis.asyncio import Redis

from aeenc import errors
from services.store.formats import check_format
from services.store.redis import Leases, key_prefix, unavailable_if_down
from services.store.requests import REQUEST_TTL_S, Request, Requests

State = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
LIVE: tuple[State, ...] = ("PENDING", "RUNNING")
WATCH_WAIT_MS = 1000
FORMAT_VERSION = 1

# KEYS: record, idempotency key, all, active, events, number; then those of `on_create`
# ARGV: id, whether there is an idempotency key, now, whether it waits for work, then the record's fields and values
_CREATE = """
if ARGV[2] == '1' then
  local existing = redis.call('GET', KEYS[2])
  if existing then return existing end
  redis.call('SET', KEYS[2], ARGV[1])
end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[6]), ARGV[1])
if ARGV[4] == '1' then redis.call('SADD', KEYS[4], ARGV[1]) end
"""
_CREATED = """
emit(KEYS[1], KEYS[5], ARGV[3])
return ARGV[1]
"""

# KEYS: record, lease, active, events, the request's record
# ARGV: owner or '', id, now, allowed states, state, error, whether it is an end, the id of the request that asks for it
#       or '', what that asks for, how long it is known, states in which nothing is to do, then fields and values
# The record's field `request` is what releases before 0.2 know a retry by.
_TRANSITION = """
local state, format = unpack(redis.call('HMGET', KEYS[1], 'state', 'format_version'))
if not state then return 'MISSING' end
if tonumber(format or 1) > FORMAT then return 'NEWER ' .. format end
local before = ARGV[8] ~= '' and redis.call('HGET', KEYS[5], 'content')
if before then return before == ARGV[9] and 'OK' or 'USED' end
local function note()
  if ARGV[8] == '' then return end
  local values = redis.call('HMGET', KEYS[1], unpack(NAMES))
  redis.call('HSET', KEYS[5], 'content', ARGV[9])
  for i, name in ipairs(NAMES) do redis.call('HSET', KEYS[5], name, values[i] or '') end
  redis.call('EXPIRE', KEYS[5], ARGV[10])
end
if string.find(ARGV[11], ' ' .. state .. ' ', 1, true) then
  note()
  return 'OK'
end
if ARGV[1] ~= '' then
  local holder = redis.call('GET', KEYS[2])
  if holder ~= ARGV[1] and (holder or needs_lease) then return 'LOST' end
end
if not string.find(ARGV[4], ' ' .. state .. ' ', 1, true) then
  local again = state == ARGV[5] and ARGV[8] ~= '' and redis.call('HGET', KEYS[1], 'request') == ARGV[8]
  return again and 'OK' or state
end
redis.call('HSET', KEYS[1], 'request', ARGV[8], 'state', ARGV[5], 'error', ARGV[6],
  'ended_at', ARGV[7] == '1' and ARGV[3] or '', unpack(ARGV, 12))
if ARGV[7] == '1' then redis.call('SREM', KEYS[3], ARGV[2]) else redis.call('SADD', KEYS[3], ARGV[2]) end
emit(KEYS[1], KEYS[4], ARGV[3])
note()
return 'OK'
"""


def emit_script(fields: Sequence[str], kept: int = 0) -> str:
    """Lua for the head of a script: `emit(record, events, now)` appends an event that holds these fields of the record.

    `kept` bounds the log, give or take a few events; 0 keeps all.
    """
    names = ", ".join(f"'{name}'" for name in fields)
    limit = f"'MAXLEN', '~', {kept}, " if kept else ""
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
  redis.call('XADD', events, {limit}seq .. '-0', unpack(entry))
end
"""


class WorkKeys:
    """Keys of one kind of work. `noun` names it in keys and messages: all of a run start with `run:<id>:`."""

    def __init__(self, namespace: str, noun: str) -> None:
        self.namespace, self.noun = namespace, noun
        self.prefix = key_prefix(namespace)
        self.all = f"{self.prefix}{noun}s"
        self.active = f"{self.prefix}{noun}s:active"
        self.number = f"{self.prefix}{noun}s:number"

    def idempotency(self, key: str) -> str:
        """Maps a caller's idempotency key to the work that it started (string)."""
        return f"{self.prefix}{self.noun}-key:{digest(key)}"

    def part(self, work_id: str, name: str) -> str:
        """A part of one piece of work."""
        return f"{self.prefix}{self.noun}:{work_id}:{name}"

    def record(self, work_id: str) -> str:
        """Its record (hash)."""
        return self.part(work_id, "record")

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


class LifeCycles:
    """Records, states, leases and events of one kind of work. Raises Unavailable when Redis is away.

    `event_fields` are the fields of a record that an event holds, `state` among them. `on_create` is Lua that runs
    within `create`; its keys begin at KEYS[7]. Without `needs_lease` an owner may write while nobody holds the lease.
    """

    def __init__(
        self,
        redis: Redis,
        keys: WorkKeys,
        event_fields: Sequence[str],
        *,
        events_kept: int = 0,
        on_create: str = "",
        needs_lease: bool = True,
    ) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys, self._noun = keys, keys.noun
        emit = emit_script(event_fields, events_kept)
        self._create: Any = redis.register_script(emit + _CREATE + on_create + _CREATED)
        self._transition: Any = redis.register_script(
            f"{emit}local needs_lease, FORMAT = {'true' if needs_lease else 'false'}, {FORMAT_VERSION}\n{_TRANSITION}"
        )
        self._leases, self.requests = Leases(redis), Requests(redis, keys.namespace)

    async def create(
        self, work_id: str, idempotency_key: str, record: Mapping[str, Any], *, waits: bool, keys: Sequence[str] = ()
    ) -> str:
        """Stores new work, or finds what its idempotency key started. Returns the id of what is stored.

        `waits` adds it to the active work. `keys` are those of `on_create`.
        """
        own = self._keys
        first = [own.record(work_id), own.idempotency(idempotency_key), own.all, own.active, own.events(work_id)]
        fields = [part for field in record.items() for part in field]
        async with unavailable_if_down(f"store the {self._noun}"):
            stored: str = await self._create(
                keys=[*first, own.number, *keys],
                args=[work_id, int(bool(idempotency_key)), now(), int(waits), *fields],
            )
        return stored

    async def started_by(self, idempotency_key: str) -> str | None:
        """The id of the work that an idempotency key has started."""
        async with unavailable_if_down(f"look the {self._noun} up"):
            work_id: str | None = await self._redis.get(self._keys.idempotency(idempotency_key))
        return work_id

    async def get(self, work_id: str) -> dict[str, str]:
        """A record. Raises NotFound."""
        async with unavailable_if_down(f"read {self._noun} {work_id}"):
            record: dict[str, str] = await self._redis.hgetall(self._keys.record(work_id))
        if not record:
            raise errors.NotFound(f"no {self._noun} {work_id!r}; List{self._noun.title()}s names those there are")
        return record

    async def page(self, limit: int, before: int) -> tuple[list[tuple[str, dict[str, str]]], int]:
        """At most `limit` ids and records older than number `before` (0: the newest), the next `before` (0: none)."""
        async with unavailable_if_down(f"list the {self._noun}s"):
            top = f"({before}" if before else "+inf"
            found = await self._redis.zrevrangebyscore(self._keys.all, top, 0, start=0, num=limit + 1, withscores=True)
            pipe = self._redis.pipeline(transaction=False)
            for work_id, _ in found[:limit]:
                pipe.hgetall(self._keys.record(work_id))
            records = await pipe.execute()
        page = [(work_id, record) for (work_id, _), record in zip(found, records, strict=False) if record]
        return page, int(found[limit - 1][1]) if len(found) > limit else 0

    async def active(self) -> list[str]:
        """The ids of the work that waits for a process or has one, the oldest first."""
        async with unavailable_if_down(f"read the active {self._noun}s"):
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
        request: Request | None = None,
        already: Sequence[State] = (),
        fields: Mapping[str, Any] | None = None,
    ) -> str:
        """Moves work to a state and sets further fields. Returns OK, MISSING, LOST, or the state that forbids the move.

        LOST: `owner` does not hold the lease. Work in a state of `already` stays as it is, which is OK. In the same
        step a `request` with an id is noted, with the event fields: its retry changes nothing and is OK, whatever has
        happened since. Raises AlreadyExists when it has asked for something else before, NewerFormat for the record of
        a newer release.
        """
        keys, asked = self._keys, request or Request("", "", {})
        further = [part for field in (fields or {}).items() for part in field]
        end = int(state not in LIVE)
        moved = [owner, work_id, now(), f" {' '.join(allowed)} ", state, error, end]
        noted = [asked.id, asked.text, REQUEST_TTL_S, f" {' '.join(already)} "]
        own = (keys.record(work_id), keys.lease(work_id), keys.active, keys.events(work_id))
        async with unavailable_if_down(f"move {self._noun} {work_id} to {state}"):
            answer: str = await self._transition(keys=[*own, self.requests.key(asked)], args=[*moved, *noted, *further])
        if answer.startswith("NEWER "):
            check_format({"format_version": answer[6:]}, FORMAT_VERSION, f"{self._noun} {work_id}")
        if answer != "USED":
            return answer
        await self.requests.answer(asked)  # raises unless a release has only added to what such requests ask for
        return "OK"

    async def events(self, work_id: str, after_seq: int, *, limit: int = 500, wait_ms: int = 0) -> list[Entry]:
        """The events after a sequence number. Waits up to `wait_ms` for the first if there is none yet."""
        key = self._keys.events(work_id)
        async with unavailable_if_down(f"read the events of {self._noun} {work_id}"):
            answer = await self._redis.xread({key: f"{after_seq}-0"}, count=limit, block=wait_ms or None)
        return [
            Entry(int(entry_id.partition("-")[0]), datetime.fromisoformat(values["at"]), values)
            for entry_id, values in (answer[0][1] if answer else [])
        ]

    async def follow(self, work_id: str, from_seq: int) -> AsyncIterator[Entry]:
        """The events from a sequence number on, until the work has ended and all its events were read."""
        seq = max(from_seq, 1) - 1
        while True:
            entries = await self.events(work_id, seq, wait_ms=WATCH_WAIT_MS)
            for entry in entries:
                yield entry
                seq = entry.seq
            if not entries or entries[-1].values["state"] not in LIVE:
                record = await self.get(work_id)
                if record["state"] not in LIVE and int(record.get("event_seq", 0)) <= seq:
                    return

    def lease(self, work_id: str, owner: str, lease_s: float) -> WorkLease:
        """The lease of one piece of work, not taken yet."""
        return WorkLease(self._leases, self._keys.lease(work_id), owner, lease_s)


class WorkLease:
    """A lease as its owner sees it, held from the first successful `renew` on. Raises Unavailable without Redis."""

    def __init__(self, leases: Leases, key: str, owner: str, lease_s: float) -> None:
        self._leases, self._key, self._lease_s = leases, key, lease_s
        self.owner = owner
        self._sure_until = 0.0

    @property
    def sure(self) -> bool:
        """Whether no other process can hold it yet, by this machine's clock."""
        return time.monotonic() < self._sure_until

    async def renew(self) -> bool:
        """Takes or renews the lease. False when another owner holds it."""
        asked_at = time.monotonic()  # Redis starts its clock after this moment, so the lease outlives our estimate
        held = await self._leases.take(self._key, self.owner, self._lease_s)
        self._sure_until = asked_at + self._lease_s if held else 0.0
        return held

    async def release(self) -> None:
        """Gives the lease back; does nothing when another owner holds it."""
        self._sure_until = 0.0
        await self._leases.release(self._key, self.owner)


def digest(text: str) -> str:
    """A text as part of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    """The time as records and events hold it."""
    return datetime.now(UTC).isoformat()
