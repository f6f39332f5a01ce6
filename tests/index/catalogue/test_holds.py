"""Who needs a generation holds it by name: it is not deleted meanwhile, unless an admin names the holder."""

import pytest

from aeenc import errors
from support.worlds.index_world import facts, raises, two_generations

OVER = ("files", "milvus")


async def held_by(index):
    return {one.id: list(one.held_by) async for one in index.client.list_generations("science")}


async def test_a_held_generation_is_deleted_only_despite_all_who_hold_it(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        for holder in ("run-b", "run-a", "run-a"):
            await index.client.hold("science", second, holder)
        assert await held_by(index) == {first: [], second: ["run-a", "run-b"]}
        refused = await raises(
            errors.FailedPrecondition, index.client.delete("science", second), second, "run-a, run-b", "despite"
        )
        assert refused.reason == "IN_USE"
    async with serve() as index:  # holds survive a restart
        call = index.client.delete("science", second, despite=["run-b"])
        await raises(errors.FailedPrecondition, call, "held by run-a;")
        await index.client.delete("science", second, despite=["run-b", "run-a"])
        again = await index.client.build("science", facts(), activate=False)
        assert await held_by(index) == {first: [], again.id: []}, "a deletion ends the holds"


async def test_a_release_ends_one_hold_and_may_be_sent_again(index):
    first, second = await two_generations(index)
    for holder in ("run-a", "run-b"):
        await index.client.hold("science", second, holder)
    for _ in range(2):
        await index.client.release("science", second, "run-a")
    assert await held_by(index) == {first: [], second: ["run-b"]}
    await index.client.release("science", second, "run-b")
    await index.client.delete("science", second)
    await index.client.release("science", second, "run-b")
    assert await held_by(index) == {first: []}


async def test_holds_count_at_every_process_over_the_same_store(serve):
    async with serve() as index, serve() as other:
        _, second = await two_generations(index)
        await index.client.hold("science", second, "run-a")
        await raises(errors.FailedPrecondition, other.client.delete("science", second), "run-a")
        await other.client.release("science", second, "run-a")
        await index.client.delete("science", second)


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (errors.NotFound, ["g0123456789abcdef"], {"generation": "g0123456789abcdef"}),
        (errors.NotFound, ["other"], {"corpus": "other"}),
        (errors.InvalidArgument, ["holder", "''", "64"], {"holder": ""}),
        (errors.InvalidArgument, ["holder", "'a/b'"], {"holder": "a/b"}),
        (errors.InvalidArgument, ["holder"], {"holder": "a" * 65}),
    ],
)
async def test_a_hold_of_nothing_or_by_nobody_is_refused(index, error, words, changes):
    first, _ = await two_generations(index)
    call = index.client.hold(**{"corpus": "science", "generation": first, "holder": "run-a", **changes})
    await raises(error, call, *words)
    assert all(not holders for holders in (await held_by(index)).values())
