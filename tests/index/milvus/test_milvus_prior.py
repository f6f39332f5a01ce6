"""The explanatory prior on a Milvus: the answers of files to the bit; changes that are whole, joined and followed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aeenc import errors
from support.servers.milvus_server import need_milvus
from support.waiting import eventually, until
from support.worlds.index_world import FACTS, facts, premise, raises

need_milvus()

from services.index.milvus.ledger.explanations import ExplanationTables  # noqa: E402
from services.index.milvus.ledger.records import Records  # noqa: E402
from services.index.milvus.ledger.switches import Switches  # noqa: E402
from services.index.milvus.link import MilvusAddress, MilvusLink  # noqa: E402
from services.index.values import Explanation  # noqa: E402

EXPLAINED = [
    ("magnets pull iron nails", ["f0", "f1", "gone"]),
    ("a nail of iron sticks to a magnet", ["also-f0", "f1", "f2"]),
    ("frogs hunt insects", ["f8"]),
    ("ice melts in the sun", ["f6", "f5"]),
]
TEXTS = ["an iron nail is pulled by a magnet", FACTS[3], "the sun heats ice"]


@pytest.fixture
def tables(named: Any) -> Any:
    """The tables of explanations, whether they count or not."""
    return lambda: named("e")


async def lifted(index: Any, text: str = "the frog hunts") -> str:
    """The id of the best premise by the prior alone."""
    return (await index.client.retrieve("science", [text], k=1, prior=1.0))[0][0].id


async def test_the_prior_ranks_as_on_files_to_the_bit(start, serve):
    async with serve(k_max=6) as files, start(k_max=6) as milvus:  # the pool leaves premises out
        for index in (files, milvus):
            await index.client.build("science", [premise("f0", FACTS[0], aliases=["also-f0"]), *facts()[1:]])
            assert await index.client.put_explanations("science", EXPLAINED) == 4
        for more in (
            {},
            {"mode": "lexical"},
            {"mode": "hybrid", "negative_feedback": 0.4},
            {"mode": "hybrid", "accepted": [["f1"], [], ["also-f0"]], "splits": ["dev"], "rerank": 6},
        ):
            plain, expected, found = [
                [
                    [(hit.id, hit.text, hit.score) for hit in hits]
                    for hits in await index.client.retrieve("science", TEXTS, k=5, prior=share, **more)
                ]
                for index, share in ((files, 0.0), (files, 0.3), (milvus, 0.3))
            ]
            assert found == expected, more
            assert "rerank" in more or found != plain, "the prior was to change something"


async def test_explanations_are_joined_replaced_and_followed_by_other_processes(start, tables):
    async with start() as one, start() as other:
        await one.client.build("science", facts())
        await raises(errors.FailedPrecondition, lifted(one), "no explanations", "PutExplanations")
        await raises(errors.NotFound, one.client.put_explanations("nonsense", EXPLAINED), "nonsense")
        assert await one.client.put_explanations("science", [("frogs hunt", ["f3"])]) == 1
        assert await lifted(one) == "f3"
        await eventually(lambda: follows(other, "f3"))
        assert await other.client.put_explanations("science", [("frogs hunt", ["f4"]), ("ice melts", ["f6"])]) == 2
        found = (await other.client.retrieve("science", ["the frog hunts"], k=2, prior=1.0))[0]
        assert {hit.id for hit in found} == {"f3", "f4"}
        assert await one.client.put_explanations("science", [("frogs hunt", ["f9"])], replace=True) == 1
        assert await lifted(one) == "f9"
        await eventually(lambda: follows(other, "f9"))
        too_long = [("frogs hunt", [f"{'f' * 250}{n}" for n in range(300)])]
        await raises(errors.InvalidArgument, one.client.put_explanations("science", too_long), "frogs hunt", "65,535")
        assert await lifted(one) == "f9", "what is refused changes nothing"
        assert len(tables()) == 1, "what no longer counts is dropped"
    async with start() as index:
        assert await lifted(index) == "f9"


async def follows(index: Any, wanted: str) -> bool:
    try:
        return await lifted(index) == wanted
    except errors.FailedPrecondition:
        return False


@pytest.mark.slow
async def test_none_of_two_processes_that_explain_at_once_undoes_the_other(start):
    async with start() as one, start() as other:
        await one.client.build("science", facts())
        await asyncio.gather(
            *(
                index.client.put_explanations("science", [(f"fact {n} holds", [f"f{n}"])])
                for n, index in enumerate([one, other])
            )
        )
        assert await other.client.put_explanations("science", []) == 2


async def test_a_change_that_was_killed_is_not_seen_and_swept_and_one_that_counts_is_not(
    start, milvus, prefix, tables, monkeypatch
):
    link = MilvusLink(MilvusAddress(milvus.uri))
    records = Records(link, prefix)
    store = ExplanationTables(link, records)
    async with start() as index:
        await index.client.build("science", facts())
        await index.client.put_explanations("science", [("frogs hunt", ["f3"])])
    [counts] = tables()
    with monkeypatch.context() as patched:
        patched.setattr(Switches, "make", killed)
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(store.put, "science", [Explanation("frogs hunt", ("f4",))], replace=True)
    assert len(tables()) == 2
    assert len(records.all().unfinished) == 2, "also the one that was to be dropped"
    async with start(milvus_lease_s=0.3) as index:
        await until(lambda: not records.all().unfinished)
        assert tables() == [counts]
        assert await lifted(index) == "f3"
    await link.close()


def killed(*_: Any) -> bool:
    raise RuntimeError("killed")


@pytest.mark.slow
async def test_explanations_that_are_lost_are_named_and_can_be_put_again(start, raw, tables):
    async with start() as index:
        await index.client.build("science", facts())
        await index.client.put_explanations("science", EXPLAINED)
        raw.delete(tables()[0], filter="place == 2")
    async with start() as index:
        await raises(errors.DataLoss, lifted(index), "3 of 4 rows", "put them again, with replace")
        await raises(errors.DataLoss, index.client.put_explanations("science", EXPLAINED), "with replace")
        assert (await index.client.retrieve("science", TEXTS))[0], "only the prior needs them"
        assert await index.client.put_explanations("science", [("frogs hunt", ["f9"])], replace=True) == 1
        assert await lifted(index) == "f9"
