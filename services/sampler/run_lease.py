"""The lease of one run, as the sampler that works on it sees it: whose it is, and whether that is still sure."""

from __future__ import annotations

import time

from services.sampler.run_store import RunStore


class RunLease:
    """Held by `owner` from the first successful `renew` on. Raises Unavailable when Redis is away."""

    def __init__(self, store: RunStore, run_id: str, owner: str, lease_s: float) -> None:
        self._store, self._run_id, self._lease_s = store, run_id, lease_s
        self.owner = owner
        self._sure_until = 0.0

    @property
    def sure(self) -> bool:
        """Whether no other sampler can have the run yet, by this machine's clock."""
        return time.monotonic() < self._sure_until

    async def renew(self) -> bool:
        """Takes or renews the lease. False when another sampler holds it."""
        asked_at = time.monotonic()  # its time runs from a moment after this one
        held = await self._store.take_lease(self._run_id, self.owner, self._lease_s)
        self._sure_until = asked_at + self._lease_s if held else 0.0
        return held

    async def release(self) -> None:
        """Gives it back."""
        self._sure_until = 0.0
        await self._store.release_lease(self._run_id, self.owner)
