"""Generations of one corpus in several spaces: built where the caller says, and switched as a whole."""

from __future__ import annotations

import pytest

from aeenc import errors
from aeenc.v1 import types_pb2
from support.worlds.index_world import SPACE

OTHER = "s00000000000000bb"
PREMISES = [types_pb2.Premise(id=f"p{n}", text=f"fact number {n}", splits=("facts",)) for n in range(20)]


async def test_a_build_asks_the_encoder_for_the_space_that_it_was_given(index, encoder):
    encoder.servicer.other_spaces = {OTHER}
    here = await index.client.build("science", PREMISES)
    there = await index.client.build("science", PREMISES, space_id=OTHER, activate=False, request_id="once")
    assert (here.space_id, there.space_id) == (SPACE, OTHER)
    assert (await index.client.retrieve("science", ["fact"])).generation == here.id
    await index.client.activate("science", there.id, expected=here.id)
    found = await index.client.retrieve("science", ["fact"])
    assert (found.generation, found.space_id) == (there.id, OTHER)
    assert encoder.servicer.requests[-1].space_id == OTHER, "the text is encoded where the premises are"
    copied = [premise async for premise in index.client.list_premises("science", generation=here.id)]
    again = await index.client.build("science", copied, space_id=OTHER, activate=False)
    assert again.id == there.id, "a listing builds the same generation again"


async def test_a_base_of_another_space_is_refused(index, encoder):
    encoder.servicer.other_spaces = {OTHER}
    here = await index.client.build("science", PREMISES)
    more = [types_pb2.Premise(id="new", text="a new fact")]
    with pytest.raises(errors.SpaceMismatch, match="without a base generation"):
        await index.client.build("science", more, base_generation=here.id, space_id=OTHER)
    same = await index.client.build("science", more, base_generation=here.id, space_id=SPACE)
    assert same.space_id == SPACE


async def test_a_build_with_one_request_id_stays_in_its_space(index, encoder):
    encoder.servicer.other_spaces = {OTHER}
    built = await index.client.build("science", PREMISES, space_id=OTHER, request_id="once")
    assert (await index.client.build("science", PREMISES, space_id=OTHER, request_id="once")).id == built.id


async def test_an_encoder_without_the_space_fails_the_build(index, encoder):
    with pytest.raises(errors.SpaceMismatch, match=f"answers in space {SPACE}, this build is of space {OTHER}"):
        await index.client.build("science", PREMISES, space_id=OTHER)
