"""Errors of Redis: UNAVAILABLE while it cannot serve, as on a full disk; bugs of ours stay as they are."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from aeenc import errors
from services.launcher.private_redis import start_private_redis
from services.store.redis import WorkLease, connect, key_prefix, run_script, turn, unavailable_if_down
from services.store.registry import CheckpointRow, Registry


@pytest.mark.parametrize(
    "script", ["return redis.call('NOSUCH')", "return nil + 1", "return redis.call('LPUSH', KEYS[1], 1)"]
)
@pytest.mark.parametrize("piped", [False, True])
async def test_an_error_in_a_script_is_a_bug_and_no_outage(redis_url: str, namespace: str, script: str, piped: bool):
    redis, key = connect(redis_url), f"{key_prefix(namespace)}list"
    await redis.set(key, "OOM MISCONF ")

    async def count() -> None:
        async with unavailable_if_down("count"):
            pipe = redis.pipeline(transaction=False)
            await run_script(pipe if piped else redis, script, [key], ["- OOM MISCONF no outage"])
            await pipe.execute()

    with pytest.raises(ResponseError):
        await count()
    await redis.delete(key)
    await redis.aclose()


async def test_a_full_memory_and_a_script_that_runs_into_it_are_an_outage(redis_admin_url: str, namespace: str):
    redis = connect(redis_admin_url)
    script = "return redis.call('SET', KEYS[1], ARGV[1])"
    pipe = redis.pipeline(transaction=False)
    pipe.set("key", "redis.call says DB index")
    await redis.config_set("maxmemory", "1")
    try:
        for call in (
            lambda: redis.set(namespace, "x"),
            lambda: run_script(redis, script, [namespace], ["x"]),
            pipe.execute,
        ):
            with pytest.raises(errors.Unavailable, match=r"cannot count: .*maxmemory.*; give it more memory") as caught:
                async with unavailable_if_down("count"):
                    await call()
            assert "redis.call" not in caught.value.message, "what was sent has texts of people"
    finally:
        await redis.config_set("maxmemory", "0")
        await redis.aclose()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), errors.Unavailable),
        (ResponseError("Error running script (call to f_0): @user_script:3: -MISCONF Errors"), errors.Unavailable),
        (ResponseError("Command # 1 (SET a b) of pipeline caused error: BUSY Redis is busy."), errors.Unavailable),
        (ReadOnlyError("You can't write against a read only replica."), errors.Unavailable),
        (NoScriptError("No matching script. Please use EVAL."), errors.Unavailable),
        (ResponseError("WRONGTYPE Operation against a key"), ResponseError),
        (ResponseError("Command # 1 (SET - OOM b) of pipeline caused error: syntax error"), ResponseError),
    ],
)
async def test_what_cannot_be_served_now_is_an_outage_and_a_wrong_command_a_bug(
    error: ResponseError, told: type[Exception]
):
    with pytest.raises(told):
        async with unavailable_if_down("count"):
            raise error


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
    key = f"{key_prefix(namespace)}turn"
    lease = WorkLease(client, key, "me", 60.0)
    assert await lease.renew()
    if not is_held:
        await lease.release()

    async def take() -> None:
        async with turn(client, key, 60.0) if in_turn else nullcontext():
            await lease.renew()

    await _cancel_at_a_write(asyncio.create_task(take()), monkeypatch)
    assert await client.get(key) == ("me" if is_held else None)


LIMIT_BYTES = 64 * 1024


def row(number: int) -> CheckpointRow:
    return CheckpointRow(f"q{number}", "s", False, "", "j" * 200, 0.0, "m" * 64, datetime.now(UTC), 1, 32)


async def test_redis_on_a_full_disk_answers_unavailable_and_keeps_what_it_acknowledged(tmp_path: Path):
    full = start_private_redis(tmp_path)
    resource.prlimit(full.process.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
    redis = connect(full.url)
    registry, acknowledged = Registry(redis, "n"), []
    reason = ""
    for number in range(2000):
        try:
            await registry.checkpoints.add(row(number))
        except errors.Unavailable as error:
            reason = error.message
            break
        acknowledged.append(f"q{number}")
    await redis.aclose()
    full.process.kill()  # asked to end, it would stay: it cannot write what it has
    full.process.wait()
    assert len(acknowledged) > 50
    assert "cannot reach the registry" in reason
    assert "disk not full" in reason

    free = start_private_redis(tmp_path)
    redis = connect(free.url)
    found = {checkpoint.version for checkpoint in await Registry(redis, "n").checkpoints.all()}
    await redis.aclose()
    free.stop()
    assert set(acknowledged) <= found
