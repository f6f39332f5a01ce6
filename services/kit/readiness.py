"""Whether a service answers its calls: one state, which health, GetInfo and the interceptor follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

State = Literal["STARTING", "SERVING", "DEGRADED", "DRAINING"]


class Readiness:
    """The state of one process. DEGRADED serves, without something it would like to have; the reason names it."""

    def __init__(self) -> None:
        self.state: State = "STARTING"
        self.reason = "starting"
        self._listeners: list[Callable[[], None]] = []

    @property
    def answers(self) -> bool:
        """Whether calls are answered. A draining service finishes what is in flight and still answers."""
        return self.state != "STARTING"

    @property
    def healthy(self) -> bool:
        """What health checks say: False while starting and while draining."""
        return self.state in {"SERVING", "DEGRADED"}

    def starting(self, reason: str) -> None:
        """Not yet: the reason says what is awaited."""
        self._set("STARTING", reason)

    def serving(self) -> None:
        """All is well."""
        self._set("SERVING", "")

    def degraded(self, reason: str) -> None:
        """Serving, without what the reason names."""
        self._set("DEGRADED", reason)

    def draining(self) -> None:
        """On the way out. Nothing follows."""
        self._set("DRAINING", "the service is shutting down")

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of state."""
        self._listeners.append(listener)

    def _set(self, state: State, reason: str) -> None:
        if self.state == "DRAINING" or (self.state, self.reason) == (state, reason):
            return
        self.state, self.reason = state, reason
        for listener in self._listeners:
            listener()
