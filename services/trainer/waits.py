"""Jobs that wait for a service that is away: until when each, and why. Other jobs are worked on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from aeenc import errors
from services.kit.readiness import Readiness

PASSING = (errors.Unavailable, errors.Overloaded, errors.DeadlineExceeded)  # who answers so may answer otherwise later
FIRST_S = 1.0
LONGEST_S = 30.0


@dataclass(frozen=True)
class _Wait:
    reason: str
    pause_s: float
    until: float  # by time.monotonic


class Waits:
    """The waits of one trainer. While a job waits, the trainer is DEGRADED and says why."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._waits: dict[str, _Wait] = {}

    def put_off(self, job_id: str, reason: str) -> float:
        """Tries a job again after some seconds, which it returns: twice as many each time."""
        before = self._waits.get(job_id)
        pause_s = min(before.pause_s * 2, LONGEST_S) if before else FIRST_S
        self._waits[job_id] = _Wait(reason, pause_s, time.monotonic() + pause_s)
        self.tell()
        return pause_s

    def due(self, job_id: str) -> bool:
        """Whether a job is to be tried."""
        wait = self._waits.get(job_id)
        return wait is None or time.monotonic() >= wait.until

    def over(self, job_id: str) -> None:
        """What the job waited for has answered."""
        if self._waits.pop(job_id, None) is not None:
            self.tell()

    def keep(self, active: Collection[str]) -> None:
        """Forgets jobs that have ended."""
        self._waits = {job_id: wait for job_id, wait in self._waits.items() if job_id in active}
        self.tell()

    def try_now(self) -> None:
        """Makes all jobs due."""
        self._waits = {job_id: _Wait(wait.reason, wait.pause_s, 0.0) for job_id, wait in self._waits.items()}

    def tell(self) -> None:
        """Says by the readiness whether a job waits."""
        for job_id, wait in self._waits.items():
            self._readiness.degraded(f"job {job_id} waits: {wait.reason}")
            return
        self._readiness.serving()
