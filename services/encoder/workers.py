"""The threads that compute. Each holds one batch at a time; what happens to it is told to the event loop.

A batch that fails is halved until the text that makes it fail is alone, so that its neighbours are answered. A thread
that dies, or does not come back from the runtime, fails exactly the texts that it held and is replaced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError, Unavailable
from services.encoder.priority import WORKER, lower_priority
from services.encoder.queueing import Batch, Item, Lane, Queues
from services.encoder.runners import Runner
from services.kit.logs import get

log = get(__name__)


@dataclass(frozen=True)
class Computed:
    """A computed batch: vectors (n, width) in the order of its items, and when it was computed (time.monotonic())."""

    batch: Batch
    vectors: NDArray[np.float32]
    started: float
    ended: float
    padded: bool


class Outcome(Protocol):
    """Who is told, from a worker's thread, what became of texts."""

    def computed(self, done: Computed) -> None:
        """A batch is done."""

    def failed(self, batch: Batch, error: Exception) -> None:
        """These texts cannot be computed."""

    def dropped(self, items: Sequence[tuple[Item, bool]]) -> None:
        """These texts were dropped before they were computed; whether each had run out of time."""


class _Worker:
    """One thread and the batch that it holds."""

    def __init__(self, run: Callable[[_Worker], None], name: str) -> None:
        self.held: Batch | None = None
        self.since = 0.0
        self.given_up = False
        self.thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)

    def let_go(self) -> Batch:
        """Takes the batch away from the worker; empty when it has none."""
        held, self.held = self.held, None
        return held or []


class Workers:
    """A fixed number of threads that take batches from `queues`. `put` and `close` from any thread."""

    def __init__(self, queues: Queues, count: int, outcome: Outcome, on_restart: Callable[[str], None]) -> None:
        self._queues, self._outcome, self._on_restart = queues, outcome, on_restart
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._workers = [_Worker(self._live, f"encode-{n}") for n in range(count)]
        for worker in self._workers:
            worker.thread.start()

    def put(self, lane: Lane, runner: Runner, items: Batch) -> None:
        """Queues the texts of one call."""
        with self._changed:
            self._queues.put(lane, runner, items)
            self._changed.notify(len(items))

    def close(self, timeout_s: float = 5.0) -> None:
        """Stops the threads after the batches they hold."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            workers = list(self._workers)
        for worker in workers:
            worker.thread.join(timeout_s)

    def replace_stuck(self, after_s: float) -> None:
        """Gives up on threads that have held a batch for `after_s`: fails it and starts others in their place."""
        now = time.monotonic()
        for worker in list(self._workers):
            with self._changed:
                if worker.held is None or now - worker.since <= after_s:
                    continue
                worker.given_up = True
                held = worker.let_go()
            self._outcome.failed(held, Unavailable(f"the model did not come back within {after_s:g} s; retry"))
            self._restart(worker, "stuck")

    def _live(self, worker: _Worker) -> None:
        lower_priority(WORKER)
        try:
            self._work(worker)
        except BaseException as error:
            log.exception("a worker died", worker=worker.thread.name)
            if not worker.given_up:
                message = f"the worker that computed this call died ({type(error).__name__}); retry"
                self._outcome.failed(worker.let_go(), Unavailable(message, reason="WORKER_DIED"))
                self._restart(worker, "died")

    def _work(self, worker: _Worker) -> None:
        while (taken := self._take(worker)) is not None:
            self._run(worker, *taken)
            worker.held = taken = None  # an idle worker must not keep a version that is let go

    def _take(self, worker: _Worker) -> tuple[Runner, Batch] | None:
        """The next batch, held by the worker from now on; None when it must end."""
        while True:
            with self._changed:
                while True:
                    if self._closed or worker.given_up:
                        return None
                    worker.since = time.monotonic()
                    taken = self._queues.take(worker.since)
                    dropped = self._queues.dropped()
                    if taken is not None:
                        worker.held = taken[1]
                    if taken is not None or dropped:
                        break
                    self._changed.wait()
            if dropped:
                self._outcome.dropped(dropped)
            if taken is not None:
                return taken

    def _run(self, worker: _Worker, runner: Runner, batch: Batch) -> None:
        started = time.monotonic()
        try:
            vectors = runner.run([item.tokens for item in batch])
            if vectors.shape != (len(batch), runner.width):
                raise ValueError(f"the model gave {vectors.shape} for {len(batch)} texts")  # noqa: TRY301 -- one way to fail
        except Exception as error:  # noqa: BLE001 -- whatever the runtime raises must fail its text, never the worker
            if worker.given_up:
                return
            if len(batch) == 1:
                self._outcome.failed(batch, as_known(error))
                return
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                self._run(worker, runner, half)
            return
        if not worker.given_up:
            self._outcome.computed(Computed(batch, vectors, started, time.monotonic(), runner.pads))

    def _restart(self, worker: _Worker, why: str) -> None:
        self._on_restart(why)
        with self._changed:
            if self._closed:
                return
            fresh = _Worker(self._live, worker.thread.name)
            self._workers[self._workers.index(worker)] = fresh
            fresh.thread.start()  # under the lock: whoever closes joins none that has not begun


def as_known(error: Exception) -> Exception:
    """An error of the runtime as one that a caller may see."""
    if isinstance(error, AeencError):
        return error
    known = AeencError(f"the model cannot encode this text ({type(error).__name__})", reason="MODEL_FAILED")
    known.__cause__ = error  # for the log
    return known
