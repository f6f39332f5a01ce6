"""Errors of Redis: UNAVAILABLE while it cannot serve; bugs of ours stay as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from aeenc import errors
from services.store.redis import Leases, Script, WorkLease, connect, key_prefix, unavailable_if_down


@pytest.mark.parametrize(
    "script", ["return redis.call('NOSUCH')", "return nil + 1", "return redis.call('LPUSH', KEYS[1], 1)"]
)
@pytest.mark.parametrize("piped", [False, True])
async def test_an_error_in_a_script_is_a_bug_and_no_outage(redis_url: str, namespace: str, script: str, piped: bool):
    redis, key = connect(redis_url), f"{key_prefix(namespace)}list"
    await redis.set(key, "OOM MISCONF ")
    broken = Script(redis, script)

    async def count() -> None:
        async with unavailable_if_down("count"):
            pipe = redis.pipeline(transaction=False)
            await broken(keys=[key], args=["- OOM MISCONF no outage"], client=pipe if piped else None)
            await pipe.execute()

    with pytest.raises(ResponseError):
        await count()
    await redis.delete(key)
    await redis.aclose()


async def test_a_full_memory_and_a_script_that_runs_into_it_are_an_outage(redis_admin_url: str, namespace: str):
    redis = connect(redis_admin_url)
    script = Script(redis, "return redis.call('SET', KEYS[1], ARGV[1])")
    await redis.config_set("maxmemory", "1")
    try:
        for call in (lambda: redis.set(namespace, "x"), lambda: script(keys=[namespace], args=["x"])):
            with pytest.raises(errors.Unavailable, match=r"cannot count: .*maxmemory.*; give it more memory"):
                async with unavailable_if_down("count"):
                    await call()
    finally:
        await redis.config_set("maxmemory", "0")
        await redis.aclose()


@pytest.mark.parametrize(
    "error",
    [
        ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
        ResponseError("Error running script (call to f_0): @user_script:3: -MISCONF Errors writing to the AOF file"),
        ResponseError("Command # 1 (SET a b) of pipeline caused error: BUSY Redis is busy running a script."),
        ReadOnlyError("You can't write against a read only replica."),
        NoScriptError("No matching script. Please use EVAL."),
    ],
)
async def test_what_cannot_be_served_now_is_an_outage(error: ResponseError):
    with pytest.raises(errors.Unavailable):
        async with unavailable_if_down("count"):
            raise error


@pytest.mark.parametrize(
    "said", ["WRONGTYPE Operation against a key", "Command # 1 (SET - OOM b) of pipeline caused error: syntax error"]
)
async def test_what_is_wrong_with_a_command_is_a_bug(said: str):
    with pytest.raises(ResponseError):
        async with unavailable_if_down("count"):
            raise ResponseError(said)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    await client.ping()
    yield client
    await client.aclose()


async def _cancel_at_a_write(asking: asyncio.Task[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancels a task whenever it has just sent a command, and waits for its end."""
    written = AbstractConnection._send_packed_command

    async def write_and_cancel(self: AbstractConnection, command: Any) -> None:
        await written(self, command)
        asking.cancel()

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "_send_packed_command", write_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_cancellation_that_comes_as_a_write_ends_arrives(client: Redis, monkeypatch: pytest.MonkeyPatch):
    """Python 3.11 would swallow it, and whoever waits in a loop of commands would wait to its end."""

    async def ask() -> Any:
        return await client.echo("nobody reads this")

    await _cancel_at_a_write(asyncio.create_task(ask()), monkeypatch)
    assert await client.echo("an answer of its own") == "an answer of its own"


@pytest.mark.parametrize(("in_turn", "is_held"), [(True, False), (False, False), (False, True)])
async def test_what_redis_takes_for_one_who_is_cancelled_meanwhile_is_free_unless_they_held_it(
    client: Redis, namespace: str, monkeypatch: pytest.MonkeyPatch, in_turn: bool, is_held: bool
):
    leases, key = Leases(client), f"{key_prefix(namespace)}turn"
    lease = WorkLease(leases, key, "me", 60.0)
    assert await lease.renew(), "the server knows the script"
    if not is_held:
        await lease.release()

    async def take() -> None:
        async with leases.turn(key, 60.0) if in_turn else nullcontext():
            await lease.renew()

    await _cancel_at_a_write(asyncio.create_task(take()), monkeypatch)
    assert await client.get(key) == ("me" if is_held else None)
