"""The connection to Redis and the names of its keys. Nothing on the encode and search path comes here."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AskError,
    ClusterError,
    ExecAbortError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aeenc import errors
from services.kit.logs import get

log = get(__name__)

SOCKET_TIMEOUT_S = 5.0
MAX_BLOCK_S = 3.0  # a command may not block the server for as long as the socket waits
# What a server answers that cannot serve now, also from within a script. Any other error it answers is a bug of ours.
_OUTAGE = re.compile(r"(^|[\s-])(BUSY|CLUSTERDOWN|MASTERDOWN|MISCONF|NOPERM|NOREPLICAS|OOM|READONLY|UNBLOCKED) ")
_OUTAGES = (  # of these the client has cut the word off
    AskError,
    ClusterError,
    ExecAbortError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)


def connect(url: str) -> Redis:
    """A client for `redis://host:port/0` or `unix:///path`. Connects at the first command; answers are `str`."""
    retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=3)
    return Redis.from_url(
        url,
        decode_responses=True,
        retry=retry,
        retry_on_error=[RedisConnectionError, RedisTimeoutError],
        socket_connect_timeout=2.0,
        socket_timeout=SOCKET_TIMEOUT_S,
        health_check_interval=15,
    )


def key_prefix(namespace: str) -> str:
    """The start of all keys of one deployment; the number is the format's version."""
    return f"aeenc:{namespace}:1:"


@contextlib.asynccontextmanager
async def unavailable_if_down(doing: str) -> AsyncIterator[None]:
    """Turns outages of Redis into Unavailable: "cannot store the run: …; is it running?".

    An error of a command or script itself is no outage but a bug, and is raised as it is.
    """
    try:
        yield
    except RedisError as error:
        if isinstance(error, ResponseError) and not _is_outage(error):
            raise
        raise errors.Unavailable(f"cannot {doing}: Redis says {error}; is it running and its disk not full?") from error


def _is_outage(error: ResponseError) -> bool:
    said = str(error).rpartition("caused error: ")[2]  # a pipeline puts the command before it, with our own texts
    return isinstance(error, _OUTAGES) or _OUTAGE.search(said) is not None


async def warn_unless_durable(redis: Redis) -> None:
    """Logs a warning when the server would lose acknowledged writes at a crash."""
    try:
        config = await redis.config_get("append*")
    except RedisError:  # managed services forbid CONFIG; what they promise stands in their contract
        return
    if config.get("appendonly") != "yes" or config.get("appendfsync") != "always":
        log.warning("redis may lose acknowledged writes", remedy="appendonly yes, appendfsync always", found=config)
