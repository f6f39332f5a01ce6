"""The pair logs of runs in Redis: a run's pairs in the order of recording, and pairs imported from elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.sampler.acs.algorithm import PairSign
from services.sampler.records.keys import RunKeys
from services.sampler.records.run_store import ADD_PAIR
from services.sampler.records.runs import FORMAT_VERSION, Pair
from services.store.formats import check_format
from services.store.life_cycles import now
from services.store.redis import Script, raising_unavailable

Reader = Callable[[list[Pair]], Awaitable[list[Pair]]]

READ = 16
READS = 128

# KEYS: run, pairs, events, amended, the run's requests, the request
# ARGV: now, what the request adds or '', then pairs
_ADD = (
    ADD_PAIR
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return 'MISSING' end
if ARGV[2] ~= '' then
  if redis.call('EXISTS', KEYS[6]) == 1 then return 'DONE' end
  redis.call('SET', KEYS[6], ARGV[2])
  redis.call('SADD', KEYS[5], KEYS[6])
end
for i = 3, #ARGV do add_pair(KEYS[1], KEYS[2], KEYS[4], cjson.decode(ARGV[i]), ARGV[i]) end
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
        self._add = Script(redis, _ADD)

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

    async def imported(self, request_id: str, adds: Mapping[str, Any]) -> str:
        """The run into which an import's request id has imported before; empty: none.

        Raises AlreadyExists when that was another corpus or other pairs, NewerFormat for the note of a newer release.
        """
        text = await self._redis.get(self._keys.import_request(request_id)) if request_id else None
        if not text:
            return ""
        first = json.loads(text)
        check_format(first, FORMAT_VERSION, f"the import of request id {request_id!r}")
        run_id: str = first.pop("run")
        if first["corpus"] != adds["corpus"]:
            problem = f"corpus {first['corpus']!r}, not {adds['corpus']!r}"
        elif first["pairs"] != adds["pairs"]:
            problem = f"{first['pairs']:,} pairs, not {adds['pairs']:,}"
        elif first["digest"] != adds["digest"]:
            problem = "other pairs"
        else:
            return run_id
        raise errors.AlreadyExists(
            f"request id {request_id!r} imported {problem}, into run {run_id}; choose another request id"
        )

    async def add(
        self, run_id: str, pairs: Sequence[Pair], request_id: str, adds: Mapping[str, Any], client: Any = None
    ) -> bool:
        """Appends pairs in one step, or as a part of the transaction of `client`. False: the request did so before.

        `adds` is noted of the request. Raises NotFound when the run was deleted meanwhile.
        """
        own, request = self._keys, self._keys.import_request(request_id)
        noted = json.dumps({"format_version": FORMAT_VERSION, **adds, "run": run_id}) if request_id else ""
        parts = (own.record, own.pairs, own.events, own.amended, own.import_requests)
        keys = [*(part(run_id) for part in parts), request]
        written = await self._add(keys=keys, args=[now(), noted, *(pair.to_json() for pair in pairs)], client=client)
        if written == "MISSING":
            raise errors.NotFound(f"run {run_id} was deleted while pairs were added to it")
        return bool(written == "OK")

    async def keys_of(self, run_id: str, _record: Mapping[str, str]) -> AsyncIterator[list[str]]:
        """The keys of a run's pairs, and of the requests that have added to them; what finds others comes last."""
        yield sorted(await self._redis.smembers(self._keys.import_requests(run_id)))
        yield [part(run_id) for part in (self._keys.pairs, self._keys.amended, self._keys.import_requests)]


def addition(corpus: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Tells what two imports add apart, whenever they were made."""
    found = hashlib.sha256()
    for pair in pairs:
        found.update(replace(pair, run_id="", judged_at="").to_json().encode())
    return {"corpus": corpus, "pairs": len(pairs), "digest": found.hexdigest()}
