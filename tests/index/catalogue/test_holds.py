"""Who needs a generation holds it by name: it is not deleted meanwhile, at any process over the store."""

import pytest

from aeenc import errors
from support.worlds.index_world import facts, raises, two_generations


async def test_a_hold_counts_at_every_process_and_after_a_restart_and_ends_with_the_deletion(serve):
    async with serve() as index, serve() as other:
        first, second = await two_generations(index)
        for holder in ("run-a", "run-b"):
            await index.client.hold("science", second, holder)
        refused = await raises(errors.FailedPrecondition, other.client.delete("science", second), "run-a, run-b")
        assert refused.reason == "IN_USE"
        await other.client.release("science", second, "run-a")
    async with serve() as index:
        await raises(errors.FailedPrecondition, index.client.delete("science", second), "held by run-b;")
        await index.client.delete("science", second, despite=["run-b"])
        again = await index.client.build("science", facts(), activate=False)
        held_by = {one.id: list(one.held_by) async for one in index.client.list_generations("science")}
        assert held_by == {first: [], again.id: []}, "a deletion ends the holds"
        await index.client.release("science", second, "run-b")


async def test_a_corpus_that_somebody_holds_goes_on_unless_they_are_named(index):
    first = await index.client.build("science", facts()[:3])
    second = await index.client.build("science", facts())
    await index.client.hold("science", first.id, "run-a")
    with pytest.raises(errors.FailedPrecondition, match=r"run-a.*--despite"):
        await index.client.delete_corpus("science")
    assert [one.active.id async for one in index.client.list_corpora()] == [second.id]
    await index.client.delete_corpus("science", despite=["run-a"])
    assert not [one async for one in index.client.list_corpora()]
