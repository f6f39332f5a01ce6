"""The limits of a service, and checks of request fields against them; they raise InvalidArgument with a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from aeenc.errors import FieldViolation, InvalidArgument, TooLarge

M = TypeVar("M", bound=Message)
FIELD_BYTES = 8  # of a message in another, and more than its tag and its length take


@dataclass(frozen=True)
class Limits:
    """The limits that a service enforces and states in GetInfo. 0 means that the service does not have this limit."""

    message_bytes: int = 4 * 1024 * 1024
    items: int = 1024
    text_bytes: int = 16 * 1024
    k: int = 0
    tokens: int = 0
    queued_items: int = 0
    queued_tokens: int = 0


class AnswerRoom:
    """Counts what an answer surely takes while it is filled, so that one that cannot be sent is not made."""

    def __init__(self, limit_bytes: int, remedy: str = "ask for fewer at once or for a smaller k") -> None:
        self._limit_bytes, self._remedy, self._bytes = limit_bytes, remedy, 0

    def take(self, size_bytes: int) -> None:
        """Adds a part. Raises TooLarge once the answer is over the limit."""
        self._bytes += size_bytes
        if self._bytes > self._limit_bytes:
            raise TooLarge(f"the answer would be over the limit of {self._limit_bytes:,} bytes; {self._remedy}")

    def all_of(self, messages: Iterable[M]) -> Iterator[M]:
        """Yields the messages of a list. Raises as `take` does."""
        for message in messages:
            self.take(message.ByteSize() + FIELD_BYTES)
            yield message

    def first_of(self, messages: Iterable[M]) -> Iterator[M]:
        """Yields the messages of a list until the next would be over the limit."""
        with suppress(TooLarge):
            yield from self.all_of(messages)


def check_count(count: int, limits: Limits, field: str) -> None:
    """Refuses an empty list and one over the limit."""
    if count == 0:
        raise InvalidArgument.field(field, f"is empty; give 1 to {limits.items}")
    if count > limits.items:
        raise TooLarge.field(
            field, f"{count:,} items are over the limit of {limits.items:,} a call; split the call or use a stream"
        )


def check_texts(texts: Sequence[str], limits: Limits, field: str = "texts") -> None:
    """Refuses no texts, too many, empty ones, and texts over the size limit; the error names every bad one."""
    check_count(len(texts), limits, field)
    violations, over_size = [], False
    for position, text in enumerate(texts):
        if not text.strip():
            violations.append(FieldViolation(f"{field}[{position}]", "is empty; give a sentence"))
        elif len(text) * 4 > limits.text_bytes and (size_bytes := len(text.encode())) > limits.text_bytes:
            over_size = True
            message = f"{size_bytes:,} bytes are over the limit of {limits.text_bytes:,}; shorten the text"
            violations.append(FieldViolation(f"{field}[{position}]", message))
    if violations:
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        cls = TooLarge if over_size else InvalidArgument
        raise cls(f"{first.field}: {first.description}{more}", violations=violations)


def check_k(k: int, limits: Limits) -> None:
    """Refuses a k below 1 or over the limit."""
    if not 1 <= k <= limits.k:
        raise InvalidArgument.field("k", f"is {k}; give 1 to {limits.k:,}")
