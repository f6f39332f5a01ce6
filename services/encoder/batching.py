"""Texts of many calls through few workers: queued by lane and version, cut into batches, gathered again by call.

Everything about a call happens on the event loop; a worker's thread only computes. A call that is cancelled is marked
dead, and its texts are dropped before they are computed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import DeadlineExceeded
from services.encoder.cost import CostModel
from services.encoder.metrics import EncoderMetrics
from services.encoder.queueing import LANES, Batch, Item, Lane, Queues
from services.encoder.runners import Runner, Tokens
from services.encoder.workers import Computed, Workers
from services.kit.concurrency import cancel_all

WATCH_S = 1.0


@dataclass(frozen=True)
class Gathered:
    """A call's rows (n, width) in its own order, and two times in seconds that add up to that from queueing to the end.

    `queue_s` until its first batch began, `compute_s` from then until its last one ended.
    """

    rows: NDArray[np.float32]
    queue_s: float
    compute_s: float


class _Call:
    """One call's texts on their way. `left` rows are missing; `dead` tells the queue to drop what still waits."""

    __slots__ = ("dead", "done", "ended", "left", "rows", "started")

    def __init__(self, count: int, width: int, done: asyncio.Future[None]) -> None:
        self.rows = np.empty((count, width), dtype=np.float32)
        self.left = count
        self.done = done
        self.dead = False
        self.started = math.inf  # of its first batch
        self.ended = 0.0  # of its last

    def fail(self, error: Exception) -> None:
        self.dead = True
        if not self.done.done():
            self.done.set_exception(error)


class Batcher:
    """Queue and workers. Construct it, and call it, on the event loop that serves."""

    def __init__(
        self,
        *,
        workers: int,
        batch_items: int,
        batch_tokens: int,
        stuck_s: float,
        cost: CostModel,
        metrics: EncoderMetrics,
    ) -> None:
        self._cost, self._metrics, self._stuck_s = cost, metrics, stuck_s
        self._queue_seconds = {lane: metrics.queue_seconds.labels(lane) for lane in LANES}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        queues = Queues(batch_items=batch_items, batch_tokens=batch_tokens, workers=workers)
        self._workers = Workers(queues, workers, self, metrics.restarted)

    async def encode(
        self, runner: Runner, texts: Sequence[Tokens], lane: Lane, deadline: float | None = None
    ) -> Gathered:
        """The rows of texts (n) within `deadline` (time.monotonic()).

        Raises DeadlineExceeded when time is over, Unavailable when the worker died, and what the model raises.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._watch = loop.create_task(self._watch_workers())
        call = _Call(len(texts), runner.width, loop.create_future())
        until = math.inf if deadline is None else deadline
        queued = time.monotonic()
        items = [Item(tokens, row, len(tokens.ids), call, until) for row, tokens in enumerate(texts)]
        self._workers.put(lane, runner, items)
        try:
            await call.done
        finally:
            call.dead = True  # whatever still waits is dropped
        queue_s = max(call.started - queued, 0.0)
        self._queue_seconds[lane].observe(queue_s)
        return Gathered(call.rows, queue_s, call.ended - call.started)

    async def close(self) -> None:
        """Stops the workers after the batches they hold."""
        if self._watch is not None:
            await cancel_all([self._watch])
        await asyncio.to_thread(self._workers.close)

    def computed(self, done: Computed) -> None:
        """A worker has computed a batch. Called in its thread."""
        self._soon(self._gather, done)

    def failed(self, batch: Batch, error: Exception) -> None:
        """A worker cannot compute these texts. Called in its thread."""
        self._soon(self._fail, batch, error)

    def dropped(self, items: Sequence[tuple[Item, bool]]) -> None:
        """Texts were dropped before they were computed. Called in a worker's thread."""
        self._soon(self._drop, items)

    def _soon(self, what: object, *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *arguments)  # type: ignore[arg-type]

    def _gather(self, done: Computed) -> None:
        """Puts the rows of a batch into the answers of its calls."""
        places: dict[_Call, tuple[list[int], list[int]]] = {}
        for position, item in enumerate(done.batch):
            rows, positions = places.setdefault(item.call, ([], []))
            rows.append(item.row)
            positions.append(position)
        for call, (rows, positions) in places.items():
            call.rows[rows] = done.vectors[positions]
            call.left -= len(rows)
            call.started = min(call.started, done.started)
            call.ended = max(call.ended, done.ended)
            if call.left == 0 and not call.done.done():
                call.done.set_result(None)
        assert self._loop is not None
        self._loop.call_soon(self._learn, done)  # after the callers, who have waited long enough

    def _learn(self, done: Computed) -> None:
        """Lets the cost model and the metrics know of a batch."""
        tokens = sum(item.length for item in done.batch)
        computed = max(item.length for item in done.batch) * len(done.batch) if done.padded else tokens
        seconds = done.ended - done.started
        self._cost.observe(computed, seconds)
        self._metrics.batch(items=len(done.batch), tokens=tokens, computed=computed, seconds=seconds)

    @staticmethod
    def _fail(batch: Batch, error: Exception) -> None:
        for item in batch:
            item.call.fail(error)

    def _drop(self, items: Sequence[tuple[Item, bool]]) -> None:
        for item, expired in items:
            self._metrics.dropped.labels("expired" if expired else "cancelled").inc()
            if expired:
                item.call.fail(DeadlineExceeded("the call's time was over before its texts were computed"))

    async def _watch_workers(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._workers.replace_stuck(self._stuck_s)
