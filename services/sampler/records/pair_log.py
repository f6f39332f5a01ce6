"""The pair logs of runs in Redis: a run's pairs in the order of recording, and pairs imported from elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.sampler.records.keys import RunKeys
from services.sampler.records.run_store import EMIT, NOTE_AMENDED, UNFINISHED_TTL_S
from services.sampler.records.runs import FORMAT_VERSION, Pair, PairSign, RunConfig
from services.store.formats import check_format
from services.store.life_cycles import Step, now
from services.store.redis import Script, unavailable_if_down

Reader = Callable[[list[Pair]], Awaitable[list[Pair]]]

READ = 16
READS = 128
CHUNK = 1000  # pairs of an import that are noted as added under one key; keys that are removed in one step
ADDED = ":added:"
IMPORT = "import "  # before the request id in the idempotency key of an import

# KEYS: run, pairs, events, amended, the run's requests, the request's claim, then its key for each CHUNK of pairs
# ARGV: now, whether there is a request id, then pairs
_IMPORT = (
    EMIT
    + NOTE_AMENDED
    + f"""
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
redis.call('PERSIST', KEYS[6])
local chunk, added = {CHUNK}, 0
for first = 3, #ARGV, chunk do
  local request = KEYS[7 + (first - 3) / chunk]
  if ARGV[2] == '0' or redis.call('EXISTS', request) == 0 then
    local last = math.min(first + chunk - 1, #ARGV)
    for i = first, last do
      local seq = redis.call('HINCRBY', KEYS[1], 'pair_seq', 1)
      redis.call('XADD', KEYS[2], seq .. '-0', 'pair', ARGV[i])
      local pair = cjson.decode(ARGV[i])
      if pair.amended then note_amended(KEYS[4], pair, ARGV[i]) end
      local counter = ({{POSITIVE = 'positives', NEGATIVE = 'negatives', SKIPPED = 'skipped'}})[pair.sign]
      redis.call('HINCRBY', KEYS[1], counter, 1)
    end
    if ARGV[2] == '1' then
      redis.call('SET', request, last - first + 1)
      redis.call('SADD', KEYS[5], request)
    end
    added = added + last - first + 1
  end
end
if added > 0 then emit(KEYS[1], KEYS[3], ARGV[1]) end
return added
"""
)


def _digest_of(pairs: Sequence[Pair]) -> str:
    """Tells the pairs of two imports apart, whenever they were made."""
    found = hashlib.sha256()
    for pair in pairs:
        found.update(replace(pair, run_id="", judged_at="").to_json().encode())
    return found.hexdigest()


class PairLog:
    """Pair logs of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self._import = Script(redis, _IMPORT)

    async def page(
        self, run_id: str, after: int, limit: int, sign: PairSign | None, read: Reader | None = None
    ) -> tuple[list[Pair], int]:
        """At most `limit` pairs after position `after`, and the position to go on from (0: the end).

        `read` says what a part of the log means. Of a rare sign it may find fewer, or none, before the end: a call
        reads READS * READ pairs at most.
        """
        pairs: list[Pair] = []
        async with unavailable_if_down(f"read the pairs of run {run_id}"):
            for _ in range(READS):
                count = READ if sign else min(READ, limit - len(pairs))
                entries = await self._redis.xrange(self._keys.pairs(run_id), f"({after}-0", "+", count=count)
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

    async def claim(self, request_id: str, run_id: str, corpus: str, pairs: Sequence[Pair]) -> str:
        """The run that an import's request id stands for: `run_id`, or the one of its first attempt.

        Raises AlreadyExists when that attempt had another corpus or other pairs, NewerFormat
        for a note of a newer release. Times of recording do not count. What no import follows expires.
        """
        asked = {"corpus": corpus, "pairs": len(pairs), "digest": await asyncio.to_thread(_digest_of, pairs)}
        async with unavailable_if_down("import pairs"):
            key = self._keys.import_request(request_id)
            claim = json.dumps({"format_version": FORMAT_VERSION, "run": run_id, **asked})
            pipe = self._redis.pipeline(transaction=True)  # no fail-over comes between the two
            pipe.set(key, claim, nx=True, ex=UNFINISHED_TTL_S)
            pipe.get(key)
            claimed: str = (await pipe.execute())[1]
        first = json.loads(claimed)
        check_format(first, FORMAT_VERSION, f"the import of request id {request_id!r}")
        if first["corpus"] != corpus:
            problem = f"corpus {first['corpus']!r}, not {corpus!r}"
        elif first["pairs"] != len(pairs):
            problem = f"{first['pairs']:,} pairs, not {len(pairs):,}"
        elif first["digest"] != asked["digest"]:
            problem = "other pairs"
        else:
            stored: str = first["run"]
            return stored
        raise errors.AlreadyExists(
            f"request id {request_id!r} imported {problem}, into run {first['run']}; choose another request id"
        )

    async def add(self, run_id: str, pairs: Sequence[Pair], request_id: str) -> int:
        """Appends imported pairs in one step, once for a request id. Returns how many this request has added.

        Raises NotFound when the run was deleted meanwhile.
        """
        async with unavailable_if_down(f"import pairs into run {run_id}"):
            if await self.addition(run_id, pairs, request_id)(self._redis) < 0:
                raise errors.NotFound(f"run {run_id} was deleted while pairs were added to it")
        return len(pairs)

    def addition(self, run_id: str, pairs: Sequence[Pair], request_id: str) -> Step:
        """What `add` does, as a step of the transaction that stores the run."""
        own, request = self._keys, self._keys.import_request(request_id)
        keys = [own.record(run_id), own.pairs(run_id), own.events(run_id), own.amended(run_id)]
        keys += [own.import_requests(run_id), request]
        keys += [f"{request}{ADDED}{start}" for start in range(0, len(pairs), CHUNK)]
        args = [now(), int(bool(request_id)), *(pair.to_json() for pair in pairs)]

        async def step(client: Any) -> Any:
            return await self._import(keys=keys, args=args, client=client)

        return step

    async def keys_of(self, run_id: str, record: Mapping[str, str]) -> AsyncIterator[list[str]]:
        """The keys of a run's pairs, in parts, and of the requests that have added to them.

        What finds others comes last: a request that is still known finds that its run is being deleted.
        """
        own = self._keys
        async with unavailable_if_down(f"look up the imports into run {run_id}"):
            added = await self._redis.smembers(own.import_requests(run_id))
            claims = {key.partition(ADDED)[0] for key in added}
            if record["imported"] == "1":
                first = RunConfig.from_json(record["config"]).idempotency_key
                claims.add(own.import_request(first.removeprefix(IMPORT)))
        for found in (sorted(added), sorted(claims)):
            for start in range(0, len(found), CHUNK):
                yield found[start : start + CHUNK]
        yield [own.pairs(run_id), own.amended(run_id), own.import_requests(run_id)]
