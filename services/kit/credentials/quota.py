"""A rate that may not be exceeded, as a bucket that fills at that rate. Pure: the clock is given."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Holds up to `burst` units and gains `rate` units a second. It may be overdrawn, and then recovers first."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._level, self._seen = burst, clock()

    def take(self) -> float:
        """Takes one unit and returns 0, or takes none and returns the seconds until there is one."""
        if self._fill() >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self._rate

    def spend(self, units: float) -> None:
        """Takes units whose number is known only now, also those that are not there."""
        self._fill()
        self._level -= units

    def wait_s(self) -> float:
        """Returns the seconds until what was overdrawn is back; 0 when nothing is."""
        return max(0.0, -self._fill() / self._rate)

    def _fill(self) -> float:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._seen) * self._rate)
        self._seen = now
        return self._level
