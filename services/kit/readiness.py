"""The one state of a service: health, GetInfo and the interceptor follow it."""

from __future__ import annotations

import asyncio
from typing import Literal

State = Literal["STARTING", "SERVING", "DEGRADED", "DRAINING"]


class Readiness:
    """The state of one process. DEGRADED still serves; the reason names what is missing.

    `changed` is set at the next change of state, and by `closing`; another event then takes its place.
    """

    def __init__(self) -> None:
        self.state: State = "STARTING"
        self.reason = "starting"
        self.is_closing = False
        self.changed = asyncio.Event()

    @property
    def answers(self) -> bool:
        """Whether calls are answered. A draining service still answers."""
        return self.state != "STARTING"

    @property
    def healthy(self) -> bool:
        """Whether health checks say SERVING: not while starting or draining."""
        return self.state in {"SERVING", "DEGRADED"}

    def is_in(self, state: State) -> bool:
        """Whether this is the state."""
        return self.state == state

    def starting(self, reason: str) -> None:
        """Refuses calls; the reason says what the service waits for."""
        self._set("STARTING", reason)

    def serving(self) -> None:
        """Answers calls; nothing is missing."""
        self._set("SERVING", "")

    def degraded(self, reason: str) -> None:
        """Answers calls without what the reason names."""
        self._set("DEGRADED", reason)

    def draining(self) -> None:
        """Finishes what is in flight. No other state follows."""
        self._set("DRAINING", "the service is shutting down")

    def closing(self) -> None:
        """Takes no more calls, after `draining`: watches and idle streams end, which might never finish."""
        self.is_closing = True
        self._tell()

    def _set(self, state: State, reason: str) -> None:
        if self.state == "DRAINING" or (self.state, self.reason) == (state, reason):
            return
        self.state, self.reason = state, reason
        self._tell()

    def _tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
