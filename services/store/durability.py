"""What "acknowledged" rests on: replicas that have a write before its answer, and the settings of the server.

    command or pipeline ─ one of its commands may write ─▶ commands, FENCE, WAIT ─▶ answers, or NotReplicated
    (no replicas are asked for, or all commands only read: sent as they are)

A command whose answer is lost is not sent again here unless it only reads: the caller, who has a request id, knows
whether it may be repeated.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from services.kit.logs import get

log = get(__name__)

# Commands that change nothing. Any other is taken for a write; scripts among them, whatever they do.
_READ_NAMES = """
AUTH CLIENT COMMAND CONFIG DISCARD ECHO EXEC EXISTS GET HELLO HEXISTS HGET HGETALL HKEYS HLEN HMGET HVALS INFO LLEN
LRANGE MEMORY MGET MULTI PING PTTL ROLE SCAN SCARD SELECT SISMEMBER SMEMBERS TIME TTL TYPE UNWATCH WATCH XLEN
XRANGE XREAD XREVRANGE ZCARD ZMSCORE ZRANGE ZRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZSCORE
"""
_READS = frozenset(_READ_NAMES.split())
_PATIENCE = Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=3)  # with reads
# WAIT waits for what its own connection has written: this, where a script wrote nothing or another connection did.
_FENCE = ("SET", "aeenc:fence", "", "PX", 1)
MARK_MS = 60_000  # far longer than a transaction's WAIT
_DURABLE = {"appendonly": "yes", "appendfsync": "always"}


class NotReplicated(exceptions.RedisError):
    """Fewer replicas than asked for have a write. It stands on the master, and a fail-over may take it back."""


class Unanswered(exceptions.RedisError):
    """The connection ended between a write and its answer. It may have been carried out or not."""


class AcknowledgedRedis(Redis):
    """A client whose writes are answered once `replicas` have them, or fail after `wait_ms`: NotReplicated.

    Its connections send nothing again. Raises Unanswered for a write whose answer is lost, and ConnectionError where
    the master has become a replica.
    """

    replicas = 0
    wait_ms = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Carries a command out, and again when it only reads and the connection breaks."""
        is_read = _reads(args)

        async def ask() -> Any:
            if is_read or not self.replicas:
                return await super(AcknowledgedRedis, self).execute_command(*args, **options)  # type: ignore[no-untyped-call]
            return (await self.pipeline(transaction=False).execute_command(*args, **options).execute())[0]

        await self.connection_pool.release(await self.connected())
        return await _PATIENCE.call_with_retry(lambda: self.asked(ask, is_read=is_read), _let_go)

    async def connected(self) -> Any:
        """Returns an open connection. A command that finds none was never sent, so it has changed nothing."""
        return await _PATIENCE.call_with_retry(self.connection_pool.get_connection, _let_go)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None, *, settles: bool = False) -> Any:
        """Returns a pipeline whose writes are answered in the same way.

        With `settles` so are reads that an acknowledgement rests on, such as of a retry: a master that was replaced and
        does not know it yet has what no replica has.
        """
        return _AcknowledgedPipeline(self, transaction, shard_hint, settles=settles)

    async def asked(self, ask: Callable[[], Awaitable[Any]], *, is_read: bool) -> Any:
        """Asks once, and tells an answer that was lost from a write that was refused."""
        try:
            return await ask()
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            if is_read or _says_read_only(error) or _says_read_only(error.__context__):
                raise
            raise Unanswered(f"{error}; nobody can say whether it was done") from error
        except exceptions.ResponseError as error:
            if not _says_read_only(error):
                raise
            await self.connection_pool.disconnect(inuse_connections=False)  # the next is one to the new master
            raise exceptions.ConnectionError("the server is a replica now") from error


class _AcknowledgedPipeline(Pipeline):
    def __init__(
        self, client: AcknowledgedRedis, transaction: bool, shard_hint: str | None, *, settles: bool = False
    ) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client, self._settles = client, settles

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Carries the commands out and waits for the replicas: after a transaction, since within one nobody waits.

        Another connection waits then, perhaps to another master: so it looks for a mark of the transaction first.
        """
        client, is_read = self._client, all(_reads(args) for args, _ in self.command_stack)
        fenced = bool(client.replicas and self.command_stack) and (self._settles or not is_read)
        is_atomic = self.is_transaction or self.explicit_transaction
        mark = f"{_FENCE[1]}:{uuid.uuid4().hex}" if fenced and is_atomic else ""
        if mark:
            self.execute_command("SET", mark, "", "PX", MARK_MS)
        elif fenced:
            self.execute_command(*_FENCE)
            self.execute_command("WAIT", client.replicas, client.wait_ms)
        if self.command_stack and not self.connection:
            self.connection = await client.connected()
        ask = partial(super().execute, raise_on_error)
        answers: list[Any] = await client.asked(ask, is_read=is_read)
        if mark:
            answers.pop()
            waiting = client.pipeline(transaction=False, settles=True)
            waiting.execute_command("EXISTS", mark)
            if not (await waiting.execute())[0]:
                raise NotReplicated("another server has become the master, perhaps without it")
        elif fenced:
            *answers, _, reached = answers
            if reached < client.replicas:
                raise NotReplicated(f"{reached} of {client.replicas} replicas had it after {client.wait_ms / 1000:g} s")
        return answers


async def _let_go(_error: Exception) -> None:
    """Does nothing before a second attempt: it gets another connection."""


def _reads(command: tuple[Any, ...]) -> bool:
    return str(command[0]).split(maxsplit=1)[0].upper() in _READS


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
    wanted = getattr(redis, "replicas", 0)
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
