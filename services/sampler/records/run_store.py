"""The runs in Redis: records, life cycle, leases and events. Trees are in `node_store`, pairs in `pair_log`.

Every method raises Unavailable when Redis is away. What a method has acknowledged is stored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from redis.asyncio import Redis

from aeenc.values import RunProgress
from services.sampler.records.keys import RunKeys
from services.sampler.records.runs import (
    COUNTERS,
    FORMAT_VERSION,
    Hypothesis,
    Run,
    config_from_json,
    config_json,
    parse_time,
)
from services.store.formats import RESTORE, UNREADABLE, damage_is_data_loss
from services.store.life_cycles import UNFINISHED_TTL_S, LifeCycles, State, Step, emit_script
from services.store.redis import raising_unavailable, run_script
from services.store.requests import Request

CHUNK = 1000
EVENT_FIELDS = ("state", "error", "ended_at", "current_version", *COUNTERS)
EMIT = emit_script(EVENT_FIELDS)  # the head of every script that writes an event of a run
# Adds pairs, and keeps the last amended one of each query and premise. A pair that people have amended (`known`, of the
# query) is not recorded again: an earlier answer does not follow a later one in the log. Few are amended, and to decode
# all would take a third of the time: no text in JSON holds a bare quote.
ADD_PAIRS = f"""{EMIT}
local function add_pairs(run, log, amended, texts, first, known)
  local seq, added = redis.call('HGET', run, 'pair_seq') or 0, {{POSITIVE = 0, NEGATIVE = 0, SKIPPED = 0}}
  for i = first, #texts do
    local text, sign = texts[i], string.match(texts[i], '"sign":"(%u+)"')
    local pair = (next(known) or string.find(text, '"amended":true', 1, true)) and cjson.decode(text)
    if pair and pair.amended then
      local of_query = cjson.decode(redis.call('HGET', amended, pair.query) or '{{}}')
      of_query[pair.premise_id] = text
      redis.call('HSET', amended, pair.query, cjson.encode(of_query))
    end
    if not pair or pair.amended or not known[pair.premise_id] then
      seq, added[sign] = seq + 1, added[sign] + 1
      redis.call('XADD', log, string.format('%d-0', seq), 'pair', text)
    end
  end
  redis.call('HSET', run, 'pair_seq', seq)
  redis.call('HINCRBY', run, 'positives', added.POSITIVE)
  redis.call('HINCRBY', run, 'negatives', added.NEGATIVE)
  redis.call('HINCRBY', run, 'skipped', added.SKIPPED)
end
"""

# KEYS: run, suspects.  ARGV: nodes.  Answers how many of them are new; of a run that was deleted, all
_SUSPECT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return #ARGV end
return redis.call('SADD', KEYS[2], unpack(ARGV))
"""


# KEYS: run.  ARGV: version.  Answers whether the run still works
_FOLLOW = """
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'PENDING' and state ~= 'RUNNING' then return 0 end
redis.call('HSET', KEYS[1], 'current_version', ARGV[1])
return 1
"""


# KEYS: what the oracle was asked in all, what of it for which node of the run, the run
# ARGV: budget, then node and candidates by turns.  Answers 1 for each node that may be asked; each is counted once.
_RESERVE = """
local spent = tonumber(redis.call('GET', KEYS[1]) or '0')
local granted, lives = {}, redis.call('EXISTS', KEYS[3]) == 1
for i = 2, #ARGV, 2 do
  local again = redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1
  if not again and lives and spent + ARGV[i + 1] <= tonumber(ARGV[1]) then
    spent = spent + ARGV[i + 1]
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
    again = true
  end
  granted[#granted + 1] = again and 1 or 0
end
redis.call('SET', KEYS[1], spent)
return granted
"""


@raising_unavailable("runs")
class RunStore:
    """Records of all runs of one namespace; `cycles` has what runs share with other work."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self.cycles = LifeCycles(redis, keys, EVENT_FIELDS, _run)

    async def create(self, run: Run, hypotheses: Sequence[Hypothesis], also: Step | None = None) -> str:
        """Stores a new run, or finds the one that its idempotency key started. Returns the id of what is stored.

        `also` is a step of the same transaction.
        """
        record = {
            "format_version": FORMAT_VERSION,
            "config": config_json(run.config),
            "fingerprint": run.fingerprint,
            "state": run.state,
            "model_version": run.model_version,
            "generation": run.generation,
            "created_at": run.created_at.isoformat(),
            "ended_at": run.ended_at.isoformat() if run.ended_at else "",
            "imported": int(run.imported),
            "trees": len(hypotheses),
            "nodes_pending": len(hypotheses),
            "traceparent": run.traceparent,
        }
        own = [self._keys.hypotheses(run.id), self._keys.places(run.id), self._keys.open(run.id)]
        for start in range(0, len(hypotheses), CHUNK):
            chunk = list(enumerate(hypotheses[start : start + CHUNK], start))
            pipe = self._redis.pipeline(transaction=True)
            pipe.rpush(own[0], *(json.dumps([FORMAT_VERSION, *vars(one).values()]) for _, one in chunk))
            pipe.hset(own[1], mapping={one.id: place for place, one in chunk})
            pipe.zadd(own[2], {str(place): place for place, _ in chunk})
            for key in own:
                pipe.expire(key, UNFINISHED_TTL_S)
            await pipe.execute()
        stored = await self.cycles.create(
            run.id, run.config.idempotency_key, record, waits=not run.ended, keys=own, also=also
        )
        if stored != run.id:
            await self._redis.delete(*own)
        return stored

    async def get(self, run_id: str) -> Run:
        """A run. Raises NotFound."""
        return _run(run_id, await self.cycles.get(run_id))

    async def live(self) -> list[Run]:
        """The runs that wait or work, the oldest first, without those of a newer release and damaged ones."""
        found = []
        for run_id in await self.cycles.active():
            with contextlib.suppress(*UNREADABLE):
                found.append(await self.get(run_id))
        return sorted(found, key=lambda run: run.created_at)

    async def follow(self, run_id: str, version: str) -> bool:
        """Lets a run retrieve with another encoder version from now on. False: it has ended."""
        return bool(await run_script(self._redis, _FOLLOW, [self._keys.record(run_id)], [version]))

    async def delete(self, run_id: str, request: Request) -> None:
        """Takes an ended run out of sight, once for a request. Raises what `LifeCycles.delete` raises."""
        await self.cycles.delete(run_id, lambda record: _run(run_id, record).config.idempotency_key, request)

    async def remove(self, keys: Sequence[str]) -> None:
        """Removes keys; Redis frees their memory beside its work."""
        await self._redis.unlink(*keys)

    async def suspect(self, run_id: str, node_ids: Sequence[str]) -> bool:
        """Notes that nodes stayed unanswered when asked alone. True when all were noted before."""
        keys = [self._keys.record(run_id), self._keys.suspects(run_id)]
        return not await run_script(self._redis, _SUSPECT, keys, list(node_ids))

    async def reserve(self, oracle: str, limit: int, run_id: str, nodes: Sequence[tuple[str, int]]) -> list[bool]:
        """Takes (node, candidates) from what is left of an oracle's `limit`, in order; whether each may be asked.

        A node is counted once, however often it is asked again after a failure or by another sampler, and even if
        nobody answers it in the end. None may be asked when the run was deleted meanwhile.
        """
        keys = [self._keys.oracle_spent(oracle), self._keys.asked(run_id), self._keys.record(run_id)]
        arguments = [limit, *(argument for node in nodes for argument in node)]
        granted = await run_script(self._redis, _RESERVE, keys, arguments)
        return [bool(one) for one in granted]


def _run(run_id: str, record: Mapping[str, str]) -> Run:
    with damage_is_data_loss(f"run {run_id}", RESTORE):
        return Run(
            id=run_id,
            config=config_from_json(record["config"]),
            state=cast("State", record["state"]),
            error=record.get("error", ""),
            model_version=record["model_version"],
            generation=record["generation"],
            progress=RunProgress(**{name: int(record.get(name) or 0) for name in COUNTERS}),
            created_at=datetime.fromisoformat(record["created_at"]),
            ended_at=parse_time(record.get("ended_at")),
            fingerprint=record["fingerprint"],
            imported=record["imported"] == "1",
            traceparent=record.get("traceparent", ""),
            current_version=record.get("current_version", ""),
        )
