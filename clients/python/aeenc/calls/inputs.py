"""Inputs of callers: lists and pairs of them, and long inputs of either kind of iterable, cut into messages."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from aeenc.errors import InvalidArgument
from aeenc.values.writing import message, shown

if TYPE_CHECKING:
    from aeenc.trees import Accessible

CHUNK_BYTES = 2 * 1024 * 1024  # of one message; services accept 4 MiB

T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=Message)

Items = Iterable[T] | AsyncIterable[T]


def refuse_unknown(options: Mapping[str, object], known: Set[str], of: str = "retrieve") -> None:
    """Raises InvalidArgument for an option that a call does not take."""
    if unknown := sorted(options.keys() - known):
        there = ", ".join(sorted(known))
        raise InvalidArgument.field(unknown[0], f"is not an option of {of}, which takes {there}")


async def each(items: Items[T], field: str = "items") -> AsyncIterator[T]:
    """Yields the items of either kind of iterable. Raises InvalidArgument, naming `field`, for anything else."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in _iterable(items, field):
            yield item


def change(kind: Callable[..., MessageT], /, *, request_id: str, **fields: Any) -> MessageT:
    """Makes the request of a change, under an id of its own where the caller gives none, so that it may be repeated."""
    return message(kind, request_id=request_id or uuid.uuid4().hex, **fields)


def listed(items: Any, field: str) -> list[Any]:
    """Returns the items of an iterable. Raises InvalidArgument, naming `field`, for one string or another value."""
    return list(_iterable(items, field))


def allowed(items: Any, field: str) -> list[Any]:
    """Returns what alone may be found; None: all. Raises InvalidArgument for an empty list, to a message the same."""
    if items is not None and not (items := listed(items, field)):
        raise InvalidArgument.field(field, "is empty; leave it out to search all, or give at least one")
    return items or []


def _iterable(items: Any, field: str) -> Iterable[Any]:
    refuse_single_text(items, field)
    if isinstance(items, type) or not isinstance(items, Iterable):
        raise InvalidArgument.field(field, f"is {shown(items)}; give a list")
    return items


def accessible_by_text(given: Any) -> Mapping[str, Accessible]:
    """Returns what is accessible to each text; None: nothing is said. Raises InvalidArgument for anything else."""
    if not isinstance(given := {} if given is None else given, Mapping):
        raise InvalidArgument.field("accessible", f"is {shown(given)}; give a mapping of texts")
    check_accessible(given.values())
    return given


def check_used(accessible: Mapping[str, Accessible], texts: Container[str], field: str) -> None:
    """Raises InvalidArgument for a text that is not there: to the one that is meant, all would be accessible."""
    if unknown := [text for text in accessible if text not in texts]:
        raise InvalidArgument.field("accessible", f"has {shown(unknown[0])}, which is none of the {field}; correct it")


def check_accessible(given: Iterable[Any]) -> None:
    """Raises InvalidArgument for what does not say what is accessible."""
    from aeenc.trees import Accessible  # a search by texts needs no trees

    for one in given:
        if not isinstance(one, Accessible):
            raise InvalidArgument.field("accessible", f"has {shown(one)}; give Accessible of aeenc.trees")


def pair_of(item: Any, field: str, form: str) -> tuple[Any, Any]:
    """Returns both parts of an item. Raises InvalidArgument, naming `field` and the form, for one without two parts."""
    if isinstance(item, str | bytes) or not isinstance(item, Iterable) or len(parts := tuple(item)) != 2:
        raise InvalidArgument.field(field, f"has {shown(item)}; give {form}")
    return parts


def refuse_single_text(texts: object, field: str = "texts") -> None:
    """Raises InvalidArgument for one string in place of a list, which would count as a list of its characters."""
    if isinstance(texts, str):
        raise InvalidArgument.field(field, f"is one string ({shown(texts)}); give a list of strings")


def at_least_one(count: Any, field: str) -> int:
    """Returns a number of things. Raises InvalidArgument, naming `field`, unless it is a whole number above 0."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidArgument.field(field, f"is {shown(count)}; give a whole number from 1 on")
    return count


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


async def opened(opening: MessageT, parts: AsyncIterator[MessageT]) -> AsyncIterator[MessageT]:
    """Yields an opening, then the parts. The first part is made before: what is wrong in it needs no service."""
    part = await anext(parts, None)
    yield opening
    while part is not None:
        yield part
        part = await anext(parts, None)
