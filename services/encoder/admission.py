"""Who may queue: so many tokens a lane, one rule for unary calls, batches and streams, all of a call or nothing.

A call is refused with RESOURCE_EXHAUSTED and a delay when its lane is full, and early when the fitted cost says that
its deadline cannot be met. A stream's batch first waits a while for room, since its sender stops reading meanwhile.
A call larger than a lane is admitted when the lane is empty.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from aeenc.errors import DeadlineExceeded, Overloaded
from services.encoder.cost import CostModel
from services.encoder.metrics import EncoderMetrics
from services.encoder.queueing import LANES, Lane

BULK_SHARE = 0.25  # of the tokens; enough to keep workers busy, little enough that people never wait behind it
MIN_RETRY_S = 0.05


class Admission:
    """The semaphore in tokens. Used from the event loop only."""

    def __init__(self, queued_tokens: int, cost: CostModel, metrics: EncoderMetrics) -> None:
        self._cost, self._metrics = cost, metrics
        bulk = int(queued_tokens * BULK_SHARE)
        self._limits: dict[Lane, int] = {"interactive": queued_tokens - bulk, "bulk": bulk}
        self._held: dict[Lane, int] = dict.fromkeys(LANES, 0)
        for lane in LANES:
            metrics.queued_tokens.labels(lane).set_function(functools.partial(self._held.__getitem__, lane))
        self._waiting: dict[Lane, deque[tuple[int, asyncio.Future[None]]]] = {lane: deque() for lane in LANES}

    @contextmanager
    def admitted(self, lane: Lane, tokens: int, deadline: float | None) -> Iterator[None]:
        """Holds the tokens of a call for the block. Raises Overloaded, or DeadlineExceeded for a hopeless deadline."""
        if not self._has_room(lane, tokens):
            self._metrics.refused.labels("queue_full").inc()
            raise self._full(lane, tokens)
        self._check_deadline(lane, tokens, deadline)
        self._held[lane] += tokens
        try:
            yield
        finally:
            self._held[lane] -= tokens
            self._wake(lane)

    async def room(self, lane: Lane, tokens: int, patience_s: float) -> None:
        """Waits, in the order of coming, until so many tokens would be admitted, or until patience ends."""
        if self._has_room(lane, tokens) and not self._waiting[lane]:
            return
        waiter = (tokens, asyncio.get_running_loop().create_future())
        self._waiting[lane].append(waiter)
        try:
            async with asyncio.timeout(patience_s):
                await waiter[1]
        except TimeoutError:
            return  # `admitted` says what is wrong
        except asyncio.CancelledError:
            self._wake(lane)  # what was let in and has gone leaves its place to the next
            raise
        finally:
            if waiter in self._waiting[lane]:
                self._waiting[lane].remove(waiter)

    def _has_room(self, lane: Lane, tokens: int, promised: int = 0) -> bool:
        held = self._held[lane] + promised
        return held == 0 or held + tokens <= self._limits[lane]

    def _wake(self, lane: Lane) -> None:
        """Lets in those that wait, the oldest first, as far as there is room for all that were let in at once."""
        waiting, promised = self._waiting[lane], 0
        while waiting and self._has_room(lane, waiting[0][0], promised):
            tokens, woken = waiting.popleft()
            promised += tokens
            if not woken.done():
                woken.set_result(None)

    def _full(self, lane: Lane, tokens: int) -> Overloaded:
        held, limit = self._held[lane], self._limits[lane]
        retry_after_s = max(self._cost.queue_s(held + tokens - limit), MIN_RETRY_S)
        return Overloaded(
            f"{held:,} tokens wait in the {lane} lane and {tokens:,} more are over its limit of {limit:,}; "
            f"retry in {retry_after_s:.2f} s",
            reason="QUEUE_FULL",
            retry_after_s=retry_after_s,
        )

    def _check_deadline(self, lane: Lane, tokens: int, deadline: float | None) -> None:
        if deadline is None or not self._cost.is_known:
            return
        left_s = deadline - time.monotonic()
        alone_s = self._cost.compute_s(tokens)
        if alone_s > left_s:
            self._metrics.refused.labels("deadline_too_short").inc()
            raise DeadlineExceeded(
                f"{tokens:,} tokens take about {alone_s:.2f} s here and the deadline is in {left_s:.2f} s; "
                "allow more time or split the call"
            )
        queue_s = self._cost.queue_s(self._ahead(lane))
        if queue_s + alone_s > left_s:
            self._metrics.refused.labels("deadline_unreachable").inc()
            raise Overloaded(
                f"{tokens:,} tokens would be done in about {queue_s + alone_s:.2f} s and the deadline is in "
                f"{left_s:.2f} s; retry in {queue_s:.2f} s or allow more time",
                reason="DEADLINE_UNREACHABLE",
                retry_after_s=max(queue_s, MIN_RETRY_S),
            )

    def _ahead(self, lane: Lane) -> int:
        return sum(self._held.values()) if lane == "bulk" else self._held[lane]
