"""Indexes whose generations lie in a bucket: each with a directory of its own, which is a copy."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aeenc import errors
from services.corpus.active import CopiedRecords
from services.index.catalogue import catalogue
from services.index.catalogue.following import StoreWatch
from services.index.values import Explanation
from services.store.files import Documents
from services.store.objects import Bucket, CachedStore
from support.waiting import eventually, until
from support.worlds.index_world import FACTS, facts, follows, raises, served


async def test_an_index_with_an_empty_directory_serves_what_another_has_activated(serve, tmp_path: Path):
    url = f"file://{tmp_path / 'bucket'}"
    async with serve(artifacts_url=url, artifacts_dir=tmp_path / "one") as one:
        first = (await one.client.build("science", facts())).id
        async with serve(artifacts_url=url, artifacts_dir=tmp_path / "two") as two:
            retrieved = await two.client.retrieve("science", [FACTS[0]], k=2)
            assert retrieved.generation == first
            assert retrieved.results == (await one.client.retrieve("science", [FACTS[0]], k=2)).results

            second = (await one.client.build("science", facts()[:4])).id
            await follows(two, second)
            assert [one.id async for one in two.client.list_generations("science")] == [second, first]
            await two.client.activate("science", first, expected=second)
            await raises(errors.Aborted, one.client.activate("science", second, expected=second), first)
            await one.client.delete("science", second)
            await raises(errors.NotFound, two.client.activate("science", second), second)
    async with serve(artifacts_url=url, artifacts_dir=tmp_path / "three") as three:
        assert await served(three) == first


def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets nobody reach any bucket."""

    def away(bucket: Bucket, key: str, _ask: object) -> None:
        raise errors.Unavailable(f"{bucket.url}/{key} cannot be reached")

    monkeypatch.setattr(Bucket, "_asked", away)


def count_downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the key of each object that is fetched from now on."""
    fetched: list[str] = []
    download = Bucket.download

    def noted(bucket: Bucket, key: str, *arguments: Any) -> None:
        fetched.append(key)
        download(bucket, key, *arguments)

    monkeypatch.setattr(Bucket, "download", noted)
    return fetched


@pytest.fixture
async def hosts(serve, tmp_path: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Two indexes with nothing in common but a bucket; the first has built a corpus."""
    url = f"file://{tmp_path / 'bucket'}"
    async with (
        serve(artifacts_url=url, artifacts_dir=tmp_path / "one", instance="one") as one,
        serve(artifacts_url=url, artifacts_dir=tmp_path / "two", instance="two") as two,
    ):
        built = (await one.client.build("science", facts())).id
        for each in (one, two):
            await knows(each, built, 2)
        yield one, two


async def knows(index: Any, generation: str, replicas: int) -> None:
    """Waits until an index knows of so many replicas."""
    await eventually(
        lambda: index.client.activate("science", generation), is_so=lambda done: len(done.replicas) == replicas
    )


async def test_explanations_reach_the_other_host_and_those_of_two_hosts_are_joined(hosts):
    one, two = hosts
    await one.client.put_explanations("science", [("frogs hunt", ["f3"])])
    [found] = await two.client.retrieve("science", ["the frog hunts"], k=1, prior=1.0)
    assert found[0].id == "f3"
    puts = [hosts[n % 2].client.put_explanations("science", [(f"hypothesis {n}", ["f1"])]) for n in range(12)]
    assert max(await asyncio.gather(*puts)) == 13
    assert await two.client.put_explanations("science", [("one more", ["f2"])]) == 14
    assert await one.client.put_explanations("science", [("frogs hunt", ["f9"])], replace=True) == 1
    [found] = await two.client.retrieve("science", ["the frog hunts"], k=1, prior=1.0)
    assert found[0].id == "f9"


async def test_explanations_put_while_another_host_puts_some_are_joined_with_them(hosts, monkeypatch):
    one, two = hosts
    other = two.catalogue.explanations
    create = CopiedRecords.create

    def overtaken(self: CopiedRecords, *arguments: Any) -> bool:
        monkeypatch.setattr(CopiedRecords, "create", create)
        other._put("science", [Explanation("overtaking", ("f1",))], False)
        return create(self, *arguments)

    monkeypatch.setattr(CopiedRecords, "create", overtaken)
    assert await one.client.put_explanations("science", [("overtaken", ["f2"])]) == 2
    assert await two.client.put_explanations("science", [("later", ["f3"])]) == 3


async def test_a_request_repeated_at_the_other_host_is_answered_and_not_done_again(hosts):
    one, two = hosts
    built = await one.client.build("science", facts()[:5], activate=False, request_id="build")
    assert (await two.client.build("science", facts()[:5], activate=False, request_id="build")).id == built.id
    await raises(
        errors.AlreadyExists, two.client.build("science", facts()[:4], activate=False, request_id="build"), "premises"
    )
    first = await one.client.activate("science", built.id, request_id="activate")
    again = await two.client.activate("science", built.id, request_id="activate")
    assert again.previous_generation == first.previous_generation
    await two.client.delete("science", first.previous_generation, request_id="delete")
    await one.client.delete("science", first.previous_generation, request_id="delete")
    await raises(errors.AlreadyExists, one.client.delete("science", built.id, request_id="delete"), "delete")


async def test_a_disk_too_full_for_copies_of_moves_keeps_nobody_from_making_and_following_them(hosts, monkeypatch):
    one, two = hosts
    other = (await one.client.build("science", facts()[:4], activate=False)).id
    assert await served(two, generation=other) == other  # fetched while there is room

    def full(_documents: Documents, key: str, _content: bytes) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), key)

    monkeypatch.setattr(Documents, "create", full)  # a bucket has its own
    await one.client.activate("science", other)
    assert await served(one) == other
    await follows(two, other)


async def test_a_host_that_has_signed_off_is_not_waited_for(serve, hosts, tmp_path: Path):
    one, _ = hosts
    url = f"file://{tmp_path / 'bucket'}"
    generation = (await one.client.build("science", facts()[:3], activate=False)).id
    async with serve(artifacts_url=url, artifacts_dir=tmp_path / "three", instance="three"):
        await knows(one, generation, 3)
    begun = time.monotonic()
    replicas = (await one.client.activate("science", generation)).replicas
    assert "three" not in {replica.instance for replica in replicas}
    assert time.monotonic() - begun < 4, "REPLICA_WAIT_S is 5 s"


async def test_what_cannot_be_followed_is_not_fetched_at_every_look(serve, monkeypatch, tmp_path: Path):
    url = f"file://{tmp_path / 'bucket'}"
    monkeypatch.setattr(catalogue, "PAUSE_S", 3600.0)
    async with (
        serve(artifacts_url=url, artifacts_dir=tmp_path / "one", replica_wait_s=0.1) as one,
        serve(artifacts_url=url, artifacts_dir=tmp_path / "two", look_s=0.02) as two,
    ):
        await one.client.build("science", facts()[:4])
        built = (await one.client.build("science", facts(), activate=False)).id
        vectors = tmp_path / "bucket/generations/science" / built / "vectors.npy"
        vectors.write_bytes(vectors.read_bytes()[::-1])
        fetched, looks, look = count_downloads(monkeypatch), [], StoreWatch.at
        monkeypatch.setattr(StoreWatch, "at", lambda *of: (looks.append(of), look(*of))[1])
        await one.client.activate("science", built)
        await until(lambda: vectors.name in two.server.readiness.reason)
        seen = len(looks)
        await until(lambda: len(looks) > seen + 10)
        assert len([key for key in fetched if key.endswith(f"{built}/{vectors.name}")]) == 1
        assert vectors.name in two.server.readiness.reason


async def test_generations_are_listed_without_fetching_them(serve, monkeypatch, tmp_path: Path):
    url = f"file://{tmp_path / 'bucket'}"
    async with serve(artifacts_url=url, artifacts_dir=tmp_path / "one") as one:
        built = [(await one.client.build("science", facts()[:count])).id for count in (3, 4, 5)]
        async with serve(artifacts_url=url, artifacts_dir=tmp_path / "two") as two:
            fetched = count_downloads(monkeypatch)
            found = [(each.id, each.premises) async for each in two.client.list_generations("science")]
    assert found == list(zip(reversed(built), (5, 4, 3), strict=True))
    assert fetched == []


async def test_a_build_sweeps_its_corpus_and_asks_nothing_of_others_and_a_start_sweeps_each_once(
    serve, monkeypatch, tmp_path: Path
):
    settings = {"artifacts_url": f"file://{tmp_path / 'bucket'}", "artifacts_dir": tmp_path / "one", "look_s": 3600.0}
    asked, ask, swept, sweep = [], Bucket._asked, [], CachedStore.sweep
    async with serve(**settings) as one:
        await one.client.build("other", facts())
        monkeypatch.setattr(Bucket, "_asked", lambda self, key, call: (asked.append(key), ask(self, key, call))[1])
        (left := tmp_path / "one/generations/science/.tmp-dead").mkdir(parents=True)
        await one.client.build("science", facts())
    assert not left.exists()
    assert [key for key in asked if "science" in key]
    assert not [key for key in asked if "other" in key]
    monkeypatch.setattr(CachedStore, "sweep", lambda self, of: (swept.append(of), sweep(self, of))[1])
    async with serve(**settings):
        assert swept == ["generations/other", "generations/science"]


async def test_an_index_that_restarts_while_the_bucket_is_away_serves_its_copies(serve, monkeypatch, tmp_path: Path):
    settings = {"artifacts_url": f"file://{tmp_path / 'bucket'}", "artifacts_dir": tmp_path / "one"}
    async with serve(**settings) as one:
        built = (await one.client.build("science", facts())).id
    cut_off(monkeypatch)
    async with serve(**settings) as one:
        assert await served(one) == built
        await raises(errors.Unavailable, one.client.build("science", iter(facts()[:3])), "cannot be reached")
