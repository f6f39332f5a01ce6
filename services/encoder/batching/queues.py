"""Queues of the texts that wait for a worker, one for each lane and runner, cut into batches by a token budget.

Texts are sorted by length within a bounded window, which keeps padding small. The queue hands out every batch of a
window before it cuts the next one, so no text starves. Runners take turns, so a batch never mixes versions. While both
lanes have work, bulk gets one batch in `BULK_TURN`. Texts that are cancelled or out of time are dropped here. This
module starts no thread and reads no clock.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import numpy as np

from services.encoder.runtime.runners import PairRunner, Runner, Tokens

Lane = Literal["interactive", "bulk"]
LANES: tuple[Lane, ...] = ("interactive", "bulk")
# Of a batch by default: more texts keep a CPU's other workers waiting, and a GPU needs many tokens to be busy.
CPU_BATCH_ITEMS = 32
CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 256, 32_768
GPU_WORKERS = 2  # one prepares its batch while the other's is computed
WINDOW_BATCHES = 8
BULK_TURN = 8
WELL_FILLED = 0.35  # of the token budget: a batch this full is closed before a longer text
MIN_SPLIT = 4  # below this many texts, two workers cost more than they save


class Call:
    """One call's texts in the queue. `left` rows are missing; `dead` tells the queue to drop the texts that wait."""

    __slots__ = ("dead", "done", "ended", "left", "rows", "started")

    def __init__(self, count: int, width: int, done: asyncio.Future[None]) -> None:
        self.rows = np.empty((count, width), dtype=np.float32)
        self.left = count
        self.done = done
        self.dead = False
        self.started = math.inf  # of its first batch
        self.ended = 0.0  # of its last batch

    def fail(self, error: Exception) -> None:
        """Ends the call with an error, unless it has ended."""
        self.dead = True
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(eq=False, slots=True)
class Item:
    """One text in the queue: its tokens and the row of the call's answer that it fills."""

    tokens: Tokens
    row: int
    length: int
    call: Call
    deadline: float  # time.monotonic(); infinite for none


Batch = list[Item]
_LENGTH = attrgetter("length")


class Queues:
    """The waiting texts. Not thread-safe: the caller holds a lock.

    A batch has at most `batch_items` texts, and workers share what waits. With 0, tokens alone bound a batch: a GPU
    computes many short texts together faster than several workers after each other. `of_pairs` are the two bounds for
    a cross-encoder, where it computes on another device.
    """

    def __init__(
        self, *, batch_items: int, batch_tokens: int, workers: int, of_pairs: tuple[int, int] | None = None
    ) -> None:
        self._bounds, self._workers = (batch_items, batch_tokens), workers
        self._bounds_of_pairs = of_pairs or self._bounds
        self._dropped: list[tuple[Item, bool]] = []
        self._lanes: dict[Lane, OrderedDict[Runner, _Queue]] = {lane: OrderedDict() for lane in LANES}
        self._turn = 0

    def put(self, lane: Lane, runner: Runner, items: Sequence[Item]) -> None:
        """Adds the texts of one call."""
        queue = self._lanes[lane].get(runner)
        if queue is None:
            queue = self._lanes[lane][runner] = _Queue()
        queue.waiting.extend(items)

    def take(self, now: float) -> tuple[Runner, Batch] | None:
        """Takes the next batch and the runner that computes it; None when nothing waits."""
        while (lane := self._next_lane()) is not None:
            queues = self._lanes[lane]
            runner, queue = next(iter(queues.items()))
            batch = self._next_batch(runner, queue, now)
            if queue.is_empty:
                del queues[runner]
            else:
                queues.move_to_end(runner)
            if batch:
                return runner, batch
        return None

    def drain(self) -> Batch:
        """Takes out everything that waits."""
        queues = [queue for lane in self._lanes.values() for queue in lane.values()]
        for lane in self._lanes.values():
            lane.clear()
        return [item for queue in queues for batch in (*queue.batches, queue.waiting) for item in batch]

    def dropped(self) -> list[tuple[Item, bool]]:
        """Returns the texts dropped since the last call, and whether each expired (otherwise its caller is gone)."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _next_lane(self) -> Lane | None:
        interactive, bulk = (bool(self._lanes[lane]) for lane in LANES)
        if interactive and bulk:
            self._turn = (self._turn + 1) % BULK_TURN
            return "bulk" if self._turn == 0 else "interactive"
        if interactive:
            return "interactive"
        return "bulk" if bulk else None

    def _next_batch(self, runner: Runner, queue: _Queue, now: float) -> Batch:
        if not queue.batches:
            window: Batch = []
            tokens = 0
            while queue.waiting and self._has_room(window, tokens, runner):
                item = queue.waiting.popleft()
                if self._is_alive(item, now):
                    window.append(item)
                    tokens += item.length
            queue.batches.extend(self._cut(window, runner))
        if not queue.batches:
            return []
        return [item for item in queue.batches.popleft() if self._is_alive(item, now)]

    def _bounds_of(self, runner: Runner) -> tuple[int, int]:
        return self._bounds_of_pairs if isinstance(runner, PairRunner) else self._bounds

    def _has_room(self, window: Batch, tokens: int, runner: Runner) -> bool:
        batch_items, batch_tokens = self._bounds_of(runner)
        if batch_items:
            return len(window) < WINDOW_BATCHES * batch_items
        return tokens < WINDOW_BATCHES * batch_tokens

    def _cut(self, window: Batch, runner: Runner) -> list[Batch]:
        """Sorts a window by length and cuts it where a batch is full, or well filled before a longer text."""
        batch_items, batch_tokens = self._bounds_of(runner)
        window.sort(key=_LENGTH)
        share = max(-(-len(window) // self._workers), MIN_SPLIT)
        most = min(batch_items, share) if batch_items else len(window)
        batches: list[Batch] = []
        batch: Batch = []
        tokens = 0
        for item in window:
            cost = item.length * (len(batch) + 1) if runner.pads else tokens + item.length
            is_full = len(batch) >= most or cost > batch_tokens
            adds_padding = runner.pads and bool(batch) and item.length > batch[-1].length
            is_well_filled = tokens >= batch_tokens * WELL_FILLED
            if batch and (is_full or (adds_padding and is_well_filled)):
                batches.append(batch)
                batch, tokens = [], 0
            batch.append(item)
            tokens += item.length
        if batch:
            batches.append(batch)
        return batches

    def _is_alive(self, item: Item, now: float) -> bool:
        expired = item.deadline <= now
        if expired or item.call.dead:
            self._dropped.append((item, expired))
            return False
        return True


class _Queue:
    """The texts for one runner in one lane: those that wait, and the batches of the window already cut."""

    __slots__ = ("batches", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Item] = deque()
        self.batches: deque[Batch] = deque()

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.batches
