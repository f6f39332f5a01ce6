"""Inputs of callers: enum values by name, and long inputs of either kind of iterable, cut into messages."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from aeenc.errors import InvalidArgument

CHUNK_BYTES = 2 * 1024 * 1024  # of one message; services accept 4 MiB

T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=Message)

Items = Iterable[T] | AsyncIterable[T]


async def each(items: Items[T]) -> AsyncIterator[T]:
    """Yields the items of either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def begins_again(items: Items[T]) -> bool:
    """Whether the items can be gone through a second time, from the first on. An iterator's cannot."""
    return not isinstance(items, Iterator | AsyncIterator)


async def chunks(items: AsyncIterator[MessageT], most: int, size_bytes: int) -> AsyncIterator[list[MessageT]]:
    """Cuts a long list into lists of at most `most` messages and `size_bytes`, unless one alone is larger."""
    chunk: list[MessageT] = []
    chunk_bytes = 0
    async for item in items:
        item_bytes = item.ByteSize()
        if chunk and (len(chunk) >= most or chunk_bytes + item_bytes > size_bytes):
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(item)
        chunk_bytes += item_bytes
    if chunk:
        yield chunk


def enum_value(enum: EnumTypeWrapper, given: str | int | None, field: str) -> Any:
    """Returns an enum's value for a message, given by a name such as "cross_encoder" or by number.

    Raises InvalidArgument, naming `field` and the choices, for an unknown name. Numbers are the service's to judge.
    """
    if not isinstance(given, str):
        return given
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    name = prefix + given.upper().replace("-", "_").removeprefix(prefix)
    if name in enum.keys():  # noqa: SIM118 -- not a mapping
        return enum.Value(name)
    choices = ", ".join(name.removeprefix(prefix).lower() for name in enum.keys()[1:])
    raise InvalidArgument.field(field, f"is {given!r}; give one of {choices}")
