"""The connection to Redis, the prefix of its keys, its outages, and leases. Encoding and searching never need it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from aeenc import errors
from services.kit.logs import get

log = get(__name__)

SOCKET_TIMEOUT_S = 5.0
MAX_BLOCK_S = 3.0  # a blocking command must end before the socket gives up
# Answers of a server that cannot serve now, also from within a script. Any other error is a bug of ours.
_OUTAGE = re.compile(r"(^|[\s-])(BUSY|CLUSTERDOWN|MASTERDOWN|MISCONF|NOPERM|NOREPLICAS|OOM|READONLY|UNBLOCKED) ")
_OUTAGES = (  # the client cuts the word off these
    exceptions.AskError,
    exceptions.ClusterError,
    exceptions.ExecAbortError,
    exceptions.NoPermissionError,
    exceptions.NoScriptError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)

# KEYS: lease.  ARGV: owner, milliseconds.  A missing lease is free: Redis may have lost it in an outage.
_TAKE_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

# KEYS: lease.  ARGV: owner
_RELEASE_LEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def connect(url: str) -> Redis:
    """Returns a client for `redis://host:port/0` or `unix:///path`, not yet connected. Answers are `str`."""
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=3)
    return Redis.from_url(
        url,
        decode_responses=True,
        retry=retry,
        retry_on_error=[exceptions.ConnectionError, exceptions.TimeoutError],
        socket_connect_timeout=2.0,
        socket_timeout=SOCKET_TIMEOUT_S,
        health_check_interval=15,
    )


def key_prefix(namespace: str) -> str:
    """Returns the prefix of all keys of one deployment; the number is the version of the format."""
    return f"aeenc:{namespace}:1:"


@contextlib.asynccontextmanager
async def unavailable_if_down(doing: str) -> AsyncIterator[None]:
    """Turns outages of Redis into Unavailable: "cannot store the run: …; is it running?".

    Any other error of a command or script is a bug and passes unchanged.
    """
    try:
        yield
    except exceptions.RedisError as error:
        if isinstance(error, exceptions.ResponseError) and not _is_outage(error):
            raise
        raise errors.Unavailable(f"cannot {doing}: Redis says {error}; is it running and its disk not full?") from error


def _is_outage(error: exceptions.ResponseError) -> bool:
    said = str(error).rpartition("caused error: ")[2]  # a pipeline puts the command, with our texts, before it
    return isinstance(error, _OUTAGES) or _OUTAGE.search(said) is not None


async def warn_unless_durable(redis: Redis) -> None:
    """Logs a warning when the server may lose acknowledged writes."""
    with contextlib.suppress(exceptions.RedisError):  # managed services forbid CONFIG; see their contract
        for doubt, remedy in await doubts(redis):
            log.warning(doubt, remedy=remedy)


async def doubts(redis: Redis) -> list[tuple[str, str]]:
    """Returns why the server may lose acknowledged writes, each with its remedy. Raises RedisError."""
    config = {**await redis.config_get("append*"), **await redis.config_get("maxmemory*")}
    found = []
    appending = {name: config.get(name) for name in ("appendonly", "appendfsync")}
    if appending != {"appendonly": "yes", "appendfsync": "always"}:
        said = ", ".join(f"{name} {value}" for name, value in appending.items())
        found.append((f"redis may lose acknowledged writes in a crash: {said}", "appendonly yes, appendfsync always"))
    policy = config.get("maxmemory-policy")
    if config.get("maxmemory") != "0" and policy != "noeviction":
        found.append((f"redis may drop records when its memory is full: {policy}", "maxmemory-policy noeviction"))
    return found


class Leases:
    """Leases: who works on something, until they give it back or fall silent. Raises Unavailable when Redis is down."""

    def __init__(self, redis: Redis) -> None:
        self._take: Any = redis.register_script(_TAKE_LEASE)
        self._release: Any = redis.register_script(_RELEASE_LEASE)

    async def take(self, key: str, owner: str, lease_s: float) -> bool:
        """Takes or renews a lease. False when another owner holds it."""
        async with unavailable_if_down(f"take the lease {key}"):
            return bool(await self._take(keys=[key], args=[owner, int(lease_s * 1000)]))

    async def release(self, key: str, owner: str) -> None:
        """Gives a lease back; nothing happens when another owner holds it."""
        async with unavailable_if_down(f"release the lease {key}"):
            await self._release(keys=[key], args=[owner])
