"""Conversions that several servicers share: a call's context, times, durations, page tokens and enums."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from aeenc import errors
from aeenc.calls.encoding import Precision
from aeenc.v1 import types_pb2
from services.kit.call import CALL, choose_request_id
from services.kit.limits import FIELD_BYTES

E = TypeVar("E", bound=int)
T = TypeVar("T")
M = TypeVar("M", bound=Message)
PAGE = 100
READ = 64  # items of a page that are read at once, of a READth of an answer's bytes
ENVELOPE_BYTES = 512  # of a page beside its items, and more than its token takes

_NAMING = {"corpus", "generation", "label", "version", "annotator"}

PRECISIONS: dict[types_pb2.Precision, Precision] = {
    types_pb2.PRECISION_FLOAT32: "float32",
    types_pb2.PRECISION_FLOAT16: "float16",
    types_pb2.PRECISION_INT8: "int8",
}
TRUNCATES = {types_pb2.TRUNCATE_ERROR: False, types_pb2.TRUNCATE_END: True}
_PRECISION_NUMBERS: dict[str, types_pb2.Precision] = {name: number for number, name in PRECISIONS.items()}


def deadline_s(context: Any) -> float | None:
    """Returns the seconds until the caller's deadline, or None without one."""
    left_s = context.time_remaining()
    return None if left_s is None or left_s > 1e9 else float(left_s)


def request_id(context: Any) -> str:
    """Returns the id of the call that the running task answers."""
    call = CALL.get()
    return choose_request_id(dict(context.invocation_metadata() or ())) if call is None else call.request_id


def named_fields(message: Message) -> Iterator[tuple[str, str]]:
    """Returns the strings that say what a request is about: its corpus, label, version and ids, by name.

    Those of the request itself, empty ones too, and of the single messages in it.
    """
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.name in _NAMING or field.name.endswith("_id"):
                yield field.name, getattr(message, field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and message.HasField(field.name):
            yield from named_fields(getattr(message, field.name))


async def opened_by(field: str, requests: AsyncIterator[M]) -> AsyncIterator[M]:
    """Yields the messages of a stream. Raises InvalidArgument unless the first one, and no other, has the field."""
    opened = False
    async for request in requests:
        if request.HasField(field) == opened:
            wrong = "belongs into the first message only" if opened else "is missing in the first message"
            raise errors.InvalidArgument.field(field, wrong)
        opened = True
        yield request
    if not opened:
        raise errors.InvalidArgument.field(field, "is missing; the stream has no message")


async def bounded(requests: AsyncIterator[M], max_bytes: int, field: str, remedy: str) -> AsyncIterator[M]:
    """Yields the messages of a stream that is read whole: all its bytes are counted until the call has ended.

    Raises TooLarge, naming `field`, when they have more than `max_bytes` in all.
    """
    if (call := CALL.get()) is not None:
        call.reads_whole = True
    size_bytes = 0
    async for request in requests:
        size_bytes += request.ByteSize()
        if size_bytes > max_bytes:
            raise errors.TooLarge.field(field, f"more than {max_bytes / (1 << 20):,.3g} MiB in one call; {remedy}")
        yield request


def to_timestamp(at: datetime | None) -> Timestamp | None:
    """Converts a time; None stays unset."""
    if at is None:
        return None
    timestamp = Timestamp()
    timestamp.FromDatetime(at)
    return timestamp


def to_duration(seconds: float) -> Duration:
    """Converts a length of time, cut to whole nanoseconds."""
    whole = int(seconds)
    return Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


def position_of(page_token: str) -> int:
    """Returns the number in a page token, 0 for an empty one. Raises InvalidArgument for a malformed one."""
    if page_token and not (page_token.isascii() and page_token.isdigit() and len(page_token) < 19):
        raise _malformed_token()
    return int(page_token or 0)


async def page_within(
    limit_bytes: int,
    most: int,
    request: Any,
    read: Callable[[int, Any], Awaitable[tuple[Sequence[T], Any]]],
    convert: Callable[[T], M],
    place_of: Callable[[str], Any] = position_of,
) -> tuple[list[M], str]:
    """Returns the page of messages that a request asks for, as far as one answer holds it, and the next token, if any.

    One item is never too large. `place_of` makes a place of a token. `read` returns at most so many items behind a
    place, and the place behind them, which is falsy at the end. It is asked for few at once, by their sizes, so that
    the memory holds little beside the page. A request without a size gets PAGE items.
    """
    page: list[M] = []
    behind, left = place_of(request.page_token), min(request.page_size or PAGE, most)
    count, room = 1, limit_bytes - ENVELOPE_BYTES
    while left:
        begin = behind
        found, behind = await read(count, begin)
        left -= count
        messages = [convert(item) for item in found]
        sizes = [message.ByteSize() + FIELD_BYTES for message in messages]
        fitting = sum(size <= room for size in accumulate(sizes))
        if found and not fitting and page:
            behind = begin
            break
        if fitting < len(found):
            found, behind = await read(fitting or 1, begin)
            page += map(convert, found)
            break
        page += messages
        room -= sum(sizes)
        if not behind:
            break
        count = min(2 * count, READ, left, max(1, limit_bytes // READ // max(sizes, default=1)))
    return page, str(behind or "")


def page_newest_first(
    items: Iterable[T], place: Callable[[T], tuple[datetime, str]], page_size: int, page_token: str
) -> tuple[list[T], str]:
    """Returns a page of items, the newest first, and the next token (empty on the last page).

    `place` gives an item's time, with its zone, and its name. A token holds those of the last item of its page, so that
    the next page begins behind it also when it is gone. Raises InvalidArgument for a malformed token.
    """
    left = sorted(items, key=place, reverse=True)
    if page_token:
        last = _place_in(page_token)
        left = [item for item in left if place(item) < last]
    page = left[:page_size]
    if len(page) == len(left):
        return page, ""
    at, name = place(page[-1])
    return page, f"{at.isoformat()} {name}"


def _place_in(page_token: str) -> tuple[datetime, str]:
    time, _, name = page_token.partition(" ")
    with suppress(ValueError):
        at = datetime.fromisoformat(time)
        if name and at.tzinfo is not None:
            return at, name
    raise _malformed_token()


def _malformed_token() -> errors.InvalidArgument:
    return errors.InvalidArgument.field("page_token", "is malformed; send back the token of the page before")


def decode_enum(values: Mapping[E, T], sent: E, field: str, unset: T) -> T:
    """Returns the value of an enum's number; 0 is `unset`. Raises InvalidArgument for a number not in `values`."""
    if sent != 0 and sent not in values:
        raise errors.InvalidArgument.field(
            field, f"{sent} is unknown to this service; use one of {sorted(values)}, or update it"
        )
    return values.get(sent, unset)


def to_precision(name: str) -> types_pb2.Precision:
    """Writes a precision; unspecified for none, or one of a newer release."""
    return _PRECISION_NUMBERS.get(name, types_pb2.PRECISION_UNSPECIFIED)


def label_of(row: Any, **history: Any) -> types_pb2.Label:
    """Writes a label from its row; the registry adds its `history`."""
    return types_pb2.Label(
        space_id=row.space_id,
        name=row.name,
        versions=row.versions,
        revision=row.revision,
        share=row.share,
        precision=to_precision(row.precision),
        **history,
    )
