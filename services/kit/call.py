"""The call in work, for all that it runs through: its request id, who makes it, what the log says of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from aeenc.transport.checks import REQUEST_ID
from services.kit.tracing import TRACEPARENT

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_CHARS_MAX = 64

_random = random.Random()  # noqa: S311 -- names, no secrets; asking the system for each costs as much as a whole call


class CallInWork:
    """A call that is being answered. `caller` is the `Caller` that the gate let in.

    `reads_whole` says that its handler keeps the messages of its stream until its end. `check_again` ends a stream that
    may not go on.
    """

    __slots__ = ("caller", "check_again", "is_idle", "metadata", "reads_whole", "request_id")

    def __init__(self, metadata: Mapping[str, Any], caller: Any) -> None:
        self.metadata, self.caller, self.reads_whole, self.is_idle = metadata, caller, False, False
        self.request_id = choose_request_id(metadata)
        self.check_again: Callable[[], None] | None = None  # while a stream lasts

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Says that its stream waits for the caller alone: the end of the service then ends it."""
        self.is_idle = True
        if self.check_again is not None:
            self.check_again()
        try:
            yield
        finally:
            self.is_idle = False

    def log_fields(self) -> dict[str, str]:
        """Returns what each line of the log says of the call."""
        fields = {"request_id": self.request_id}
        if traceparent := self.metadata.get(TRACEPARENT):
            fields["traceparent"] = str(traceparent)[:TRACEPARENT_CHARS_MAX]
        if self.caller.name:
            fields["caller"] = self.caller.name
        return fields


# One variable for everything: each that is set costs a microsecond or two, in every call.
CALL: ContextVar[CallInWork | None] = ContextVar("call", default=None)


def choose_request_id(metadata: Mapping[str, Any]) -> str:
    """Chooses a call's one id, for log, servicer and answer: the caller's `x-request-id`, or a fresh one."""
    if REQUEST_ID_KEY in metadata:
        sent = str(metadata[REQUEST_ID_KEY])
        if REQUEST_ID.fullmatch(sent):
            return sent
    return f"{_random.getrandbits(128):032x}"
