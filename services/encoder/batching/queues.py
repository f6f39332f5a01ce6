"""Queues of the texts that wait for a worker, one for each lane and runner, cut into batches by a token budget.

Callers share a queue fairly, by tokens: each text has a start on a clock of tokens served, and the least goes first
(start-time fair queueing, Goyal et al. 1996). Who takes less than their share starts `CREDIT` earlier than the others
(borrowed virtual time, Duda and Cheriton 1999), however much and however many others have there. Texts are sorted by
length within a bounded window, which keeps padding small. While somebody asks for one text at a time, a text whose turn
has come goes before the window, and a CPU's batches are smaller: each holds somebody up. Runners take turns, so a batch
never mixes versions. While both lanes have work, bulk gets one batch in `BULK_TURN`. Texts that are cancelled or out of
time are dropped here. This module starts no thread and reads no clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
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
CALL_TOKENS = 32  # of a call, at most, before its caller's next one starts: about a text
CREDIT = CALL_TOKENS
PATIENT, AHEAD = 2, 4  # the part of a CPU's batch beside patient callers, and for texts that go before a window
LATELY_S = 0.5  # after a patient caller's text another is expected for so long
WELL_FILLED = 0.35  # of the token budget: a batch this full is closed before a longer text
MIN_SPLIT = 4  # below this many texts, two workers cost more than they save


class Call:
    """One call's texts, and rows (n, width) in their order, of which `left` are missing; `queued` (time.monotonic()).

    `dead` tells the queue to drop the texts that wait. Calls with the same `caller` share one part of the queue. A
    caller whose call `is_alone` has no other of its kind.
    """

    def __init__(
        self, count: int, width: int, done: asyncio.Future[None], caller: str, queued: float, is_alone: bool
    ) -> None:
        self.caller, self.queued, self.is_alone = caller, queued, is_alone
        self.rows = np.empty((count, width), dtype=np.float32)
        self.left = count
        self.done = done
        self.dead = False
        self.started = math.inf  # of its first batch
        self.ended = 0.0  # of its last batch

    @property
    def queue_s(self) -> float:
        """How long it waited for its first batch, in seconds."""
        return max(self.started - self.queued, 0.0)

    @property
    def compute_s(self) -> float:
        """The time from its first batch's beginning to its last one's end, in seconds."""
        return self.ended - self.started

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
        self._patient_until = -math.inf  # time.monotonic()

    def put(self, lane: Lane, runner: Runner, items: Sequence[Item]) -> None:
        """Adds the texts of one call."""
        if (call := items[0].call).is_alone and len(items) == 1 and lane == "interactive":
            self._patient_until = call.queued + LATELY_S
        self._lanes[lane].setdefault(runner, _Queue()).put(items)

    def take(self, now: float) -> tuple[Runner, Batch] | None:
        """Takes the next batch and the runner that computes it; None when nothing waits."""
        while (lane := self._next_lane()) is not None:
            queues = self._lanes[lane]
            runner, queue = next(iter(queues.items()))
            batch = self._next_batch(runner, queue, now)
            if not queue.waiting and not queue.batches:
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
        waiting = [item for queue in queues for _, _, item in queue.waiting]
        return [*waiting, *(item for queue in queues for batch in queue.batches for item in batch)]

    def dropped(self) -> list[tuple[Item, bool]]:
        """Returns the texts dropped since the last call, and whether each expired (otherwise its caller is gone)."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _next_lane(self) -> Lane | None:
        busy = [lane for lane in LANES if self._lanes[lane]]
        if len(busy) > 1:
            self._turn = (self._turn + 1) % BULK_TURN
            return "bulk" if self._turn == 0 else "interactive"
        return busy[0] if busy else None

    def _next_batch(self, runner: Runner, queue: _Queue, now: float) -> Batch:
        in_window = bool(queue.batches)
        if not in_window:
            queue.forget_callers()
        is_patient = now < self._patient_until
        if not in_window or is_patient:
            window: Batch = []
            tokens = 0
            batch_items, batch_tokens = self._bounds_of_pairs if isinstance(runner, PairRunner) else self._bounds
            part = AHEAD if in_window else PATIENT if is_patient else 1
            bounds = batch_items, batch_tokens // part if batch_items else batch_tokens
            most_items, most_tokens = (WINDOW_BATCHES * bound or math.inf for bound in bounds)  # 0: no bound
            while len(window) < most_items and tokens < most_tokens and (item := queue.next(newcomer=in_window)):
                if self._is_alive(item, now):
                    window.append(item)
                    tokens += item.length
            queue.batches.extendleft(reversed(self._cut(window, runner, bounds)))
        if not queue.batches:
            return []
        return [item for item in queue.batches.popleft() if self._is_alive(item, now)]

    def _cut(self, window: Batch, runner: Runner, bounds: tuple[int, int]) -> list[Batch]:
        """Sorts a window by length and cuts it where a batch is full, or well filled before a longer text."""
        batch_items, batch_tokens = bounds
        window.sort(key=attrgetter("length"))
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
    """The texts for one runner in one lane: those that wait, and the batches of the window already cut.

    The clock counts tokens served. A call starts where its caller's call before it ends, or `CREDIT` before now. A
    caller may be a service, whose large calls must not hold up its small ones: calls of one text have a share of their
    own, and the next large call waits for `CALL_TOKENS` of the one before it at most.
    """

    def __init__(self) -> None:
        self._clock = 0  # the start of the text taken last
        self._ends: dict[tuple[str, bool], int] = {}  # where the next call of a share starts, unless that is past
        self.waiting: list[tuple[int, int, Item]] = []  # a heap: start, order of coming, text
        self._count = itertools.count()
        self.batches: deque[Batch] = deque()

    @property
    def has_newcomers(self) -> bool:
        """Whether a text waits that starts no later than the window that is being handed out."""
        return bool(self.waiting) and self.waiting[0][0] <= self._clock

    def put(self, items: Sequence[Item]) -> None:
        share = items[0].call.caller, len(items) == 1
        begins = start = max(self._clock - CREDIT, self._ends.get(share, -CREDIT))
        for item in items:
            heapq.heappush(self.waiting, (start, next(self._count), item))
            start += item.length
        self._ends[share] = min(start, begins + CALL_TOKENS)

    def next(self, *, newcomer: bool) -> Item | None:
        """Takes the text that starts first, or only a newcomer's; None when there is none."""
        if not self.waiting or (newcomer and not self.has_newcomers):
            return None
        start, _, item = heapq.heappop(self.waiting)
        self._clock = max(self._clock, start)
        return item

    def forget_callers(self) -> None:
        """Forgets the callers whose next call would start as a stranger's does."""
        self._ends = {share: end for share, end in self._ends.items() if end > self._clock - CREDIT}
