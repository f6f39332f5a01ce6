"""Activation: a pointer that moves only to a sound generation, and is found again after a restart."""

import numpy as np
import pytest

from aeenc import errors
from support.worlds.index_world import SPACE, facts, files_of, raises, two_generations, vector_of

OVER = ("files", "milvus")
TWO = vector_of("ice melts")[None, :]


async def active(index):
    return (await anext(index.client.list_corpora())).active.id


async def test_vectors_that_do_not_find_themselves_are_refused(index):
    first, second = await two_generations(index)
    source = index.store.root / "generations/science" / second
    with index.store.writer("generation", "generations/science") as writer:  # sound files with unsound numbers
        for file in source.glob("premises.*"):
            (writer.path / file.name).write_bytes(file.read_bytes())
        matrix = np.load(source / "vectors.npy", allow_pickle=False)
        np.save(writer.path / "vectors.npy", matrix * 0.5, allow_pickle=False)
        unsound = writer.commit(index.store.open("generations/science", second).meta, id_prefix="g")
    await raises(errors.DataLoss, index.client.activate("science", unsound.id), "find themselves")
    assert await active(index) == first


async def test_a_restart_serves_the_active_generation_again_without_an_encoder(serve, encoder):
    async with serve() as index:
        generation = await index.client.build("science", facts())
        before = await index.client.search("science", TWO, space_id=SPACE)
        files = files_of(index.store)
    await encoder.stop()
    async with serve() as index:
        after = await index.client.search("science", TWO, space_id=SPACE)
        assert files_of(index.store) == files
    assert (after.generation, after.ids) == (generation.id, before.ids)
    assert after.scores[0].tobytes() == before.scores[0].tobytes()


async def test_a_damaged_corpus_degrades_the_service_until_another_generation_is_activated(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        await index.client.build("other", facts())
        path = index.store.root / "generations/science" / first / "premises.jsonl"
        path.write_bytes(path.read_bytes()[:-5])
    async with serve() as index:
        info = await index.client.info()
        assert "premises.jsonl" in info.service.state_reason
        await raises(errors.DataLoss, index.client.search("science", TWO, space_id=SPACE), "premises.jsonl")
        assert (await index.client.search("other", TWO, space_id=SPACE)).ids[0]
        assert [one.id async for one in index.client.list_generations("science")] == [second]
        await index.client.activate("science", second)
        assert (await index.client.info()).service.state_reason == ""
        assert (await index.client.search("science", TWO, space_id=SPACE)).generation == second


def damage(index, generation_id):
    path = index.store.root / "generations/science" / generation_id / "vectors.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("request_id", ["", "r"])
async def test_a_damaged_generation_is_whole_again_after_it_was_built_again(index, request_id):
    built = await index.client.build("science", facts(), request_id=request_id)
    assert (await index.client.verify("science", built.id)).active
    damage(index, built.id)
    before = files_of(index.store)
    await raises(errors.DataLoss, index.client.verify("science", built.id), built.id, "vectors.npy")
    assert files_of(index.store) == before, "it changes nothing"
    again = await index.client.build("science", facts(), request_id=request_id, activate=not request_id)
    await index.client.activate("science", again.id)
    assert (await index.client.verify("science", again.id)).id == built.id
    assert (await index.client.search("science", TWO, space_id=SPACE)).generation == built.id


async def test_verify_says_what_a_repair_must_know_of_a_generation_too_damaged_to_serve(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        assert (await index.client.verify("science")).id == first
        assert not (await index.client.verify("science", second)).active
        await raises(errors.NotFound, index.client.verify("science", "g0"), "g0")
        await raises(errors.NotFound, index.client.verify("nonsense"), "nonsense")
        for name in ("vectors.npy", "premises.texts.npy"):
            path = index.store.root / "generations/science" / first / name
            path.write_bytes(path.read_bytes()[:-5])
    async with serve() as index:
        with pytest.raises(errors.DataLoss) as caught:
            await index.client.verify("science")
        known = {"generation": first, "active": "true", "space_id": SPACE, "damaged": "premises.texts.npy,vectors.npy"}
        assert caught.value.metadata == known
        (index.store.root / "generations/science" / second / "manifest.json").write_text("{")
        with pytest.raises(errors.DataLoss, match=r"manifest\.json") as caught:
            await index.client.verify("science", second)
        assert caught.value.metadata == {"generation": second, "active": "false"}


async def corpora(index):
    return [(one.corpus, one.active.id) async for one in index.client.list_corpora()]


async def test_a_corpus_is_deleted_in_every_process_and_after_a_restart_and_can_be_built_again(serve):
    async with serve(look_s=0.05) as index, serve(look_s=0.05) as other:
        first = await index.client.build("science", facts()[:3])
        second = await index.client.build("science", facts())
        await index.client.build("other", facts())
        await index.client.put_explanations("science", [("ice floats", ["f1"])])
        await index.client.delete_corpus("science")
        for one in (index, other):
            with pytest.raises(errors.NotFound, match="science"):
                await one.client.retrieve("science", ["ice"])
            assert [name for name, _ in await corpora(one)] == ["other"]
        folder = index.store.root / "generations/science"
        assert not [path for path in folder.iterdir() if path.name in {first.id, second.id}]
        with pytest.raises(errors.NotFound):
            await index.client.delete_corpus("science")
    async with serve() as index:
        assert [name for name, _ in await corpora(index)] == ["other"]
        assert (await index.client.build("science", facts()[:3])).id == first.id
        assert (await index.client.retrieve("science", ["ice"])).generation == first.id
        with pytest.raises(errors.FailedPrecondition, match="explanations"):
            await index.client.retrieve("science", ["ice"], prior=0.5)
