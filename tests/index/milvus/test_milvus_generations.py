"""What is Milvus's own in the index: changed collections, several processes, approximate indexes, what is not there."""

import asyncio
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from aeenc import errors
from services.index.__main__ import build
from services.index.settings import IndexSettings
from support.servers.milvus_server import need_milvus
from support.waiting import until
from support.worlds.index_world import FACTS, SPACE, facts, raises, vector_of

need_milvus()

from services.index.milvus import searching as searching_module  # noqa: E402
from services.index.milvus.generation import GenerationCollection  # noqa: E402
from services.index.milvus.retrieval import MilvusRetrieval  # noqa: E402

TWO = vector_of("ice melts")[None, :]


async def test_a_generation_that_was_changed_is_refused_and_the_active_one_keeps_serving(start, raw, collections):
    async with start() as index:
        first = await index.client.build("science", facts()[:6])
        before = set(collections())
        second = await index.client.build("science", facts(), activate=False)
        [name] = set(collections()) - before
        [row] = raw.query(name, filter="ordinal in [3]", output_fields=["*"], limit=1)
        raw.upsert(name, [{**row, "text": "the moon is a star"}])
        await raises(errors.DataLoss, index.client.activate("science", second.id), "f3")
        raw.upsert(name, [row])
        await index.client.activate("science", second.id)
        await index.client.activate("science", first.id)
        raw.delete(name, ids=[9])
        await raises(errors.DataLoss, index.client.activate("science", second.id), "9 premises", "10")
        assert (await index.client.search("science", TWO, space_id=SPACE)).generation == first.id


@pytest.mark.parametrize("is_newer", [True, False])
async def test_a_record_that_cannot_be_read_concerns_its_own_corpus_alone(start, raw, prefix, is_newer):
    async with start() as index:
        sound = await index.client.build("sound", facts())
        other = await index.client.build("other", facts()[:6])
    rows = raw.query(f"{prefix}_records", filter='kind in ["generation"]', output_fields=["*"], limit=9)
    [row] = [row for row in rows if other.id in row["body"]]
    body = json.dumps({**json.loads(row["body"]), "format_version": 2}) if is_newer else row["body"][1:]
    raw.upsert(f"{prefix}_records", [{**row, "body": body}])
    refused, words = (errors.FailedPrecondition, ["format_version 2"]) if is_newer else (errors.DataLoss, ["remove it"])
    words.append(row["key"])
    async with start() as index:
        assert (await index.client.search("sound", TWO, space_id=SPACE)).generation == sound.id
        await raises(refused, index.client.search("other", TWO, space_id=SPACE), *words)
        await raises(refused, index.client.activate("other", other.id), *words)
        told = await raises(refused, index.client.verify("other"), *words)
        assert dict(told.metadata) == ({} if is_newer else {"active": "true"})
        built = await index.client.build("other", facts()[:4])
        assert (await index.client.search("other", TWO, space_id=SPACE)).generation == built.id
    [kept] = raw.query(f"{prefix}_records", filter=f'key in ["{row["key"]}"]', output_fields=["*"], limit=1)
    assert kept["body"] == body, "another release may read it"


async def test_an_activation_by_one_process_is_seen_by_the_others(start):
    async with start() as one, start() as other:
        first = await one.client.build("science", facts()[:6])
        await until(lambda: bool(other.readiness.answers))
        assert (await other.client.search("science", TWO, space_id=SPACE, generation=first.id)).generation == first.id
        second = await other.client.build("science", facts())
        end = time.monotonic() + 5
        while (await one.client.search("science", TWO, space_id=SPACE)).generation != second.id:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        await raises(errors.Aborted, one.client.activate("science", first.id, expected=first.id), second.id)
        await one.client.activate("science", first.id, expected=second.id)
        await other.client.delete("science", second.id)
        await raises(
            errors.NotFound, one.client.search("science", TWO, space_id=SPACE, generation=second.id), second.id
        )


async def test_what_another_process_has_just_built_or_activated_is_found_without_waiting_for_a_look(start):
    async with start() as one, start(milvus_refresh_s=600) as other:
        built = await one.client.build("science", facts(), activate=False)
        await raises(errors.NotFound, other.client.search("science", TWO, space_id=SPACE, k=1), "no active generation")
        await one.client.activate("science", built.id)
        found = await other.client.search("science", TWO, space_id=SPACE, k=1)
        assert found.generation == built.id


async def test_a_search_does_not_slide_into_another_space_when_its_generation_is_deleted(start, encoder):
    other_space = "s00000000000000bb"
    async with start(milvus_refresh_s=600.0) as one, start() as other:
        first = await other.client.build("science", facts())
        await one.client.build("else", facts()[:3])  # so that it has seen both corpora
        assert (await one.client.search("science", TWO, space_id=SPACE)).generation == first.id
        encoder.servicer.space_id, encoder.servicer.version = other_space, "q00000000000000bb"
        second = await other.client.build("science", facts()[:6])
        await other.client.delete("science", first.id)
        await raises(errors.SpaceMismatch, one.client.search("science", TWO, space_id=SPACE), SPACE, other_space)
        assert (await one.client.retrieve("science", ["ice melts"])).generation == second.id


async def test_a_text_is_searched_as_widely_alone_as_beside_others(start, monkeypatch):
    widths, candidates = [], GenerationCollection.candidates

    def noted(self, queries, width, *args, **kwargs):
        widths.append((len(queries), width))
        return candidates(self, queries, width, *args, **kwargs)

    async with start(milvus_engine="hnsw") as index:
        await index.client.build("science", facts())
        monkeypatch.setattr(GenerationCollection, "candidates", noted)
        alone = await index.client.retrieve("science", ["ice melts"], k=2)
        beside = await index.client.retrieve("science", ["ice melts", "heat"], k=2, accepted=[[], ["f1", "f2", "f3"]])
        assert widths == [(1, 11), (1, 11), (1, 14)]
        assert [one.id for one in beside[0]] == [one.id for one in alone[0]]
        assert len(beside[1]) == 2


async def test_nothing_is_asked_of_milvus_for_a_caller_who_has_left(start, monkeypatch):
    asked, go_on, has_left = [], threading.Event(), threading.Event()
    candidates, search = GenerationCollection.candidates, MilvusRetrieval._search

    def held_up(self, *args, **kwargs):
        asked.append(args)
        assert go_on.wait(20)
        return candidates(self, *args, **kwargs)

    async def noted(self, *args, **kwargs):
        try:
            return await search(self, *args, **kwargs)
        finally:
            has_left.set()

    async with start() as index:
        await index.client.build("science", facts())
        monkeypatch.setattr(GenerationCollection, "candidates", held_up)
        monkeypatch.setattr(MilvusRetrieval, "_search", noted)
        monkeypatch.setattr(searching_module, "is_out_of_reach", lambda *_: [False])  # so that it asks for more
        call = asyncio.ensure_future(index.client.search("science", TWO, space_id=SPACE, k=1))
        await until(lambda: bool(asked))
        call.cancel()
        assert await asyncio.to_thread(has_left.wait, 20)
        go_on.set()
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0.2))])
        assert len(asked) == 1


async def test_an_approximate_index_says_so_and_still_scores_exactly(start):
    async with start(milvus_engine="hnsw") as index:
        generation = await index.client.build("science", facts())
        assert generation.engine == "milvus-hnsw"
        found = await index.client.search("science", TWO, space_id=SPACE, k=3)
        assert not found.exact
        matrix = np.stack([vector_of(text) for text in FACTS]).astype(np.float64)
        exact = np.einsum("ij,j->i", matrix, TWO[0].astype(np.float64)).astype(np.float32)
        assert found.scores[0].tobytes() == exact[[int(one[1:]) for one in found.ids[0]]].tobytes()


async def test_a_missing_client_stops_the_start_and_is_named(tmp_path: Path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pymilvus" or "index.milvus" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(errors.InvalidArgument, match=r"pymilvus.*index-milvus"):
        build(IndexSettings(backend="milvus", milvus_uri="http://127.0.0.1:1", artifacts_dir=tmp_path))


async def test_settings_that_cannot_work_stop_the_start(tmp_path: Path):
    need_milvus()
    with pytest.raises(ValueError, match="AEENC_INDEX_MILVUS_URI"):
        IndexSettings(backend="milvus", artifacts_dir=tmp_path)
    for changes, word in (
        ({"text_bytes": 70_000}, "TEXT_BYTES"),
        ({"milvus_prefix": "a-b"}, "milvus_prefix"),
        ({"bm25_words": "words"}, "WORDS=words"),
        ({"bm25_b": 0.5}, "_B=0.5"),
    ):
        with pytest.raises((errors.InvalidArgument, ValueError), match=word):
            build(IndexSettings(backend="milvus", milvus_uri="http://127.0.0.1:1", artifacts_dir=tmp_path, **changes))
