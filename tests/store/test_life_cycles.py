"""Life cycles in a real Redis: what deletion leaves, who may be deleted, what is old, and how many events are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from aeenc import errors
from services.store import life_cycles
from services.store.life_cycles import LIVE, LifeCycles, WorkKeys, now
from services.store.redis import connect
from services.store.requests import Request


class Works:
    """Life cycles of works, over a connection of their own."""

    def __init__(self, redis: Any, namespace: str) -> None:
        self.redis, self.namespace = redis, namespace
        self.keys = WorkKeys(namespace, "work")
        self.cycles = LifeCycles(redis, self.keys, ("state",), lambda work_id, _: work_id, needs_lease=False)

    async def create(self, work_id: str, key: str = "", state: str = "PENDING") -> str:
        record = {"format_version": 1, "state": state, "ended_at": "" if state in LIVE else now()}
        return await self.cycles.create(work_id, key, record, waits=state in LIVE)

    async def delete(self, work_id: str, request_id: str = "", key: str = "") -> None:
        request = Request(request_id, "DeleteWork", {"work_id": work_id})
        await self.cycles.delete(work_id, lambda _record: key, request)

    async def left(self) -> set[str]:
        """The keys of the namespace, without its prefix."""
        return {key.removeprefix(self.keys.prefix) async for key in self.redis.scan_iter(f"{self.keys.prefix}*")}


@pytest.fixture
async def works(redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Works]:
    monkeypatch.setattr(life_cycles, "EVENTS_KEPT", 100)
    redis = connect(redis_url)
    yield Works(redis, namespace)
    await redis.aclose()


async def nothing_else(_record: dict[str, str]) -> None:
    """Has nothing of its own to remove."""


async def test_live_and_held_work_is_not_deleted(works: Works) -> None:
    await works.create("a")
    with pytest.raises(errors.FailedPrecondition, match="work a is PENDING; cancel it first"):
        await works.delete("a")
    lease = works.cycles.lease("a", "me", 30)
    assert await lease.renew()
    assert await works.cycles.transition("a", LIVE, "CANCELLED") == "OK"
    with pytest.raises(errors.Unavailable, match="has not let go of work a"):
        await works.delete("a")
    await lease.release()
    await works.delete("a")
    with pytest.raises(errors.NotFound):
        await works.delete("a")


async def test_deleted_work_is_seen_by_nobody_and_its_idempotency_key_starts_another(works: Works) -> None:
    await works.create("a", "key", "SUCCEEDED")
    await works.delete("a", "r1", "key")
    await works.delete("a", "r1", "key")
    with pytest.raises(errors.AlreadyExists, match="work_id 'a', now with 'b'"):
        await works.delete("b", "r1", "key")
    with pytest.raises(errors.NotFound):
        await works.cycles.get("a")
    assert await works.cycles.page(10, 0) == ([], 0)
    assert await works.cycles.transition("a", ("SUCCEEDED",), "PENDING") == "MISSING"
    with pytest.raises(errors.Unavailable, match="is being deleted"):
        await works.create("a")
    assert await works.create("b", "key") == "b"


async def test_a_deletion_that_broke_off_is_carried_on_and_leaves_nothing(works: Works) -> None:
    await works.create("a", "key", "SUCCEEDED")
    before = await works.cycles.get("a")
    await works.delete("a", key="key")

    async def killed(record: dict[str, str]) -> None:
        assert record == before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await works.cycles.clear("a", killed)
    assert await works.cycles.deleted() == ["a"]
    for _ in range(2):
        await works.cycles.clear("a", nothing_else)
        assert await works.left() == {"works:number"}


async def test_what_has_ended_is_old_by_age_or_by_number_and_live_work_never(works: Works) -> None:
    for name in "abc":
        await works.create(name, state="SUCCEEDED")
    await works.create("live")
    cycles = works.cycles
    for name, ended_s in (("a", 300), ("b", 100), ("c", 200)):
        seconds, _ = await works.redis.time()
        await works.redis.hset(works.keys.record(name), "ended_s", seconds - ended_s)
    assert await cycles.expired(0, 0) == []
    assert [one.id for one in await cycles.expired(250, 0)] == ["a"]
    assert [(one.id, one.reason) for one in await cycles.expired(0, 2)] == [("a", "not among the 2 that ended last")]
    assert [one.id for one in await cycles.expired(150, 1)] == ["a", "c"]
    await cycles.transition("live", LIVE, "FAILED")
    assert [one.id for one in await cycles.expired(0, 1)] == ["a", "c", "b"]


async def test_of_a_long_life_the_last_events_are_kept_and_a_late_watcher_begins_at_the_first_of_them(
    works: Works,
) -> None:
    await works.create("a")
    for _ in range(250):
        assert await works.cycles.transition("a", LIVE, "RUNNING") == "OK"
    await works.cycles.transition("a", LIVE, "SUCCEEDED")
    seen = [entry.seq async for entry, _ in works.cycles.watch("a", 1)]
    assert 100 <= len(seen) <= 200
    assert seen == list(range(252 - len(seen) + 1, 253))


async def test_an_end_whose_answer_was_lost_counts_and_cancelled_work_ends_no_more(
    works: Works, monkeypatch: pytest.MonkeyPatch
) -> None:
    transition, lost = LifeCycles.transition, ["a"]

    async def losing(self: LifeCycles[str], work_id: str, *arguments: Any, **how: Any) -> str:
        answer = await transition(self, work_id, *arguments, **how)
        if work_id in lost:
            lost.remove(work_id)
            raise errors.Unavailable("the answer was lost")
        return answer

    for work_id in ("a", "b"):
        await works.create(work_id, state="RUNNING")
    assert await works.cycles.transition("b", LIVE, "CANCELLED") == "OK"
    monkeypatch.setattr(LifeCycles, "transition", losing)
    assert await works.cycles.end("a", "SUCCEEDED", 0.01)
    assert not await works.cycles.end("b", "SUCCEEDED", 0.01)
    assert [(await works.cycles.get(work_id))["state"] for work_id in "ab"] == ["SUCCEEDED", "CANCELLED"]
    assert not lost
