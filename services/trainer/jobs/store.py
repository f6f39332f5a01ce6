"""Jobs in Redis: records with the life cycle of `services/store` (`cycles`), and their validation queries.

Every method raises Unavailable if Redis is away, and NewerFormat, naming the job, for a newer release's record.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from redis.asyncio import Redis

from services.store.formats import check_format
from services.store.life_cycles import LifeCycles, State, WorkKeys
from services.store.redis import raising_unavailable
from services.store.requests import Request
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.job import FORMAT_VERSION, Job, JobEvent, JobProgress, job_of, job_then

EVENTS_KEPT = 10_000
EVENT_FIELDS = ("state", "error", "version", "progress", "ended_at")
UNFINISHED_TTL_S = 3600  # what an interrupted start has written expires

_KEEP_VALIDATION = "redis.call('PERSIST', KEYS[7])\n"


@raising_unavailable("jobs")
class JobStore:
    """Records of all jobs of one namespace. A method returns once its change is stored."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = self.keys = WorkKeys(namespace, "job")
        self.cycles = LifeCycles(
            redis,
            self._keys,
            EVENT_FIELDS,
            events_kept=EVENTS_KEPT,
            on_create=_KEEP_VALIDATION,
            needs_lease=False,
        )

    async def create(self, job: Job, validation: Sequence[EvaluationQuery]) -> str:
        """Stores a new job, or finds the one that its idempotency key started. Returns the id of the stored job."""
        record = {
            "format_version": FORMAT_VERSION,
            "config": json.dumps({"format_version": FORMAT_VERSION, **asdict(job.config)}),
            "generation": job.generation,
            "state": job.state,
            "created_at": job.created_at.isoformat(),
            "fingerprint": job.fingerprint,
            "traceparent": job.traceparent,
        }
        queries = self._validation(job.id)
        asked = json.dumps([FORMAT_VERSION, [query.to_record() for query in validation]])
        await self._redis.set(queries, asked, ex=UNFINISHED_TTL_S)
        return await self.cycles.create(job.id, job.config.idempotency_key, record, waits=True, keys=[queries])

    async def get(self, job_id: str) -> Job:
        """Reads a job. Raises NotFound."""
        return job_of(job_id, await self.cycles.get(job_id))

    async def state(self, job_id: str) -> State | None:
        """Reads the state of a job; None for an unknown job."""
        state: State | None = await self._redis.hget(self._keys.record(job_id), "state")
        return state

    async def validation(self, job_id: str) -> list[EvaluationQuery]:
        """Reads the validation queries of a job."""
        version, queries = json.loads(await self._redis.get(self._validation(job_id)))[:2]
        check_format({"format_version": version}, FORMAT_VERSION, f"the validation of job {job_id}")
        return list(map(EvaluationQuery.of_record, queries))

    async def page(self, limit: int, before: int) -> tuple[list[Job], int]:
        """Lists at most `limit` jobs older than number `before` (0 for all), and the next number (0 at the end)."""
        page, after = await self.cycles.page(limit, before)
        return [job_of(job_id, record) for job_id, record in page], after

    async def transition(
        self, job_id: str, allowed: Sequence[State], state: State, version: str = "", **how: Any
    ) -> str:
        """Moves a job to a state, as `LifeCycles.transition` does; it then has this version."""
        return await self.cycles.transition(job_id, allowed, state, fields={"version": version}, **how)

    async def progress(self, job_id: str, owner: str, progress: JobProgress) -> str:
        """Records a job's progress. Returns OK, LOST, or the state in which the job has ended."""
        fields = {"progress": json.dumps(asdict(progress))}
        return await self.cycles.transition(job_id, ("RUNNING",), "RUNNING", owner=owner, fields=fields)

    async def delete(self, job_id: str, request: Request) -> None:
        """Takes an ended job out of sight; `clear` removes the rest. A retry of the `request` does nothing.

        Raises as `LifeCycles.delete` does.
        """

        def key_of(record: Mapping[str, str]) -> str:
            return job_of(job_id, record).config.idempotency_key

        await self.cycles.delete(job_id, key_of, request)

    async def clear(self, job_id: str) -> None:
        """Removes what a deleted job has left here."""

        async def remove(_record: Mapping[str, str]) -> None:
            await self._redis.unlink(self._validation(job_id))

        await self.cycles.clear(job_id, remove)

    async def size_bytes(self, job_id: str) -> int:
        """Tells about how much memory a job takes in Redis."""
        pipe = self._redis.pipeline(transaction=False)
        for key in (self._keys.record(job_id), self._keys.events(job_id), self._validation(job_id)):
            pipe.memory_usage(key)
        return sum(size or 0 for size in await pipe.execute())

    async def watch(self, job_id: str, from_seq: int) -> AsyncIterator[JobEvent]:
        """Yields the events of a job from a sequence number on, until it has ended. Raises NotFound."""
        job = await self.get(job_id)
        async for entry in self.cycles.follow(job_id, from_seq):
            yield JobEvent(entry.seq, entry.at, job_then(job, entry.values))

    def _validation(self, job_id: str) -> str:
        """The key of a job's validation queries (string)."""
        return self._keys.part(job_id, "validation")
