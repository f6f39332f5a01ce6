"""Texts of many callers through few workers: one queue a version, length-sorted batches, no delay timer.

A worker that is free takes what waits: the oldest text and those nearest to it in length, within a bounded window, so
that padding is small and nothing starves. Batches grow by themselves under load and are small when idle. What was
cancelled or has run out of time is dropped before it is computed; a text that fails, fails alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError, DeadlineExceeded, Overloaded
from services.encoder.metrics import EncoderMetrics
from services.encoder.model import Model

WINDOW_BATCHES = 8
MIN_SPLIT = 4  # below this many texts, two workers cost more than they save


@dataclass
class Request:
    """One call's texts on their way. `vectors` (n, dim) fills up row by row."""

    model: Model
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    deadline: float | None  # time.monotonic()
    vectors: NDArray[np.float32]
    left: int
    dead: bool = False
    error: Exception | None = None
    queued_s: float = 0.0
    computed_s: float = 0.0


@dataclass(order=True)
class _Item:
    length: int
    row: int = field(compare=False)
    ids: Sequence[int] = field(compare=False)
    request: Request = field(compare=False)
    queued_at: float = field(compare=False)


class Batcher:
    """The queue and its worker threads. `encode` from the event loop; `close` at the end."""

    def __init__(
        self, *, workers: int, batch_items: int, batch_tokens: int, queued_items: int, metrics: EncoderMetrics
    ) -> None:
        self._batch_items, self._batch_tokens = batch_items, batch_tokens
        self.queued_items = queued_items
        self._metrics = metrics
        self._queues: dict[str, deque[_Item]] = {}  # version -> items; insertion order is the round robin
        self._changed = threading.Condition()
        self._waiting = self._admitted = 0
        self._seconds_per_item = 0.002
        self._closed = False
        self._workers = [threading.Thread(target=self._work, name=f"encode-{n}", daemon=True) for n in range(workers)]
        for worker in self._workers:
            worker.start()

    async def encode(self, model: Model, ids: Sequence[Sequence[int]], deadline: float | None) -> Request:
        """Computes the vectors of token ids (n texts) within `deadline`.

        Raises Overloaded when the queue is full, DeadlineExceeded when time is over, and what the model raises.
        """
        loop = asyncio.get_running_loop()
        self._admit(len(ids))
        try:
            vectors = np.empty((len(ids), model.dim), dtype=np.float32)
            request = Request(model, loop, loop.create_future(), deadline, vectors, len(ids))
            now = time.monotonic()
            items = [_Item(len(tokens), row, tokens, request, now) for row, tokens in enumerate(ids)]
            with self._changed:
                self._queues.setdefault(model.version, deque()).extend(items)
                self._waiting += len(items)
                self._changed.notify(len(items))
            try:
                await request.done
            finally:
                request.dead = True  # whoever is still queued is dropped
        finally:
            self._admitted -= len(ids)
            self._metrics.queued_items.set(self._admitted)
        return request

    def close(self) -> None:
        """Stops the workers after the batches they hold."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join(5)

    def _admit(self, count: int) -> None:
        if self._admitted + count > self.queued_items:
            retry_after_s = max(self._admitted * self._seconds_per_item / len(self._workers), 0.05)
            raise Overloaded(
                f"{self._admitted:,} texts wait and {count:,} more are over the limit of {self.queued_items:,}; "
                f"retry in {retry_after_s:.2f} s",
                retry_after_s=retry_after_s,
            )
        self._admitted += count
        self._metrics.queued_items.set(self._admitted)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                batch = self._take()
            if batch:
                self._run(batch)

    def _take(self) -> list[_Item]:
        """Under the lock: the next version's oldest item and its neighbours in length."""
        version, queue = next(iter(self._queues.items()))
        del self._queues[version]
        window: list[_Item] = []
        now = time.monotonic()
        while queue and len(window) < WINDOW_BATCHES * self._batch_items:
            item = queue.popleft()
            if item.request.dead:
                self._waiting -= 1
            elif item.request.deadline is not None and item.request.deadline <= now:
                self._waiting -= 1
                self._fail(item.request, DeadlineExceeded("the call's time was over before its texts were computed"))
            else:
                window.append(item)
        batch: list[_Item] = []
        if window:
            batch = self._choose(window)
            chosen = {id(item) for item in batch}
            queue.extendleft(item for item in reversed(window) if id(item) not in chosen)
            self._waiting -= len(batch)
        if queue:
            self._queues[version] = queue
        return batch

    def _choose(self, window: list[_Item]) -> list[_Item]:
        oldest = window[0]
        by_length = sorted(window)
        share = max(-(-len(window) // len(self._workers)), MIN_SPLIT)
        limit = min(self._batch_items, share)
        low = high = next(n for n, item in enumerate(by_length) if item is oldest)
        while high - low + 1 < limit:
            count = high - low + 2
            if low > 0 and by_length[high].length * count <= self._batch_tokens:
                low -= 1
            elif high + 1 < len(by_length) and by_length[high + 1].length * count <= self._batch_tokens:
                high += 1
            else:
                break
        return by_length[low : high + 1]

    def _run(self, batch: list[_Item]) -> None:
        started = time.monotonic()
        model = batch[0].request.model
        try:
            vectors = model.run([item.ids for item in batch])
        except Exception as error:  # noqa: BLE001 -- whatever the runtime raises must fail its text, never the worker
            if len(batch) > 1:
                for item in batch:
                    self._run([item])
            else:
                self._fail(batch[0].request, _as_known(error))
            return
        elapsed_s = time.monotonic() - started
        self._seconds_per_item += 0.1 * (elapsed_s / len(batch) - self._seconds_per_item)
        self._metrics.batch(
            items=len(batch), tokens=sum(i.length for i in batch), longest=batch[-1].length, seconds=elapsed_s
        )
        finished: list[Request] = []
        with self._changed:
            for item, vector in zip(batch, vectors, strict=True):
                request = item.request
                request.vectors[item.row] = vector
                request.queued_s = max(request.queued_s, started - item.queued_at)
                request.computed_s = max(request.computed_s, elapsed_s)
                request.left -= 1
                if request.left == 0:
                    finished.append(request)
        for request in finished:
            _resolve(request, None)

    @staticmethod
    def _fail(request: Request, error: Exception) -> None:
        request.dead = True
        _resolve(request, error)


def _resolve(request: Request, error: Exception | None) -> None:
    def finish() -> None:
        if request.done.done():
            return
        if error is None:
            request.done.set_result(None)
        else:
            request.done.set_exception(error)

    if not request.loop.is_closed():
        request.loop.call_soon_threadsafe(finish)


def _as_known(error: Exception) -> Exception:
    if isinstance(error, AeencError):
        return error
    return AeencError(f"the model cannot encode this text ({type(error).__name__})", reason="MODEL_FAILED")
