"""What "acknowledged" rests on: replicas that have a write before its answer, and the settings of the server.

    batch of commands ─ one of them may write ─▶ commands, WAIT ─▶ answers, number of replicas ─▶ NotReplicated if few
    (no replicas are asked for, or all commands only read: sent as they are)

One connection sends both, so that a batch costs one round trip. A command whose answer is lost is not sent again here:
the caller, who has a request id, knows whether it may be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from services.kit.logs import get

log = get(__name__)

# Commands that change nothing. Any other is taken for a write; scripts among them, whatever they do.
_READ_NAMES = """
AUTH CLIENT COMMAND CONFIG DISCARD ECHO EXEC EXISTS GET HELLO HEXISTS HGET HGETALL HKEYS HLEN HMGET HVALS INFO LLEN
LRANGE MEMORY MGET MULTI PING PTTL ROLE SCAN SCARD SCRIPT SELECT SISMEMBER SMEMBERS TIME TTL TYPE UNWATCH WATCH XLEN
XRANGE XREAD XREVRANGE ZCARD ZMSCORE ZRANGE ZRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZSCORE
"""
_READS = frozenset(_READ_NAMES.split())
_DURABLE = {"appendonly": "yes", "appendfsync": "always"}
_UNKNOWN = "nobody can say whether it was done"
_SETTLED: ContextVar[bool] = ContextVar("settled", default=False)


class NotReplicated(exceptions.RedisError):
    """Fewer replicas than asked for have a write. It stands on the master, and a fail-over may take it back."""


class Unanswered(exceptions.RedisError):
    """The connection ended between a write and its answer. It may have been carried out or not."""


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Lets reads wait for the replicas, too: for those that an acknowledgement rests on, such as of a retry."""
    token = _SETTLED.set(True)
    try:
        yield
    finally:
        _SETTLED.reset(token)


class AcknowledgedConnection(AbstractConnection):
    """What `acknowledging` mixes into a connection of any kind."""

    replicas = 0
    wait_ms = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        self._names: list[Any] = []  # the commands that are sent next
        self._due = 0  # answers to come of a batch that writes or waits
        self._writes = self._waits = False
        super().__init__(*args, **options)

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """Packs a batch."""
        batch = [tuple(command) for command in commands]
        self._names = [command[0] for command in batch]
        return super().pack_commands(batch)

    async def send_command(self, *args: Any, **options: Any) -> None:
        """Sends a batch of one command."""
        packed = self.pack_command(*args)
        self._names = [args[0]]
        await self.send_packed_command(packed, check_health=options.get("check_health", True))

    async def on_connect_check_health(self, *args: Any, **options: Any) -> None:
        """Greets the server: several commands before the answers are read, so WAIT after none of them."""
        token = _SETTLED.set(False)
        try:
            await super().on_connect_check_health(*args, **options)
        finally:
            _SETTLED.reset(token)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Sends a batch, and WAIT after one that may write. Raises Unanswered when it breaks off."""
        names, self._names = self._names, []
        if not self.is_connected:  # asks Sentinel for the master, as the original does not
            await self.connect()  # type: ignore[no-untyped-call]
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        writes = any(str(name).split(maxsplit=1)[0].upper() not in _READS for name in names)
        waits = bool(self.replicas and names and (writes or _SETTLED.get()))
        if waits:
            packed = [command] if isinstance(command, bytes) else list(command)
            command = [*packed, *self.pack_command("WAIT", self.replicas, self.wait_ms)]
        try:
            await super().send_packed_command(command, check_health=False)
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            if writes:
                raise Unanswered(f"{error}; {_UNKNOWN}") from error
            raise
        self._due = len(names) if writes or waits else 0
        self._writes, self._waits = writes, waits

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Reads an answer; with the last one of a batch, the number of replicas that have it.

        Raises NotReplicated, Unanswered, and ConnectionError where a master has become a replica.
        """
        is_last, writes, waits = self._due == 1, self._writes and self._due > 0, self._waits
        self._due = max(self._due - 1, 0)
        try:
            answer = await super().read_response(*args, **options)
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            if writes and not _says_read_only(error.__context__):
                raise Unanswered(f"{error}; {_UNKNOWN}") from error
            raise
        except exceptions.ResponseError as error:
            if _says_read_only(error):
                await self.disconnect()  # so that the next connection is one to the new master
                raise exceptions.ConnectionError("the server is a replica now") from error
            if is_last and waits:
                await self._replicas_reached()
            raise
        if is_last and waits and (reached := await self._replicas_reached()) < self.replicas:
            raise NotReplicated(f"{reached} of {self.replicas} replicas had it after {self.wait_ms / 1000:g} s")
        return answer

    async def _replicas_reached(self) -> int:
        try:
            return int(await super().read_response())
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise Unanswered(f"{error}; {_UNKNOWN}") from error

    async def disconnect(self, *args: Any, **options: Any) -> None:
        """Disconnects; no answer is due any more."""
        self._due, self._writes, self._waits = 0, False, False
        await super().disconnect(*args, **options)


def acknowledging(connection: type[AbstractConnection], replicas: int, wait_s: float) -> type[AbstractConnection]:
    """Makes a class of connections whose writes are answered once `replicas` have them, or fail after `wait_s`."""
    own = {"replicas": replicas, "wait_ms": round(wait_s * 1000)}
    return type(connection.__name__, (AcknowledgedConnection, connection), own)


def _says_read_only(error: BaseException | None) -> bool:
    is_answer = isinstance(error, exceptions.ResponseError)
    return isinstance(error, exceptions.ReadOnlyError) or (is_answer and "-READONLY " in str(error))


@dataclass(frozen=True)
class Assurance:
    """What a server tells: each doubt with its remedy, and why it keeps the rest to itself ("": it does not)."""

    doubts: tuple[tuple[str, str], ...]
    untold: str = ""


async def assess(redis: Redis) -> Assurance:
    """Looks at the settings that "acknowledged" rests on. Raises RedisError.

    A managed server or an ACL user may not have CONFIG; then INFO and ROLE tell a part.
    """
    told, untold = await _settings(redis)
    found = []
    appending = {name: told[name] for name in ("appendonly", "appendfsync") if name in told}
    if any(value != _DURABLE[name] for name, value in appending.items()):
        said = ", ".join(f"{name} {value}" for name, value in appending.items())
        found.append((f"redis may lose acknowledged writes in a crash: {said}", "appendonly yes, appendfsync always"))
    policy = told.get("maxmemory-policy", "noeviction")
    if told.get("maxmemory", "0") != "0" and policy != "noeviction":
        found.append((f"redis may drop records when its memory is full: {policy}", "maxmemory-policy noeviction"))
    wanted = getattr(redis.connection_pool.connection_class, "replicas", 0)
    with contextlib.suppress(exceptions.ResponseError):  # no right to ROLE
        found += _doubts_of_role(await redis.role(), wanted, int(told.get("min-replicas-to-write", wanted)))
    return Assurance(tuple(found), untold)


async def _settings(redis: Redis) -> tuple[dict[str, str], str]:
    try:
        told: dict[str, str] = {}
        for pattern in ("append*", "maxmemory*", "min-replicas-to-write"):
            told |= {str(name): str(value) for name, value in (await redis.config_get(pattern)).items()}
        return told, ""
    except exceptions.ResponseError as refused:
        try:
            info: dict[str, Any] = await redis.info()
        except exceptions.ResponseError:
            info = {}
        told = {"appendonly": "yes" if info["aof_enabled"] else "no"} if "aof_enabled" in info else {}
        return told | {
            name: str(info[field])
            for name, field in (("maxmemory", "maxmemory"), ("maxmemory-policy", "maxmemory_policy"))
            if field in info
        }, f"redis does not tell appendfsync{'' if told else ' and the rest'}: {refused}"


def _doubts_of_role(role: Any, wanted: int, least: int) -> Iterator[tuple[str, str]]:
    if role[0] != "master":
        yield f"redis is a {role[0]}, which takes no writes", "give the master's address, or Sentinel's"
        return
    count = len(role[2])
    if count and not wanted:
        about = f"redis has {count} replica(s), and a fail-over may lose what they do not have yet"
        yield about, "set REDIS_REPLICAS=1, and a write is acknowledged once one has it"
    elif count < wanted:
        yield (
            f"redis has {count} of {wanted} replica(s), and writes wait for them",
            "start them, or lower REDIS_REPLICAS",
        )
    if least < wanted:
        about = f"redis goes on writing when cut off from its replicas: min-replicas-to-write {least}"
        yield about, f"min-replicas-to-write {wanted}, min-replicas-max-lag 10"


async def warn_unless_durable(redis: Redis) -> None:
    """Logs what `assess` doubts, and once what the server does not tell."""
    try:
        found = await assess(redis)
    except exceptions.RedisError as error:
        log.warning("the settings of redis could not be checked", reason=str(error))
        return
    for doubt, remedy in found.doubts:
        log.warning(doubt, remedy=remedy)
    if found.untold:
        log.info(found.untold, remedy="ask who runs it; see docs/operations.md")
