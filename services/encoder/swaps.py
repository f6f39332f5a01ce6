"""The outcomes of the last attempts to serve a version, for GetInfo, metrics and the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from services.encoder.metrics import EncoderMetrics
from services.kit.logs import get
from services.store.registry import LabelRow

log = get(__name__)

KEPT = 20


@dataclass(frozen=True)
class Swap:
    """The outcome of one attempt to serve a version under a label; `reason` says why it failed."""

    space_id: str
    label: str
    version: str
    revision: int
    ok: bool
    reason: str
    finished_at: datetime
    duration_s: float


class Swaps:
    """The last attempts, newest first."""

    def __init__(self, metrics: EncoderMetrics) -> None:
        self._metrics = metrics
        self._kept: deque[Swap] = deque(maxlen=KEPT)

    def __iter__(self) -> Iterator[Swap]:
        return iter(self._kept)

    def note(self, row: LabelRow, duration_s: float, reason: str = "") -> Swap:
        """Records an attempt; without a reason it succeeded."""
        swap = Swap(
            row.space_id, row.name, row.version, row.revision, not reason, reason, datetime.now(UTC), duration_s
        )
        self._kept.appendleft(swap)
        self._metrics.swaps.labels(row.space_id, row.name, "ok" if swap.ok else "failed").inc()
        if swap.ok:
            seconds = round(duration_s, 3)
            log.info("label serves", label=row.name, version=row.version, revision=row.revision, seconds=seconds)
        else:
            log.error("label keeps its version", label=row.name, refused=row.version, reason=reason)
        return swap

    def last_failure(self, *places: tuple[str, str]) -> str:
        """Why the last failed attempt for one of these (space, label) failed; empty when none did."""
        return next((swap.reason for swap in self._kept if not swap.ok and (swap.space_id, swap.label) in places), "")
