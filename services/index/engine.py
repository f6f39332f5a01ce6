"""The one thread that searches. Queries of concurrent callers that may share a scan are computed together.

There is no delay timer: while the thread computes, callers queue up, and a batch begins when the event loop has a few
rounds in which no further query arrives, so a busy loop makes large batches and an idle one waits for nothing. The
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
CALM_ROUNDS = 8  # rounds of an idle loop take microseconds; an arriving call takes several
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
        self._ready = False
        self._waking = False
        self._calm = self._seen = 0
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
        self._deliver([(job, errors.Unavailable("the index is shutting down; ask another one")) for job in self._jobs])
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
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        job = _Job(served, queries, k, selection, effort, deadline, answer)
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
        self._wake_soon(answer.get_loop())
        return await job.answer

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lets the thread go on once the loop has handled the calls that are arriving: they join the batch."""
        if not self._waking:
            self._waking = True
            self._calm = self._seen = 0
            loop.call_soon(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calm = self._calm + 1 if self._queued == self._seen else 0
        self._seen = self._queued
        if self._jobs and self._calm < CALM_ROUNDS and self._queued < BATCH_QUERIES:
            loop.call_soon(self._wake, loop)
            return
        self._waking = False
        with self._changed:
            self._ready = True
            self._changed.notify()

    def _work(self) -> None:
        faiss.omp_set_num_threads(1)  # per thread; two OpenMP threads under contention took 16 ms for a 0.6 ms scan
        while True:
            with self._changed:
                while not (self._ready and self._jobs) and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._ready = False
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
            self._deliver(
                [(job, errors.DeadlineExceeded("the call's time was over before its turn came; allow more time"))]
            )
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
            with self._changed:
                self._queued -= sum(len(job.queries) - len(job.found) - count for job, count in batch)
            self._deliver([(job, error) for job, _ in batch])
            return
        self.batches += 1
        self._on_batch(sum(count for _, count in batch), time.thread_time() - core_s)
        elapsed_s = time.perf_counter() - started
        done: list[tuple[_Job, Outcome | Exception]] = []
        for job, count in batch:
            mine, found = found[:count], found[count:]
            job.found += [Found(one.ordinals[: job.k], one.scores[: job.k], one.exact) for one in mine]
            job.started_at = job.started_at or started
            job.compute_s += elapsed_s
            if len(job.found) == len(job.queries):
                done.append((job, Outcome(job.found, job.started_at - job.queued_at, job.compute_s)))
            else:
                with self._changed:
                    self._jobs.append(job)
        self._deliver(done)

    def _deliver(self, outcomes: list[tuple[_Job, Outcome | Exception]]) -> None:
        """Hands outcomes to the callers, who share a loop, which is woken once; some may have given up, or all with it.

        The next batch begins once the loop has taken these answers up, and what their callers ask next.
        """
        if not outcomes:
            with self._changed:
                self._ready = True
            return
        loop = outcomes[0][0].answer.get_loop()

        def settle() -> None:
            for job, outcome in outcomes:
                if job.answer.done():
                    continue
                if isinstance(outcome, Exception):
                    job.answer.set_exception(outcome)
                else:
                    job.answer.set_result(outcome)
            self._wake_soon(loop)

        with self._changed:
            self._ready = False
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle)
