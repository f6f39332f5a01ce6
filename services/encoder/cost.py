"""What work costs, fitted while it is done: seconds a batch = a · tokens + b (BentoML's adaptive batching, in tokens).

Each batch counts less as it ages, so that the fit follows the machine. Until enough batches have been seen there is no
opinion, and nothing is refused for it.
"""

from __future__ import annotations

import time

DECAY = 0.98  # a batch's weight after the next one
ENOUGH = 16  # batches before the fit is believed
MIN_SPREAD = 1e-6
OUTLIER = 8.0  # times the forecast
FRESH_S = 2.0


class CostModel:
    """A decaying least-squares line through (tokens, seconds) of the last batches. Used from one thread."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._seen = 0
        self._last = 0.0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learns from one computed batch; `tokens` counts padding. A batch that took absurdly long counts as slow."""
        if self.is_known:
            slope, fixed = self.line
            seconds = min(seconds, OUTLIER * (slope * tokens + fixed))
        self._seen += 1
        self._last = time.monotonic()
        self._weight = self._weight * DECAY + 1
        self._x = self._x * DECAY + tokens
        self._y = self._y * DECAY + seconds
        self._xx = self._xx * DECAY + tokens * tokens
        self._xy = self._xy * DECAY + tokens * seconds

    @property
    def is_known(self) -> bool:
        """Whether enough batches have been seen, and not too long ago: who refuses everything learns nothing."""
        return self._seen >= ENOUGH and time.monotonic() - self._last < FRESH_S

    @property
    def line(self) -> tuple[float, float]:
        """Seconds a token, and seconds a batch whatever its size. Neither is negative."""
        if not self._weight:
            return 0.0, 0.0
        spread = self._xx - self._x * self._x / self._weight
        slope = (self._xy - self._x * self._y / self._weight) / spread if spread > MIN_SPREAD else 0.0
        mean = self._y / self._x if self._x else 0.0
        slope = min(max(slope, 0.0), mean)  # all cost a token, at most
        return slope, max((self._y - slope * self._x) / self._weight, 0.0)

    def queue_s(self, tokens: int) -> float:
        """Seconds until the workers have done so many tokens of other calls."""
        return tokens * self._y / self._x / self._workers if self._x else 0.0

    def compute_s(self, tokens: int) -> float:
        """Seconds that so many tokens take when nothing else waits: spread over the workers, one batch at least."""
        slope, fixed = self.line
        return slope * tokens / self._workers + fixed
