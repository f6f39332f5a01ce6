"""Generations in a Milvus have files, too: a build goes on from them, and the trainer reads them."""

import numpy as np
import pytest

from aeenc import errors
from services.corpus.generation import open_generation
from services.store.objects import CachedStore
from support.servers.milvus_server import need_milvus
from support.worlds.index_world import PREMISES, broken_build, facts, premise, raises, vector_of, works

need_milvus()

from services.index.milvus.ledger.records import Records  # noqa: E402
from services.index.milvus.writer import Loading  # noqa: E402

SYNC = {"build_sync_s": 0.01, "build_encode_timeout_s": 10.0}


async def test_a_build_goes_on_after_a_restart_and_encodes_nothing_twice(start, store, encoder, collections):
    async with start(**SYNC) as index:
        report = await broken_build(index)
        assert not collections(), "nothing is in Milvus before all is encoded"
    encoder.servicer.encoded_premises.clear()
    async with start(**SYNC) as index:
        assert (await index.client.build("science", PREMISES, request_id="r")).premises == 60
        listed = [(one.id, one.text) async for one in index.client.list_premises("science")]
        assert listed == [(one.id, one.text) for one in PREMISES]
        assert not set(encoder.servicer.encoded_premises) & {one.text for one in PREMISES[: report.encoded]}
        assert not works(store)


async def test_what_milvus_does_not_commit_is_only_sent_again(start, store, encoder, collections, monkeypatch):
    def swept(*_):
        raise errors.Aborted("it was swept")

    async with start(**SYNC | {"build_sync_s": 1e-6}) as index:
        monkeypatch.setattr(Loading, "commit", swept)
        await raises(errors.Aborted, index.client.build("science", PREMISES, request_id="r"), "swept")
        monkeypatch.undo()
        [written] = store.list("generations/science")
        encoder.servicer.encoded_premises.clear()
        assert (await index.client.build("science", PREMISES, request_id="r")).id == written
        assert not encoder.servicer.encoded_premises
        assert store.list("generations/science") == [written]
        store.open("generations/science", written, verify="full")
        assert len(collections()) == 1
        assert not works(store)


async def test_a_build_whose_files_are_not_uploaded_leaves_none(start, store, tmp_path, monkeypatch):
    def away(*_):
        raise errors.Unavailable("the bucket is away")

    monkeypatch.setattr(CachedStore, "push", away)
    async with start(artifacts_url=f"file://{tmp_path / 'bucket'}", build_sync_s=3600) as index:
        await raises(errors.Unavailable, index.client.build("science", facts(), resume_s=0), "away")
    assert store.list("generations/science") == []


async def test_a_retry_that_finds_what_was_built_removes_the_journal(start, store, monkeypatch):
    put = Records.put_finished

    def put_and_lost(*arguments):
        put(*arguments)
        raise errors.Unavailable("the answer is lost")

    async with start(**SYNC | {"build_sync_s": 1e-6}) as index:
        monkeypatch.setattr(Records, "put_finished", put_and_lost)
        await raises(errors.Unavailable, index.client.build("science", PREMISES, request_id="r", resume_s=0), "lost")
        monkeypatch.undo()
        assert works(store)
        assert (await index.client.build("science", PREMISES, request_id="r")).premises == 60
        assert not works(store)


async def test_what_killed_writers_have_left_is_gone_after_the_next_start_and_what_others_write_is_not(start, store):
    left = [store.root / f"generations/{name}" for name in ("science/.tmp-x", "science/.deleted-x", "other/.damaged-x")]
    for path in left:
        path.mkdir(parents=True)
    with store.writer("generation", "generations/written") as writer:
        async with start():
            assert not any(path.exists() for path in left)
            assert writer.path.exists()


async def test_a_delta_takes_over_the_vectors_that_milvus_has(start, store, encoder):
    async with start(**SYNC) as index:
        base = (await index.client.build("science", PREMISES[:30])).id
        encoder.servicer.encoded_premises.clear()
        more = [premise("n", "a new fact")]
        built = await index.client.build("science", more, base_generation=base, delete_ids=["p3"])
        assert encoder.servicer.encoded_premises == ["a new fact"]
        files = open_generation(store, "science", built.id)
        np.testing.assert_allclose(files.vectors[-2], vector_of(PREMISES[29].text), atol=1e-6)


async def test_the_trainer_reads_the_files_of_a_generation_until_it_is_deleted(start, store):
    async with start() as index:
        first = await index.client.build("science", facts())
        files = open_generation(store, "science", first.id, verify="full")
        assert [files.premises[n].id for n in range(3)] == ["f0", "f1", "f2"]
        np.testing.assert_allclose(files.vectors[1], vector_of(files.premises[1].text), atol=1e-6)
        second = await index.client.build("science", PREMISES)
        await index.client.delete("science", first.id)
        with pytest.raises(errors.NotFound):
            open_generation(store, "science", first.id)
        assert open_generation(store, "science", second.id).dim == files.dim
        await raises(errors.NotFound, index.client.delete("science", first.id), first.id)
