"""Explanations in the store: put, joined and replaced, durable or as before, within their limits."""

from __future__ import annotations

import errno

import pytest

from aeenc import errors
from aeenc.v1 import index_pb2
from services.corpus.moves import Records
from services.index.catalogue.served import FOLDER
from support.worlds.index_world import facts, raises

EXPLAINED = [
    ("magnets pull iron nails", ["f0", "f1", "gone"]),
    ("a nail of iron sticks to a magnet", ["f1", "f2"]),
    ("frogs hunt insects", ["f8"]),
]


async def test_explanations_outlive_the_process_and_are_joined_or_replaced(serve):
    async def first(index) -> str:
        return (await index.client.retrieve("science", ["the frog hunts"], k=1, prior=1.0))[0][0].id

    async with serve() as index:
        await index.client.build("science", facts())
        remedy = ("`aeenc corpus explain science --run RUN`", "PutExplanations")
        await raises(errors.FailedPrecondition, first(index), "no explanations", *remedy)
        await index.client.put_explanations("science", [("frogs hunt", ["f3"])])
        assert await first(index) == "f3"
        assert await index.client.put_explanations("science", [("frogs hunt", ["f4"]), ("ice melts", ["f6"])]) == 2
    async with serve() as index:
        found = (await index.client.retrieve("science", ["the frog hunts"], k=2, prior=1.0))[0]
        assert {hit.id for hit in found} == {"f3", "f4"}
        assert await index.client.put_explanations("science", [("frogs hunt", ["f9"])], replace=True) == 1
        assert await first(index) == "f9"
        await raises(errors.NotFound, index.client.put_explanations("nonsense", EXPLAINED), "nonsense")
        await raises(errors.InvalidArgument, index.client.put_explanations("science", [(" ", ["f1"])]), "[0]", "empty")
        assert await first(index) == "f9", "what is refused changes nothing"
    [*_, last] = sorted((index.store.root / "generations" / "science" / FOLDER).iterdir())
    last.write_text("[1]")
    async with serve() as index:
        await raises(errors.DataLoss, first(index), last.name, "put the explanations again")
        assert (await index.client.retrieve("science", ["the frog hunts"]))[0], "only the prior needs them"
        await index.client.put_explanations("science", [("frogs hunt", ["f9"])], replace=True)
        assert await first(index) == "f9"


@pytest.mark.parametrize("before", [[("frogs hunt", ["f3"])], []])
async def test_explanations_whose_change_cannot_be_recorded_are_as_before_on_disk_and_in_memory(
    serve, monkeypatch, before
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with serve() as index:
        await index.client.build("science", facts())
        if before:
            await index.client.put_explanations("science", before)
        with monkeypatch.context() as patched:
            patched.setattr(Records, "create", full)
            once = iter([("ice melts", ["f6"])])  # an iterator is not sent again
            await raises(errors.Unavailable, index.client.put_explanations("science", once, replace=True), "full")
        async with serve() as again:
            assert await again.client.put_explanations("science", [("a magnet attracts", ["f2"])]) == len(before) + 1
        assert await index.client.put_explanations("science", [("ice melts", ["f6"])]) == len(before) + 2


async def test_the_files_of_old_explanations_go(built):
    for number in range(6):
        await built.client.put_explanations("science", [(f"hypothesis {number}", ["f1"])])
    assert len(list((built.store.root / "generations" / "science" / FOLDER).iterdir())) == 2


async def test_explanations_are_put_again_after_a_passing_refusal_unless_they_come_from_an_iterator(built, monkeypatch):
    explanations = built.catalogue.explanations
    put, refusals = explanations.put, []

    async def refused_once(*arguments, **options):
        if not refusals:
            refusals.append("starting")
            raise errors.Unavailable("the disk is full")
        return await put(*arguments, **options)

    monkeypatch.setattr(explanations, "put", refused_once)
    assert await built.client.put_explanations("science", EXPLAINED) == len(EXPLAINED)
    refusals.clear()
    await raises(errors.Unavailable, built.client.put_explanations("science", iter(EXPLAINED)), "full")


async def test_a_stream_of_explanations_begins_with_its_header(built):
    header = index_pb2.PutExplanationsRequest(header=index_pb2.ExplanationsHeader(corpus="science"))
    chunk = index_pb2.PutExplanationsRequest(explanations=[{"text": "x"}])

    async def put(*requests):
        async def sent():
            for request in requests:
                yield request

        await built.client.channel.send_stream(built.client._admin.PutExplanations, sent, retry=False)

    await raises(errors.InvalidArgument, put(), "header")
    await raises(errors.InvalidArgument, put(chunk), "first message")
    await raises(errors.InvalidArgument, put(header, header), "first message")
    await put(header, chunk)


@pytest.mark.parametrize(
    ("module", "most_bytes", "count", "letters", "words"),
    [
        ("services.index.convert", 1 << 20, 2000, 1000, ("1 MiB", "several calls")),
        ("services.index.catalogue.served", 12_000, 300, 0, ("'science'", "12,000", "replace")),
    ],
    ids=["of a call", "of a corpus"],
)
async def test_explanations_over_a_limit_are_refused_with_the_remedy_and_change_nothing(
    built, monkeypatch, module, most_bytes, count, letters, words
):
    monkeypatch.setattr(f"{module}.EXPLANATIONS_BYTES", most_bytes)
    before = [(f"hypothesis 0 {n}", ["f0"]) for n in range(300)]
    assert await built.client.put_explanations("science", before) == 300
    many = [(f"hypothesis 1 {n} {'x' * letters}", ["f0"]) for n in range(count)]
    await raises(errors.TooLarge, built.client.put_explanations("science", many), *words)
    assert await built.client.put_explanations("science", before) == 300
    assert await built.client.put_explanations("science", EXPLAINED, replace=True) == len(EXPLAINED)
