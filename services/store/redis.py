"""Connections to Redis: key prefix, outages, scripts, leases. Encoding and searching never need it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import hiredis
from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from aeenc import errors
from services.kit.concurrency import cancel_all, finish
from services.kit.credentials.watched_files import read_secret
from services.kit.logs import get
from services.store.durability import AcknowledgedRedis, NotReplicated

log = get(__name__)
T = TypeVar("T")
A = TypeVar("A")

SENTINEL_PORT = 26379
RENEWALS = 3  # of a lease, in the time that it lasts
TURN_POLL_S = 0.2
TURN_RETRY_S = 1.0
SOCKET_TIMEOUT_S = 5.0
MAX_BLOCK_S = 3.0  # a blocking command must end before the socket gives up
_TIMES: dict[str, Any] = {
    "retry": Retry(NoBackoff(), 0),  # `AcknowledgedRedis` knows what may be sent again
    "socket_connect_timeout": 2.0,
    "socket_timeout": SOCKET_TIMEOUT_S,
    "health_check_interval": 15,
}
# Answers of a server that cannot serve now, also from within a script, beside those that have a class of their own.
# Any other is a bug of ours.
_OUTAGE = re.compile(r"(^|[\s-])(BUSY|CLUSTERDOWN|MASTERDOWN|MISCONF|NOPERM|NOREPLICAS|OOM|READONLY|UNBLOCKED) ")

# KEYS: lease, record of the work if any.  ARGV: owner, milliseconds, 1 if the owner has had it before
# A missing lease is free: Redis may have lost it in an outage. But once another has worked, a former holder cannot take
# it back: it knows the work as it was.
_TAKE_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
local worker = not holder and KEYS[2] and ARGV[3] == '1' and redis.call('HGET', KEYS[2], 'worker')
if worker and worker ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

# KEYS: lease.  ARGV: owner
_RELEASE_LEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class _PasswordFile(CredentialProvider):
    """A user and the password in a file, read for each connection, so that it may be changed."""

    def __init__(self, user: str, path: Path) -> None:
        self._user, self._path = user, path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = read_secret(self._path)
        except ValueError as error:
            raise exceptions.AuthenticationError(f"the password's file {error}") from error
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()  # a file of one line


class _Sending:
    """Packs commands by the library that reads the answers: in Python it takes a twentieth of a sampler's time.

    A cancellation always arrives. The library writes within `asyncio.wait_for`, which in Python 3.11 swallows one that
    comes as the write ends.
    """

    def pack_command(self, *args: Any) -> list[bytes]:
        return [hiredis.pack_command((*args[0].encode().split(), *args[1:]))]  # MEMORY USAGE are two words

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        before = task.cancelling()
        await super().send_packed_command(command, check_health)  # type: ignore[misc]
        if task.cancelling() > before:
            await self.disconnect(nowait=True)  # nobody reads the answer
            raise asyncio.CancelledError


class _SentinelPool(SentinelConnectionPool):
    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def connect(
    url: str,
    *,
    password: str | None = None,
    password_file: Path | None = None,
    sentinel_password: str | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    replicas: int = 0,
    replicas_s: float = 2.0,
) -> AcknowledgedRedis:
    """Returns a client, not yet connected; its answers are `str`. Raises InvalidArgument for a wrong URL.

    `redis[s]://[user@]host:port/0`, `unix://[user@]/path`, or `redis[s]+sentinel://[user@]host:port,…/master/0`; with
    an s by TLS, to Sentinels, too. Writes are answered once `replicas` have them, or fail after `replicas_s`.
    """
    scheme, _, rest = url.partition("://")
    sentinels, where = ([], url) if not scheme.endswith("+sentinel") else _sentinels(url, scheme, rest)
    try:
        options: dict[str, Any] = {**parse_url(where), **_TIMES, "decode_responses": True}
    except ValueError as error:
        raise errors.InvalidArgument(f"the Redis URL {address(url)!r} is none: {error}") from None
    if password_file is not None:
        options.pop("password", None)
        options["credential_provider"] = _PasswordFile(options.pop("username", ""), password_file)
    elif password is not None:
        options["password"] = password
    kind: Any = options.pop("connection_class", Connection)
    is_tls = issubclass(kind, SSLConnection)
    tls = {"ssl_ca_certs": ca, "ssl_certfile": cert, "ssl_keyfile": key} if is_tls else {}
    options |= {name: str(path) for name, path in tls.items() if path is not None}
    client: Any  # redis-py calls it a Redis
    if not sentinels:
        client = AcknowledgedRedis.from_pool(ConnectionPool(connection_class=_sending(kind), **options))
    else:
        own = {name: value for name, value in options.items() if name.startswith("ssl_")}
        at_once = {"socket_timeout": 1.0, "socket_connect_timeout": 0.5, "retry": Retry(NoBackoff(), 0)}
        guard = {**own, **at_once, "ssl": is_tls, "password": sentinel_password}
        options["connection_class"] = _sending(SentinelManagedSSLConnection if is_tls else SentinelManagedConnection)
        for name in ("host", "port"):
            options.pop(name, None)
        client = Sentinel(sentinels, sentinel_kwargs=guard).master_for(  # type: ignore[no-untyped-call]
            urlsplit(url).path.split("/")[1], AcknowledgedRedis, _SentinelPool, **options
        )
    acknowledged: AcknowledgedRedis = client
    try:
        acknowledged.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except TypeError as error:
        raise errors.InvalidArgument(
            f"the Redis URL {address(url)!r} has an option that is none ({error}); leave it out"
        ) from None
    acknowledged.replicas, acknowledged.wait_ms = replicas, round(replicas_s * 1000)
    return acknowledged


def _sending(kind: type) -> Any:
    return type(kind.__name__, (_Sending, kind), {})


def _sentinels(url: str, scheme: str, rest: str) -> tuple[list[tuple[str, int]], str]:
    """Returns the addresses of the Sentinels, and the URL of a server with all else that the URL says."""
    place, _, query = rest.partition("?")
    hosts, _, path = place.partition("/")
    user, at, hosts = hosts.rpartition("@")
    master, _, db = path.partition("/")
    try:
        parts = [urlsplit(f"//{one}") for one in hosts.split(",")]
        found = [(part.hostname or "", part.port or SENTINEL_PORT) for part in parts]
    except ValueError:
        found = []
    if not master or not found or not all(host for host, _ in found):
        form = f"{scheme}://host:port,host:port/master-name/0"
        raise errors.InvalidArgument(f"the Redis URL {address(url)!r} names no Sentinel or no master; write {form}")
    return found, f"{scheme.partition('+')[0]}://{user}{at}sentinel/{db}?{query}"


def address(url: str) -> str:
    """Returns a Redis URL without user, password and options, for people to read."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"


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
        raise errors.Unavailable(f"cannot {doing}: Redis says {_said(error)}; {_remedy(error)}") from error


async def once_redis_answers(call: Callable[[], Awaitable[A]], pause_s: float) -> A:
    """Repeats a call until Redis answers it, however long that takes."""
    while True:
        try:
            return await call()
        except errors.Unavailable as error:
            log.warning("this process waits for redis", reason=error.message)
            await asyncio.sleep(pause_s)


def raising_unavailable(noun: str) -> Callable[[type[T]], type[T]]:
    """Lets every coroutine of a class turn outages of Redis into Unavailable: "cannot reach the runs: …"."""

    def named(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        @wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with unavailable_if_down(f"reach the {noun}"):
                return await method(*args, **kwargs)

        return call

    def each(store: type[T]) -> type[T]:
        for name, method in list(vars(store).items()):
            if iscoroutinefunction(method):
                setattr(store, name, named(method))
        return store

    return each


def _remedy(error: exceptions.RedisError) -> str:
    said = _said(error)
    if isinstance(error, NotReplicated):
        return "start a replica, then repeat the call with its request id"
    if isinstance(error, MasterNotFoundError):
        return "Sentinel knows no master now; repeat the call when it has chosen one"
    if isinstance(error, exceptions.AuthenticationError) or "username-password" in said:
        return "check the user and REDIS_PASSWORD or REDIS_PASSWORD_FILE"
    if isinstance(error, exceptions.NoPermissionError):
        return "give the user the rights that docs/operations.md names"
    if "DB index" in said:
        return "correct the number at the end of REDIS_URL"
    if "maxmemory" in said:
        return "give it more memory (maxmemory), or delete runs and jobs that are over, then repeat the call"
    return "is it running and its disk not full?"


def _is_outage(error: exceptions.ResponseError) -> bool:
    has_class = type(error) is not exceptions.ResponseError
    return has_class or _OUTAGE.search(_said(error)) is not None or "DB index" in _said(error)


def _said(error: exceptions.RedisError) -> str:
    """Returns what Redis says, without the command: a pipeline puts that, with our texts, before it."""
    return str(error).rpartition("caused error: ")[2]


async def run_script(redis: Any, text: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
    """Runs a Lua script by a client, or as a part of a pipeline. Returns what it returns.

    It is sent as a text, not by its hash: a server that has just taken over may not know it.
    """
    return await redis.eval(text, len(keys), *keys, *args)


class WorkLease:
    """Says who works on something, until they give it back or fall silent: held from the first successful `renew` on.

    The `record` of the work, if any, names its last `worker`: a lease that has lapsed is lost once another has worked.
    """

    def __init__(self, redis: Redis, key: str, owner: str, lease_s: float, record: str = "") -> None:
        self._redis, self._keys, self._lease_s = redis, [key, *filter(None, [record])], lease_s
        self.owner = owner
        self._sure_until, self._held = 0.0, False

    @property
    def sure(self) -> bool:
        """Whether no other process can hold it yet, by this machine's clock."""
        return time.monotonic() < self._sure_until

    async def renew(self) -> bool:
        """Takes or renews the lease. False when another owner holds it, or has worked since it lapsed.

        Raises Unavailable without Redis.
        """
        asked_at = time.monotonic()  # Redis starts its clock after this moment, so the lease outlives our estimate
        try:
            async with unavailable_if_down("reach the leases"):
                arguments = [self.owner, int(self._lease_s * 1000), int(self._held)]
                held = bool(await run_script(self._redis, _TAKE_LEASE, self._keys, arguments))
        except asyncio.CancelledError:
            if not self.sure:  # Redis may have taken it; who holds it ends the work first
                await finish(self.release())
            raise
        self._sure_until = asked_at + self._lease_s if held else 0.0
        self._held = self._held or held
        return held

    async def release(self) -> None:
        """Gives the lease back, unless another owner holds it; without Redis it lapses."""
        self._sure_until, self._held = 0.0, False
        with contextlib.suppress(errors.Unavailable):
            async with unavailable_if_down("reach the leases"):
                await run_script(self._redis, _RELEASE_LEASE, self._keys[:1], [self.owner])

    async def during(self, work: Coroutine[Any, Any, None], is_over: Callable[[], Awaitable[str]]) -> str:
        """Does work while the lease holds, and gives the lease back. Raises what the work raises.

        Returns why the work was stopped: another process has the lease, or what `is_over` said; empty if it has ended.
        """
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=self._lease_s / RENEWALS)
                with contextlib.suppress(errors.Unavailable):  # without Redis nobody else takes it either
                    if not task.done() and not await self.renew():
                        return "another process has taken it over"
                    if not task.done() and (why := await is_over()):
                        return why
            task.result()
            return ""
        finally:
            await finish(self.end(task))

    async def end(self, task: asyncio.Task[None]) -> None:
        """Cancels what needs the lease, and gives it back."""
        await cancel_all([task])
        await self.release()


@contextlib.asynccontextmanager
async def turn(redis: Redis, key: str, lease_s: float, busy: str = "") -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Keeps out of the block whoever asks for the same key; gives what tells whether the turn is still held.

    Waits for the turn or, with a reason `busy`, raises Unavailable at once. One that was silent for `lease_s` has
    lost it.
    """
    lease = WorkLease(redis, key, uuid.uuid4().hex, lease_s)
    while not await lease.renew():
        if busy:
            raise errors.Unavailable(f"{busy}; try again in a moment", retry_after_s=TURN_RETRY_S)
        await asyncio.sleep(TURN_POLL_S)
    renewing = asyncio.create_task(_keep(lease.renew, key, lease_s))
    try:
        yield lease.renew
    finally:
        await finish(lease.end(renewing))


async def _keep(renew: Callable[[], Awaitable[bool]], key: str, lease_s: float) -> None:
    while True:
        await asyncio.sleep(lease_s / RENEWALS)
        with contextlib.suppress(errors.Unavailable):  # without Redis nobody else takes it either
            if not await renew():
                log.warning("a turn was lost; this process was silent for too long", key=key)
                return
