"""The one thread that searches. It computes queries of concurrent callers together where they can share a scan.

    callers ──► QueueLimit ──► pending searches ──► one batch of ≤ 64 queries ──► index.steps ──► callers' futures
                                      ▲                      ▲                         │  │
                                      │                      └─ the next slice ◄───────┘  │
                                      └───────────── the rest of a large call ◄───────────┘

Scans of large corpora go slice by slice, by turns with other searches, and end when their callers have left.
A RemoteIndex is asked in threads of its own, each call alone: waiting for another system must hold up nobody.
There is no delay timer. While the thread computes, callers queue up; a batch starts once the event loop has run a few
rounds without a new query. So a busy loop makes large batches and an idle one waits for nothing. The thread owns
FAISS's process-wide threshold and its OpenMP setting: nothing else in this process may search by FAISS.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import faiss
import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram

from aeenc import errors
from services.index.dense.approximate import RemoteIndex, SearchIndex
from services.index.dense.exact import COARSE_UP_TO
from services.index.values import DEFAULT_PARAMS, QueueLimit, SearchHits, SearchParams, Selection, Timings

BATCH_QUERIES = 64  # also the slice of a large call, so that it cannot hold up small ones
MULTIPLIED_ROWS = 64_000_000  # rows times queries of a batch on a CPU: a second or less at 384 dimensions
EXCLUDED_AFTERWARDS = 64  # premises: so few are found and then left out; a mask would cost more, and a scan of its own
CALM_ROUNDS = 8  # rounds of an idle loop take microseconds; an arriving call takes several


class SearchableGeneration(Protocol):
    """A generation with an index open for search."""

    @property
    def index(self) -> SearchIndex: ...
    def allowed(self, selection: Selection) -> NDArray[np.bool_] | None: ...


@dataclass(eq=False, slots=True)
class _PendingSearch:
    served: SearchableGeneration
    queries: NDArray[np.float32]
    k: int
    selection: Selection
    params: SearchParams
    excluded: frozenset[int]  # left out of the k hits afterwards
    deadline: float | None
    answer: asyncio.Future[list[SearchHits]]
    queued_at: float = field(default_factory=time.perf_counter)
    started_at: float | None = None
    compute_s: float = 0.0
    hits: list[SearchHits] = field(default_factory=list)

    def kept(self, hits: SearchHits) -> SearchHits:
        """Leaves the caller's hits of those that the batch has found."""
        return hits.without(self.excluded, self.k - len(self.excluded))

    def shares_scan_with(self, other: _PendingSearch) -> bool:
        """Whether one scan can serve both: same rows, selection and parameters, k of the same magnitude.

        What an approximate engine overlooks depends on k and must not depend on other callers: there k must be equal.
        """
        if self.served is not other.served or not _same(self.selection, other.selection):
            return False
        has_like_k = self.k == other.k or (self.served.index.exact and self.k.bit_length() == other.k.bit_length())
        return has_like_k and _same(self.params, other.params)


@dataclass(eq=False)
class _Batch:
    """Searches that share a scan, as (search, number of queries), and the steps to their hits; its times in seconds."""

    parts: list[tuple[_PendingSearch, int]]
    steps: Iterator[list[SearchHits] | None]
    compute_s: float = 0.0
    core_s: float = 0.0


def _steps_of(parts: Sequence[tuple[_PendingSearch, int]]) -> Iterator[list[SearchHits] | None]:
    first = parts[0][0]
    assert not isinstance(first.served.index, RemoteIndex)
    queries = np.concatenate([one.queries[len(one.hits) : len(one.hits) + count] for one, count in parts])
    allowed = first.served.allowed(first.selection)
    yield from first.served.index.steps(queries, max(one.k for one, _ in parts), allowed, first.params)


def apart(selection: Selection, k: int) -> tuple[Selection, frozenset[int]]:
    """Takes a few excluded premises off a selection, which then has no mask: they are found as well, and left out."""
    few, wider = selection.excluded, k + len(selection.excluded)
    if not few or len(few) > EXCLUDED_AFTERWARDS or k <= COARSE_UP_TO < wider:
        return selection, frozenset()
    return replace(selection, excluded=frozenset()), few


def _same(one: object, other: object) -> bool:
    return one is other or one == other  # dataclasses compare by tuples that they make each time


def _queries_at_once(search: _PendingSearch) -> int:
    """The queries of a batch: fewer where an exact engine multiplies them with very many rows on a CPU."""
    index = search.served.index
    if not index.exact or index.on_card:
        return BATCH_QUERIES
    return max(1, min(BATCH_QUERIES, MULTIPLIED_ROWS // max(int(index.rows), 1)))


class SearchBatcher:
    """Searches generations for many callers. At most `max_queued` queries wait; beyond that, it refuses calls.

    `metrics` count its batches.
    """

    def __init__(self, max_queued: int = 4096, metrics: CollectorRegistry | None = None) -> None:
        registry = metrics or CollectorRegistry()
        self._sizes = Histogram(
            "aeenc_index_search_batch_queries",
            "Query vectors searched for together",
            registry=registry,
            buckets=[1 << n for n in range(7)],
        )
        self._core_s = Counter(
            "aeenc_index_search_core_seconds", "Processor time of the thread that searches", registry=registry
        )
        self.batches = 0
        self._pending: deque[_PendingSearch] = deque()
        self._scans: deque[_Batch] = deque()  # begun, and waiting for their next turn
        self._scanned_last = False
        self._queue = QueueLimit(max_queued)
        self._remote_queue = QueueLimit(max_queued, "queries are at Milvus")
        self._closed = False
        self._ready = False
        self._waking = False
        self._computing = False
        self._calm = self._seen = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="index-search", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops the thread after its current step; waiting calls fail as Unavailable."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        waiting = [*self._pending, *(search for batch in self._scans for search, _ in batch.parts)]
        self._deliver(
            [(search, errors.Unavailable("the index is shutting down; ask another one")) for search in waiting]
        )
        self._pending.clear()
        self._scans.clear()

    async def search(
        self,
        served: SearchableGeneration,
        queries: NDArray[np.float32],
        k: int,
        selection: Selection,
        params: SearchParams = DEFAULT_PARAMS,
        deadline_s: float | None = None,
        timings: Timings | None = None,
        *,
        is_check: bool = False,
    ) -> list[SearchHits]:
        """Finds the k nearest premises of each query (n, dim); adds to `timings` how long it waited and was computed.

        A self-check (`is_check`) is always admitted, and goes first: a full queue must keep no generation from serving.

        Raises Overloaded when the queue is full, DeadlineExceeded when the time ran out before the search began or
        between two slices. A cancelled caller's work is dropped; the batch of the others goes on.
        """
        selection, excluded = apart(selection, k)
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        answer: asyncio.Future[list[SearchHits]] = asyncio.get_running_loop().create_future()
        search = _PendingSearch(served, queries, k + len(excluded), selection, params, excluded, deadline, answer)
        if isinstance(served.index, RemoteIndex):
            hits = await self._ask(served.index, search, deadline_s, is_check=is_check)
        else:
            self._enqueue(search, is_check=is_check)
            hits = await answer
        if timings is not None and search.started_at is not None:
            timings.add(search.started_at - search.queued_at, search.compute_s)
        return hits

    def _enqueue(self, search: _PendingSearch, *, is_check: bool) -> None:
        with self._changed:
            if self._closed:
                raise errors.Unavailable("the index is shutting down; ask another one")
            self._queue.add(len(search.queries), always=is_check)
            (self._pending.appendleft if is_check else self._pending.append)(search)
        self._wake_soon(search.answer.get_loop())

    async def _ask(
        self, index: RemoteIndex, search: _PendingSearch, deadline_s: float | None, *, is_check: bool
    ) -> list[SearchHits]:
        """Asks another system. It asks no more once nobody waits for the answer."""
        has_left = threading.Event()

        def work() -> list[SearchHits]:
            search.started_at = time.perf_counter()
            for hits in index.steps(search.queries, search.k, search.selection, search.params):
                if hits is not None:
                    return [search.kept(found) for found in hits]
                if has_left.is_set():
                    break
            raise errors.Cancelled("the caller has gone; ask again")

        count = len(search.queries)
        self._remote_queue.add(count, always=is_check)
        try:
            async with asyncio.timeout(deadline_s):
                hits = await search.answer.get_loop().run_in_executor(index.threads, work)
        except TimeoutError:
            raise errors.DeadlineExceeded("the call's time was over before it was answered; allow more time") from None
        finally:
            self._remote_queue.remove(count)
            has_left.set()
        if search.started_at is not None:
            search.compute_s = time.perf_counter() - search.started_at
        return hits

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lets the thread go on once the loop has handled the calls that are arriving, so that they join the batch."""
        if not self._waking and not self._computing:  # the thread calls again when it has delivered
            self._waking = True
            self._calm = self._seen = 0
            loop.call_soon(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calm = self._calm + 1 if self._queue.size == self._seen else 0
        self._seen = self._queue.size
        is_arriving = self._calm < CALM_ROUNDS and self._queue.size < BATCH_QUERIES
        if self._pending and is_arriving:
            loop.call_soon(self._wake, loop)
            return
        self._waking = False
        with self._changed:
            self._ready = True
            if self._pending:
                self._changed.notify()

    def _work(self) -> None:
        faiss.omp_set_num_threads(1)  # per thread; with two, contention stretched a 0.6 ms scan to 16 ms
        while True:
            with self._changed:
                while not (self._ready and self._pending) and not self._scans and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                batch = self._next()
                self._computing = batch is not None
            if batch is not None:
                self._compute(batch)

    def _next(self) -> _Batch | None:
        """Takes, by turns, a batch of pending searches or a scan to go on with; None when nobody waits for it."""
        is_others_turn = self._ready and self._pending and self._scanned_last
        self._scanned_last = bool(self._scans) and not is_others_turn
        if not self._scanned_last:
            self._ready = False
            parts = self._next_batch()
            return _Batch(parts, _steps_of(parts)) if parts else None
        scan = self._scans.popleft()
        if not all(self._dropped(search) for search, _ in scan.parts):
            return scan
        self._forget_rest(scan)
        return None

    def _forget_rest(self, batch: _Batch) -> None:
        """Takes off the queue what the searches of a failed or abandoned batch still had to come."""
        self._queue.remove(sum(len(search.queries) - len(search.hits) - count for search, count in batch.parts))

    def _next_batch(self) -> list[tuple[_PendingSearch, int]]:
        """Takes the oldest search and all that share its scan, as (search, number of queries), up to BATCH_QUERIES."""
        batch: list[tuple[_PendingSearch, int]] = []
        left: deque[_PendingSearch] = deque()
        room = _queries_at_once(self._pending[0]) if self._pending else 0
        while self._pending:
            search = self._pending.popleft()
            if self._dropped(search):
                self._queue.remove(len(search.queries) - len(search.hits))
            elif room and (not batch or search.shares_scan_with(batch[0][0])):
                count = min(room, len(search.queries) - len(search.hits))
                batch.append((search, count))
                room -= count
                self._queue.remove(count)
            else:
                left.append(search)
        self._pending = left
        return batch

    def _dropped(self, search: _PendingSearch) -> bool:
        if search.answer.cancelled():
            return True
        if search.deadline is not None and time.monotonic() > search.deadline:
            self._deliver(
                [(search, errors.DeadlineExceeded("the call's time was over before it was searched; allow more time"))]
            )
            return True
        return False

    def _compute(self, batch: _Batch) -> None:
        """Goes one step; delivers the hits, or lets the others have their turn."""
        started, core_s = time.perf_counter(), time.thread_time()
        try:
            hits = next(batch.steps)
        except Exception as error:  # noqa: BLE001 -- goes to the callers; the thread must live on
            with self._changed:
                self._forget_rest(batch)
            self._deliver([(search, error) for search, _ in batch.parts])
            return
        batch.compute_s += time.perf_counter() - started
        batch.core_s += time.thread_time() - core_s
        for search, _ in batch.parts:
            search.started_at = search.started_at or started
        if hits is None:
            with self._changed:
                self._scans.append(batch)
                self._scanned_last = True
                self._go_on()
            return
        self.batches += 1
        self._sizes.observe(len(hits))
        self._core_s.inc(batch.core_s)
        self._take(batch, hits)

    def _go_on(self) -> None:
        """Lets the thread take whatever waits, as nobody has been answered who would ask again."""
        self._ready, self._computing = True, False

    def _take(self, batch: _Batch, hits: list[SearchHits]) -> None:
        """Hands out the hits of a batch; the rest of a large call goes back to the end of the line."""
        done: list[tuple[_PendingSearch, list[SearchHits] | Exception]] = []
        start = 0
        for search, count in batch.parts:
            search.hits += map(search.kept, hits[start : start + count])
            start += count
            search.compute_s += batch.compute_s
            if len(search.hits) == len(search.queries):
                done.append((search, search.hits))
            else:
                with self._changed:
                    self._pending.append(search)
        self._deliver(done)

    def _deliver(self, outcomes: list[tuple[_PendingSearch, list[SearchHits] | Exception]]) -> None:
        """Hands outcomes to the callers. They share a loop, which wakes once; some may have given up, or all with it.

        The next batch starts once the loop has delivered these answers and taken in what their callers ask next.
        """
        if not outcomes:
            with self._changed:
                self._go_on()
            return
        loop = outcomes[0][0].answer.get_loop()

        def resolve() -> None:
            self._computing = False
            for search, outcome in outcomes:
                if search.answer.done():
                    continue
                if isinstance(outcome, Exception):
                    search.answer.set_exception(outcome)
                else:
                    search.answer.set_result(outcome)
            self._wake_soon(loop)

        with self._changed:
            self._ready = False
        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve)
