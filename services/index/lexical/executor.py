"""The thread that ranks by words. Its work holds the interpreter's lock most of the time, so there is only one.

It computes large calls in slices, so that they cannot hold up small ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aeenc import errors
from services.index.values import QueueLimit

T = TypeVar("T")
SLICE = 32  # texts at most
SLICE_S = 0.05  # a slice ends with the text that exceeds it


class LexicalExecutor:
    """Ranks texts in one thread. At most `max_queued` texts wait; beyond that, it refuses calls."""

    def __init__(self, max_queued: int = 4096) -> None:
        self._queue = QueueLimit(max_queued, "texts wait already")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index-words")

    async def each(
        self, rows: Sequence[int], work: Callable[[int], T], *, deadline: float | None = None
    ) -> tuple[list[T], float, float]:
        """Runs `work` for each row. Returns the results in order, and the seconds that they waited and took.

        `deadline` is a time of time.monotonic(). Raises Overloaded when the queue is full, DeadlineExceeded when the
        time runs out first.
        """
        with self._queue.admitted(len(rows)):
            started = time.perf_counter()
            done: list[T] = []
            compute_s = 0.0
            while len(done) < len(rows):
                if deadline is not None and time.monotonic() > deadline:
                    raise errors.DeadlineExceeded("the call's time was over before it was ranked; allow more time")
                part = rows[len(done) : len(done) + SLICE]
                found, took_s = await asyncio.get_running_loop().run_in_executor(self._thread, _timed, part, work)
                done += found
                compute_s += took_s
            return done, time.perf_counter() - started - compute_s, compute_s

    def close(self) -> None:
        """Stops the thread after its current slice."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _timed(rows: Sequence[int], work: Callable[[int], T]) -> tuple[list[T], float]:
    """Works on a slice, and returns what it has done of it and the seconds that this took."""
    started, found = time.perf_counter(), list[T]()
    for row in rows:
        found.append(work(row))
        if time.perf_counter() - started > SLICE_S:
            break
    return found, time.perf_counter() - started
