"""The pair logs of runs in Redis: a run's pairs in the order of recording, and pairs imported from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.sampler.acs.algorithm import PairSign
from services.sampler.records.keys import RunKeys
from services.sampler.records.run_store import ADD_PAIRS
from services.sampler.records.runs import Pair
from services.store.formats import RESTORE, damage_is_data_loss
from services.store.life_cycles import now
from services.store.redis import raising_unavailable, run_script
from services.store.requests import Request, Requests

Reader = Callable[[list[Pair]], Awaitable[list[Pair]]]

READ = 16
READS = 128

# KEYS: run, pairs, events, amended, the run's requests, the request
# ARGV: now, what the request asks for or '', the run's id, then pairs
_ADD = (
    ADD_PAIRS
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return 'MISSING' end
if ARGV[2] ~= '' then
  if redis.call('EXISTS', KEYS[6]) == 1 then return 'DONE' end
  redis.call('HSET', KEYS[6], 'content', ARGV[2], 'run', ARGV[3])
  redis.call('SADD', KEYS[5], KEYS[6])
end
add_pairs(KEYS[1], KEYS[2], KEYS[4], ARGV, 4, {})
emit(KEYS[1], KEYS[3], ARGV[1])
return 'OK'
"""
)


@raising_unavailable("pairs")
class PairLog:
    """Pair logs of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self._requests = Requests(redis, keys.namespace)

    async def page(
        self, run_id: str, after: int, limit: int, sign: PairSign | None, read: Reader | None = None
    ) -> tuple[list[Pair], int]:
        """At most `limit` pairs after position `after`, and the position to go on from (0: the end).

        `read` says what a part of the log means. Of a rare sign it may find fewer, or none, before the end: a call
        reads READS * READ pairs at most.
        """
        pairs: list[Pair] = []
        for _ in range(READS):
            count = READ if sign else min(READ, limit - len(pairs))
            entries = await self._redis.xrange(self._keys.pairs(run_id), f"({after}-0", "+", count=count)
            with damage_is_data_loss(f"a pair of run {run_id}", RESTORE):
                found = [Pair.from_json(values["pair"], int(name.partition("-")[0])) for name, values in entries]
            for pair in await read(found) if read else found:
                if sign is None or pair.sign == sign:
                    pairs.append(pair)
                if len(pairs) == limit:
                    return pairs, pair.seq
            if len(entries) < count:
                return pairs, 0
            after = found[-1].seq
        return pairs, after

    async def imported(self, request: Request) -> str:
        """The run into which a request has imported before; empty: none. Raises AlreadyExists for another request."""
        return await self._requests.answer(request, lambda record: record["run"]) or ""

    async def add(self, run_id: str, pairs: Sequence[Pair], request: Request, client: Any = None) -> bool:
        """Appends pairs in one step, or as a part of the transaction of `client`. False: the request did so before.

        The request is known for as long as the run. Raises NotFound when the run was deleted meanwhile.
        """
        own = self._keys
        parts = (own.record, own.pairs, own.events, own.amended, own.import_requests)
        keys = [*(part(run_id) for part in parts), self._requests.key(request)]
        arguments = [now(), request.text, run_id, *(pair.to_json() for pair in pairs)]
        written = await run_script(client or self._redis, _ADD, keys, arguments)
        if written == "MISSING":
            raise errors.NotFound(f"run {run_id} was deleted while pairs were added to it")
        return bool(written == "OK")

    async def keys_of(self, run_id: str) -> AsyncIterator[list[str]]:
        """The keys of a run's pairs, and of the requests that have added to them; what finds others comes last."""
        yield sorted(await self._redis.smembers(self._keys.import_requests(run_id)))
        yield [part(run_id) for part in (self._keys.pairs, self._keys.amended, self._keys.import_requests)]


def said(pairs: Sequence[Pair]) -> str:
    """Tells what two imports add apart, whenever they were made."""
    found = hashlib.sha256()
    for pair in pairs:
        found.update(replace(pair, run_id="", judged_at="").to_json().encode())
    return f"{len(pairs):,} pairs {found.hexdigest()[:16]}"
