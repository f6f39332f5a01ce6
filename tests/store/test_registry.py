"""The registry in a real Redis: labels move in one step with their events, who has followed, and what is kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aeenc import errors
from services.launcher.private_redis import PrivateRedis, start_private_redis
from services.store.formats import NewerFormat
from services.store.life_cycles import LifeCycles, WorkKeys
from services.store.redis import SOCKET_TIMEOUT_S, WorkLease, connect, run_script
from services.store.registry import CheckpointRow, Registry, RolloutRow
from services.store.requests import Request
from support.waiting import until

SPACE = "s0123456789abcdef"


def row(version: str, *, age_s: float = 0.0, pretrained: bool = False) -> CheckpointRow:
    at = datetime(2025, 1, 1, tzinfo=UTC) - timedelta(seconds=age_s)
    return CheckpointRow(version, SPACE, pretrained, "", "j1", 0.5, "m" * 64, at, 1000, 384)


def stand(instance: str, revision: int) -> RolloutRow:
    return RolloutRow(instance, revision, ok=True, reason="", at=datetime.now(UTC))


async def test_checkpoints_are_read_as_written_last_and_listed_newest_first(registry: Registry) -> None:
    old, new = row("q1", age_s=60, pretrained=True), row("q2")
    await registry.checkpoints.add(new)
    await registry.checkpoints.add(old)
    assert await registry.checkpoints.get("q1") == old
    assert await registry.checkpoints.get("q3") is None
    assert await registry.checkpoints.all() == [new, old]
    exported_again = replace(row("q1", age_s=-60), manifest_sha256="f" * 64)
    await registry.checkpoints.add(exported_again)
    assert await registry.checkpoints.all() == [new, exported_again], "it keeps its place"


async def test_the_default_space_is_unknown_until_it_is_set(registry: Registry) -> None:
    assert await registry.checkpoints.default_space() is None
    await registry.checkpoints.set_space(SPACE, "q1")
    assert await registry.checkpoints.default_space() is None
    await registry.checkpoints.set_space(SPACE, "q1", default=True)
    assert await registry.checkpoints.default_space() == SPACE
    assert await registry.checkpoints.space(SPACE) == "q1"
    assert await registry.checkpoints.space("s1") is None


async def test_previous_follows_stable_and_no_other_label_and_none_of_another_space(registry: Registry) -> None:
    await registry.set_label("s1", "stable", "q0")
    first = await registry.set_label(SPACE, "stable", "q1")
    assert (first.version, first.revision, first.previous) == ("q1", 1, "")
    assert await registry.label(SPACE, "previous") is None
    second = await registry.set_label(SPACE, "stable", "q2")
    assert (second.version, second.revision, second.previous) == ("q2", 2, "q1")
    previous = await registry.label(SPACE, "previous")
    assert previous is not None
    assert (previous.version, previous.revision) == ("q1", 1)
    await registry.set_label(SPACE, "canary", "q3")
    await registry.set_label(SPACE, "canary", "q4")
    assert await registry.label(SPACE, "previous") == previous
    assert [label.name for label in await registry.labels(SPACE)] == ["canary", "previous", "stable"]
    assert [(label.space_id, label.version) for label in await registry.labels()][-1] == ("s1", "q0")


async def test_of_many_writers_that_expect_the_same_revision_one_wins(registry: Registry) -> None:
    await registry.set_label(SPACE, "stable", "q0")
    moves = (registry.set_label(SPACE, "stable", f"q{n}", expected_revision=1) for n in range(1, 21))
    outcomes = await asyncio.gather(*moves, return_exceptions=True)
    assert sum(isinstance(outcome, errors.Aborted) for outcome in outcomes) == 19
    label = await registry.label(SPACE, "stable")
    assert label is not None
    assert (label.revision, label.previous) == (2, "q0")


@pytest.mark.parametrize("later", ["set", "delete"])
async def test_a_move_answers_with_the_row_that_it_wrote_whatever_comes_right_after_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    async def overtaken(redis: Any, script: str, keys: list[str], arguments: list[Any]) -> Any:
        answer = await run_script(redis, script, keys, arguments)
        if later == "set":
            await run_script(redis, script, keys, ["q2", *arguments[1:]])
        else:
            await redis.delete(keys[0])
        return answer

    monkeypatch.setattr("services.store.registry.run_script", overtaken)
    for name in ("canary", "stable"):
        label = await registry.set_label(SPACE, name, "q1", share=0.5)
        assert (label.name, label.version, label.revision, label.share) == (name, "q1", 1, 0.5)


@pytest.mark.parametrize("later", ["set", "delete"])
async def test_a_move_whose_caller_has_gone_never_follows_a_later_one(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    await registry.set_label(SPACE, "canary", "q0")
    sent, on = asyncio.Event(), asyncio.Event()
    deliveries: list[asyncio.Task[Any]] = []

    async def deliver(*command: Any) -> Any:
        await on.wait()
        return await run_script(*command)

    async def slow(*command: Any) -> Any:
        monkeypatch.undo()
        deliveries.append(asyncio.create_task(deliver(*command)))
        sent.set()
        return await asyncio.shield(deliveries[0])  # nobody calls back a command that is on its way

    monkeypatch.setattr("services.store.registry.run_script", slow)
    given_up = asyncio.ensure_future(registry.set_label(SPACE, "canary", "q1"))
    await sent.wait()
    given_up.cancel()
    call = registry.set_label(SPACE, "canary", "q2") if later == "set" else registry.delete_label(SPACE, "canary")
    acknowledged = asyncio.ensure_future(call)
    await asyncio.wait([acknowledged], timeout=0.1)
    on.set()
    await acknowledged
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await deliveries[0]
    label = await registry.label(SPACE, "canary")
    assert (label.version if label else "") == ("q2" if later == "set" else "")


async def test_a_move_wakes_who_waits_at_once(registry: Registry) -> None:
    start = await registry.last_event()
    assert start == "0-0"
    waiting = asyncio.ensure_future(registry.wait_for_event(start, 10))
    await asyncio.sleep(0.1)
    moved_at = time.monotonic()
    await registry.set_label(SPACE, "stable", "q1")
    event = await waiting
    assert time.monotonic() - moved_at < 5, "it waits for 10 s"
    assert event == await registry.last_event()
    assert await registry.wait_for_event("0-0", 10) == event  # a move before the wait is not missed
    assert await registry.wait_for_event(event, 0.05) == event  # nothing new


async def test_a_deleted_label_is_gone_with_its_rollout_and_wakes_who_waits(registry: Registry) -> None:
    label = await registry.set_label(SPACE, "canary", "q1")
    await registry.heartbeat("e1")
    await registry.acknowledge(SPACE, "canary", stand("e1", label.revision))
    event = await registry.last_event()
    await registry.delete_label(SPACE, "canary")
    assert await registry.label(SPACE, "canary") is None
    assert await registry.labels() == []
    assert await registry.wait_for_event(event, 1) != event
    assert [rollout.revision for rollout in await registry.rollouts(SPACE, "canary")] == [0]
    with pytest.raises(errors.NotFound, match="there is no label 'canary'"):
        await registry.delete_label(SPACE, "canary")


async def test_a_share_is_kept_by_moves_and_begins_at_zero(registry: Registry) -> None:
    assert (await registry.set_label(SPACE, "canary", "q1")).share == 0.0
    assert (await registry.set_label(SPACE, "canary", "q1", share=0.1)).share == 0.1
    moved = await registry.set_label(SPACE, "canary", "q2")
    assert (moved.version, moved.revision, moved.previous, moved.share) == ("q2", 3, "q1", 0.1)
    await registry.delete_label(SPACE, "canary")
    anew = await registry.set_label(SPACE, "canary", "q2", expected_revision=0)
    assert (anew.share, anew.previous, anew.revision) == (0.0, "", 4), "newer than all before its deletion"
    assert (await registry.set_label(SPACE, "run-1", "q3")).revision == 1


async def test_another_share_of_the_same_version_is_a_move_that_keeps_the_way_back(registry: Registry) -> None:
    await registry.set_label(SPACE, "canary", "q1")
    moved, event = await registry.set_label(SPACE, "canary", "q2", share=0.3), await registry.last_event()
    assert await registry.set_label(SPACE, "canary", "q2", share=0.3) == moved
    assert await registry.set_label(SPACE, "canary", "q2") == moved
    assert await registry.last_event() == event
    with pytest.raises(errors.Aborted, match=r"'canary' is at revision 2 \(q2\), not 1; read it and retry"):
        await registry.set_label(SPACE, "canary", "q2", share=0.5, expected_revision=1)
    halved = await registry.set_label(SPACE, "canary", "q2", share=0.5, expected_revision=2)
    assert (halved.revision, halved.share, halved.previous) == (3, 0.5, "q1")
    assert await registry.last_event() != event
    assert (await registry.set_label(SPACE, "canary", "q2", share=0.0)).share == 0.0


async def test_an_answer_of_a_newer_release_counts_as_none_and_its_label_is_not_deleted(registry: Registry) -> None:
    await registry.set_label(SPACE, "stable", "q1")
    await registry.heartbeat("e1")
    await registry._redis.hset(
        key := registry._key("ack", SPACE, "stable"), "e1", '{"format_version": 2, "instance": "e1"}'
    )
    (rollout,) = await registry.rollouts(SPACE, "stable")
    assert (rollout.ok, rollout.revision) == (False, 0)
    assert "has format_version 2, this release reads up to 1; update this service" in rollout.reason
    newer = json.dumps({**json.loads(stand("e1", 2).to_json()), "gpu": "H200"})
    await registry._redis.hset(key, "e1", newer)
    assert [(one.instance, one.revision) for one in await registry.rollouts(SPACE, "stable")] == [("e1", 2)]
    await registry._redis.hset(registry._key("label", SPACE, "stable"), "format_version", 2)
    with pytest.raises(NewerFormat, match=f"label 'stable' of space {SPACE} has format_version 2"):
        await registry.delete_label(SPACE, "stable")


async def test_a_label_keeps_every_version_of_an_ensemble_that_it_names_or_goes_back_to(registry: Registry) -> None:
    for version in ("q1", "q2", "q3"):
        await registry.checkpoints.add(row(version))

    await registry.set_label(SPACE, "stable", "q1")
    both = await registry.set_label(SPACE, "stable", "q2+q3")
    assert (both.version, both.versions, both.previous) == ("q2+q3", ["q2", "q3"], "q1")
    for version in both.versions:
        with pytest.raises(errors.FailedPrecondition, match=r"label 'stable' .* names it"):
            await registry.checkpoints.bury(version)
    await registry.set_label(SPACE, "stable", "q1")
    with pytest.raises(errors.FailedPrecondition, match=r"goes back to it|names it"):
        await registry.checkpoints.bury("q3")
    await registry.set_label(SPACE, "stable", "q2")
    await registry.set_label(SPACE, "stable", "q1")
    await registry.checkpoints.bury("q3")
    with pytest.raises(errors.NotFound, match="q3 is deleted"):
        await registry.set_label(SPACE, "stable", "q1+q3")


async def test_a_damaged_row_hides_no_others_and_can_be_written_again_and_deleted(registry: Registry) -> None:
    await registry.checkpoints.add(row("q1"))
    await registry._redis.set(registry.checkpoints._key("checkpoint", "q1"), '{"format_version": "x"}')
    with pytest.raises(errors.DataLoss, match="a checkpoint's row in Redis cannot be read"):
        await registry.checkpoints.get("q1")
    await registry.checkpoints.add(row("q1"))
    assert await registry.checkpoints.get("q1") == row("q1")
    for name in ("canary", "trial"):
        await registry.set_label(SPACE, name, "q1")
    damage = partial(registry._redis.hset, registry._key("label", SPACE, "trial"), "format_version", "x")
    await damage()
    unread: dict[tuple[str, str], str] = {}
    assert [row.name for row in await registry.labels(unread=unread)] == ["canary"]
    assert "has no format_version" in unread[SPACE, "trial"]
    await registry.set_label(SPACE, "trial", "q2")
    assert [row.version for row in await registry.labels()] == ["q1", "q2"]
    await damage()
    await registry.delete_label(SPACE, "trial")
    assert [row.name for row in await registry.labels()] == ["canary"]


async def ended(waiting: asyncio.Future[list[RolloutRow]], within_s: float) -> list[RolloutRow]:
    """Returns the result of a wait, and fails if it is late. wait_for would cancel it, which redis-py may swallow."""
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


async def test_encoders_that_have_come_and_gone_leave_nothing_in_redis(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
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
    assert await registry._redis.zrange(registry._instances, 0, -1) == ["e1"]
    assert list(await registry._redis.hgetall(registry._key("ack", SPACE, "stable"))) == ["e1"]
    assert await registry.heartbeat("dies"), "it is told that it was forgotten, and acknowledges anew"


async def test_an_answer_that_comes_after_its_label_was_deleted_is_not_kept(registry: Registry) -> None:
    label = await registry.set_label(SPACE, "run-1", "q1")
    await registry.delete_label(SPACE, "run-1")
    await registry.acknowledge(SPACE, "run-1", stand("e1", label.revision))
    assert not await registry._redis.exists(registry._key("ack", SPACE, "run-1"))


async def test_waiting_for_a_rollout_reads_only_when_something_has_happened(registry: Registry) -> None:
    label = await registry.set_label(SPACE, "stable", "q1")
    await registry.heartbeat("e1")

    async def commands() -> int:
        return int((await registry._redis.info("stats"))["total_commands_processed"])

    before = await commands()
    waiting = asyncio.ensure_future(registry.await_rollout(label, 10))
    await asyncio.sleep(0.6)
    assert await commands() - before < 15, "it was 5 in each 50 ms"
    answered_at = asyncio.get_running_loop().time()
    await registry.acknowledge(SPACE, "stable", stand("e1", label.revision))
    assert [rollout.revision for rollout in await ended(waiting, 8)] == [1]
    assert asyncio.get_running_loop().time() - answered_at < 5, "the answer wakes who waits"


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[list[PrivateRedis]]:
    """A server that a test may kill; the last of the list runs."""
    servers = [start_private_redis(tmp_path / "redis")]
    yield servers
    servers[-1].stop()


async def test_killing_redis_between_writes_loses_nothing_acknowledged(
    own_redis: list[PrivateRedis], tmp_path: Path
) -> None:
    acknowledged: list[str] = []

    async def write() -> None:
        redis = connect(own_redis[-1].url)
        registry = Registry(redis, "n")
        try:
            while True:
                version = f"q{len(acknowledged)}"
                await registry.checkpoints.add(row(version))
                await registry.set_label(SPACE, "stable", version)
                acknowledged.append(version)
        except errors.Unavailable:
            return
        finally:
            await redis.aclose()

    for _ in range(2):
        written, writing = len(acknowledged), asyncio.ensure_future(write())
        await until(lambda: len(acknowledged) >= written + 5)  # noqa: B023 -- called in this very turn
        own_redis[-1].process.kill()
        own_redis[-1].process.wait()
        await writing
        own_redis.append(start_private_redis(tmp_path / "redis"))
        redis = connect(own_redis[-1].url)
        registry = Registry(redis, "n")
        found = {checkpoint.version for checkpoint in await registry.checkpoints.all()}
        label = await registry.label(SPACE, "stable")
        await redis.aclose()
        assert set(acknowledged) <= found
        assert label is not None
        # The write in flight may be there without its acknowledgement; an earlier one never.
        assert label.version in {acknowledged[-1], f"q{len(acknowledged)}"}


async def test_without_redis_every_call_says_so(own_redis: list[PrivateRedis]) -> None:
    redis = connect(own_redis[-1].url)
    registry = Registry(redis, "n")
    own_redis[-1].process.kill()
    own_redis[-1].process.wait()
    cycles, request = (
        LifeCycles(redis, WorkKeys("n", "run"), ("state",), lambda work_id, _: work_id),
        Request("id", "StartRun", {}),
    )
    for noun, calls in {
        "registry": [registry.set_label(SPACE, "stable", "q1"), registry.labels(), registry.checkpoints.add(row("q1"))],
        "requests": [registry.requests.answer(request, dict), registry.requests.record(request, {})],
        "records": [cycles.get("r1"), cycles.active(), cycles.transition("r1", ("PENDING",), "RUNNING")],
        "leases": [WorkLease(redis, "lease", "me", 1.0).renew()],
    }.items():
        for call in calls:
            with pytest.raises(errors.Unavailable, match=rf"cannot reach the {noun}: Redis says .* is it running"):
                await call
    await redis.aclose()


@pytest.mark.slow
async def test_a_quiet_registry_is_waited_for_longer_than_a_socket_waits(registry: Registry) -> None:
    started = asyncio.get_running_loop().time()
    assert await registry.wait_for_event("0-0", SOCKET_TIMEOUT_S + 1) == "0-0"
    assert asyncio.get_running_loop().time() - started >= SOCKET_TIMEOUT_S + 1
