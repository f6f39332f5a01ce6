"""The registry: checkpoints, spaces, labels and their rollout, as rows in Redis.

    trainer -- set_label --> label row, revision + 1  --+-- one script
                             event on a stream ---------'
    encoder <- wait_for_event -'  reads the row, loads the version, then `acknowledge`
    trainer <- await_rollout: every encoder with a heartbeat has acknowledged the revision

Events only wake readers; the row is the truth. The newest row has the highest revision.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from redis.asyncio import Redis

from aeenc import errors
from services.kit.concurrency import finish
from services.store.formats import check_format
from services.store.redis import MAX_BLOCK_S, key_prefix, unavailable_if_down
from services.store.registry_rows import FORMAT_VERSION, CheckpointRow, LabelRow, RolloutRow, read_all, rollout_of
from services.store.requests import REQUEST_TTL_S, Request, Requests, text_of

__all__ = ["CheckpointRow", "LabelRow", "Registry", "RolloutRow"]

HEARTBEAT_TTL_S = 15
FORGET_S = 3600  # an encoder that has been silent for so long is forgotten, with its acknowledgements
ANSWERS_KEPT = 1000
ROLLOUT_POLL_S = 1.0  # an encoder's death wakes nobody, nor does an answer of one from before 0.2
ROLLOUT_PAUSE_S = 0.05  # many encoders answer at a time
EVENTS_KEPT = 10_000
DELETED_TTL_S = 86_400

# KEYS: label row, labels set, events, previous' row, deleted label's revision, the request's record, deleted versions.
# ARGV: version, expected revision or -1, now, space, name, keep, share or '', request or '', seconds, further answer
# Answers {0, revision, version} at another revision, {-1, format_version, name} for a row of a newer release, {-2}
# for a deleted version.
# A move of `stable` takes `previous` along, so that the way back is always loaded. A deleted label that is set again
# continues from its last revision: an encoder that missed the deletion sees that it has moved.
_MOVE = """
local function move(key, name, version, share, last)
  local row = redis.call('HMGET', key, 'revision', 'version', 'previous')
  local revision = (tonumber(row[1] or last) or 0) + 1
  local previous = row[2]
  if previous == version then previous = row[3] end
  redis.call('HSET', key, 'format_version', 1, 'space_id', ARGV[4], 'name', name, 'version', version,
    'revision', revision, 'previous', previous or '', 'moved_at', ARGV[3], 'share', share)
  redis.call('SADD', KEYS[2], ARGV[4] .. ' ' .. name)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'space_id', ARGV[4], 'label', name,
    'version', version, 'revision', revision)
  return revision
end
local function done(revision)
  if ARGV[8] ~= '' then
    redis.call('HSET', KEYS[6], 'content', ARGV[8], 'answer', ARGV[10], unpack(redis.call('HGETALL', KEYS[1])))
    redis.call('EXPIRE', KEYS[6], ARGV[9])
  end
  return {1, revision, ARGV[1]}
end
if ARGV[8] ~= '' and redis.call('HEXISTS', KEYS[6], 'version') == 1 then return {1, 0, ''} end
for key, name in pairs({[KEYS[1]] = ARGV[5], [KEYS[4]] = 'previous'}) do
  local found = tonumber(redis.call('HGET', key, 'format_version') or 1)
  if found > 1 then return {-1, found, name} end
end
if redis.call('ZSCORE', KEYS[7], ARGV[1]) then return {-2, 0, ''} end
local current = redis.call('HMGET', KEYS[1], 'revision', 'version', 'share')
local revision = tonumber(current[1] or 0)
if tonumber(ARGV[2]) >= 0 and revision ~= tonumber(ARGV[2]) then return {0, revision, current[2] or ''} end
local share = ARGV[7]
if share == '' then share = current[3] or '0' end
if current[2] == ARGV[1] and tonumber(share) == tonumber(current[3] or 0) then return done(revision) end
if ARGV[5] == 'stable' and current[2] then move(KEYS[4], 'previous', current[2], '0', 0) end
return done(move(KEYS[1], ARGV[5], ARGV[1], share, redis.call('GET', KEYS[5]) or 0))
"""

# KEYS: label row, labels set, events, acknowledgements, deleted label's revision, the request's record.
# ARGV: space, name, keep, seconds, expected revision or -1, request or '', seconds
_DELETE = """
local revision = redis.call('HGET', KEYS[1], 'revision')
local format = tonumber(redis.call('HGET', KEYS[1], 'format_version') or 1)
if format > 1 then return -format end
if tonumber(ARGV[5]) >= 0 and tonumber(revision or 0) ~= tonumber(ARGV[5]) then return tostring(revision or 0) end
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[5], revision, 'EX', ARGV[4])
redis.call('SREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
redis.call('DEL', KEYS[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'space_id', ARGV[1], 'label', ARGV[2], 'version', '')
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[6], 'content', ARGV[6])
  redis.call('EXPIRE', KEYS[6], ARGV[7])
end
return 1
"""

# KEYS: row, checkpoints, labels set, deleted versions, buried row, the request's record, times.
# ARGV: version, prefix of labels' and spaces' keys, request or '', seconds
# Answers '' when done, '?' for an unknown version, otherwise who needs it. A version that the premises of a labelled
# space are encoded by is needed, too: encoders load it with the label.
_BURY = """
local row = redis.call('GET', KEYS[1])
if not row then return '?' end
for _, member in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local space, name = string.match(member, '^(.-) (.*)$')
  local label = redis.call('HMGET', ARGV[2] .. 'label:' .. space .. ':' .. name, 'version', 'previous')
  if label[1] == ARGV[1] then return "label '" .. name .. "' of space " .. space .. ' names it' end
  if label[2] == ARGV[1] then return "label '" .. name .. "' of space " .. space .. ' goes back to it' end
  if redis.call('GET', ARGV[2] .. 'space:' .. space) == ARGV[1] then
    return 'it encodes the premises of space ' .. space .. ", which label '" .. name .. "' opens"
  end
end
redis.call('SET', KEYS[5], row)
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[7], ARGV[1])
redis.call('ZADD', KEYS[4], redis.call('TIME')[1], ARGV[1])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[6], 'content', ARGV[3])
  redis.call('EXPIRE', KEYS[6], ARGV[4])
end
return ''
"""

# KEYS: deleted versions.  ARGV: grace in seconds.  Answers those whose files go now, and lets nobody have them back.
_CLAIM = """
local now = tonumber(redis.call('TIME')[1])
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[1]))
for _, version in ipairs(due) do redis.call('ZADD', KEYS[1], -1, version) end
return due
"""

# KEYS: deleted versions, buried row.  ARGV: version.  Answers 0 while the files are being removed.
_REVIVE = """
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) < 0 then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
"""

# KEYS: instances.  ARGV: instance, seconds it lives, seconds until the silent are forgotten.  Answers 1 to a new one.
# Only the clock of Redis counts: those of two hosts may differ by more than a heartbeat's life.
_NOW = "local time = redis.call('TIME')\nlocal now = tonumber(time[1]) + tonumber(time[2]) / 1e6\n"
_BEAT = f"""{_NOW}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[3])
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


class Registry:
    """Rows and streams of one namespace. Raises Unavailable when Redis is down."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover answers of bytes and str; ours are str
        self._prefix = key_prefix(namespace)
        self.requests = Requests(redis, namespace)
        self._move: Any = redis.register_script(_MOVE)
        self._delete: Any = redis.register_script(_DELETE)
        self._bury: Any = redis.register_script(_BURY)
        self._claim: Any = redis.register_script(_CLAIM)
        self._revive: Any = redis.register_script(_REVIVE)
        self._buried = self._key("deleted-checkpoints")  # sorted set by Redis' time; -1: its files are being removed
        self._times = self._key("checkpoint-times")  # hash: Redis' time of each registration
        self._beat: Any = redis.register_script(_BEAT)
        self._acknowledge: Any = redis.register_script(_ACKNOWLEDGE)
        self._rollouts: Any = redis.register_script(_ROLLOUTS)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by space
        self._instances = self._key("instances")  # sorted set: until when each encoder counts as alive
        self._answers = self._key("rollout-events")  # stream: who has acknowledged, to wake those who wait

    async def add_checkpoint(self, row: CheckpointRow) -> None:
        """Registers a checkpoint. Adding it again keeps its place and replaces its row.

        What a later minor release has added to the row stays. Raises NewerFormat when the row is not to be replaced.
        """
        key = self._key("checkpoint", row.version)  # the version is the content's hash

        async def put(pipe: Any) -> None:
            data = await pipe.get(key)
            seconds, _ = await pipe.time()
            pipe.multi()
            pipe.set(key, row.to_json(data))
            pipe.hsetnx(self._times, row.version, seconds)
            pipe.zadd(self._key("checkpoints"), {row.version: row.created_at.timestamp()}, nx=True)

        async with unavailable_if_down(f"register checkpoint {row.version}"):
            await self._redis.transaction(put, key)

    async def checkpoint(self, version: str) -> CheckpointRow | None:
        """Returns a checkpoint's row; None for an unknown one."""
        async with unavailable_if_down(f"read checkpoint {version}"):
            data = await self._redis.get(self._key("checkpoint", version))
        return CheckpointRow.of_json(data) if data else None

    async def checkpoints(self, *, readable: bool = False) -> list[CheckpointRow]:
        """Lists all checkpoints, newest first; `readable`: without those of a newer release, which the log names."""
        async with unavailable_if_down("list checkpoints"):
            versions = await self._redis.zrevrange(self._key("checkpoints"), 0, -1)
            if not versions:
                return []
            rows = await self._redis.mget([self._key("checkpoint", version) for version in versions])
        return read_all(CheckpointRow.of_json, rows, readable=readable)

    async def checkpoint_ages(self) -> dict[str, float]:
        """Tells how long each checkpoint has been registered, in seconds, the oldest first.

        By the clock of Redis, except for those that earlier releases have registered.
        """
        async with unavailable_if_down("list checkpoints"):
            seconds, _ = await self._redis.time()
            times = await self._redis.hgetall(self._times)
            made = await self._redis.zrange(self._key("checkpoints"), 0, -1, withscores=True)
        ages = {version: seconds - float(times.get(version, score)) for version, score in made}
        return dict(sorted(ages.items(), key=lambda item: -item[1]))

    async def bury_checkpoint(self, version: str, request: Request | None = None) -> None:
        """Deletes a checkpoint's row unless a label needs it, and notes the `request` in the same step.

        From then on no label can be pointed at it. Raises NotFound, and FailedPrecondition naming the label.
        """
        keys = [
            *(self._key("checkpoint", version), self._key("checkpoints"), self._key("labels"), self._buried),
            *(self._key("deleted-checkpoint", version), self._request_key(request), self._times),
        ]
        async with unavailable_if_down(f"delete checkpoint {version}"):
            needed = await self._bury(keys=keys, args=[version, self._prefix, text_of(request), REQUEST_TTL_S])
        if needed == "?":
            raise errors.NotFound(f"there is no checkpoint {version!r}; ListCheckpoints names all")
        if needed:
            raise errors.FailedPrecondition(f"checkpoint {version} is in use: {needed}", reason="IN_USE")

    async def claim_buried(self, grace_s: float) -> list[str]:
        """Lists the deleted checkpoints whose grace period is over; from now on their files may go."""
        async with unavailable_if_down("look for deleted checkpoints"):
            return list(await self._claim(keys=[self._buried], args=[grace_s]))

    async def forget_buried(self, version: str) -> None:
        """Forgets a deleted checkpoint whose files are gone."""
        async with unavailable_if_down(f"forget checkpoint {version}"):
            await self._redis.delete(self._key("deleted-checkpoint", version))
            await self._redis.zrem(self._buried, version)

    async def revive_checkpoint(self, version: str) -> None:
        """Makes a deleted version free to be registered again. Raises Unavailable while its files are being removed."""
        async with unavailable_if_down(f"register checkpoint {version}"):
            keys = [self._buried, self._key("deleted-checkpoint", version)]
            free = await self._revive(keys=keys, args=[version])
        if not free:
            raise errors.Unavailable(f"the files of checkpoint {version} are being removed; try again in a moment")

    async def set_space(self, space_id: str, premise_version: str, *, default: bool = False) -> None:
        """Sets the checkpoint that encodes a space's premises; `default`: use the space where a call names none."""
        async with unavailable_if_down(f"store space {space_id}"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(self._key("space", space_id), premise_version)
            if default:
                pipe.set(self._key("default_space"), space_id)
            await pipe.execute()

    async def space(self, space_id: str) -> str | None:
        """Returns the checkpoint that encodes a space's premises; None for an unknown space."""
        async with unavailable_if_down(f"read space {space_id}"):
            premise_version: str | None = await self._redis.get(self._key("space", space_id))
        return premise_version

    async def default_space(self) -> str | None:
        """Returns the space used where a call names none; None before the trainer's first start."""
        async with unavailable_if_down("read the default space"):
            default: str | None = await self._redis.get(self._key("default_space"))
        return default

    async def set_label(
        self,
        space_id: str,
        name: str,
        version: str,
        *,
        expected_revision: int | None = None,
        share: float | None = None,
        request: Request | None = None,
        answer: str = "",
    ) -> LabelRow:
        """Points a label at a version; when `stable` moves, `previous` follows. Repeating a move changes nothing.

        In the same step it notes the `request`, if that has an id, with the row and what else its `answer` has.
        Without `share` the label keeps its share, at first 0. A new share is a move, too. Raises Aborted when the
        label is not at `expected_revision` (0: the label must not exist).
        """
        keys = [
            self._label_key(space_id, name),
            self._key("labels"),
            self.events_key,
            self._label_key(space_id, "previous"),
            self._deleted_key(space_id, name),
            self._request_key(request),
            self._buried,
        ]
        expected = -1 if expected_revision is None else expected_revision
        wanted = "" if share is None else repr(share)
        noted = [text_of(request), REQUEST_TTL_S, answer]
        arguments = [version, expected, datetime.now(UTC).isoformat(), space_id, name, EVENTS_KEPT, wanted, *noted]
        async with unavailable_if_down(f"move label {name}"):
            moved, revision, current = await self._in_turn(space_id, self._move, keys, arguments)
        if moved == -2:
            raise errors.NotFound(f"checkpoint {version} is deleted; ListCheckpoints names all")
        if moved < 0:
            check_format({"format_version": revision}, FORMAT_VERSION, f"label {current!r} of space {space_id}")
        if not moved:
            raise errors.Aborted(
                f"label {name!r} is at revision {revision} ({current or 'unset'}), not {expected}; read it and retry"
            )
        if request is not None and (record := await self.requests.answer(request)):
            return LabelRow.of_hash(record)
        row = await self.label(space_id, name)
        assert row is not None
        return row

    async def label(self, space_id: str, name: str) -> LabelRow | None:
        """Returns a label's row; None when it does not exist."""
        async with unavailable_if_down(f"read label {name}"):
            row = await self._redis.hgetall(self._label_key(space_id, name))
        return LabelRow.of_hash(row) if row else None

    async def labels(self, space_id: str | None = None, *, readable: bool = False) -> list[LabelRow]:
        """Lists all labels, or those of one space, by space and name; `readable` as in `checkpoints`."""
        async with unavailable_if_down("list labels"):
            members = sorted(await self._redis.smembers(self._key("labels")))
            pipe = self._redis.pipeline(transaction=True)
            for member in members:
                pipe.hgetall(self._label_key(*member.split(" ", 1)))
            rows = read_all(LabelRow.of_hash, await pipe.execute(), readable=readable)
        return [row for row in rows if space_id is None or row.space_id == space_id]

    async def best_published(self, space_id: str, name: str, measure: str) -> str | None:
        """Returns the best version that was published under a label, by one measurement; None if none was measured."""
        async with unavailable_if_down(f"read what label {name} has served"):
            best: str | None = await self._redis.hget(self._key("best", space_id, name), measure)
        return best

    async def set_best_published(self, space_id: str, name: str, measure: str, version: str) -> None:
        """Remembers the best version that was published under a label, by one measurement."""
        async with unavailable_if_down(f"note what label {name} serves"):
            await self._redis.hset(self._key("best", space_id, name), measure, version)

    async def delete_label(
        self, space_id: str, name: str, *, expected_revision: int | None = None, request: Request | None = None
    ) -> None:
        """Removes a label, and notes the `request` in the same step.

        Raises NotFound for an unknown label, Aborted when it is not at `expected_revision`.
        """
        keys = [
            self._label_key(space_id, name),
            self._key("labels"),
            self.events_key,
            self._ack_key(space_id, name),
            self._deleted_key(space_id, name),
            self._request_key(request),
        ]
        async with unavailable_if_down(f"delete label {name}"):
            expected = -1 if expected_revision is None else expected_revision
            noted = [text_of(request), REQUEST_TTL_S]
            arguments = [space_id, name, EVENTS_KEPT, DELETED_TTL_S, expected, *noted]
            answer = await self._in_turn(space_id, self._delete, keys, arguments)
        if isinstance(answer, str):
            raise errors.Aborted(f"label {name!r} is at revision {answer}, not {expected}; read it and retry")
        if answer < 0:
            check_format({"format_version": -answer}, FORMAT_VERSION, f"label {name!r} of space {space_id}")
        if not answer:
            raise errors.NotFound(f"there is no label {name!r} in space {space_id}; list the labels")

    async def _in_turn(self, space_id: str, script: Any, keys: list[str], arguments: list[Any]) -> Any:
        """Runs a script on the labels of a space after those asked for before it, to its end even without a caller.

        Otherwise its command could still be on its way to Redis when a later one is acknowledged. What remains: two
        trainers, or a Redis that is silent for longer than the socket waits; give `expected_revision` against those.
        """
        async with self._turns.setdefault(space_id, asyncio.Lock()):
            running = asyncio.create_task(script(keys=keys, args=arguments))
            await finish(running)
            return running.result()

    async def wait_for_event(self, last_id: str, timeout_s: float) -> str:
        """Waits until a label has moved after `last_id`, or time is up; returns the id to continue from."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            block_ms = max(int(min(left_s, MAX_BLOCK_S) * 1000), 1)
            async with unavailable_if_down("follow the labels"):
                answer: Any = await self._redis.xread({self.events_key: last_id}, block=block_ms)
            if answer:
                return str(answer[0][1][-1][0])
        return last_id

    async def last_event(self) -> str:
        """Returns the id of the newest event, to wait from without missing one."""
        return await self._last(self.events_key)

    async def _last(self, stream: str) -> str:
        async with unavailable_if_down("follow the labels"):
            newest: Any = await self._redis.xrevrange(stream, count=1)
        return str(newest[0][0]) if newest else "0-0"

    async def acknowledge(self, space_id: str, label: str, row: RolloutRow) -> None:
        """Records how far an encoder has come with a label; nothing, when the label is gone."""
        keys = [self._label_key(space_id, label), self._ack_key(space_id, label), self._instances, self._answers]
        async with unavailable_if_down(f"acknowledge label {label}"):
            await self._acknowledge(keys=keys, args=[row.instance, row.to_json(), ANSWERS_KEPT])

    async def heartbeat(self, instance: str) -> bool:
        """Marks an encoder as alive for the next 15 s, by the clock of Redis.

        True for one that was not known, or forgotten: then its acknowledgements may be gone, too.
        """
        async with unavailable_if_down("send the heartbeat"):
            return bool(await self._beat(keys=[self._instances], args=[instance, HEARTBEAT_TTL_S, FORGET_S]))

    async def sign_off(self, instance: str) -> None:
        """Marks an encoder as gone."""
        async with unavailable_if_down("sign off"):
            await self._redis.zrem(self._instances, instance)

    async def rollouts(self, space_id: str, label: str) -> list[RolloutRow]:
        """Returns how far each live encoder has come with a label; one that has not answered yet is at revision 0."""
        async with unavailable_if_down(f"read the rollout of {label}"):
            now_s, *flat = await self._rollouts(keys=[self._instances, self._ack_key(space_id, label)])
        now = datetime.fromtimestamp(int(now_s), UTC)
        return sorted(map(partial(rollout_of, now), flat[::2], flat[1::2]), key=lambda row: row.instance)

    async def await_rollout(self, row: LabelRow, timeout_s: float) -> list[RolloutRow]:
        """Waits until every live encoder has answered a revision, it is overtaken, or time is up; returns the rollouts.

        Overtaken: the label has moved on or is gone, so that no encoder needs this revision. Waits for an encoder that
        stops sending heartbeats no longer than the last one holds.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        seen = {key: await self._last(key) for key in (self.events_key, self._answers)}
        while True:
            rollouts = await self.rollouts(row.space_id, row.name)
            done = bool(rollouts) and all(rollout.revision >= row.revision for rollout in rollouts)
            now = await self.label(row.space_id, row.name)
            left_s = deadline - asyncio.get_running_loop().time()
            if done or now is None or now.revision != row.revision or left_s <= 0:
                return rollouts
            block_ms = max(int(min(left_s, ROLLOUT_POLL_S) * 1000), 1)
            async with unavailable_if_down(f"follow the rollout of {row.name}"):
                answer: Any = await self._redis.xread(seen, block=block_ms)
            if answer:
                seen |= {key: entries[-1][0] for key, entries in answer}
                await asyncio.sleep(min(left_s, ROLLOUT_PAUSE_S))

    @property
    def events_key(self) -> str:
        """The key of the stream of label moves."""
        return self._key("label-events")

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    def _label_key(self, space_id: str, name: str) -> str:
        return self._key("label", space_id, name)

    def _request_key(self, request: Request | None) -> str:
        return self.requests.key(request) if request else self._key("request-done", "")

    def _deleted_key(self, space_id: str, name: str) -> str:
        return self._key("deleted-label", space_id, name)

    def _ack_key(self, space_id: str, name: str) -> str:
        return self._key("ack", space_id, name)
