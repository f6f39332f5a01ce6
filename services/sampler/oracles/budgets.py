"""Budgets of verdicts that an oracle may be asked for in all its runs, spent before it is asked.

A node is counted once, however often it is asked again after a failure or by another sampler. It stays counted even if
nobody answers it in the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from services.sampler.records.keys import RunKeys
from services.store.redis import Script, unavailable_if_down

# KEYS: what the oracle was asked in all, what of it for which node of the run, the run
# ARGV: budget, then node and candidates by turns.  Answers 1 for each node that may be asked; each is counted once.
_RESERVE = """
local spent = tonumber(redis.call('GET', KEYS[1]) or '0')
local granted, lives = {}, redis.call('EXISTS', KEYS[3]) == 1
for i = 2, #ARGV, 2 do
  local again = redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1
  if not again and lives and spent + ARGV[i + 1] <= tonumber(ARGV[1]) then
    spent = spent + ARGV[i + 1]
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
    again = true
  end
  granted[#granted + 1] = again and 1 or 0
end
redis.call('SET', KEYS[1], spent)
return granted
"""


class OracleBudgets:
    """Budgets of the oracles of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._keys = keys
        self._reserve = Script(redis, _RESERVE)

    async def reserve(self, oracle: str, limit: int, run_id: str, nodes: Sequence[tuple[str, int]]) -> list[bool]:
        """Takes (node, candidates) from what is left of `limit`, in order; whether each may be asked.

        None may be when the run was deleted meanwhile.
        """
        async with unavailable_if_down(f"count what oracle {oracle!r} is asked"):
            granted = await self._reserve(
                keys=[self._keys.oracle_spent(oracle), self._keys.asked(run_id), self._keys.record(run_id)],
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
