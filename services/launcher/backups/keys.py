"""All keys of a deployment as they are at one moment, and their way into another Redis.

One script reads them, so that nothing changes in between: it needs neither the server's disk nor CONFIG nor a
replica's rights, and takes no keys of others. A key is kept as DUMP writes it, with the moment at which it expires.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from aeenc import errors
from services.store.redis import key_prefix, unavailable_if_down

SCRIPT_S = 600.0  # the longest that Redis may take for all keys
_BATCH = 1000
_PROBE = "restore-probe"

# ARGV: pattern of keys.  Answers the time in ms, then for each key: key, ms to live or -1, dump, value of a checkpoint.
_CAPTURE = """
local time = redis.call('TIME')
local found, seen, cursor = {time[1] .. string.sub('00000' .. time[2], -6, -4)}, {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    if not seen[key] then
      seen[key] = true
      local row = string.find(key, '^aeenc:.-:%d+:checkpoint:') and redis.call('GET', key)
      found[#found + 1] = {key, redis.call('PTTL', key), redis.call('DUMP', key), row or ''}
    end
  end
until cursor == '0'
return found
"""


@dataclass(frozen=True)
class Key:
    """A key: its name, what DUMP says of it, and when it expires, in ms since 1970; 0: never."""

    name: str
    dump: bytes
    expires_ms: int = 0

    def to_line(self) -> str:
        """Turns it into a line of JSON."""
        dump = base64.b64encode(self.dump).decode()
        return json.dumps({"key": self.name, "expires_ms": self.expires_ms, "dump": dump}) + "\n"

    @classmethod
    def of_line(cls, line: bytes) -> Key:
        """Reads what `to_line` made."""
        record = json.loads(line)
        return cls(record["key"], base64.b64decode(record["dump"]), record["expires_ms"])


@dataclass(frozen=True)
class Captured:
    """The keys of one moment, and what the rows of checkpoints among them say: version and manifest's hash, if any."""

    keys: Sequence[Key]
    checkpoints: dict[str, str]


def pattern(namespace: str) -> str:
    """Returns the pattern of the keys of a namespace; without one, of all."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", key_prefix(namespace)) + "*" if namespace else "aeenc:*"


async def capture(redis: Any, keys: str) -> Captured:
    """Reads all keys of a pattern at one moment; Redis answers nobody else while its script runs."""
    await _be_patient(redis)
    async with unavailable_if_down("read all keys"):
        now, *found = await redis.execute_command("EVAL", _CAPTURE, 0, keys, **{NEVER_DECODE: []})
    captured = [Key(name.decode(), dump, int(now) + left if left >= 0 else 0) for name, left, dump, _ in found if dump]
    checkpoints = {}
    for *_, row in found:
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):  # a damaged one stays as it is
            record = json.loads(row)
            checkpoints[record["version"]] = record.get("manifest_sha256", "")
    return Captured(captured, checkpoints)


async def count(redis: Redis, keys: str) -> int:
    """Counts the keys of a pattern."""
    async with unavailable_if_down("look for keys"):
        return len([key async for key in redis.scan_iter(keys, count=_BATCH)])


async def put(redis: Redis, keys: Iterable[Key], pattern_of_all: str) -> int:
    """Replaces all keys of a pattern by those given, in one transaction, and returns how many they are.

    Raises FailedPrecondition, and changes nothing, when this Redis does not understand what another release of it has
    written.
    """
    await _be_patient(redis)
    given = list(keys)
    async with unavailable_if_down("restore the keys"):
        before = [key async for key in redis.scan_iter(pattern_of_all, count=_BATCH)]
        pipe: Any = redis.pipeline(transaction=True)
        if given:
            await _probe(redis, given[0])
        for start in range(0, len(before), _BATCH):
            pipe.unlink(*before[start : start + _BATCH])
        for key in given:
            pipe.restore(key.name, key.expires_ms, key.dump, replace=True, absttl=bool(key.expires_ms))
        await pipe.execute()
    return len(given)


async def _be_patient(redis: Any) -> None:
    """Gives an answer more time than services do."""
    redis.get_connection_kwargs()["socket_timeout"] = SCRIPT_S  # of connections that are made from now on
    await redis.connection_pool.disconnect()


async def _probe(redis: Any, key: Key) -> None:
    try:
        await redis.restore(f"aeenc:{_PROBE}", 1000, key.dump, replace=True)
    except exceptions.ResponseError as error:
        if "payload" not in str(error) and "Bad data" not in str(error):
            raise
        has = (await redis.info("server"))["redis_version"]
        raise errors.FailedPrecondition(
            f"Redis {has} cannot read the keys of the backup ({error}); restore into the release of Redis that the "
            "backup was made from, or a later one"
        ) from error
    await redis.delete(f"aeenc:{_PROBE}")
