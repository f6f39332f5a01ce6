"""The call in work, for all that it runs through: its request id, who makes it, what the log says of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from aeenc.errors import AeencError
from aeenc.transport.checks import REQUEST_ID
from services.kit.tracing import TRACEPARENT, Span

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_CHARS_MAX = 64

_random = random.Random()  # noqa: S311 -- names, no secrets; asking the system for each costs as much as a whole call


class Call:
    """A call that is being answered: its `Method` of `interceptors`, and the `Caller` that the gate let in.

    `refusal` is why nobody may make it, or go on with it; `about` holds its names, for the audit trail; `held_bytes`
    are counted for its request, None once it has ended. `reads_whole` says that its handler keeps the messages of its
    stream until its end. `check_again` ends a stream that may not go on.
    """

    def __init__(
        self, method: Any, metadata: Mapping[str, Any], caller: Any, refusal: AeencError | None = None
    ) -> None:
        self.method, self.metadata, self.caller, self.refusal = method, metadata, caller, refusal
        self.reads_whole = self.is_idle = False
        self.request_id = choose_request_id(metadata)
        self.check_again: Callable[[], None] | None = None  # while a stream lasts
        self.started = 0.0
        self.span: Span | None = None
        self.about: dict[str, str] = {}
        self.held_bytes: int | None = 0

    def take_refusal(self) -> AeencError:
        """Hands the refusal over to be raised: kept here, it and the frame that raised it would refer to each other."""
        refusal, self.refusal = self.refusal, None
        assert refusal is not None
        return refusal

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
CALL: ContextVar[Call | None] = ContextVar("call", default=None)


def choose_request_id(metadata: Mapping[str, Any]) -> str:
    """Chooses a call's one id, for log, servicer and answer: the caller's `x-request-id`, or a fresh one."""
    if REQUEST_ID_KEY in metadata:
        sent = str(metadata[REQUEST_ID_KEY])
        if REQUEST_ID.fullmatch(sent):
            return sent
    return f"{_random.getrandbits(128):032x}"
