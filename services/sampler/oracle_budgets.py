"""How many verdicts an oracle may be asked for in all its runs. Counted before it is asked, so never beyond.

A node is counted once, however often it is asked again after a failure or by a successor. What was counted stays
counted, also for nodes that nobody answered in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from services.sampler import scripts
from services.sampler.run_keys import RunKeys
from services.store.redis import unavailable_if_down


class OracleBudgets:
    """Budgets of the oracles of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._keys = keys
        self._reserve: Any = redis.register_script(scripts.RESERVE)

    async def reserve(self, oracle: str, limit: int, run_id: str, nodes: Sequence[tuple[str, int]]) -> list[bool]:
        """Takes (node, candidates) from what is left of `limit`, in order; whether each may be asked."""
        async with unavailable_if_down(f"count what oracle {oracle!r} is asked"):
            granted = await self._reserve(
                keys=[self._keys.oracle_spent(oracle), self._keys.asked(run_id)],
                args=[limit, *(argument for node in nodes for argument in node)],
            )
        return [bool(one) for one in granted]

    @staticmethod
    def describe(oracle: str, limit: int) -> str:
        """The message of a run that failed because the budget is spent."""
        return (
            f"oracle {oracle!r} may be asked for {limit:,} verdicts in all, and what is left does not cover the next "
            "node; raise its max_judgements in AEENC_SAMPLER_ORACLES or _QUEUES, then resume the run"
        )
