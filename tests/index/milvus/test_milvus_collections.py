"""A collection is derived: one that is missing or lacks premises is sent again, and it goes with its generation."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import threading
import time
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

from aeenc import errors
from services.store.artifacts import ArtifactStore
from support.servers.milvus_server import need_milvus
from support.waiting import eventually, until
from support.worlds.index_world import SPACE, facts, raises, vector_of

need_milvus()

from services.index.milvus.collections import FOLDER, GenerationCollection  # noqa: E402
from services.index.milvus.link import MilvusLink  # noqa: E402
from services.index.values import Selection  # noqa: E402

TWO = vector_of("ice melts")[None, :]
ALL = sorted(f"f{n}" for n in range(10))


@pytest.fixture
def is_gone(raw: Any) -> Any:
    """Whether the Milvus has no collection of a name any more."""

    async def asked(name: str) -> bool:
        return not await asyncio.to_thread(raw.has_collection, name)

    return asked


@pytest.fixture
def no_collector() -> Any:
    """What holds a generation's files lets go by itself."""
    gc.disable()
    yield
    gc.enable()


async def found(index: Any, **more: Any) -> list[str]:
    return sorted((await index.client.search("science", TWO, space_id=SPACE, k=50, **more)).ids[0])


def spoil(raw: Any, name: str, what: str) -> None:
    """Makes of a collection what a kill or somebody else has left."""
    if what == "gone":
        raw.drop_collection(name)
    elif what == "rows":
        raw.delete(name, ids=[9])
    else:  # a sender was killed before its end
        raw.release_collection(name)
        raw.drop_index(name, "vector")
        raw.delete(name, ids=[9])


@pytest.mark.parametrize("what", ["gone", "rows", "index"])
async def test_what_milvus_has_lost_is_sent_again_at_the_next_opening(serve, raw, collections, what):
    async with serve() as index:
        first = await index.client.build("science", facts())
        [name] = collections()
    spoil(raw, name, what)
    async with serve() as index:  # opened at the start
        assert await found(index) == ALL
        spoil(raw, name, what)
        await index.client.activate("science", first.id)  # opened again
        assert await found(index) == ALL
        assert collections() == {name}
        await index.client.verify("science", first.id)


async def test_a_collection_is_found_and_loaded_before_the_first_search(serve, raw, collections, monkeypatch):
    async with serve() as index:
        await index.client.build("science", facts())
    raw.release_collection(*collections())
    asked, call = [], MilvusLink.call

    def told(self: MilvusLink, method: str, /, **arguments: Any) -> Any:
        asked.append(method)
        return call(self, method, **arguments)

    monkeypatch.setattr(MilvusLink, "call", told)
    async with serve(milvus_refresh_s=60.0) as index:
        await until(lambda: "query" in asked)  # counts what is loaded, the last that is asked
        await asyncio.sleep(0.1)
        asked.clear()
        assert await found(index) == ALL
        assert asked == ["search"]


async def test_what_is_lost_under_a_serving_index_is_named_and_sent_again_by_the_next_search(serve, raw, collections):
    async with serve() as index:
        await index.client.build("science", facts())
        raw.drop_collection(*collections())
        await raises(errors.Unavailable, found(index), *collections(), "sends it again")
        assert await found(index) == ALL


async def test_one_process_sends_and_the_others_are_told_to_come_back(serve, artifact_store, collections, monkeypatch):
    async with serve() as index:
        built = await index.client.build("science", facts(), activate=False)
        [name] = collections()
        monkeypatch.setattr(GenerationCollection, "find", lambda self: not collections() or sent.is_set())
        sent = threading.Event()
        vectors = artifact_store.root / "generations/science" / built.id / "vectors.npy"
        with vectors.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            await raises(errors.Unavailable, index.client.activate("science", built.id), built.id, "being sent")
        sent.set()
        await index.client.activate("science", built.id)
        assert await found(index) == ALL
        assert collections() == {name}


@pytest.mark.parametrize("kind", [errors.Unavailable, errors.Overloaded])
async def test_a_build_whose_vectors_milvus_does_not_take_is_there_and_sent_when_it_is_activated(
    serve, encoder, collections, monkeypatch, kind
):
    def away(*_: Any) -> None:
        raise kind("Milvus is away")

    async with serve() as index:
        with monkeypatch.context() as patched:
            patched.setattr(GenerationCollection, "_send", away)
            built = await index.client.build("science", facts(), activate=False, request_id="r")
            await raises(kind, index.client.activate("science", built.id), "away")
        encoder.servicer.encoded_premises.clear()
        assert (await index.client.build("science", facts(), request_id="r")).id == built.id
        assert not encoder.servicer.encoded_premises
        assert await found(index) == ALL
        assert len(collections()) == 1


async def test_a_collection_goes_once_nobody_reads_its_generation(
    serve, artifact_store: ArtifactStore, collections, is_gone, no_collector
):
    brisk = {"milvus_lease_s": 0.4, "look_s": 0.05}
    async with serve(**brisk) as index:
        first = await index.client.build("science", facts())
        kept = collections()
        second = await index.client.build("science", facts()[:6], activate=False)
        [name] = collections() - kept
        held = artifact_store.hold("generations/science", second.id)
        await index.client.delete("science", second.id)
        await asyncio.sleep(1.0)
        assert name in collections(), "somebody reads it"
        del held
        await eventually(lambda: is_gone(name), timeout_s=15)
        assert collections() == kept
        await until(lambda: artifact_store.documents.names(FOLDER) == [f"{first.id}.science"])  # removed afterwards
        await raises(errors.NotFound, found(index, generation=second.id), second.id)
        assert await found(index) == ALL


async def test_what_a_killed_deletion_left_goes_and_what_another_store_has_stays(
    serve, artifact_store: ArtifactStore, collections, is_gone, tmp_path
):
    async with serve(artifacts_dir=tmp_path / "other") as other:
        await other.client.build("science", facts())
        theirs = collections()
    async with serve(milvus_lease_s=60.0) as index:
        built = await index.client.build("else", facts()[:6], activate=False)
        [name] = collections() - theirs
    artifact_store.delete("generations/else", built.id)
    async with serve(milvus_lease_s=0.2):
        await eventually(lambda: is_gone(name), timeout_s=15)
        assert collections() == theirs


async def test_a_store_that_is_away_costs_no_collection(serve, artifact_store: ArtifactStore, collections):
    async with serve(milvus_lease_s=0.1) as index:
        await index.client.build("science", facts())
        kept = collections()
        hidden = artifact_store.root.with_name("hidden")
        artifact_store.root.rename(hidden)
        await asyncio.sleep(0.6)
        hidden.rename(artifact_store.root)
        await asyncio.sleep(0.3)
        assert collections() == kept


async def test_writing_twice_doubles_nothing(serve, monkeypatch):
    called, call = [], MilvusLink.call
    monkeypatch.setattr(
        MilvusLink, "call", lambda self, method, **more: called.append(method) or call(self, method, **more)
    )
    async with serve() as index:
        await index.client.build("science", facts())
    assert "upsert" in called
    assert "insert" not in called, "a cluster would keep both rows; milvus-lite keeps one of them"


def test_a_large_call_is_asked_in_parts_of_which_one_answer_is_held(monkeypatch):
    asked, hits = [], Mock(ids=[1], distances=[1.0])

    def search(_: str, /, *, data: list[Any], **__: Any) -> list[Any]:
        asked.append(len(data))
        return [hits] * len(data)

    monkeypatch.setattr("services.index.milvus.collections._ANSWER_HITS", 10)
    monkeypatch.setattr(GenerationCollection, "find", lambda _: True)
    opened = GenerationCollection(Mock(call=search), "g", MagicMock(), Mock(), 1.0)
    for row, _ in enumerate(opened.propose(np.zeros((7, 33), np.float32), 5, Selection(), 0)):
        assert asked == [2] * (row // 2 + 1) if row < 6 else [2, 2, 2, 1]


async def test_nothing_is_asked_of_milvus_for_a_caller_who_has_left(serve, monkeypatch):
    asked, go_on, propose = [], threading.Event(), GenerationCollection.propose

    def held_up(self, *given):
        asked.append(given)
        assert go_on.wait(20)
        return propose(self, *given)

    async with serve() as index:
        await index.client.build("science", facts())
        monkeypatch.setattr(GenerationCollection, "propose", held_up)
        monkeypatch.setattr(
            "services.index.dense.approximate.is_out_of_reach", lambda *_: [False]
        )  # so that it asks more
        monkeypatch.setattr("services.index.dense.approximate.REMOTE_SLACK", 1)
        late = index.client.search("science", TWO, space_id=SPACE, k=1, timeout_s=0.2)
        await raises(errors.DeadlineExceeded, late)
        await asyncio.sleep(0.1)
        go_on.set()
        await asyncio.sleep(0.2)
        assert len(asked) == 1


async def test_the_event_loop_goes_on_while_milvus_is_slow(serve, monkeypatch):
    propose = GenerationCollection.propose

    def slow(self, *given):
        time.sleep(1.0)
        return propose(self, *given)

    async with serve() as index:
        await index.client.build("science", facts())
        monkeypatch.setattr(GenerationCollection, "propose", slow)
        ticks, call = 0, asyncio.ensure_future(found(index))
        while not call.done():
            await asyncio.sleep(0.002)
            ticks += 1
        assert call.result() == ALL
        assert ticks > 10, "a loop that waits for Milvus does not tick"
