"""The registry: labels and their rollout, as rows in Redis beside those of the checkpoints that they name.

    trainer -- set_label --> label row, revision + 1  --+-- one script
                             event on a stream ---------'
    encoder <- wait_for_event -'  reads the row, loads the version, then `acknowledge`
    trainer <- await_rollout: every encoder with a heartbeat has acknowledged the revision

Events only wake readers; the row is the truth. The newest row has the highest revision.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.kit.concurrency import Turns, finish
from services.kit.tracing import traceparent
from services.store.checkpoint_registry import CheckpointRegistry, RegistryKeys
from services.store.formats import UNREADABLE, check_format, damage_is_data_loss
from services.store.redis import MAX_BLOCK_S, raising_unavailable, run_script
from services.store.registry_rows import FORMAT_VERSION, CheckpointRow, LabelRow, RolloutRow, read_all, rollout_of
from services.store.requests import NOTE, REQUEST_TTL_S, UNNAMED, Request, Requests

__all__ = ["CheckpointRow", "LabelRow", "Registry", "RolloutRow"]

HEARTBEAT_TTL_S = 15
FORGET_S = 3600  # an encoder that has been silent for so long is forgotten, with its acknowledgements
ANSWERS_KEPT = 1000
ROLLOUT_POLL_S = 1.0  # an encoder's death wakes nobody
ROLLOUT_PAUSE_S = 0.05  # many encoders answer at a time
EVENTS_KEPT = 10_000
DELETED_TTL_S = 86_400

# KEYS: label row, labels set, events, previous' row, deleted label's revision, the request's record, deleted versions,
# the last precision of each version.
# ARGV: version, expected revision or -1, now, space, name, keep, share or '', request or '', seconds, further answer,
# traceparent or '', precision or '' for the version's last one
# Answers {1, revision, version} and the row's fields and values, {1, 0, ''} to a request that was carried out before,
# {0, revision, version} at another revision, {-1, format_version, name} for a row of a newer release, {-2}
# for a deleted version.
# A move of `stable` takes `previous` along, so that the way back is always loaded. A deleted label that is set again
# continues from its last revision: an encoder that missed the deletion sees that it has moved.
_MOVE = """
local function move(key, name, version, share, last, precision)
  local row = redis.call('HMGET', key, 'revision', 'version', 'previous')
  local revision = (tonumber(row[1] or last) or 0) + 1
  local previous = row[2]
  if previous == version then previous = row[3] end
  redis.call('HSET', key, 'format_version', 1, 'space_id', ARGV[4], 'name', name, 'version', version,
    'revision', revision, 'previous', previous or '', 'moved_at', ARGV[3], 'share', share,
    'traceparent', ARGV[11], 'precision', precision)
  redis.call('HSET', KEYS[8], version, precision)
  redis.call('SADD', KEYS[2], ARGV[4] .. ' ' .. name)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'space_id', ARGV[4], 'label', name,
    'version', version, 'revision', revision)
  return revision
end
local function done(revision)
  local row = redis.call('HGETALL', KEYS[1])
  note(KEYS[6], ARGV[8], ARGV[9], 'answer', ARGV[10], unpack(row))
  return {1, revision, ARGV[1], unpack(row)}
end
if ARGV[8] ~= '' and redis.call('HEXISTS', KEYS[6], 'version') == 1 then return {1, 0, ''} end
for key, name in pairs({[KEYS[1]] = ARGV[5], [KEYS[4]] = 'previous'}) do
  local found = tonumber(redis.call('HGET', key, 'format_version') or 0) or 0
  if found > 1 then return {-1, found, name} end
end
for version in string.gmatch(ARGV[1], '[^+]+') do
  if redis.call('ZSCORE', KEYS[7], version) then return {-2, 0, version} end
end
local current = redis.call('HMGET', KEYS[1], 'revision', 'version', 'share', 'precision')
local revision = tonumber(current[1] or 0)
if tonumber(ARGV[2]) >= 0 and revision ~= tonumber(ARGV[2]) then return {0, revision, current[2] or ''} end
local share = ARGV[7]
if share == '' then share = current[3] or '0' end
local now = current[4] or 'float32'
local precision = ARGV[12]
if precision == '' then
  precision = current[2] == ARGV[1] and now or redis.call('HGET', KEYS[8], ARGV[1]) or 'float32'
end
if current[2] == ARGV[1] and precision == now and tonumber(share) == tonumber(current[3] or 0) then
  return done(revision)
end
if ARGV[5] == 'stable' and current[2] and current[2] ~= ARGV[1] then
  move(KEYS[4], 'previous', current[2], '0', 0, now)
end
return done(move(KEYS[1], ARGV[5], ARGV[1], share, redis.call('GET', KEYS[5]) or 0, precision))
"""

# KEYS: label row, labels set, events, acknowledgements, deleted label's revision, the request's record.
# ARGV: space, name, keep, seconds, expected revision or -1, request or '', seconds
_DELETE = """
local revision = redis.call('HGET', KEYS[1], 'revision')
local format = tonumber(redis.call('HGET', KEYS[1], 'format_version') or 0) or 0
if format > 1 then return -format end
if tonumber(ARGV[5]) >= 0 and tonumber(revision or 0) ~= tonumber(ARGV[5]) then return tostring(revision or 0) end
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[5], revision, 'EX', ARGV[4])
redis.call('SREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
redis.call('DEL', KEYS[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'space_id', ARGV[1], 'label', ARGV[2], 'version', '')
note(KEYS[6], ARGV[6], ARGV[7])
return 1
"""

# KEYS: instances, what they compute.  ARGV: instance, seconds it lives, seconds until the silent are forgotten, what it
# computes.  Answers 1 to a new one.
# Only the clock of Redis counts: those of two hosts may differ by more than a heartbeat's life.
_NOW = "local time = redis.call('TIME')\nlocal now = tonumber(time[1]) + tonumber(time[2]) / 1e6\n"
_BEAT = f"""{_NOW}
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[3])) do
  redis.call('HDEL', KEYS[2], gone)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
return redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
"""

# KEYS: label row, acknowledgements, instances, answers.  ARGV: instance, row, keep.  Trims those of forgotten encoders.
_ACKNOWLEDGE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if redis.call('HLEN', KEYS[2]) > redis.call('ZCARD', KEYS[3]) then
  for _, instance in ipairs(redis.call('HKEYS', KEYS[2])) do
    if instance ~= ARGV[1] and not redis.call('ZSCORE', KEYS[3], instance) then
      redis.call('HDEL', KEYS[2], instance)
    end
  end
end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[3], '*', 'instance', ARGV[1])
return 1
"""

# KEYS: instances, acknowledgements.  Answers Redis' time in seconds, then each live instance and its row or ''
_ROLLOUTS = f"""{_NOW}
local answer = {{time[1]}}
for _, instance in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')) do
  answer[#answer + 1] = instance
  answer[#answer + 1] = redis.call('HGET', KEYS[2], instance) or ''
end
return answer
"""


@raising_unavailable("registry")
class Registry:
    """Labels and their rollout, and the `checkpoints` that they name. Raises Unavailable when Redis is down."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover answers of bytes and str; ours are str
        self._keys, self.requests = RegistryKeys(namespace), Requests(redis, namespace)
        self._key = self._keys.of
        self.checkpoints = CheckpointRegistry(redis, self._keys, self.requests)
        self._turns = Turns()  # by space
        self._instances = self._key("instances")  # sorted set: until when each encoder counts as alive
        self._files = self._key("instance-files")  # hash: what each of them computes, as `heartbeat` has it
        self._events = self._key("label-events")  # stream: the moves of labels
        self._answers = self._key("rollout-events")  # stream: who has acknowledged, to wake those who wait

    async def set_label(
        self,
        space_id: str,
        name: str,
        version: str,
        *,
        expected_revision: int | None = None,
        share: float | None = None,
        request: Request = UNNAMED,
        answer: str = "",
        precision: str = "",
    ) -> LabelRow:
        """Points a label at a version, or an ensemble of versions joined by +; when `stable` moves, `previous` follows.

        Repeating a move changes nothing. In the same step it notes the `request`, if that has an id, with the row and
        what else its `answer` has. Without `share` the label keeps its share, at first 0; without `precision` the
        version keeps that of its last publication, at first float32. Another share or precision is a move, too.
        Raises Aborted when the label is not at `expected_revision` (0: the label must not exist).
        """
        keys = [
            self._key("label", space_id, name),
            self._keys.labels,
            self._events,
            self._key("label", space_id, "previous"),
            self._key("deleted-label", space_id, name),
            self.requests.key(request),
            self._keys.buried,
            self._keys.precisions,
        ]
        expected = -1 if expected_revision is None else expected_revision
        wanted = "" if share is None else repr(share)
        noted = [request.text, REQUEST_TTL_S, answer]
        at = datetime.now(UTC).isoformat()
        arguments = [version, expected, at, space_id, name, EVENTS_KEPT, wanted, *noted, traceparent(), precision]
        moved, revision, current, *row = await self._in_turn(space_id, NOTE + _MOVE, keys, arguments)
        if moved == -2:
            raise errors.NotFound(f"checkpoint {current} is deleted; ListCheckpoints (`aeenc checkpoints`) names all")
        if moved < 0:
            check_format({"format_version": revision}, FORMAT_VERSION, f"label {current!r} of space {space_id}")
        if not moved:
            raise errors.Aborted(
                f"label {name!r} is at revision {revision} ({current or 'unset'}), not {expected}; read it and retry"
            )
        if before := await self.requests.answer(request, LabelRow.of_hash):
            return before
        return LabelRow.of_hash(dict(zip(row[::2], row[1::2], strict=True)))

    async def label(self, space_id: str, name: str) -> LabelRow | None:
        """Returns a label's row; None when it does not exist."""
        row = await self._redis.hgetall(self._key("label", space_id, name))
        return LabelRow.of_hash(row) if row else None

    async def labels(
        self, space_id: str | None = None, *, readable: bool = False, unread: dict[tuple[str, str], str] | None = None
    ) -> list[LabelRow]:
        """Lists all labels, or those of one space, by space and name; `readable` as in `read_all`.

        `unread` gets the labels left out so: why they are refused, by space and name.
        """

        def read(found: tuple[str, dict[str, str]]) -> LabelRow:
            member, row = found
            try:
                return LabelRow.of_hash(row)
            except UNREADABLE as error:
                if unread is not None:
                    space, name = member.split(" ", 1)
                    unread[space, name] = error.message
                raise

        members = sorted(await self._redis.smembers(self._keys.labels))
        pipe = self._redis.pipeline(transaction=True)
        for member in members:
            pipe.hgetall(self._key("label", *member.split(" ", 1)))
        found = [one for one in zip(members, await pipe.execute(), strict=True) if one[1]]
        rows = read_all(read, found, readable=readable or unread is not None)
        return [row for row in rows if space_id is None or row.space_id == space_id]

    async def delete_label(
        self, space_id: str, name: str, *, expected_revision: int | None = None, request: Request = UNNAMED
    ) -> None:
        """Removes a label, and notes the `request` in the same step.

        Raises NotFound for an unknown label, Aborted when it is not at `expected_revision`.
        """
        keys = [
            self._key("label", space_id, name),
            self._keys.labels,
            self._events,
            self._key("ack", space_id, name),
            self._key("deleted-label", space_id, name),
            self.requests.key(request),
        ]
        expected = -1 if expected_revision is None else expected_revision
        noted = [request.text, REQUEST_TTL_S]
        arguments = [space_id, name, EVENTS_KEPT, DELETED_TTL_S, expected, *noted]
        answer = await self._in_turn(space_id, NOTE + _DELETE, keys, arguments)
        if isinstance(answer, str):
            raise errors.Aborted(f"label {name!r} is at revision {answer}, not {expected}; read it and retry")
        if answer < 0:
            check_format({"format_version": -answer}, FORMAT_VERSION, f"label {name!r} of space {space_id}")
        if not answer:
            raise errors.NotFound(f"there is no label {name!r} in space {space_id}; list the labels")

    async def _in_turn(self, space_id: str, script: str, keys: list[str], arguments: list[Any]) -> Any:
        """Runs a script on the labels of a space after those asked for before it, to its end even without a caller.

        Otherwise its command could still be on its way to Redis when a later one is acknowledged. What remains: two
        trainers, or a Redis that is silent for longer than the socket waits; give `expected_revision` against those.
        """
        async with self._turns.of(space_id):
            return await finish(run_script(self._redis, script, keys, arguments))

    async def wait_for_event(self, last_id: str, timeout_s: float) -> str:
        """Waits until a label has moved after `last_id`, or time is up; returns the id to continue from."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            block_ms = max(int(min(left_s, MAX_BLOCK_S) * 1000), 1)
            answer: Any = await self._redis.xread({self._events: last_id}, block=block_ms)
            if answer:
                return str(answer[0][1][-1][0])
        return last_id

    async def last_event(self) -> str:
        """Returns the id of the newest event, to wait from without missing one."""
        return await self._last(self._events)

    async def _last(self, stream: str) -> str:
        newest: Any = await self._redis.xrevrange(stream, count=1)
        return str(newest[0][0]) if newest else "0-0"

    async def acknowledge(self, space_id: str, label: str, row: RolloutRow) -> None:
        """Records how far an encoder has come with a label; nothing, when the label is gone."""
        keys = [self._key("label", space_id, label), self._key("ack", space_id, label), self._instances, self._answers]
        await run_script(self._redis, _ACKNOWLEDGE, keys, [row.instance, row.to_json(), ANSWERS_KEPT])

    async def heartbeat(self, instance: str, files: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Marks an encoder as alive for the next 15 s, by the clock of Redis.

        `files`: the lower precisions in which it computes faster than in float32, the best first, and the file of a
        checkpoint that each needs. True for one that was not known, or forgotten: then its acknowledgements may be
        gone, too.
        """
        arguments = [instance, HEARTBEAT_TTL_S, FORGET_S, json.dumps(dict(files))]
        return bool(await run_script(self._redis, _BEAT, [self._instances, self._files], arguments))

    async def best_precision(self, files: Collection[str]) -> str:
        """Returns the best precision that every live encoder computes from the files of a checkpoint; else float32."""
        _, *flat = await run_script(self._redis, _ROLLOUTS, [self._instances, self._files])
        with damage_is_data_loss("what an encoder computes", "its next heartbeat writes it anew: call again in 15 s"):
            offers = [dict(json.loads(offer or "{}")) for offer in flat[1::2]]
        common = (name for name in (offers[0] if offers else ()) if all(offer.get(name) in files for offer in offers))
        return next(common, "float32")

    async def sign_off(self, instance: str) -> None:
        """Marks an encoder as gone."""
        await self._redis.zrem(self._instances, instance)
        await self._redis.hdel(self._files, instance)

    async def rollouts(self, space_id: str, label: str) -> list[RolloutRow]:
        """Returns how far each live encoder has come with a label; one that has not answered yet is at revision 0."""
        keys = [self._instances, self._key("ack", space_id, label)]
        now_s, *flat = await run_script(self._redis, _ROLLOUTS, keys)
        now = datetime.fromtimestamp(int(now_s), UTC)
        return sorted(map(partial(rollout_of, now), flat[::2], flat[1::2]), key=lambda row: row.instance)

    async def await_rollout(self, row: LabelRow, timeout_s: float) -> list[RolloutRow]:
        """Waits until every live encoder has answered a revision, it is overtaken, or time is up; returns the rollouts.

        Overtaken: the label has moved on or is gone, so that no encoder needs this revision. Waits for an encoder that
        stops sending heartbeats no longer than the last one holds.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        seen = {key: await self._last(key) for key in (self._events, self._answers)}
        while True:
            rollouts = await self.rollouts(row.space_id, row.name)
            done = bool(rollouts) and all(rollout.revision >= row.revision for rollout in rollouts)
            now = await self.label(row.space_id, row.name)
            left_s = deadline - asyncio.get_running_loop().time()
            if done or now is None or now.revision != row.revision or left_s <= 0:
                return rollouts
            block_ms = max(int(min(left_s, ROLLOUT_POLL_S) * 1000), 1)
            answer: Any = await self._redis.xread(seen, block=block_ms)
            if answer:
                seen |= {key: entries[-1][0] for key, entries in answer}
                await asyncio.sleep(min(left_s, ROLLOUT_PAUSE_S))
