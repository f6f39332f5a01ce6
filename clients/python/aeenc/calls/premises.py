"""The forms in which callers give premises and explanations. A premise is a text, a pair (id, text) or a value of it.

Files of facts are read elsewhere (`aeenc.adapters.facts`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from aeenc import values
from aeenc.calls.inputs import Items, chunks, each, opened, pair_of
from aeenc.errors import InvalidArgument
from aeenc.v1 import index_pb2, types_pb2
from aeenc.values.writing import message, message_of, shown

if TYPE_CHECKING:  # who searches needs none, and its dataclasses take long to make
    PremiseForm: TypeAlias = str | tuple[str, str] | values.Premise | types_pb2.Premise
CHUNK_ITEMS = 512
CHUNK_BYTES = 512 * 1024  # about


def build_requests(
    header: index_pb2.BuildHeader, premises: Items[PremiseForm], done: int
) -> AsyncIterator[index_pb2.BuildGenerationRequest]:
    """Yields the header as it is now, then the premises but for the first `done`."""
    parts = chunks(_after(done, premises), CHUNK_ITEMS, CHUNK_BYTES)
    requests = (index_pb2.BuildGenerationRequest(premises=chunk) async for chunk in parts)
    return opened(index_pb2.BuildGenerationRequest(header=header), requests)


async def _after(count: int, premises: Items[PremiseForm]) -> AsyncIterator[types_pb2.Premise]:
    """Yields the messages of all premises but the first `count`."""
    passed = 0
    async for premise in premise_messages(premises):
        passed += 1
        if passed > count:
            yield premise


async def premise_messages(premises: Items[PremiseForm]) -> AsyncIterator[types_pb2.Premise]:
    """Yields premises as messages. A text without an id gets one from its text; repeated, it is left out.

    Raises InvalidArgument, with its place, for what is no premise.
    """
    from aeenc.trees import content_id  # who only searches needs no trees

    named: set[str] = set()  # by their texts
    place = 0
    async for given in each(premises, "premises"):
        premise = _message_of(given, f"premises[{place}]")
        place += 1
        if not premise.id and premise is not given:
            premise.id = content_id(premise.text)
            if premise.id in named:
                continue
            named.add(premise.id)
        yield premise


def _message_of(given: Any, field: str) -> types_pb2.Premise:
    if isinstance(given, types_pb2.Premise):
        return given
    if isinstance(given, values.Premise):
        return given.to_message()
    premise_id, text = given if isinstance(given, tuple | list) and len(given) == 2 else ("", given)
    if not isinstance(premise_id, str) or not isinstance(text, str):
        raise InvalidArgument.field(field, f"is {shown(given)}; give a text, a pair (id, text) or an aeenc.Premise")
    return message_of(field, types_pb2.Premise, id=premise_id, text=text)


def explanation_requests(
    header: index_pb2.ExplanationsHeader, explanations: Items[tuple[str, Sequence[str]]]
) -> AsyncIterator[index_pb2.PutExplanationsRequest]:
    """Yields the header, then the explanations: hypotheses, each with the ids of its premises."""
    messages = (_explanation(item) async for item in each(explanations, "explanations"))
    parts = chunks(messages, CHUNK_ITEMS, CHUNK_BYTES)
    requests = (index_pb2.PutExplanationsRequest(explanations=chunk) async for chunk in parts)
    return opened(index_pb2.PutExplanationsRequest(header=header), requests)


def _explanation(item: tuple[str, Sequence[str]]) -> index_pb2.Explanation:
    text, premise_ids = pair_of(item, "explanations", "(hypothesis, premise ids)")
    return message(index_pb2.Explanation, text=text, premise_ids=premise_ids)
