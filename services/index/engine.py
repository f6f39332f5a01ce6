"""The one thread that searches. Queries of concurrent callers that may share a scan are computed together.

There is no delay timer: while the thread computes, callers queue up, and what has queued up is the next batch. The
thread owns FAISS's process-wide threshold and its OpenMP setting, so nothing else in this process may search by FAISS.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import faiss
import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.index.corpus import Selection, ServedGeneration
from services.index.search import USUAL, Effort, Found

BATCH_QUERIES = 64  # also the slice of a large call, so that it cannot hold the small ones back
RETRY_AFTER_S = 0.05


@dataclass(frozen=True)
class Outcome:
    """What was found for each query of a call, and how long it waited and was computed, in seconds."""

    found: list[Found]
    queue_s: float
    compute_s: float


@dataclass(eq=False)
class _Job:
    served: ServedGeneration
    queries: NDArray[np.float32]
    k: int
    selection: Selection
    effort: Effort
    deadline: float | None
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Outcome]
    queued_at: float = field(default_factory=time.perf_counter)
    started_at: float | None = None
    compute_s: float = 0.0
    found: list[Found] = field(default_factory=list)

    def shares_scan_with(self, other: _Job) -> bool:
        """Whether both can be computed in one go: same rows, selection and effort, k of the same magnitude.

        What an approximate engine overlooks depends on k, and must not depend on who else asks: there k is the same.
        """
        return (
            self.served is other.served
            and self.selection == other.selection
            and self.effort == other.effort
            and (self.k == other.k or (self.served.index.exact and self.k.bit_length() == other.k.bit_length()))
        )


class SearchEngine:
    """Searches generations for many callers. At most `max_queued` queries wait; beyond, calls are refused.

    `on_batch` is told the number of queries of each batch and the processor time that it took, in seconds.
    """

    def __init__(self, max_queued: int = 4096, on_batch: Callable[[int, float], None] = lambda *_: None) -> None:
        self.max_queued = max_queued
        self._on_batch = on_batch
        self.batches = 0
        self._jobs: deque[_Job] = deque()
        self._queued = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="index-search", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops the thread after the batch it computes; what still waits is refused as Unavailable."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        for job in self._jobs:
            _deliver(job, errors.Unavailable("the index is shutting down; ask another one"))
        self._jobs.clear()

    async def search(
        self,
        served: ServedGeneration,
        queries: NDArray[np.float32],
        k: int,
        selection: Selection,
        *,
        effort: Effort = USUAL,
        deadline_s: float | None = None,
    ) -> Outcome:
        """The k nearest premises of each query (n, dim).

        Raises Overloaded when too much waits, DeadlineExceeded when the time was over before it was computed. The work
        of a cancelled caller is dropped, and the batch of the others goes on.
        """
        loop = asyncio.get_running_loop()
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        job = _Job(served, queries, k, selection, effort, deadline, loop, loop.create_future())
        with self._changed:
            if self._closed:
                raise errors.Unavailable("the index is shutting down; ask another one")
            if self._queued and self._queued + len(queries) > self.max_queued:
                raise errors.Overloaded(
                    f"{self._queued:,} queries wait already, the limit is {self.max_queued:,}; come back later",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._queued += len(queries)
            self._jobs.append(job)
            self._changed.notify()
        return await job.answer

    def _work(self) -> None:
        faiss.omp_set_num_threads(1)  # per thread; two OpenMP threads under contention took 16 ms for a 0.6 ms scan
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                batch = self._next_batch()
            if batch:
                self._compute(batch)

    def _next_batch(self) -> list[tuple[_Job, int]]:
        """Takes the oldest job and all that share its scan, as (job, number of queries), up to BATCH_QUERIES."""
        batch: list[tuple[_Job, int]] = []
        left: deque[_Job] = deque()
        room = BATCH_QUERIES
        while self._jobs:
            job = self._jobs.popleft()
            if self._dropped(job):
                self._queued -= len(job.queries) - len(job.found)
            elif room and (not batch or job.shares_scan_with(batch[0][0])):
                count = min(room, len(job.queries) - len(job.found))
                batch.append((job, count))
                room -= count
                self._queued -= count
            else:
                left.append(job)
        self._jobs = left
        return batch

    def _dropped(self, job: _Job) -> bool:
        if job.answer.cancelled():
            return True
        if job.deadline is not None and time.monotonic() > job.deadline:
            _deliver(job, errors.DeadlineExceeded("the call's time was over before its turn came; allow more time"))
            return True
        return False

    def _compute(self, batch: list[tuple[_Job, int]]) -> None:
        started, core_s = time.perf_counter(), time.thread_time()
        first = batch[0][0]
        parts = [job.queries[len(job.found) : len(job.found) + count] for job, count in batch]
        try:
            allowed = first.served.allowed(first.selection)
            k = max(job.k for job, _ in batch)
            found = first.served.index.nearest(np.concatenate(parts), k, allowed, first.effort)
        except Exception as error:  # noqa: BLE001 -- the callers get it; the thread must live on
            for job, count in batch:
                _deliver(job, error)
                with self._changed:
                    self._queued -= len(job.queries) - len(job.found) - count
            return
        self.batches += 1
        self._on_batch(sum(count for _, count in batch), time.thread_time() - core_s)
        elapsed_s = time.perf_counter() - started
        for job, count in batch:
            mine, found = found[:count], found[count:]
            job.found += [Found(one.ordinals[: job.k], one.scores[: job.k], one.exact) for one in mine]
            job.started_at = job.started_at or started
            job.compute_s += elapsed_s
            if len(job.found) == len(job.queries):
                _deliver(job, Outcome(job.found, job.started_at - job.queued_at, job.compute_s))
            else:
                with self._changed:
                    self._jobs.append(job)


def _deliver(job: _Job, outcome: Outcome | Exception) -> None:
    """Hands an outcome to the caller's loop, which may have gone or given up."""

    def settle() -> None:
        if job.answer.done():
            return
        if isinstance(outcome, Exception):
            job.answer.set_exception(outcome)
        else:
            job.answer.set_result(outcome)

    if not job.loop.is_closed():
        job.loop.call_soon_threadsafe(settle)
