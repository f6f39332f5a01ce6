"""Jobs in Redis: records, life cycle, leases and events. Every method raises Unavailable if Redis is away."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.store.redis import Leases, key_prefix, unavailable_if_down
from services.store.requests import REQUEST_TTL_S, Request, Requests
from services.trainer.jobs.job import (
    FORMAT_VERSION,
    LIVE,
    Job,
    JobEvent,
    JobProgress,
    JobState,
    config_json,
    event_of,
    job_of,
)

EVENTS_KEPT = 10_000

# A script writes each transition together with its event, so that a watcher never sees one without the other.
_EMIT = f"""
local NAMES = {{'state', 'error', 'version', 'progress', 'ended_at'}}
local function emit(job, events, now)
  local seq = redis.call('HINCRBY', job, 'event_seq', 1)
  local values = redis.call('HMGET', job, unpack(NAMES))
  local entry = {{'format_version', {FORMAT_VERSION}, 'at', now}}
  for i, name in ipairs(NAMES) do
    entry[#entry + 1] = name
    entry[#entry + 1] = values[i] or ''
  end
  redis.call('XADD', events, 'MAXLEN', '~', {EVENTS_KEPT}, seq .. '-0', unpack(entry))
end
"""

# KEYS: job, idempotency key, jobs, active, events, number of jobs, validation
# ARGV: job id, whether there is an idempotency key, now, validation, then the job's fields and values
_CREATE = (
    _EMIT
    + """
if ARGV[2] == '1' then
  local existing = redis.call('GET', KEYS[2])
  if existing then return existing end
  redis.call('SET', KEYS[2], ARGV[1])
end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('SET', KEYS[7], ARGV[4])
redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[6]), ARGV[1])
redis.call('SADD', KEYS[4], ARGV[1])
emit(KEYS[1], KEYS[5], ARGV[3])
return ARGV[1]
"""
)

# KEYS: job, lease, active, events, the request's record.  ARGV: owner or '', job id, now, allowed states, state, error,
# version, whether it is final, the id of the request that asks for it or '', what that asks for, seconds, states in
# which there is nothing to do.  Returns OK, MISSING, LOST (another owner has the lease) or the state that forbids.
# The job's field `request` is that of earlier releases.
_TRANSITION = (
    _EMIT
    + """
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'MISSING' end
if ARGV[9] ~= '' and redis.call('EXISTS', KEYS[5]) == 1 then return 'OK' end
local function note()
  if ARGV[9] == '' then return end
  local values = redis.call('HMGET', KEYS[1], unpack(NAMES))
  redis.call('HSET', KEYS[5], 'content', ARGV[10])
  for i, name in ipairs(NAMES) do redis.call('HSET', KEYS[5], name, values[i] or '') end
  redis.call('EXPIRE', KEYS[5], ARGV[11])
end
if string.find(ARGV[12], ' ' .. state .. ' ', 1, true) then
  note()
  return 'OK'
end
local holder = redis.call('GET', KEYS[2])
if ARGV[1] ~= '' and holder and holder ~= ARGV[1] then return 'LOST' end
if not string.find(ARGV[4], ' ' .. state .. ' ', 1, true) then
  local again = state == ARGV[5] and ARGV[9] ~= '' and redis.call('HGET', KEYS[1], 'request') == ARGV[9]
  return again and 'OK' or state
end
redis.call('HSET', KEYS[1], 'request', ARGV[9], 'state', ARGV[5], 'error', ARGV[6], 'version', ARGV[7],
  'ended_at', ARGV[8] == '1' and ARGV[3] or '')
if ARGV[8] == '1' then redis.call('SREM', KEYS[3], ARGV[2]) else redis.call('SADD', KEYS[3], ARGV[2]) end
emit(KEYS[1], KEYS[4], ARGV[3])
note()
return 'OK'
"""
)

# KEYS: job, lease, events.  ARGV: owner, now, progress
_PROGRESS = (
    _EMIT
    + """
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return 'LOST' end
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'RUNNING' then return state end
redis.call('HSET', KEYS[1], 'progress', ARGV[3])
emit(KEYS[1], KEYS[3], ARGV[2])
return 'OK'
"""
)


class JobStore:
    """Records of all jobs of one namespace. A method returns once its change is stored."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._prefix = key_prefix(namespace)
        self._leases, self.requests = Leases(redis), Requests(redis, namespace)
        self._create: Any = redis.register_script(_CREATE)
        self._transition: Any = redis.register_script(_TRANSITION)
        self._progress: Any = redis.register_script(_PROGRESS)

    async def create(self, job: Job, validation: Sequence[tuple[str, Sequence[str]]]) -> str:
        """Stores a new job, or finds the one that its idempotency key started. Returns the id of the stored job."""
        key = job.config.idempotency_key
        record = {
            "format_version": FORMAT_VERSION,
            "config": config_json(job.config),
            "generation": job.generation,
            "state": job.state,
            "created_at": job.created_at.isoformat(),
            "fingerprint": job.fingerprint,
        }
        fields = [text for item in record.items() for text in item]
        keys = [
            self._key(job.id, "record"),
            self._idempotency(key),
            self._jobs,
            self._active,
            self._key(job.id, "events"),
            f"{self._prefix}jobs:number",
            self._key(job.id, "validation"),
        ]
        arguments = [job.id, int(bool(key)), _now(), json.dumps([FORMAT_VERSION, list(validation)]), *fields]
        async with unavailable_if_down("store the job"):
            stored: str = await self._create(keys=keys, args=arguments)
        return stored

    async def by_idempotency_key(self, key: str) -> Job | None:
        """Finds the job that an idempotency key started."""
        async with unavailable_if_down("look the job up"):
            job_id = await self._redis.get(self._idempotency(key))
        return await self.get(job_id) if job_id else None

    async def get(self, job_id: str) -> Job:
        """Reads a job. Raises NotFound."""
        async with unavailable_if_down(f"read job {job_id}"):
            record = await self._redis.hgetall(self._key(job_id, "record"))
        if not record:
            raise errors.NotFound(f"there is no job {job_id!r}; ListJobs names all")
        return job_of(job_id, record)

    async def state(self, job_id: str) -> JobState | None:
        """Reads the state of a job; None for an unknown job."""
        async with unavailable_if_down(f"read job {job_id}"):
            state: JobState | None = await self._redis.hget(self._key(job_id, "record"), "state")
        return state

    async def validation(self, job_id: str) -> list[tuple[str, list[str]]]:
        """Reads the validation queries of a job: texts and their gold premises."""
        async with unavailable_if_down(f"read job {job_id}"):
            stored = await self._redis.get(self._key(job_id, "validation"))
        return [(text, gold) for text, gold in json.loads(stored)[1]]

    async def page(self, limit: int, before: int) -> tuple[list[Job], int]:
        """Lists at most `limit` jobs older than number `before` (0 for all), and the next number (0 at the end)."""
        async with unavailable_if_down("list the jobs"):
            top = f"({before}" if before else "+inf"
            found = await self._redis.zrevrangebyscore(self._jobs, top, 0, start=0, num=limit + 1, withscores=True)
        jobs = [await self.get(job_id) for job_id, _ in found[:limit]]
        return jobs, int(found[limit - 1][1]) if len(found) > limit else 0

    async def active(self) -> list[str]:
        """Lists the ids of live jobs, the oldest first."""
        async with unavailable_if_down("read the active jobs"):
            active = await self._redis.smembers(self._active)
            numbers = await self._redis.zmscore(self._jobs, sorted(active)) if active else []
        return [job_id for _, job_id in sorted(zip(numbers, sorted(active), strict=True))]

    async def transition(
        self,
        job_id: str,
        allowed: Sequence[JobState],
        state: JobState,
        *,
        error: str = "",
        version: str = "",
        owner: str = "",
        request: Request | None = None,
        already: Sequence[JobState] = (),
    ) -> str:
        """Moves a job to a state. Returns OK, MISSING, LOST (another owner has the lease), or the state that forbids.

        A `request` with an id is noted in the same step; if it was before, this changes nothing and is OK. So is a job
        that is in a state of `already`.
        """
        asked = request or Request("", "", {})
        keys = [self._key(job_id, "record"), self._lease(job_id), self._active, self._key(job_id, "events")]
        keys.append(self.requests.key(asked))
        end = int(state not in LIVE)
        moved = [owner, job_id, _now(), f" {' '.join(allowed)} ", state, error, version, end]
        arguments = [*moved, asked.id, asked.text, REQUEST_TTL_S, f" {' '.join(already)} "]
        async with unavailable_if_down(f"move job {job_id} to {state}"):
            answer: str = await self._transition(keys=keys, args=arguments)
        return answer

    async def progress(self, job_id: str, owner: str, progress: JobProgress) -> str:
        """Records a job's progress. Returns OK, LOST, or the state in which the job has ended."""
        keys = [self._key(job_id, "record"), self._lease(job_id), self._key(job_id, "events")]
        async with unavailable_if_down(f"record the progress of job {job_id}"):
            answer: str = await self._progress(keys=keys, args=[owner, _now(), json.dumps(asdict(progress))])
        return answer

    async def take_lease(self, job_id: str, owner: str, lease_s: float) -> bool:
        """Takes or renews the lease of a job. False if another trainer holds it."""
        return await self._leases.take(self._lease(job_id), owner, lease_s)

    async def release_lease(self, job_id: str, owner: str) -> None:
        """Releases a lease."""
        await self._leases.release(self._lease(job_id), owner)

    async def events(self, job: Job, after_seq: int, *, limit: int = 500, wait_ms: int = 0) -> list[JobEvent]:
        """Lists the events after a sequence number, waiting up to `wait_ms` for the first."""
        key = self._key(job.id, "events")
        async with unavailable_if_down(f"read the events of job {job.id}"):
            answer = await self._redis.xread({key: f"{after_seq}-0"}, count=limit, block=wait_ms or None)
        return [event_of(job, entry_id, values) for entry_id, values in (answer[0][1] if answer else [])]

    @property
    def _jobs(self) -> str:
        return f"{self._prefix}jobs"

    @property
    def _active(self) -> str:
        return f"{self._prefix}jobs:active"

    def _lease(self, job_id: str) -> str:
        return self._key(job_id, "lease")

    def _idempotency(self, key: str) -> str:
        return f"{self._prefix}job-key:{hashlib.sha256(key.encode()).hexdigest()}"

    def _key(self, job_id: str, part: str) -> str:
        return f"{self._prefix}job:{job_id}:{part}"


def _now() -> str:
    return datetime.now(UTC).isoformat()
