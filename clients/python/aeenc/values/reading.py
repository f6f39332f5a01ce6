"""Times, durations and enum numbers of messages as Python's own. The values beside this module are made with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Choice(IntEnum):
    """An enum of the contract. A number of a newer service that this release does not know is `UNKNOWN_<number>`."""

    @classmethod
    def _missing_(cls, value: object) -> Choice | None:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_, unknown._value_ = f"UNKNOWN_{value}", value
        return unknown


def moment(message: Timestamp) -> datetime:
    """Returns a time, with time zone UTC, to the microsecond."""
    return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def lasting(message: Duration) -> timedelta:
    """Returns a duration, to the microsecond."""
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
