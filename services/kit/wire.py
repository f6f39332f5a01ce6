"""What several services put into messages or take out of them: times, durations, page tokens, enums."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from aeenc import errors

E = TypeVar("E", bound=int)
T = TypeVar("T")


def to_timestamp(at: datetime | None) -> Timestamp | None:
    """A time; None stays unset."""
    if at is None:
        return None
    timestamp = Timestamp()
    timestamp.FromDatetime(at)
    return timestamp


def to_duration(seconds: float) -> Duration:
    """A length of time; cut to whole nanoseconds."""
    whole = int(seconds)
    return Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


def position_of(page_token: str) -> int:
    """The number in a page token, 0 for none. Raises InvalidArgument for a malformed one."""
    if page_token and not (page_token.isascii() and page_token.isdigit() and len(page_token) < 19):
        raise errors.InvalidArgument.field("page_token", "is malformed; send back the token of the page before")
    return int(page_token or 0)


def known(values: Mapping[E, T], sent: E, field: str, unset: T) -> T:
    """What a number of an enum stands for; 0 is `unset`. Raises InvalidArgument for a number that is not known."""
    if sent != 0 and sent not in values:
        raise errors.InvalidArgument.field(
            field, f"{sent} is unknown to this service; use one of {sorted(values)}, or update it"
        )
    return values.get(sent, unset)
