"""The runs in Redis: their records, life cycle, leases and events. Nodes are in node_store, pairs in pair_log.

Every method raises Unavailable when Redis is away. What a method has acknowledged is stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.sampler import scripts
from services.sampler.run_keys import RunKeys
from services.sampler.runs import (
    COUNTERS,
    FORMAT_VERSION,
    LIVE,
    Event,
    Hypothesis,
    Run,
    RunConfig,
    State,
    now,
    parse_time,
    progress_of,
    state_of,
)
from services.store.redis import Leases, unavailable_if_down

CHUNK = 1000
UNFINISHED_TTL_S = 3600  # what a start that died half-way has written goes away


class RunStore:
    """Records of all runs of one namespace."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self._create: Any = redis.register_script(scripts.CREATE)
        self._transition: Any = redis.register_script(scripts.TRANSITION)
        self._leases = Leases(redis)

    async def create(self, run: Run, hypotheses: Sequence[Hypothesis]) -> str:
        """Stores a new run, or finds the one that its idempotency key started. Returns the id of what is stored."""
        keys, key = self._keys, run.config.idempotency_key
        record = {
            "format_version": FORMAT_VERSION,
            "config": run.config.to_json(),
            "fingerprint": run.fingerprint,
            "state": run.state,
            "model_version": run.model_version,
            "generation": run.generation,
            "created_at": run.created_at.isoformat(),
            "ended_at": run.ended_at.isoformat() if run.ended_at else "",
            "imported": int(run.imported),
            "trees": len(hypotheses),
            "nodes_pending": len(hypotheses),
        }
        fields = [text for item in record.items() for text in item]
        async with unavailable_if_down("store the run"):
            await self._store_hypotheses(run.id, hypotheses)
            stored: str = await self._create(
                keys=[
                    keys.record(run.id),
                    keys.idempotency(key),
                    keys.runs,
                    keys.active,
                    keys.events(run.id),
                    keys.hypotheses(run.id),
                    keys.open(run.id),
                    keys.number,
                ],
                args=[run.id, int(bool(key)), now(), int(not run.ended), *fields],
            )
            if stored != run.id:
                await self._redis.delete(keys.hypotheses(run.id), keys.open(run.id))
        return stored

    async def _store_hypotheses(self, run_id: str, hypotheses: Sequence[Hypothesis]) -> None:
        for start in range(0, len(hypotheses), CHUNK):
            chunk = hypotheses[start : start + CHUNK]
            pipe = self._redis.pipeline(transaction=True)
            pipe.rpush(self._keys.hypotheses(run_id), *(json.dumps([1, h.id, h.text]) for h in chunk))
            pipe.zadd(self._keys.open(run_id), {str(start + n): start + n for n in range(len(chunk))})
            pipe.expire(self._keys.hypotheses(run_id), UNFINISHED_TTL_S)
            pipe.expire(self._keys.open(run_id), UNFINISHED_TTL_S)
            await pipe.execute()

    async def by_idempotency_key(self, key: str) -> Run | None:
        """The run that an idempotency key has started."""
        async with unavailable_if_down("look the run up"):
            run_id = await self._redis.get(self._keys.idempotency(key))
        return await self.get(run_id) if run_id else None

    async def get(self, run_id: str) -> Run:
        """A run. Raises NotFound."""
        async with unavailable_if_down(f"read run {run_id}"):
            record = await self._redis.hgetall(self._keys.record(run_id))
        if not record:
            raise errors.NotFound(f"no run {run_id!r}; ListRuns names those there are")
        return _run(run_id, record)

    async def page(self, limit: int, before: int) -> tuple[list[Run], int]:
        """At most `limit` runs older than number `before` (0: the newest), and the number to go on with (0: none)."""
        async with unavailable_if_down("list the runs"):
            top = f"({before}" if before else "+inf"
            found = await self._redis.zrevrangebyscore(self._keys.runs, top, 0, start=0, num=limit + 1, withscores=True)
            pipe = self._redis.pipeline(transaction=False)
            for run_id, _ in found[:limit]:
                pipe.hgetall(self._keys.record(run_id))
            records = await pipe.execute()
        runs = [_run(run_id, record) for (run_id, _), record in zip(found, records, strict=False) if record]
        return runs, int(found[limit - 1][1]) if len(found) > limit else 0

    async def active(self) -> list[str]:
        """The ids of the runs that wait for a sampler or have one."""
        async with unavailable_if_down("read the active runs"):
            return sorted(await self._redis.smembers(self._keys.active))

    async def transition(
        self,
        run_id: str,
        allowed: Sequence[State],
        state: State,
        *,
        error: str = "",
        owner: str = "",
        request: str = "",
    ) -> str:
        """Moves a run to a state. Returns OK, MISSING, LOST (`owner` has no lease), or the state that forbids it.

        A retry of the `request` that has brought it there is OK, too.
        """
        keys = self._keys
        async with unavailable_if_down(f"move run {run_id} to {state}"):
            answer: str = await self._transition(
                keys=[keys.record(run_id), keys.lease(run_id), keys.active, keys.events(run_id)],
                args=[owner, run_id, now(), f" {' '.join(allowed)} ", state, error, int(state not in LIVE), request],
            )
        return answer

    async def take_lease(self, run_id: str, owner: str, lease_s: float) -> bool:
        """Takes or renews the lease of a run. False when another sampler holds it."""
        return await self._leases.take(self._keys.lease(run_id), owner, lease_s)

    async def release_lease(self, run_id: str, owner: str) -> None:
        """Gives a lease back."""
        await self._leases.release(self._keys.lease(run_id), owner)

    async def events(self, run: Run, after_seq: int, *, limit: int = 500, wait_ms: int = 0) -> list[Event]:
        """The events after a sequence number, waiting for the first if there is none yet."""
        key = self._keys.events(run.id)
        async with unavailable_if_down(f"read the events of run {run.id}"):
            answer = await self._redis.xread({key: f"{after_seq}-0"}, count=limit, block=wait_ms or None)
        entries = answer[0][1] if answer else []
        return [_event(run, entry_id, values) for entry_id, values in entries]

    async def suspect(self, run_id: str, node_ids: Sequence[str]) -> bool:
        """Notes that nodes stayed unanswered by themselves. True when all were noted before."""
        async with unavailable_if_down(f"note unanswered nodes of run {run_id}"):
            return not await self._redis.sadd(self._keys.suspects(run_id), *node_ids)


def _run(run_id: str, record: dict[str, str]) -> Run:
    created_at = parse_time(record["created_at"])
    assert created_at is not None
    return Run(
        id=run_id,
        config=RunConfig.from_json(record["config"]),
        state=state_of(record["state"]),
        error=record.get("error", ""),
        model_version=record["model_version"],
        generation=record["generation"],
        progress=progress_of(record.get(name) for name in COUNTERS),
        created_at=created_at,
        ended_at=parse_time(record.get("ended_at")),
        fingerprint=record["fingerprint"],
        imported=record["imported"] == "1",
        event_seq=int(record.get("event_seq", 0)),
    )


def _event(run: Run, entry_id: str, values: dict[str, str]) -> Event:
    at = parse_time(values["at"])
    assert at is not None
    then = Run(
        id=run.id,
        config=run.config,
        state=state_of(values["state"]),
        error=values["error"],
        model_version=run.model_version,
        generation=run.generation,
        progress=progress_of(values.get(name) for name in COUNTERS),
        created_at=run.created_at,
        ended_at=parse_time(values["ended_at"]),
    )
    return Event(int(entry_id.partition("-")[0]), at, then)
