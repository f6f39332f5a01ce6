"""Rollouts in a real Redis: who is alive, who has followed a label, and when waiting for them ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from services.store.redis import connect, key_prefix
from services.store.registry import Registry, RolloutRow

SPACE = "s0123456789abcdef"


def stand(instance: str, revision: int) -> RolloutRow:
    return RolloutRow(instance, revision, ok=True, reason="", at=datetime.now(UTC))


async def ended(waiting: asyncio.Future[list[RolloutRow]], within_s: float) -> list[RolloutRow]:
    """What a wait gave; wait_for would cancel a late one, which redis-py may swallow, and then take it as in time."""
    assert (await asyncio.wait([waiting], timeout=within_s))[0], f"has not ended within {within_s} s"
    return waiting.result()


@pytest.mark.parametrize("overtaken_by", ["move", "deletion"])
async def test_a_wait_that_is_overtaken_ends_at_once(registry: Registry, overtaken_by: str) -> None:
    label = await registry.set_label(SPACE, "canary", "q1")
    await registry.heartbeat("e1")
    waiting = asyncio.ensure_future(registry.await_rollout(label, 10))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    if overtaken_by == "move":
        await registry.set_label(SPACE, "canary", "q2")
    else:
        await registry.delete_label(SPACE, "canary")
    assert [rollout.revision for rollout in await ended(waiting, 8)] == [0]


async def test_an_encoder_whose_heartbeats_end_is_waited_for_no_longer(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    await registry.heartbeat("e1")
    await registry.acknowledge(SPACE, "stable", stand("e1", label.revision))
    monkeypatch.setattr("services.store.registry.HEARTBEAT_TTL_S", 4)
    await registry.heartbeat("dies")
    waiting = asyncio.ensure_future(registry.await_rollout(label, 10))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert [rollout.instance for rollout in await ended(waiting, 8)] == ["e1"]


async def test_a_rollout_shows_live_encoders_only(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    for instance in ("e1", "e2"):
        await registry.heartbeat(instance)
    with monkeypatch.context() as patch:
        patch.setattr("services.store.registry.HEARTBEAT_TTL_S", -1)  # one whose last heartbeat is long ago
        await registry.heartbeat("dead")
    for instance in ("e1", "dead", "never-seen"):
        await registry.acknowledge(SPACE, "stable", stand(instance, label.revision))
    rollouts = await registry.rollouts(SPACE, "stable")
    assert [(rollout.instance, rollout.revision, rollout.ok) for rollout in rollouts] == [
        ("e1", 1, True),
        ("e2", 0, False),
    ]
    assert rollouts[1].reason == "has not answered yet"
    await registry.sign_off("e2")
    assert [rollout.instance for rollout in await registry.rollouts(SPACE, "stable")] == ["e1"]


async def test_waiting_for_a_rollout_ends_when_the_last_encoder_has_answered_or_time_is_up(registry: Registry) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    assert await registry.await_rollout(label, 0.1) == []
    for instance in ("e1", "e2"):
        await registry.heartbeat(instance)
    await registry.acknowledge(SPACE, "stable", stand("e1", 1))
    assert [rollout.revision for rollout in await registry.await_rollout(label, 0.1)] == [1, 0]
    waiting = asyncio.ensure_future(registry.await_rollout(label, 10))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await registry.acknowledge(SPACE, "stable", stand("e2", 1))
    assert [rollout.revision for rollout in await ended(waiting, 8)] == [1, 1]


class SlowClock(datetime):
    """The clock of a host that is a minute behind."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) - timedelta(seconds=60)


async def test_an_encoder_whose_clock_is_a_minute_behind_is_alive(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    with monkeypatch.context() as patch:
        patch.setattr("services.store.registry.datetime", SlowClock)
        await registry.heartbeat("e1")
    assert [rollout.instance for rollout in await registry.rollouts(SPACE, "stable")] == ["e1"]
    monkeypatch.setattr("services.store.registry.datetime", SlowClock)
    await registry.sign_off("e1")
    monkeypatch.setattr("services.store.registry.HEARTBEAT_TTL_S", -1)  # dead, but not by the slow clock
    await registry.heartbeat("e1")
    assert await registry.rollouts(SPACE, "stable") == []
    assert await registry.await_rollout(label, 0.05) == []


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    connected: Any = connect(redis_url)
    yield connected
    await connected.aclose()


async def test_encoders_that_have_come_and_gone_leave_nothing_in_redis(
    registry: Registry, redis: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    for name in ("stops", "dies"):
        assert await registry.heartbeat(name), "not known yet"
        await registry.acknowledge(SPACE, "stable", stand(name, label.revision))
    await registry.sign_off("stops")
    assert not await registry.heartbeat("dies")
    monkeypatch.setattr("services.store.registry.HEARTBEAT_TTL_S", -1)
    await registry.heartbeat("dies")
    monkeypatch.undo()
    monkeypatch.setattr("services.store.registry.FORGET_S", 0)
    await registry.heartbeat("e1")
    await registry.acknowledge(SPACE, "stable", stand("e1", label.revision))
    prefix = key_prefix(namespace)
    assert await redis.zrange(f"{prefix}instances", 0, -1) == ["e1"]
    assert list(await redis.hgetall(f"{prefix}ack:{SPACE}:stable")) == ["e1"]
    assert await registry.heartbeat("dies"), "it is told that it was forgotten, and acknowledges anew"


async def test_an_answer_that_comes_after_its_label_was_deleted_is_not_kept(
    registry: Registry, redis: Any, namespace: str
) -> None:
    label = await registry.set_label(SPACE, "run-1", "q1")
    await registry.delete_label(SPACE, "run-1")
    await registry.acknowledge(SPACE, "run-1", stand("e1", label.revision))
    assert not await redis.exists(f"{key_prefix(namespace)}ack:{SPACE}:run-1")


async def test_waiting_for_a_rollout_reads_only_when_something_has_happened(registry: Registry, redis: Any) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    await registry.heartbeat("e1")

    async def commands() -> int:
        return int((await redis.info("stats"))["total_commands_processed"])

    before = await commands()
    waiting = asyncio.ensure_future(registry.await_rollout(label, 10))
    await asyncio.sleep(0.6)
    assert await commands() - before < 15, "it was 5 in each 50 ms"
    answered_at = asyncio.get_running_loop().time()
    await registry.acknowledge(SPACE, "stable", stand("e1", label.revision))
    assert [rollout.revision for rollout in await ended(waiting, 8)] == [1]
    assert asyncio.get_running_loop().time() - answered_at < 5, "the answer wakes who waits"
