"""A circuit breaker: after several failures in a row one call at a time tries, and all others wait for its result.

It knows neither gRPC nor oracles. All calls to one server, in one event loop, share one breaker.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


class BreakerDown(Exception):
    """The server has failed for as long as anybody was willing to wait."""

    def __init__(self, failures: int, seconds: float) -> None:
        super().__init__(f"{failures} calls in a row failed within {seconds:.0f} s")
        self.failures, self.seconds = failures, seconds


class Breaker:
    """Closed, calls pass. `failures` in a row open it; a success closes it.

    While it is open, calls wait. After a pause one of them passes as a probe: its failure doubles the pause, from
    `first_pause_s` up to 30 s. After `patience_s` of failures all waiting calls get BreakerDown; the next call probes
    at once, because a person has resumed or started something.
    """

    def __init__(self, failures: int, *, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._failures, self._first_pause_s = failures, first_pause_s
        self._in_a_row = 0
        self._failing_since: float | None = None
        self._pause_s = first_pause_s
        self._probe_at = 0.0
        self._probing = False
        self._given_up = 0  # the number of times that all waiting calls gave up
        self._changed = asyncio.Event()
        self.open = False

    @asynccontextmanager
    async def call(self, patience_s: float) -> AsyncIterator[None]:
        """Waits for a turn and counts how the body ends; a cancelled body does not count. Raises BreakerDown."""
        probe = await self._turn(patience_s)
        try:
            yield
        except Exception:
            self._failed(probe)
            raise
        except BaseException:
            if probe:
                self._probing = False
                self._tell()
            raise
        self._succeeded()

    def try_at_once(self) -> None:
        """Lets the next call pass as a probe although the breaker is open, and starts all patience anew.

        For a person who has started or resumed something: the failures before may be from yesterday.
        """
        self._failing_since, self._probe_at = None, 0.0
        self._tell()

    async def _turn(self, patience_s: float) -> bool:
        """Returns when a call may be made. True: it is the probe."""
        given_up = self._given_up
        while self.open:
            if self._given_up != given_up:
                raise BreakerDown(self._in_a_row, patience_s)
            now = time.monotonic()
            failing_s = now - self._failing_since if self._failing_since is not None else -1.0
            if failing_s >= patience_s and not self._probing:
                self._give_up()
                raise BreakerDown(self._in_a_row, failing_s)
            if not self._probing and now >= self._probe_at:
                self._probing = True
                return True
            await self._wait(min(self._probe_at - now, patience_s - failing_s))
        return False

    async def _wait(self, seconds: float) -> None:
        """Waits until something changes, at most `seconds`; while a probe is out, until it is back."""
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._probing else max(seconds, 0.0)):
                await changed.wait()

    def _failed(self, probe: bool) -> None:
        now = time.monotonic()
        self._in_a_row += 1
        is_straggler = self.open and not probe  # began before the breaker opened; must not restart the patience
        if self._failing_since is None and not is_straggler:
            self._failing_since = now
        if probe:
            self._probing = False
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        elif not self.open and self._in_a_row >= self._failures:
            self.open, self._pause_s = True, self._first_pause_s
        else:
            return
        self._probe_at = now + self._pause_s * random.uniform(0.8, 1.2)  # noqa: S311 -- spreads samplers out
        self._tell()

    def _succeeded(self) -> None:
        self.open = self._probing = False
        self._in_a_row, self._failing_since = 0, None
        self._tell()

    def _give_up(self) -> None:
        self._given_up += 1
        self.try_at_once()

    def _tell(self) -> None:
        """Wakes all who wait now."""
        self._changed.set()
        self._changed = asyncio.Event()
