"""The pair logs of runs in Redis: a run's pairs in the order of recording, and pairs imported from elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.sampler.records.keys import RunKeys
from services.sampler.records.run_store import EMIT
from services.sampler.records.runs import FORMAT_VERSION, Pair, PairSign
from services.store.life_cycles import now
from services.store.redis import unavailable_if_down

READ = 1024
READS = 32
CHUNK = 1000  # a script's arguments have to fit on Lua's stack

# KEYS: run, request, pairs, events, amended.  ARGV: now, whether there is a request id, then pairs
_IMPORT = (
    EMIT
    + """
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
for i = 3, #ARGV do
  local seq = redis.call('HINCRBY', KEYS[1], 'pair_seq', 1)
  redis.call('XADD', KEYS[3], seq .. '-0', 'pair', ARGV[i])
  local pair = cjson.decode(ARGV[i])
  if pair.amended then redis.call('HSET', KEYS[5], cjson.encode({pair.query, pair.premise_id}), ARGV[i]) end
  local counter = ({POSITIVE = 'positives', NEGATIVE = 'negatives', SKIPPED = 'skipped'})[pair.sign]
  redis.call('HINCRBY', KEYS[1], counter, 1)
end
if ARGV[2] == '1' then redis.call('SET', KEYS[2], #ARGV - 2) end
emit(KEYS[1], KEYS[4], ARGV[1])
return #ARGV - 2
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
        self._import: Any = redis.register_script(_IMPORT)

    async def page(self, run_id: str, after: int, limit: int, sign: PairSign | None) -> tuple[list[Pair], int]:
        """At most `limit` pairs after position `after`, and the position to go on from (0: the end).

        Of a rare sign it may find fewer, or none, before the end: a call reads READS * READ pairs at most.
        """
        pairs: list[Pair] = []
        async with unavailable_if_down(f"read the pairs of run {run_id}"):
            for _ in range(READS):
                entries = await self._redis.xrange(self._keys.pairs(run_id), f"({after}-0", "+", count=READ)
                for entry_id, values in entries:
                    after = int(entry_id.partition("-")[0])
                    pair = Pair.from_json(values["pair"], after)
                    if sign is None or pair.sign == sign:
                        pairs.append(pair)
                    if len(pairs) == limit:
                        return pairs, after
                if len(entries) < READ:
                    return pairs, 0
        return pairs, after

    async def amended(self, run_id: str) -> list[Pair]:
        """The last amended pair of each query and premise of a run."""
        async with unavailable_if_down(f"read the amendments of run {run_id}"):
            stored = await self._redis.hvals(self._keys.amended(run_id))
        return [Pair.from_json(text, 0) for text in stored]

    async def claim(self, request_id: str, run_id: str, corpus: str, pairs: Sequence[Pair]) -> str:
        """The run that an import's request id stands for: `run_id`, or the one of its first attempt.

        Raises AlreadyExists when that attempt had another corpus or other pairs. Times of recording do not count.
        """
        asked = {"corpus": corpus, "pairs": len(pairs), "digest": await asyncio.to_thread(_digest_of, pairs)}
        async with unavailable_if_down("import pairs"):
            key = self._keys.import_request(request_id)
            await self._redis.set(key, json.dumps({"format_version": FORMAT_VERSION, "run": run_id, **asked}), nx=True)
            claimed: str = await self._redis.get(key)
        if not claimed.startswith("{"):  # the run alone, as stored before the content was noted
            return claimed
        first = json.loads(claimed)
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
        """Appends imported pairs, once for a request id. Returns how many were added by this request in all."""
        added = 0
        async with unavailable_if_down(f"import pairs into run {run_id}"):
            for start in range(0, len(pairs), CHUNK):
                chunk = [pair.to_json() for pair in pairs[start : start + CHUNK]]
                request = f"{self._keys.import_request(request_id)}:added:{start}"
                own = self._keys
                keys = [own.record(run_id), request, own.pairs(run_id), own.events(run_id), own.amended(run_id)]
                await self._import(keys=keys, args=[now(), int(bool(request_id)), *chunk])
                added += len(chunk)
        return added
