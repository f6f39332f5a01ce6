"""Builds in Milvus: what a dead one leaves is swept, a living one is not, and writing twice doubles nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from aeenc import errors
from services.corpus.generation import PremiseRecord, generation_meta
from support.servers.milvus_server import need_milvus
from support.waiting import until
from support.worlds.index_world import FACTS, SPACE, VERSION, facts, premise, raises, vector_of

need_milvus()

from services.index.milvus.catalogue import MilvusCatalogue, Sweeper  # noqa: E402
from services.index.milvus.ledger.records import Records, StoredGeneration, artifact_of  # noqa: E402
from services.index.milvus.link import MilvusAddress, MilvusLink  # noqa: E402
from services.index.milvus.writer import GenerationWriter  # noqa: E402

TWO = vector_of("ice melts")[None, :]


@pytest.fixture
async def writer(milvus, prefix) -> AsyncIterator[GenerationWriter]:
    """A build of another process."""
    link = MilvusLink(MilvusAddress(milvus.uri))
    yield GenerationWriter(link, Records(link, prefix), "science", "auto")
    await link.close()


def committed(writer: GenerationWriter, premises: Sequence[PremiseRecord]) -> StoredGeneration:
    """Seals and commits under a manifest without files."""
    engine = writer.seal(premises, 20.0)
    meta = generation_meta(
        corpus="science", space_id=SPACE, premise_version=VERSION, dim=TWO.shape[1], premises=len(premises), **engine
    )
    return writer.commit(artifact_of(writer._name, meta, {}, datetime.now(UTC)), 20.0)


async def test_what_a_killed_build_left_is_swept_and_a_living_build_is_not(start, writer, collections, encoder):
    writer.append([PremiseRecord("a", "ice is cold")], vector_of("ice is cold")[None, :])
    [left] = collections()
    async with start(milvus_lease_s=2.0) as index:
        assert not (await index.client.info()).corpora
        encoder.servicer.pause_s = 0.05  # so that the build takes twice as long
        premises = [premise(f"p{n}", f"fact {n}") for n in range(600)]
        slow = asyncio.ensure_future(index.client.build("science", premises, activate=False))
        await until(lambda: left not in collections(), timeout_s=20)
        assert (await slow).premises == 600
    assert len(collections()) == 1


async def test_builds_that_fail_are_given_up_or_repeat_another_leave_no_collection(start, collections, monkeypatch):
    async with start(milvus_lease_s=60.0) as index:
        first = await index.client.build("science", facts())
        assert (await index.client.build("science", facts())).id == first.id
        assert len(collections()) == 1
        many = [premise(f"p{n}", f"fact {n}") for n in range(600)]
        await raises(errors.InvalidArgument, index.client.build("science", [*many, many[0]]), "'p0'")
        assert len(collections()) == 1
        may_end, seal = threading.Event(), GenerationWriter.seal
        monkeypatch.setattr(GenerationWriter, "seal", lambda *given: may_end.wait(20) and seal(*given))
        call = asyncio.ensure_future(index.client.build("science", many))
        await until(lambda: len(collections()) == 2, timeout_s=20)
        call.cancel()
        await until(lambda: call.done() and any(task.cancelling() for task in asyncio.all_tasks()))  # the index knows
        may_end.set()
        await until(lambda: len(collections()) == 1, timeout_s=20)


@pytest.mark.parametrize("lost", ["rows", "rows of the active one", "collection", "words"])
async def test_a_generation_that_milvus_has_lost_is_there_again_after_its_next_build(
    start, raw, collections, named, lost
):
    async with start(milvus_lease_s=1.0) as index:
        built = await index.client.build("science", facts(), activate="active" in lost, request_id="r")
        [damaged], [words] = collections(), named("w")
        if "rows" in lost:
            raw.delete(damaged, ids=[9])
        else:
            raw.drop_collection(words if lost == "words" else damaged)
        told = await raises(errors.DataLoss, index.client.verify("science", built.id), "build it again")
        known = {"generation": built.id, "space_id": SPACE, "active": str("active" in lost).lower()}
        assert told.metadata == known | ({"damaged": "words"} if lost == "words" else {})
        again = await index.client.build("science", facts(), activate=False, request_id="r")
        assert again.id == built.id
        await index.client.activate("science", built.id)
        found = await index.client.search("science", TWO, space_id=SPACE, k=50)
        assert sorted(found.ids[0]) == sorted(f"f{n}" for n in range(10))
        assert [one.id async for one in index.client.list_generations("science")] == [built.id]
        await until(lambda: damaged not in collections(), timeout_s=20)
        await index.client.verify("science", built.id)


async def test_a_commit_whose_answer_is_lost_leaves_no_generation_without_rows(start, collections, monkeypatch):
    put = Records.put_generation

    def away(*_):
        raise errors.Unavailable("the answer is lost")

    def put_and_lost(*arguments):
        put(*arguments)
        away()

    async with start(milvus_lease_s=1.0) as index:
        first = await index.client.build("science", facts()[:6])
        monkeypatch.setattr(Records, "put_generation", put_and_lost)
        monkeypatch.setattr(Records, "remove", away)
        await raises(errors.Unavailable, index.client.build("science", facts(), resume_s=0), "answer is lost")
        monkeypatch.undo()
        assert [one.id async for one in index.client.list_generations("science")] == [first.id]
        second = await index.client.build("science", facts())
        await index.client.verify("science", second.id)
        await until(lambda: len(collections()) == 2, timeout_s=20)


async def test_a_deletion_drops_all_that_two_builds_at_once_have_made_of_the_same_premises(start, writer, collections):
    premises = [PremiseRecord("a", "ice is cold")]
    writer.append(premises, vector_of("ice is cold")[None, :])
    stored = committed(writer, premises)
    second = GenerationWriter(writer._link, writer._records, "science", "auto")
    second.append(premises, vector_of("ice is cold")[None, :])
    second.seal(premises, 20.0)
    second._commit_own(stored.artifact)  # it has looked for an equal one before the first was committed
    async with start() as index:
        await index.client.delete("science", stored.artifact.id)
        assert not (await index.client.info()).corpora
    assert (writer._records.all().generations, collections()) == ([], [])


async def test_a_build_that_was_swept_is_not_committed_and_a_late_sign_of_life_brings_nothing_back(writer, collections):
    premises = [PremiseRecord("a", "ice is cold")]
    writer.append(premises, vector_of("ice is cold")[None, :])
    writer._records.remove(writer._name)
    with pytest.raises(errors.Aborted, match="swept"):
        committed(writer, premises)
    writer.abandon()
    writer.beat()
    seen = writer._records.all()
    assert (seen.generations, seen.unfinished, collections()) == ([], [], [])


async def test_a_sign_of_life_after_the_commit_does_not_undo_it(writer):
    premises = [PremiseRecord("a", "ice is cold")]
    writer.append(premises, vector_of("ice is cold")[None, :])
    stored = committed(writer, premises)
    writer.beat()
    assert [one.artifact.id for one in writer._records.all().generations] == [stored.artifact.id]


async def test_a_build_that_commits_while_the_sweeper_is_at_work_stays(writer, collections, store, monkeypatch):
    premises, records = [PremiseRecord("a", "ice is cold")], writer._records
    writer.append(premises, vector_of("ice is cold")[None, :])
    sweeper = Sweeper(writer._link, records, MilvusCatalogue(writer._link, records, store), refresh_s=1.0, lease_s=0.0)
    read = records.all

    def read_and_commit():
        seen = read()
        monkeypatch.setattr(records, "all", read)
        committed(writer, premises)
        return seen

    monkeypatch.setattr(records, "all", read_and_commit)
    await asyncio.to_thread(sweeper.sweep)
    assert len(read().generations) == len(collections()) == 1


async def test_what_was_read_before_a_commit_does_not_replace_what_was_read_after_it(writer, store, monkeypatch):
    link, records = writer._link, writer._records
    catalogue, go_on, read = MilvusCatalogue(link, records, store), threading.Event(), MilvusCatalogue._read

    def slow(self):
        seen = read(self)
        go_on.wait(10)
        return seen

    monkeypatch.setattr(MilvusCatalogue, "_read", slow)
    early = asyncio.ensure_future(catalogue.refresh())
    await asyncio.sleep(0.3)  # it has read by now
    monkeypatch.setattr(MilvusCatalogue, "_read", read)
    premises = [PremiseRecord("a", "ice is cold")]
    await asyncio.to_thread(writer.append, premises, vector_of("ice is cold")[None, :])
    stored = await asyncio.to_thread(committed, writer, premises)
    await catalogue.activate("science", stored.artifact.id)
    go_on.set()
    await early
    assert catalogue.active_id("science") == stored.artifact.id


async def test_writing_a_batch_twice_doubles_nothing(start, writer, monkeypatch):
    called, call = [], MilvusLink.call
    monkeypatch.setattr(
        MilvusLink, "call", lambda self, method, **more: called.append(method) or call(self, method, **more)
    )
    premises = [PremiseRecord(f"p{n}", text) for n, text in enumerate(FACTS)]
    vectors = np.stack([vector_of(text) for text in FACTS])
    writer.append(premises, vectors)
    writer._upsert(0, premises, vectors)  # the answer to the first was lost, say
    stored = committed(writer, premises)
    assert writer.is_committed
    assert "insert" not in called, "a cluster would keep both rows; milvus-lite keeps one of them"
    async with start() as index:
        await index.client.activate("science", stored.artifact.id)
        found = await index.client.search("science", TWO, space_id=SPACE, k=50)
        assert sorted(found.ids[0]) == sorted(f"p{n}" for n in range(10))
