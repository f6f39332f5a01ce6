"""Rollouts in a real Redis: who is alive, who has followed a label, and when waiting for them ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

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
    assert [rollout.revision for rollout in await ended(waiting, 1)] == [0]


async def test_an_encoder_whose_heartbeats_end_is_waited_for_no_longer(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    await registry.heartbeat("e1")
    await registry.acknowledge(SPACE, "stable", stand("e1", label.revision))
    monkeypatch.setattr("services.store.registry.HEARTBEAT_TTL_S", 0.4)
    await registry.heartbeat("dies")
    waiting = asyncio.ensure_future(registry.await_rollout(label, 10))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert [rollout.instance for rollout in await ended(waiting, 2)] == ["e1"]


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
    assert [rollout.revision for rollout in await ended(waiting, 2)] == [1, 1]
