"""A call whose caller leaves while it changes something: what is on disk and what is in memory agree all the same."""

import asyncio

import pytest

from aeenc import errors
from services.corpus.active import read_active
from services.index.building.builder import Builder
from services.index.catalogue import catalogue as catalogue_module
from services.index.catalogue.served import Explanations
from services.store.artifacts import ArtifactStore
from support.waiting import eventually, until
from support.worlds.index_world import Gate, facts, works

SOON_S = 0.3  # within which a call that nothing holds up is over


async def leave_within(gate, call):
    """Starts a call and leaves it while the gate holds it up."""
    task = asyncio.ensure_future(call)
    assert await asyncio.to_thread(gate.entered.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def overtaking(gate, call):
    """Begins a call behind the held-up one, opens the gate, and waits for the answer."""
    task = asyncio.ensure_future(call)
    await asyncio.wait([task], timeout=SOON_S)
    gate.opened.set()
    assert await asyncio.to_thread(gate.left.wait, 20)
    return await task


async def two_active(index):
    """Builds three generations, of which the last one serves; returns the ids of the others."""
    return [(await index.client.build("science", facts()[:count])).id for count in (6, 8, 10)][:2]


async def listed(index):
    try:
        return [one.id async for one in index.client.list_generations("science")]
    except errors.NotFound:
        return []


async def active(index):
    return (await anext(index.client.list_corpora())).active.id


async def test_an_activation_is_not_overwritten_by_one_whose_caller_left(index, monkeypatch):
    first, second = await two_active(index)
    gate = Gate(catalogue_module.write_active)
    monkeypatch.setattr(catalogue_module, "write_active", gate)
    await leave_within(gate, index.client.activate("science", first))
    await overtaking(gate, index.client.activate("science", second))
    assert await active(index) == second
    assert read_active(index.store, "science") == second


async def test_a_deletion_whose_caller_left_is_whole(index, monkeypatch):
    first, second = await two_active(index)
    gate = Gate(ArtifactStore.delete)
    monkeypatch.setattr(ArtifactStore, "delete", gate)
    await index.client.get_premises("science", ["f1"], generation=first)  # keeps it open
    await leave_within(gate, index.client.delete("science", first))
    gate.opened.set()
    await eventually(lambda: listed(index), is_so=lambda found: first not in found)
    await index.client.delete("science", second)  # its turn comes when the one before is over
    with pytest.raises(errors.NotFound):
        await index.client.get_premises("science", ["f1"], generation=first)


async def test_explanations_are_not_overwritten_by_those_whose_caller_left(index, serve, monkeypatch):
    await index.client.build("science", facts())
    gate = Gate(Explanations._put)
    monkeypatch.setattr(Explanations, "_put", gate)
    await leave_within(gate, index.client.put_explanations("science", [("one", ["f1"])]))
    assert await overtaking(gate, index.client.put_explanations("science", [("two", ["f2"])])) == 2
    async with serve() as again:
        assert await again.client.put_explanations("science", [("three", ["f3"])]) == 3


async def test_a_generation_whose_caller_left_at_its_commit_is_known_without_a_restart(index, monkeypatch):
    gate = Gate(Builder._write)
    monkeypatch.setattr(Builder, "_write", gate)
    await leave_within(gate, index.client.build("science", facts(), activate=False, request_id="r"))
    gate.opened.set()
    await eventually(lambda: listed(index))
    await until(lambda: not works(index.store))
