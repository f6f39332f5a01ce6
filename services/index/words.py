"""The thread that ranks by words. What it does holds the interpreter's lock most of the time, so there is one.

A large call is computed in slices, so that it cannot hold the small ones back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aeenc import errors

T = TypeVar("T")

SLICE = 32  # texts; some milliseconds
RETRY_AFTER_S = 0.05


class Words:
    """Ranks texts, at most `max_queued` of them waiting; beyond, calls are refused."""

    def __init__(self, max_queued: int = 4096) -> None:
        self._max_queued = max_queued
        self._queued = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index-words")

    async def each(
        self, rows: Sequence[int], work: Callable[[int], T], *, deadline: float | None = None
    ) -> tuple[list[T], float, float]:
        """`work` of each row, in order, and the seconds that it waited and took; `deadline` as of time.monotonic().

        Raises Overloaded when too much waits, DeadlineExceeded when the time is over before it is done.
        """
        if self._queued and self._queued + len(rows) > self._max_queued:
            raise errors.Overloaded(
                f"{self._queued:,} texts wait already, the limit is {self._max_queued:,}; come back later",
                retry_after_s=RETRY_AFTER_S,
            )
        self._queued += len(rows)
        started = time.perf_counter()
        done: list[T] = []
        compute_s = 0.0
        try:
            for start in range(0, len(rows), SLICE):
                if deadline is not None and time.monotonic() > deadline:
                    raise errors.DeadlineExceeded("the call's time was over before it was ranked; allow more time")
                part = rows[start : start + SLICE]
                found, took_s = await asyncio.get_running_loop().run_in_executor(self._thread, _timed, part, work)
                done += found
                compute_s += took_s
        finally:
            self._queued -= len(rows)
        return done, time.perf_counter() - started - compute_s, compute_s

    def close(self) -> None:
        """Stops the thread after the slice it computes."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _timed(rows: Sequence[int], work: Callable[[int], T]) -> tuple[list[T], float]:
    started = time.perf_counter()
    found = [work(row) for row in rows]
    return found, time.perf_counter() - started
