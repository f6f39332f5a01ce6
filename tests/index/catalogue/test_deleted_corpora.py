"""A corpus that is deleted as a whole: it serves nowhere, leaves no generation, and can be built again."""

import pytest

from aeenc import errors
from support.worlds.index_world import facts


async def corpora(index):
    return [(one.corpus, one.active.id) for one in (await index.client.info()).corpora]


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


async def test_a_corpus_that_somebody_holds_goes_on_unless_they_are_named(index):
    first = await index.client.build("science", facts()[:3])
    second = await index.client.build("science", facts())
    await index.client.hold("science", first.id, "run-a")
    with pytest.raises(errors.FailedPrecondition, match=r"run-a.*--despite"):
        await index.client.delete_corpus("science")
    assert await corpora(index) == [("science", second.id)]
    await index.client.delete_corpus("science", despite=["run-a"])
    assert await corpora(index) == []


async def test_none_is_activated_only_where_the_expected_one_is_active(index):
    first = await index.client.build("science", facts()[:3])
    second = await index.client.build("science", facts())
    with pytest.raises(errors.Aborted, match=second.id):
        await index.client.activate("science", "", expected=first.id)
    for _ in range(2):  # the same request again gets the same answer
        done = await index.client.activate("science", "", expected=second.id, request_id="r")
        assert (done.active.id, done.previous_generation) == ("", second.id)
    assert await corpora(index) == [("science", "")]
    await index.client.activate("science", first.id, expected="")
    assert (await index.client.retrieve("science", ["ice"])).generation == first.id
