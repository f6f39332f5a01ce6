"""Following other replicas while something is slow, fails or is full: who lags is alive and named, others go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from aeenc import errors
from services.index.catalogue import catalogue as catalogue_module
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.following import StoreWatch
from services.index.catalogue.served import check_by_searching
from support.waiting import until
from support.worlds.index_world import facts, follows, served, two_generations

NEVER = 1000.0
BRISK = {"look_s": 0.05, "replica_lease_s": 0.4, "replica_wait_s": 0.3}


def opening(monkeypatch: pytest.MonkeyPatch, of: Catalogue, act: Callable[[str], None]) -> None:
    """Calls `act` with the corpus whenever the catalogue `of` opens a generation."""
    sound = Catalogue._open

    def open_(self, corpus, generation_id, *, hashed):
        if self is of:
            act(corpus)
        return sound(self, corpus, generation_id, hashed=hashed)

    monkeypatch.setattr(catalogue_module.Catalogue, "_open", open_)


def opening_slowly(monkeypatch: pytest.MonkeyPatch, of: Catalogue) -> list[str]:
    """The corpora whose generations the catalogue opens from now on, each in a tenth of a second."""
    opened = list[str]()
    opening(monkeypatch, of, lambda corpus: opened.append(corpus) or time.sleep(0.1))
    return opened


async def test_a_replica_that_is_busy_opening_one_corpus_is_alive_and_follows_the_others(serve, monkeypatch):
    async with serve(instance="one", **BRISK) as one, serve(instance="two", **BRISK) as two:
        (first, slow), (_, other) = [await two_generations(one, corpus) for corpus in ("science", "other")]
        assert (await served(two, "science"), bool(await served(two, "other"))) == (first, True)
        go_on = threading.Event()
        opening(monkeypatch, two.catalogue, lambda corpus: corpus != "science" or go_on.wait(20) or None)
        done = await one.client.activate("science", slow)
        assert [each.instance for each in done.replicas if each.behind] == ["two"]
        await asyncio.sleep(3 * BRISK["replica_lease_s"])
        done = await one.client.activate("other", other)
        assert {each.instance: each.behind for each in done.replicas} == {"one": False, "two": False}
        assert [each.behind for each in done.replicas if each.generation == other] == [False, False]
        assert await served(two, "science") == first
        go_on.set()
        await follows(two, slow)


async def test_a_corpus_whose_opening_fails_for_whatever_reason_holds_up_no_other(serve, monkeypatch):
    def exhausted(corpus: str) -> None:
        if corpus == "science":
            raise MemoryError("no room for codes")

    async with serve(instance="one", **BRISK) as one, serve(instance="two", **BRISK) as two:
        (first, second), (_, other) = [await two_generations(one, corpus) for corpus in ("science", "zoology")]
        assert (await served(two, "science"), bool(await served(two, "zoology"))) == (first, True)
        opening(monkeypatch, two.catalogue, exhausted)
        done = await one.client.activate("science", second)
        [behind] = [each for each in done.replicas if each.behind]
        assert behind.instance == "two"
        assert "no room for codes" in behind.reason
        done = await one.client.activate("zoology", other)
        assert not [each for each in done.replicas if each.behind]
        assert (await served(two, "zoology"), await served(two, "science")) == (other, first)
        assert "no room for codes" in (await two.client.info()).service.state_reason
        monkeypatch.undo()
        await follows(two, second)
        await until(lambda: not two.server.readiness.reason)


async def test_a_full_queue_keeps_no_replica_from_following_and_no_generation_from_activation(serve):
    async with serve(instance="one", **BRISK) as one, serve(instance="two", **BRISK) as two:
        first, second = await two_generations(one)
        assert await served(two, "science") == first
        queues = [index.catalogue._batcher._queue for index in (one, two)]
        for queue in queues:
            queue.size += 1_000_000
        done = await one.client.activate("science", second)
        assert not [each for each in done.replicas if each.behind]
        assert (await one.client.verify("science", second)).id == second
        for queue in queues:
            queue.size -= 1_000_000
            assert queue.size == 0
        assert await served(two, "science") == second


async def test_forty_callers_of_a_corpus_that_another_replica_has_just_activated_open_it_once(serve, monkeypatch):
    async with serve(instance="one", **BRISK) as one, serve(instance="two", look_s=NEVER) as two:
        second = (await one.client.build("science", facts(), activate=False)).id
        with pytest.raises(errors.NotFound, match="no active generation"):
            await served(two, "science")
        await one.client.activate("science", second)
        opened = opening_slowly(monkeypatch, two.catalogue)
        calls = [asyncio.ensure_future(served(two, "science")) for _ in range(40)]
        await asyncio.sleep(0.05)
        calls[0].cancel()
        found = await asyncio.gather(*calls[1:])
        assert (set(found), opened) == ({second}, ["science"])


async def test_sixty_callers_of_an_unknown_corpus_share_the_looks_for_it_that_began_after_they_came(index, monkeypatch):
    looks, came, may_go = list[str](), list[str](), threading.Event()
    look, follow = StoreWatch.at, Catalogue._follow_now

    def held(self, corpus, serving):
        looks.append(corpus)
        may_go.wait(60)
        return look(self, corpus, serving)

    async def counted(self, corpus, *given):
        came.append(corpus)
        await follow(self, corpus, *given)

    monkeypatch.setattr(StoreWatch, "at", held)
    monkeypatch.setattr(Catalogue, "_follow_now", counted)
    calls = [asyncio.ensure_future(served(index, "unknown")) for _ in range(60)]
    await until(lambda: len(came) == 60, 60)
    may_go.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in found} == {errors.NotFound}
    assert looks == ["unknown"] * 2  # the second for those who came during the first


async def test_a_caller_who_came_during_a_look_gets_what_was_activated_before_they_came(serve, monkeypatch):
    async with serve(instance="one", **BRISK) as one, serve(instance="two", look_s=NEVER) as two:
        may_go, looking, sound = threading.Event(), threading.Event(), StoreWatch.at
        of = two.catalogue._watch

        def held(self, corpus, serving):
            found = sound(self, corpus, serving)
            if self is of and not looking.is_set():
                looking.set()
                may_go.wait(10)
            return found

        monkeypatch.setattr(StoreWatch, "at", held)
        early = asyncio.ensure_future(served(two, "science"))
        await until(looking.is_set, 5)
        second = (await one.client.build("science", facts())).id
        late = asyncio.ensure_future(served(two, "science"))
        await asyncio.sleep(0.2)
        may_go.set()
        assert await late == second
        await asyncio.gather(early, return_exceptions=True)


@pytest.mark.parametrize("is_first", [True, False], ids=["activated first", "read first"])
async def test_a_generation_that_is_read_and_activated_at_once_is_opened_once(serve, monkeypatch, is_first: bool):
    async with serve() as index:
        await index.client.build("science", facts()[:6])
        second = (await index.client.build("science", facts(), activate=False)).id
        opened = opening_slowly(monkeypatch, index.catalogue)
        activation = index.client.activate("science", second)
        reading = [index.client.get_premises("science", ["f1"], generation=second) for _ in range(4)]
        calls = [activation, *reading] if is_first else [*reading, activation]
        first = asyncio.ensure_future(calls[0])
        await asyncio.sleep(0.05)  # it opens; the others come before it serves
        await asyncio.gather(first, *calls[1:])
        assert await served(index, "science") == second
        assert opened == ["science"]


async def test_an_activation_that_takes_long_holds_up_no_other_corpus(serve, monkeypatch):
    async with serve() as index:
        ids = {one: (await index.client.build(one, facts(), activate=False)).id for one in ("science", "other")}
        goes_on = threading.Event()

        async def slowly(batcher, candidate):
            assert candidate.generation.corpus == "other" or await asyncio.to_thread(goes_on.wait, 30)
            await check_by_searching(batcher, candidate)

        monkeypatch.setattr(catalogue_module, "check_by_searching", slowly)
        slow = asyncio.ensure_future(index.client.activate("science", ids["science"]))
        try:
            await asyncio.wait_for(index.client.activate("other", ids["other"]), 15)
            assert not slow.done()
        finally:
            goes_on.set()
        await slow


async def test_a_corpus_that_has_not_changed_is_not_looked_at_again_until_it_changes(index, monkeypatch):
    monkeypatch.setattr("services.index.catalogue.following.SETTLE_S", 0.0)
    await index.client.build("science", facts())
    looks = StoreWatch(index.store)
    assert [[*looks.changed({}, ())] for _ in range(4)] == [["science"], ["science"], [], []]
    assert [*looks.changed({}, {"science"})] == ["science"], "what could not be followed is looked at in any case"
    for change in (
        index.client.build("science", facts()[:3], activate=False),
        index.client.put_explanations("science", [("ice melts", ["f1"])]),
    ):
        looks.changed({}, ())
        await change
        assert [*looks.changed({}, ())] == ["science"]
