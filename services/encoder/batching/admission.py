"""Admission control: a semaphore in tokens for each lane, and the cost model that forecasts waiting times.

A call is admitted as a whole or refused with RESOURCE_EXHAUSTED and a retry delay. It is refused when its lane is full,
others wait in it, or its caller would hold more of it than is left free for the others (a dynamic threshold, Choudhury
and Hahne 1998); or early, when the cost model says that its deadline cannot be met. A batch of a stream waits a while
for room first; its sender stops reading meanwhile. A call with more than a `PARTS`th of its lane holds so much, and is
computed in parts of that size.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from aeenc.errors import DeadlineExceeded, Overloaded
from services.encoder.batching.queues import LANES, Lane
from services.encoder.metrics import EncoderMetrics
from services.encoder.runtime.runners import Runner

CPU_QUEUED_TOKENS, GPU_QUEUED_TOKENS = 32_768, 1_048_576  # by default: seconds of work for either
BULK_SHARE = 0.25  # of the tokens; enough to keep the workers busy
PARTS = 8  # of a lane; a call holds one at most
MIN_RETRY_S = 0.05
DECAY = 0.98  # the factor by which a batch's weight shrinks with each later batch
ENOUGH = 16  # batches before the fit is believed
MIN_SPREAD = 1e-6
OUTLIER = 8.0  # times the forecast
FRESH_S = 2.0

Caller = Hashable  # who takes part in a lane
Flow = tuple[Caller, type[Runner] | None]  # and a kind of work, which share a part of it


class Admission:
    """A semaphore in tokens for each lane. Used from the event loop only."""

    def __init__(self, queued_tokens: int, cost: CostModel, metrics: EncoderMetrics, *, unit: str = "tokens") -> None:
        """With another `unit`, "tokens" stands for such units here, and the metric of queued tokens is left alone."""
        self._cost, self._metrics, self._unit = cost, metrics, unit
        bulk = int(queued_tokens * BULK_SHARE)
        self._limits: dict[Lane, int] = {"interactive": queued_tokens - bulk, "bulk": bulk}
        self._held: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._flows: dict[Lane, Counter[Flow]] = {lane: Counter() for lane in LANES}
        for lane in LANES if unit == "tokens" else ():
            metrics.queued_tokens.labels(lane).set_function(functools.partial(self._held.__getitem__, lane))
        self._lines = {lane: asyncio.Lock() for lane in LANES}  # who has it is the first in line
        self._lined: dict[Lane, int] = dict.fromkeys(LANES, 0)  # tokens in line
        self._freed = {lane: asyncio.Event() for lane in LANES}  # since the first in line looked last

    @asynccontextmanager
    async def admitted(
        self,
        lane: Lane,
        tokens: int,
        deadline: float | None,
        patience_s: float = 0.0,
        caller: Caller = "",
        kind: type[Runner] | None = None,
    ) -> AsyncIterator[bool]:
        """Holds the tokens of a call for the block. With `patience_s` it waits for room, first come, first served.

        Calls of one `caller` share a part of the lane; `kind` is the class of the runner that computes them. Yields
        whether the caller has no other. Raises Overloaded, or DeadlineExceeded for a deadline that even an idle encoder
        cannot meet.
        """
        hold = Hold(lane, min(tokens, self.part(lane)), bool(patience_s), (caller, kind))
        if patience_s:
            await self._wait_in_line(hold, patience_s)
        else:
            self.check_room(lane, tokens, caller, kind)
            self._take(hold)
        try:
            self._check_deadline(hold, tokens, deadline)
            yield self._flows[lane][hold.flow] == hold.tokens
        finally:
            self._give_back(hold)

    def check_room(self, lane: Lane, tokens: int, caller: Caller, kind: type[Runner] | None) -> None:
        """Raises Overloaded for a call without patience that so many tokens would have refused, before it is read."""
        hold = Hold(lane, min(tokens, self.part(lane)), False, (caller, kind))
        if self._lined[lane] or not self._has_room(hold):
            self._refuse(hold)

    def part(self, lane: Lane) -> int:
        """Returns the tokens that a call holds at most, of which its next part is to be made."""
        return self._limits[lane] // PARTS

    async def _wait_in_line(self, hold: Hold, patience_s: float) -> None:
        """Takes the tokens as soon as there is room and nobody waits longer."""
        lane = hold.lane
        self._lined[lane] += hold.tokens
        try:
            async with asyncio.timeout(patience_s), self._lines[lane]:
                while not self._has_room(hold):
                    self._freed[lane].clear()
                    await self._freed[lane].wait()
                self._take(hold)
                return
        except TimeoutError:
            pass
        finally:
            self._lined[lane] -= hold.tokens
        self._refuse(hold)

    def _take(self, hold: Hold) -> None:
        self._held[hold.lane] += hold.tokens
        self._flows[hold.lane][hold.flow] += hold.tokens

    def _give_back(self, hold: Hold) -> None:
        flows = self._flows[hold.lane]
        self._held[hold.lane] -= hold.tokens
        flows[hold.flow] -= hold.tokens
        if not flows[hold.flow]:
            del flows[hold.flow]
        self._freed[hold.lane].set()

    def _has_room(self, hold: Hold) -> bool:
        """Whether a call fits into the room left, and unless it waits for room, into its caller's share.

        That share leaves room for as much again, so that a caller's large calls do not keep out the small ones.
        """
        left = self._limits[hold.lane] - self._held[hold.lane] - hold.tokens
        return left >= (0 if hold.patient else self._flows[hold.lane][hold.flow] + 2 * hold.tokens)

    def _refuse(self, hold: Hold) -> NoReturn:
        self._metrics.refused.labels("queue_full").inc()
        lane, own = hold.lane, self._flows[hold.lane][hold.flow]
        held, limit = self._held[lane] + self._lined[lane], self._limits[lane]
        retry_after_s = max(self._cost.queue_s(held + own + 3 * hold.tokens - limit), MIN_RETRY_S)
        raise Overloaded(
            f"{held:,} {self._unit} wait in the {lane} lane, {own:,} of them yours, and {hold.tokens:,} more are over "
            f"its limit of {limit:,}, or leave less for others than you hold; retry in {retry_after_s:.2f} s",
            reason="QUEUE_FULL",
            retry_after_s=retry_after_s,
        )

    def _check_deadline(self, hold: Hold, tokens: int, deadline: float | None) -> None:
        kind = hold.flow[1]
        cost = self._cost if kind is None else self._cost.of(kind)
        if deadline is None or not cost.is_known:
            return
        left_s = deadline - time.monotonic()
        alone_s = cost.compute_s(tokens)
        if alone_s > left_s:
            self._metrics.refused.labels("deadline_too_short").inc()
            raise DeadlineExceeded(
                f"{tokens:,} {self._unit} take about {alone_s:.2f} s here and the deadline is in {left_s:.2f} s; "
                "allow more time or split the call"
            )
        queue_s = self._cost.queue_s(self._ahead(hold, tokens))
        if queue_s + alone_s > left_s:
            self._metrics.refused.labels("deadline_unreachable").inc()
            raise Overloaded(
                f"{tokens:,} {self._unit} would be done in about {queue_s + alone_s:.2f} s and the deadline is in "
                f"{left_s:.2f} s; retry in {queue_s:.2f} s or allow more time",
                reason="DEADLINE_UNREACHABLE",
                retry_after_s=max(queue_s, MIN_RETRY_S),
            )

    def _ahead(self, hold: Hold, tokens: int) -> int:
        """Returns the tokens of others that go first: callers take turns, so of each no more than this one has."""
        flows = self._flows[hold.lane]
        mine = flows[hold.flow] - hold.tokens
        others = sum(min(held, mine + tokens) for flow, held in flows.items() if flow != hold.flow)
        return mine + others + (self._held["interactive"] if hold.lane == "bulk" else 0)


@dataclass(frozen=True, eq=False)
class Hold:
    """The tokens of a call in its lane. `patient`: it has waited for room, or will."""

    lane: Lane
    tokens: int
    patient: bool
    flow: Flow


class CostModel:
    """Fits seconds = a · tokens + b to the last batches by decaying least squares. Used from one thread.

    Older batches weigh less, so the fit follows the machine. Admission judges deadlines only while `is_known` is true.
    The queue mixes all kinds of runners, so its time is forecast by all batches, and that of a call by `of` its kind.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._kinds: dict[type[Runner], CostModel] = {}
        self._seen = 0
        self._last = 0.0
        self._sums = [0.0] * 5  # decayed: of 1, tokens, seconds, tokens², and tokens times seconds

    def of(self, kind: type[Runner]) -> CostModel:
        """Returns the model of one class of runners: a cross-encoder takes longer for a token than an encoder."""
        return self._kinds.setdefault(kind, CostModel(self._workers))

    def observe(self, tokens: int, seconds: float) -> None:
        """Learns from one computed batch; `tokens` counts padding. Caps the time of an outlier."""
        if self.is_known:
            slope, fixed = self.line
            seconds = min(seconds, OUTLIER * (slope * tokens + fixed))
        self._seen += 1
        self._last = time.monotonic()
        terms = (1, tokens, seconds, tokens * tokens, tokens * seconds)
        self._sums = [total * DECAY + term for total, term in zip(self._sums, terms, strict=True)]

    @property
    def is_known(self) -> bool:
        """Whether enough batches were seen, the last one recently. Refusing every call teaches nothing."""
        return self._seen >= ENOUGH and time.monotonic() - self._last < FRESH_S

    @property
    def line(self) -> tuple[float, float]:
        """Seconds for each token and fixed seconds for each batch, both at least 0."""
        weight, x, y, xx, xy = self._sums
        spread = xx - x * x / weight
        slope = (xy - x * y / weight) / spread if spread > MIN_SPREAD else 0.0
        mean = y / x if x else 0.0
        slope = min(max(slope, 0.0), mean)  # at most the mean: then the fixed part is 0
        return slope, max((y - slope * x) / weight, 0.0)

    def queue_s(self, tokens: int) -> float:
        """Seconds until the workers have computed that many tokens of other calls."""
        _, x, y, *_ = self._sums
        return tokens * y / x / self._workers if x else 0.0

    def compute_s(self, tokens: int) -> float:
        """Seconds for that many tokens on an idle encoder, spread over the workers; at least one batch."""
        slope, fixed = self.line
        return slope * tokens / self._workers + fixed
