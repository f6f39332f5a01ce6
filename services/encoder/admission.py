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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aeenc.errors import DeadlineExceeded, Overloaded
from services.encoder.cost import CostModel
from services.encoder.metrics import EncoderMetrics
from services.encoder.queueing import LANES, Lane

BULK_SHARE = 0.25  # of the tokens; enough to keep workers busy
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

    @asynccontextmanager
    async def admitted(
        self, lane: Lane, tokens: int, deadline: float | None, patience_s: float = 0.0
    ) -> AsyncIterator[None]:
        """Holds the tokens of a call for the block. With patience it waits for room in the order of coming.

        Raises Overloaded, or DeadlineExceeded for a hopeless deadline.
        """
        if self._has_room(lane, tokens) and not (patience_s and self._waiting[lane]):
            self._held[lane] += tokens
        elif not (patience_s and await self._let_in(lane, tokens, patience_s)):
            self._metrics.refused.labels("queue_full").inc()
            raise self._full(lane, tokens)
        try:
            self._check_deadline(lane, tokens, deadline)
            yield
        finally:
            self._held[lane] -= tokens
            self._wake(lane)

    async def _let_in(self, lane: Lane, tokens: int, patience_s: float) -> bool:
        """Waits in line; whether the tokens are held now."""
        waiter = (tokens, asyncio.get_running_loop().create_future())
        self._waiting[lane].append(waiter)
        try:
            async with asyncio.timeout(patience_s):
                await waiter[1]
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if waiter[1].done() and not waiter[1].cancelled():
                self._held[lane] -= tokens  # let in, and gone before it knew
            raise
        finally:
            if waiter in self._waiting[lane]:
                self._waiting[lane].remove(waiter)
            self._wake(lane)
        return waiter[1].done() and not waiter[1].cancelled()

    def _has_room(self, lane: Lane, tokens: int) -> bool:
        held = self._held[lane]
        return held == 0 or held + tokens <= self._limits[lane]

    def _wake(self, lane: Lane) -> None:
        """Lets in those that wait, the oldest first, as far as there is room; their tokens are held from here on."""
        waiting = self._waiting[lane]
        while waiting and (waiting[0][1].done() or self._has_room(lane, waiting[0][0])):
            tokens, woken = waiting.popleft()
            if not woken.done():
                self._held[lane] += tokens
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
        queue_s = self._cost.queue_s(self._ahead(lane) - tokens)
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
