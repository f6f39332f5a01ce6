"""Which generation is active in a Milvus: of processes that expect the same one, the first switches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aeenc import errors
from support.servers.milvus_server import need_milvus
from support.worlds.index_world import SPACE, facts, premise, vector_of

need_milvus()

from pymilvus.exceptions import MilvusException  # noqa: E402

from services.index.milvus import catalogue as catalogue_module  # noqa: E402
from services.index.milvus.ledger import switches as switches_module  # noqa: E402
from services.index.milvus.ledger.records import Records  # noqa: E402
from services.index.milvus.ledger.switches import KEPT, Switches  # noqa: E402

TWO = vector_of("ice melts")[None, :]
ROUNDS = 12


@pytest.fixture
def aliases(raw: Any, prefix: str) -> Any:
    """The aliases of corpus "science", each with its collection."""
    name = f"{prefix}_active_{b'science'.hex()}"
    return lambda: {
        alias.removeprefix(name): raw.describe_alias(alias=alias)["collection_name"]
        for alias in raw.list_aliases()["aliases"]
        if alias.startswith(name)
    }


async def built(index: Any, count: int) -> list[str]:
    """Generations of a corpus that differ; the first is active."""
    found = []
    for n in range(count):
        premises = [*facts()[:6], premise(f"extra{n}", f"fact {n}")]
        found.append((await index.client.build("science", premises, activate=not n)).id)
    return found


async def test_of_two_processes_that_expect_the_same_generation_one_wins(start):
    async with start() as one, start() as other:
        names = await built(one, 3)
        active = names[0]
        for _ in range(ROUNDS):
            wanted = [name for name in names if name != active]
            answers = await asyncio.gather(
                *(
                    index.client.activate("science", name, expected=active)
                    for index, name in zip((one, other), wanted, strict=True)
                ),
                return_exceptions=True,
            )
            won = [name for name, answer in zip(wanted, answers, strict=True) if not isinstance(answer, Exception)]
            assert len(won) == 1, answers
            assert sum(isinstance(answer, errors.Aborted) for answer in answers) == 1
            [active] = won
            for index in (one, other):  # both know it
                await index.client.activate("science", active, expected=active)


async def test_activations_that_expect_nothing_all_take_their_turn(start):
    async with start() as one, start() as other:
        names = await built(one, 2)
        answers = await asyncio.gather(
            *(index.client.activate("science", names[n % 2]) for n, index in enumerate([one, other] * 6))
        )
        assert {answer.active.id for answer in answers} == {*names}


async def test_spent_numbers_are_few_and_keep_no_generation_from_being_deleted(start, raw, aliases, prefix):
    async with start() as index:
        names = await built(index, 2)
        for n in range(1, KEPT + 6):
            await index.client.activate("science", names[n % 2])
        numbers = sorted(int(name[1:]) for name in aliases())
        assert numbers == list(range(numbers[-1] - KEPT, numbers[-1] + 1))
        spent = {collection for name, collection in aliases().items() if name != f"_{numbers[-1]}"}
        assert spent == {f"{prefix}_records"}
        await index.client.delete("science", names[n % 2 - 1])
        assert sorted(int(name[1:]) for name in aliases()) == numbers
        assert (await index.client.search("science", TWO, space_id=SPACE)).generation == names[n % 2]


async def test_a_process_that_dies_after_its_switch_leaves_nothing_that_is_in_the_way(start, aliases, monkeypatch):
    def away(*_: object) -> None:
        raise errors.Unavailable("gone")

    async with start() as index:
        first, second = await built(index, 2)
        monkeypatch.setattr(Switches, "spend", away)
        await index.client.activate("science", second, expected=first)
        monkeypatch.undo()
        assert len({*aliases().values()}) == 2
        await index.client.delete("science", first)
        assert (await index.client.search("science", TWO, space_id=SPACE)).generation == second
        assert len(aliases()) == 2


async def test_a_generation_that_is_activated_while_it_is_deleted_stays(start, monkeypatch):
    async with start() as one, start() as other:
        _, second = await built(one, 2)
        put = Records.put_unfinished
        loop, activated = asyncio.get_running_loop(), []

        def late(records: Records, kind: Any, collection: str, beat: int) -> None:
            if kind == "dropping" and not activated:
                activated.append(True)
                asyncio.run_coroutine_threadsafe(other.client.activate("science", second), loop).result(20)
            put(records, kind, collection, beat)

        monkeypatch.setattr(Records, "put_unfinished", late)
        with pytest.raises(errors.FailedPrecondition, match="active"):
            await one.client.delete("science", second)
        await one.client.activate("science", second, expected=second)
        assert (await one.client.search("science", TWO, space_id=SPACE)).generation == second


async def test_a_generation_that_is_deleted_while_it_is_checked_is_not_activated(start, monkeypatch):
    async with start() as one, start() as other:
        first, second = await built(one, 2)
        checked, loop = catalogue_module.check, asyncio.get_running_loop()

        def slow(*arguments: Any) -> None:
            checked(*arguments)
            asyncio.run_coroutine_threadsafe(other.client.delete("science", second), loop).result(20)

        monkeypatch.setattr(catalogue_module, "check", slow)
        with pytest.raises(errors.NotFound, match=second):
            await one.client.activate("science", second)
        assert (await one.client.search("science", TWO, space_id=SPACE)).generation == first


async def test_a_generation_that_is_replaced_while_it_is_checked_is_activated_in_its_new_collection(
    start, raw, aliases, collections, monkeypatch
):
    async with start() as one, start() as other:
        await built(one, 1)
        before = {*collections()}
        second = (await one.client.build("science", facts(), activate=False)).id
        [damaged] = {*collections()} - before
        checked, loop = catalogue_module.check, asyncio.get_running_loop()

        def slow(*arguments: Any) -> None:
            checked(*arguments)
            monkeypatch.undo()
            raw.delete(damaged, ids=[9])
            again = other.client.build("science", facts(), activate=False)
            assert asyncio.run_coroutine_threadsafe(again, loop).result(20).id == second

        monkeypatch.setattr(catalogue_module, "check", slow)
        await one.client.activate("science", second)
        assert damaged not in aliases().values()
        assert (await one.client.search("science", TWO, space_id=SPACE)).generation == second


async def test_an_activation_stands_if_milvus_cannot_spend_the_switches_before(start, monkeypatch):
    async with start() as index:
        first, second = await built(index, 2)

        def broken(*_: Any) -> None:
            raise MilvusException(1, "[Errno 2] No such file or directory: aliases.json.tmp")  # milvus-lite, at times

        monkeypatch.setattr(Switches, "spend", broken)
        await index.client.activate("science", second, expected=first)
        assert (await index.client.search("science", TWO, space_id=SPACE)).generation == second


async def test_a_failure_that_leaves_no_alias_is_not_taken_for_a_faster_process(start, monkeypatch):
    async with start() as index:
        first, second = await built(index, 2)
        called = switches_module.MilvusLink.call

        def broken(link: Any, method: str, **arguments: Any) -> Any:
            if method == "create_alias":
                raise errors.Unavailable("Milvus is away")
            return called(link, method, **arguments)

        monkeypatch.setattr(switches_module.MilvusLink, "call", broken)
        with pytest.raises(errors.Unavailable, match="away"):
            await index.client.activate("science", second, expected=first)
        monkeypatch.undo()
        await index.client.activate("science", second, expected=first)
