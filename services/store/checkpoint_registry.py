"""Checkpoints and spaces, as rows in Redis: registered, listed, deleted once no label needs them.

    add ──► row ──► bury ──► tombstone ── grace period ──► claim_buried ──► forget_buried
                                 └── revive, until it is claimed

A tombstone keeps labels from being pointed at a version whose files are going. Labels are in `registry.py`.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from aeenc import errors
from services.store.redis import key_prefix, raising_unavailable, run_script
from services.store.registry_rows import CheckpointRow, read_all
from services.store.requests import NOTE, REQUEST_TTL_S, UNNAMED, Request, Requests

# KEYS: row, checkpoints, labels set, deleted versions, the request's record, times, precisions.
# ARGV: version, prefix of labels' and spaces' keys, request or '', seconds
# Answers '' when done, '?' for an unknown version, otherwise who needs it. A version that the premises of a labelled
# space are encoded by is needed, too: encoders load it with the label.
_BURY = """
local function names(versions)
  return string.find('+' .. (versions or '') .. '+', '+' .. ARGV[1] .. '+', 1, true)
end
if redis.call('EXISTS', KEYS[1]) == 0 then return '?' end
for _, member in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local space, name = string.match(member, '^(.-) (.*)$')
  local label = redis.call('HMGET', ARGV[2] .. 'label:' .. space .. ':' .. name, 'version', 'previous')
  if names(label[1]) then return "label '" .. name .. "' of space " .. space .. ' names it' end
  if names(label[2]) then return "label '" .. name .. "' of space " .. space .. ' goes back to it' end
  if redis.call('GET', ARGV[2] .. 'space:' .. space) == ARGV[1] then
    return 'it encodes the premises of space ' .. space .. ", which label '" .. name .. "' opens"
  end
end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[6], ARGV[1])
for _, versions in ipairs(redis.call('HKEYS', KEYS[7])) do
  if names(versions) then redis.call('HDEL', KEYS[7], versions) end
end
redis.call('ZADD', KEYS[4], redis.call('TIME')[1], ARGV[1])
note(KEYS[5], ARGV[3], ARGV[4])
return ''
"""

# KEYS: deleted versions.  ARGV: grace in seconds.  Answers those whose files go now, and lets nobody have them back.
_CLAIM = """
local now = tonumber(redis.call('TIME')[1])
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[1]))
for _, version in ipairs(due) do redis.call('ZADD', KEYS[1], -1, version) end
return due
"""

# KEYS: deleted versions.  ARGV: version.  Answers 0 while the files are being removed.
_REVIVE = """
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) < 0 then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
"""


class RegistryKeys:
    """The keys of the registry of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.prefix = key_prefix(namespace)
        self.labels = self.of("labels")  # set: space and name of each label
        self.buried = self.of("deleted-checkpoints")  # sorted set by Redis' time; -1: its files are being removed
        self.precisions = self.of("precisions")  # hash: the precision in which each version was published last

    def of(self, *parts: str) -> str:
        """Returns a key of these parts."""
        return self.prefix + ":".join(parts)


@raising_unavailable("registry")
class CheckpointRegistry:
    """The checkpoints and spaces of one namespace. Raises Unavailable when Redis is down."""

    def __init__(self, redis: Redis, keys: RegistryKeys, requests: Requests) -> None:
        self._redis: Any = redis  # its types cover answers of bytes and str; ours are str
        self._keys, self._key, self._requests = keys, keys.of, requests
        self._times = keys.of("checkpoint-times")  # hash: Redis' time of each registration

    async def add(self, row: CheckpointRow) -> None:
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

        await self._redis.transaction(put, key)

    async def get(self, version: str) -> CheckpointRow | None:
        """Returns a checkpoint's row; None for an unknown one."""
        data = await self._redis.get(self._key("checkpoint", version))
        return CheckpointRow.of_json(data) if data else None

    async def all(self, *, readable: bool = False) -> list[CheckpointRow]:
        """Lists all checkpoints, newest first; `readable` as in `read_all`."""
        versions = await self._redis.zrevrange(self._key("checkpoints"), 0, -1)
        if not versions:
            return []
        rows = await self._redis.mget([self._key("checkpoint", version) for version in versions])
        return read_all(CheckpointRow.of_json, rows, readable=readable)

    async def ages(self) -> dict[str, float]:
        """Tells how long each checkpoint has been registered, in seconds by the clock of Redis, the oldest first."""
        seconds, _ = await self._redis.time()
        times = await self._redis.hgetall(self._times)
        ages = {version: seconds - float(at) for version, at in times.items()}
        return dict(sorted(ages.items(), key=lambda item: -item[1]))

    async def bury(self, version: str, request: Request = UNNAMED) -> None:
        """Deletes a checkpoint's row unless a label needs it, and notes the `request` in the same step.

        From then on no label can be pointed at it. Raises NotFound, and FailedPrecondition naming the label.
        """
        keys = [
            *(self._key("checkpoint", version), self._key("checkpoints"), self._keys.labels, self._keys.buried),
            *(self._requests.key(request), self._times, self._keys.precisions),
        ]
        arguments = [version, self._keys.prefix, request.text, REQUEST_TTL_S]
        needed = await run_script(self._redis, NOTE + _BURY, keys, arguments)
        if needed == "?":
            raise errors.NotFound(
                f"checkpoint {version!r} does not exist; ListCheckpoints (`aeenc checkpoints`) names all"
            )
        if needed:
            raise errors.FailedPrecondition(f"checkpoint {version} is in use: {needed}", reason="IN_USE")

    async def claim_buried(self, grace_s: float) -> list[str]:
        """Lists the deleted checkpoints whose grace period is over; from now on their files may go."""
        return list(await run_script(self._redis, _CLAIM, [self._keys.buried], [grace_s]))

    async def is_buried(self, version: str) -> bool:
        """Says whether a checkpoint was deleted whose files may still be there."""
        return await self._redis.zscore(self._keys.buried, version) is not None

    async def forget_buried(self, version: str) -> None:
        """Forgets a deleted checkpoint whose files are gone."""
        await self._redis.zrem(self._keys.buried, version)

    async def revive(self, version: str) -> None:
        """Makes a deleted version free to be registered again. Raises Unavailable while its files are being removed."""
        if not await run_script(self._redis, _REVIVE, [self._keys.buried], [version]):
            raise errors.Unavailable(f"the files of checkpoint {version} are being removed; try again in a moment")

    async def set_space(self, space_id: str, premise_version: str, *, default: bool = False) -> None:
        """Sets the checkpoint that encodes a space's premises; `default`: use the space where a call names none."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(self._key("space", space_id), premise_version)
        if default:
            pipe.set(self._key("default_space"), space_id)
        await pipe.execute()

    async def space(self, space_id: str) -> str | None:
        """Returns the checkpoint that encodes a space's premises; None for an unknown space."""
        premise_version: str | None = await self._redis.get(self._key("space", space_id))
        return premise_version

    async def default_space(self) -> str | None:
        """Returns the space used where a call names none; None before the trainer's first start."""
        default: str | None = await self._redis.get(self._key("default_space"))
        return default
