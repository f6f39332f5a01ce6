"""Batching: texts of many calls go through a few worker threads and come back as the rows of their calls.

    encode() ──► Queues (lane, runner) ──► worker thread: runner.run ──► computed ────────┐
       ▲                                       │ error: halve the batch ──► failed        │
       └── Call.done ◄── event loop: rows, cost model, metrics ◄── call_soon_threadsafe ◄─┘

A call's state changes on the event loop only; a worker thread only computes. The texts of a cancelled call are dropped
before they are computed. A batch that fails, or does not fit the device's memory, is halved until the bad text is
alone, so its neighbours are answered. A thread that dies, or never comes back from the runtime, fails only the texts it
held and is replaced, the latter as many times as there are workers. When every worker hangs, calls fail at once.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError, DeadlineExceeded, Overloaded, Unavailable
from services.devices import free_cached_blocks, is_out_of_memory
from services.encoder.batching.admission import CostModel
from services.encoder.batching.queues import LANES, Batch, Call, Item, Lane, Queues
from services.encoder.metrics import EncoderMetrics
from services.encoder.runtime.runners import Runner, Tokens
from services.encoder.runtime.thread_priority import WORKER, lower_priority
from services.kit.concurrency import cancel_all, every
from services.kit.logs import get

log = get(__name__)

WATCH_S = 1.0
MODEL_FAILED, WORKER_DIED, WORKER_STUCK = "MODEL_FAILED", "WORKER_DIED", "WORKER_STUCK"  # reasons of errors
OUT_OF_MEMORY = "OUT_OF_MEMORY"


class _Worker:
    """One thread and the batch that it holds."""

    def __init__(self, run: Callable[[_Worker], None], name: str) -> None:
        self.held: Batch | None = None
        self.since = 0.0
        self.given_up = False
        self.hangs = False
        self.thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)

    def let_go(self) -> Batch:
        """Takes the batch away from the worker; empty when it has none."""
        held, self.held = self.held, None
        return held or []


class Batcher:
    """A queue, and a fixed number of threads that take batches from it. Use it on the event loop that serves."""

    def __init__(
        self,
        *,
        workers: int,
        batch_items: int,
        batch_tokens: int,
        stuck_s: float,
        cost: CostModel,
        metrics: EncoderMetrics,
        of_pairs: tuple[int, int] | None = None,
    ) -> None:
        self._cost, self._metrics, self._stuck_s = cost, metrics, stuck_s
        self._queue_seconds = {lane: metrics.queue_seconds.labels(lane) for lane in LANES}
        self._queues = Queues(batch_items=batch_items, batch_tokens=batch_tokens, workers=workers, of_pairs=of_pairs)
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._watch: asyncio.Task[None] | None = None
        self._lost: list[_Worker] = []  # given up, and their threads may still hang
        self._workers = [_Worker(self._live, f"encode-{n}") for n in range(workers)]
        for worker in self._workers:
            worker.thread.start()

    async def encode(
        self,
        runner: Runner,
        texts: Sequence[Tokens],
        lane: Lane,
        deadline: float | None = None,
        caller: str = "",
        is_alone: bool = False,
    ) -> Call:
        """Computes the rows of texts (n) by `deadline` (time.monotonic()), in the caller's part of the queue.

        Raises DeadlineExceeded when time runs out, Unavailable when the worker died, and errors of the model.
        """
        loop = asyncio.get_running_loop()
        if self._watch is None:
            self._watch = loop.create_task(every(WATCH_S, self._replace_stuck, "looking after the workers failed"))
        call = Call(len(texts), runner.width, loop.create_future(), caller, time.monotonic(), is_alone)
        until = math.inf if deadline is None else deadline
        items = [Item(tokens, row, len(tokens.ids), call, until) for row, tokens in enumerate(texts)]
        with self._changed:
            if self._all_hang():
                raise _hanging()
            self._queues.put(lane, runner, items)
            self._changed.notify(len(items))
        try:
            await call.done
        finally:
            call.dead = True  # the queue drops the texts that still wait
        self._queue_seconds[lane].observe(call.queue_s)
        return call

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stops the threads after the batches they hold, and waits `timeout_s` at most for all of them."""
        if self._watch is not None:
            await cancel_all([self._watch])
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            workers = list(self._workers)
        for worker in workers:
            await asyncio.to_thread(worker.thread.join, max(deadline - time.monotonic(), 0.0))

    async def _replace_stuck(self) -> None:
        """Fails each batch that a thread has held for `stuck_s`, and starts a new thread.

        With as many threads lost as there are workers it starts none: one that comes back goes on. When all hang, it
        fails what waits.
        """
        now = time.monotonic()
        for worker in list(self._workers):
            with self._changed:
                if not worker.hangs and (worker.held is None or now - worker.since <= self._stuck_s):
                    continue
                self._lost = [one for one in self._lost if one.thread.is_alive()]
                replaces = len(self._lost) < len(self._workers)
                if replaces:
                    self._lost.append(worker)
                worker.given_up, worker.hangs = replaces, True
                held = worker.let_go()
                waiting = self._queues.drain() if self._all_hang() and not replaces else []
            message = f"the model did not come back within {self._stuck_s:g} s; retry"
            _fail(held, Unavailable(message, reason=WORKER_STUCK))
            _fail(waiting, _hanging())
            if replaces:
                self._restart(worker, "stuck")

    def _all_hang(self) -> bool:
        return all(worker.hangs for worker in self._workers)

    def _live(self, worker: _Worker) -> None:
        lower_priority(WORKER)
        try:
            self._work(worker)
        except BaseException as error:
            log.exception("a worker died", worker=worker.thread.name)
            if not worker.given_up:
                message = f"the worker that computed this call died ({type(error).__name__}); retry"
                _tell(_fail, worker.let_go(), Unavailable(message, reason=WORKER_DIED))
                self._restart(worker, "died")

    def _work(self, worker: _Worker) -> None:
        while (taken := self._take(worker)) is not None:
            self._run(worker, *taken)
            worker.held = taken = None  # an idle worker must not keep a dropped version in memory

    def _take(self, worker: _Worker) -> tuple[Runner, Batch] | None:
        """Takes the next batch, which the worker holds from now on; None when the worker must end."""
        while True:
            with self._changed:
                if self._closed or worker.given_up:
                    return None
                worker.since, worker.hangs = time.monotonic(), False
                taken = self._queues.take(worker.since)
                dropped = self._queues.dropped()
                if taken is not None:
                    worker.held = taken[1]
                elif not dropped:
                    self._changed.wait()
            if dropped:
                _tell(self._drop, [item for item, _ in dropped], [expired for _, expired in dropped])
            if taken is not None:
                return taken

    def _run(self, worker: _Worker, runner: Runner, batch: Batch) -> None:
        started = time.monotonic()
        try:
            vectors = runner.run([item.tokens for item in batch])
            if vectors.shape != (len(batch), runner.width):
                raise ValueError(f"the model gave {vectors.shape} for {len(batch)} texts")  # noqa: TRY301 -- one way to fail
        except Exception as error:  # noqa: BLE001 -- an error of the runtime must fail its text, never the worker
            if worker.given_up:
                return
            if lacks_memory := is_out_of_memory(error):
                log.warning("a batch is over the device's memory", texts=len(batch), reason=str(error)[:500])
            if len(batch) == 1:
                _tell(_fail, batch, error if isinstance(error, AeencError) else _public(error, batch[0].length))
                return
        else:
            if not worker.given_up:
                _tell(self._fill_rows, batch, vectors, started, time.monotonic(), runner)
            return
        if lacks_memory:  # here, as within the block above the error keeps what the failed run has allocated
            free_cached_blocks()
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            self._run(worker, runner, half)

    def _restart(self, worker: _Worker, why: str) -> None:
        self._metrics.restarts.labels(why).inc()
        with self._changed:
            if self._closed:
                return
            fresh = _Worker(self._live, worker.thread.name)
            self._workers[self._workers.index(worker)] = fresh
            fresh.thread.start()  # under the lock: `close` never joins a thread that has not started

    def _fill_rows(
        self, batch: Batch, vectors: NDArray[np.float32], started: float, ended: float, runner: Runner
    ) -> None:
        """Puts the rows of a batch, vectors (n, width), into the answers of its calls."""
        places: dict[Call, tuple[list[int], list[int]]] = {}
        for position, item in enumerate(batch):
            rows, positions = places.setdefault(item.call, ([], []))
            rows.append(item.row)
            positions.append(position)
        for call, (rows, positions) in places.items():
            call.rows[rows] = vectors[positions]
            call.left -= len(rows)
            call.started = min(call.started, started)
            call.ended = max(call.ended, ended)
            if call.left == 0 and not call.done.done():
                call.done.set_result(None)
        # The waiting callers go first.
        asyncio.get_running_loop().call_soon(self._observe, batch, ended - started, runner)

    def _observe(self, batch: Batch, seconds: float, runner: Runner) -> None:
        """Records a batch in the cost model and the metrics."""
        tokens = sum(item.length for item in batch)
        computed = max(item.length for item in batch) * len(batch) if runner.pads else tokens
        self._cost.observe(computed, seconds)
        self._cost.of(type(runner)).observe(computed, seconds)
        self._metrics.batch_items.observe(len(batch))
        self._metrics.batch_tokens.observe(tokens)
        self._metrics.padding.observe(1 - tokens / computed)
        self._metrics.compute_seconds.observe(seconds)

    def _drop(self, items: Batch, expired: Sequence[bool]) -> None:
        for item, is_late in zip(items, expired, strict=True):
            self._metrics.dropped.labels("expired" if is_late else "cancelled").inc()
            if is_late:
                item.call.fail(DeadlineExceeded("the call's time was over before its texts were computed"))


def _tell(apply: Callable[..., None], batch: Batch, *outcome: Any) -> None:
    """Passes what has become of texts from a worker's thread to the event loop of their calls."""
    if batch and not (loop := batch[0].call.done.get_loop()).is_closed():
        loop.call_soon_threadsafe(apply, batch, *outcome)


def _fail(batch: Batch, error: Exception) -> None:
    for item in batch:
        item.call.fail(error)


def _hanging() -> Unavailable:
    return Unavailable("every worker hangs in the model; use another encoder and restart this one", reason=WORKER_STUCK)


def _public(error: Exception, tokens: int) -> AeencError:
    """Turns an error of the runtime into one that a caller may see."""
    if is_out_of_memory(error):
        return Overloaded(
            f"a text of {tokens:,} tokens is over the memory that the encoder's device has left; retry later, shorten "
            "it, or give the encoder more of its device (AEENC_ENCODER_GPU_BYTES, where that bounds it)",
            reason=OUT_OF_MEMORY,
        )
    public = AeencError(f"the model cannot encode this text ({type(error).__name__})", reason=MODEL_FAILED)
    public.__cause__ = error  # for the log
    return public
