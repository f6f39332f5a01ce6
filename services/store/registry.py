"""The registry: checkpoints, spaces, labels and their rollout, as rows in Redis.

The trainer writes it, encoders read it and acknowledge. A label's row and its event move together in one script, so
that no reader sees one without the other. Events only wake readers; the row is the truth. Newest is the highest
revision.
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.store.redis import MAX_BLOCK_S, key_prefix, unavailable_if_down
from services.store.registry_rows import CheckpointRow, LabelRow, RolloutRow

__all__ = ["CheckpointRow", "LabelRow", "Registry", "RolloutRow"]

HEARTBEAT_TTL_S = 15
EVENTS_KEPT = 10_000
REQUEST_TTL_S = 86_400
DELETED_TTL_S = 86_400

# KEYS: label row, labels set, events, previous' row, deleted label's revision.
# ARGV: version, expected revision or -1, now, space, name, keep, share or ''
# A move of `stable` takes `previous` along, so that the way back is always loaded. A deleted label that is set anew
# goes on from its last revision: an encoder that did not notice the deletion sees that it has moved.
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
local current = redis.call('HMGET', KEYS[1], 'revision', 'version', 'share')
local revision = tonumber(current[1] or 0)
if tonumber(ARGV[2]) >= 0 and revision ~= tonumber(ARGV[2]) then return {0, revision, current[2] or ''} end
local share = ARGV[7]
if share == '' then share = current[3] or '0' end
if current[2] == ARGV[1] and tonumber(share) == tonumber(current[3] or 0) then return {1, revision, current[2]} end
if ARGV[5] == 'stable' and current[2] then move(KEYS[4], 'previous', current[2], '0', 0) end
return {1, move(KEYS[1], ARGV[5], ARGV[1], share, redis.call('GET', KEYS[5]) or 0), ARGV[1]}
"""

# KEYS: label row, labels set, events, acknowledgements, deleted label's revision.  ARGV: space, name, keep, seconds
_DELETE = """
local revision = redis.call('HGET', KEYS[1], 'revision')
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[5], revision, 'EX', ARGV[4])
redis.call('SREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
redis.call('DEL', KEYS[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'space_id', ARGV[1], 'label', ARGV[2], 'version', '')
return 1
"""


class Registry:
    """Rows and streams of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._prefix = key_prefix(namespace)
        self._move: Any = redis.register_script(_MOVE)
        self._delete: Any = redis.register_script(_DELETE)

    async def add_checkpoint(self, row: CheckpointRow) -> None:
        """Makes a checkpoint known. Adding it again keeps its place and names its files as they are now."""
        async with unavailable_if_down(f"register checkpoint {row.version}"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(self._key("checkpoint", row.version), row.to_json())  # the version is the content's hash
            pipe.zadd(self._key("checkpoints"), {row.version: row.created_at.timestamp()}, nx=True)
            await pipe.execute()

    async def checkpoint(self, version: str) -> CheckpointRow | None:
        """A checkpoint's row; None when it is unknown."""
        async with unavailable_if_down(f"read checkpoint {version}"):
            data = await self._redis.get(self._key("checkpoint", version))
        return CheckpointRow.of_json(data) if data else None

    async def checkpoints(self) -> list[CheckpointRow]:
        """All checkpoints, newest first."""
        async with unavailable_if_down("list checkpoints"):
            versions = await self._redis.zrevrange(self._key("checkpoints"), 0, -1)
            if not versions:
                return []
            rows = await self._redis.mget([self._key("checkpoint", version) for version in versions])
        return [CheckpointRow.of_json(row) for row in rows if row]

    async def set_space(self, space_id: str, premise_version: str, *, default: bool = False) -> None:
        """Names the checkpoint that encodes a space's premises; `default`: the space used where none is named."""
        async with unavailable_if_down(f"store space {space_id}"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(self._key("space", space_id), premise_version)
            if default:
                pipe.set(self._key("default_space"), space_id)
            await pipe.execute()

    async def space(self, space_id: str) -> str | None:
        """The checkpoint that encodes a space's premises; None for an unknown space."""
        async with unavailable_if_down(f"read space {space_id}"):
            return _text(await self._redis.get(self._key("space", space_id)))

    async def default_space(self) -> str | None:
        """The space used where none is named; None before the trainer's first start."""
        async with unavailable_if_down("read the default space"):
            return _text(await self._redis.get(self._key("default_space")))

    async def set_label(
        self,
        space_id: str,
        name: str,
        version: str,
        *,
        expected_revision: int | None = None,
        share: float | None = None,
    ) -> LabelRow:
        """Points a label at a version; when `stable` moves, `previous` follows. Repeating a move changes nothing.

        Without `share` the label keeps the one it has, at first 0; another share is a move, too. Raises Aborted when
        `expected_revision` is given and not the label's (0: the label must not exist).
        """
        keys = [
            self._label_key(space_id, name),
            self._key("labels"),
            self.events_key,
            self._label_key(space_id, "previous"),
            self._deleted_key(space_id, name),
        ]
        expected = -1 if expected_revision is None else expected_revision
        wanted = "" if share is None else repr(share)
        arguments = [version, expected, datetime.now(UTC).isoformat(), space_id, name, EVENTS_KEPT, wanted]
        async with unavailable_if_down(f"move label {name}"):
            moved, revision, current = await self._move(keys=keys, args=arguments)
        if not moved:
            raise errors.Aborted(
                f"label {name!r} is at revision {revision} ({current or 'unset'}), not {expected}; read it and retry"
            )
        row = await self.label(space_id, name)
        assert row is not None
        return row

    async def label(self, space_id: str, name: str) -> LabelRow | None:
        """A label's row; None when it does not exist."""
        async with unavailable_if_down(f"read label {name}"):
            row = await self._redis.hgetall(self._label_key(space_id, name))
        return LabelRow.of_hash(row) if row else None

    async def labels(self, space_id: str | None = None) -> list[LabelRow]:
        """All labels, or those of one space, by space and name."""
        async with unavailable_if_down("list labels"):
            members = sorted(await self._redis.smembers(self._key("labels")))
            pipe = self._redis.pipeline(transaction=True)
            for member in members:
                pipe.hgetall(self._label_key(*member.split(" ", 1)))
            rows = [LabelRow.of_hash(row) for row in await pipe.execute() if row]
        return [row for row in rows if space_id is None or row.space_id == space_id]

    async def claim_request(self, request_id: str, revision: int) -> int:
        """The revision that a label had when a request was first tried: `revision`, unless it was tried before."""
        key = self._key("request", hashlib.sha256(request_id.encode()).hexdigest())
        async with unavailable_if_down("note the request"):
            await self._redis.set(key, revision, nx=True, ex=REQUEST_TTL_S)
            return int(await self._redis.get(key) or revision)

    async def delete_label(self, space_id: str, name: str) -> None:
        """Removes a label. Raises NotFound for an unknown one."""
        keys = [
            self._label_key(space_id, name),
            self._key("labels"),
            self.events_key,
            self._ack_key(space_id, name),
            self._deleted_key(space_id, name),
        ]
        async with unavailable_if_down(f"delete label {name}"):
            if not await self._delete(keys=keys, args=[space_id, name, EVENTS_KEPT, DELETED_TTL_S]):
                raise errors.NotFound(f"there is no label {name!r} in space {space_id}; list the labels")

    async def wait_for_event(self, last_id: str, timeout_s: float) -> str:
        """Returns when a label has moved after `last_id`, or time is up; gives the id to go on from."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            block_ms = max(int(min(left_s, MAX_BLOCK_S) * 1000), 1)
            async with unavailable_if_down("follow the labels"):
                answer: Any = await self._redis.xread({self.events_key: last_id}, block=block_ms)
            if answer:
                return str(answer[0][1][-1][0])
        return last_id

    async def last_event(self) -> str:
        """The id of the newest event, to wait from without missing one."""
        async with unavailable_if_down("follow the labels"):
            newest: Any = await self._redis.xrevrange(self.events_key, count=1)
        return str(newest[0][0]) if newest else "0-0"

    async def acknowledge(self, space_id: str, label: str, row: RolloutRow) -> None:
        """Records where an encoder stands with a label."""
        async with unavailable_if_down(f"acknowledge label {label}"):
            await self._redis.hset(self._ack_key(space_id, label), row.instance, row.to_json())

    async def heartbeat(self, instance: str) -> None:
        """Says that an encoder lives, for the next 15 s."""
        async with unavailable_if_down("send the heartbeat"):
            await self._redis.zadd(self._key("instances"), {instance: datetime.now(UTC).timestamp() + HEARTBEAT_TTL_S})

    async def sign_off(self, instance: str) -> None:
        """Says that an encoder is gone."""
        async with unavailable_if_down("sign off"):
            await self._redis.zrem(self._key("instances"), instance)

    async def rollouts(self, space_id: str, label: str) -> list[RolloutRow]:
        """Where each live encoder stands with a label; one that has said nothing yet is at revision 0."""
        async with unavailable_if_down(f"read the rollout of {label}"):
            now = datetime.now(UTC)
            instances = await self._redis.zrangebyscore(self._key("instances"), now.timestamp(), "+inf")
            said = await self._redis.hgetall(self._ack_key(space_id, label))
        return [
            RolloutRow.of_json(said[instance])
            if instance in said
            else RolloutRow(instance, 0, ok=False, reason="has not answered yet", at=now)
            for instance in sorted(instances)
        ]

    async def await_rollout(self, row: LabelRow, timeout_s: float) -> list[RolloutRow]:
        """Waits until every live encoder has dealt with a revision, it is overtaken, or time is up.

        Overtaken: the label has moved on or is gone, so that no encoder need take this revision up. Returns where each
        live encoder stands; one that stops sending heartbeats is waited for no longer than those last.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            rollouts = await self.rollouts(row.space_id, row.name)
            done = bool(rollouts) and all(rollout.revision >= row.revision for rollout in rollouts)
            now = await self.label(row.space_id, row.name)
            if done or now is None or now.revision != row.revision or asyncio.get_running_loop().time() >= deadline:
                return rollouts
            await asyncio.sleep(0.05)

    @property
    def events_key(self) -> str:
        """The stream of label moves."""
        return self._key("label-events")

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    def _label_key(self, space_id: str, name: str) -> str:
        return self._key("label", space_id, name)

    def _deleted_key(self, space_id: str, name: str) -> str:
        return self._key("deleted-label", space_id, name)

    def _ack_key(self, space_id: str, name: str) -> str:
        return self._key("ack", space_id, name)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
