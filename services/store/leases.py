"""Leases in Redis: who works on something, until it says otherwise or falls silent."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from services.store.redis import unavailable_if_down

# KEYS: lease.  ARGV: owner, milliseconds.  An absent lease is taken: Redis may have lost it while it was away.
_TAKE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

# KEYS: lease.  ARGV: owner
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Leases:
    """Takes, renews and gives back leases. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._take: Any = redis.register_script(_TAKE)
        self._release: Any = redis.register_script(_RELEASE)

    async def take(self, key: str, owner: str, lease_s: float) -> bool:
        """Takes or renews a lease. False when another owner holds it."""
        async with unavailable_if_down(f"take the lease {key}"):
            return bool(await self._take(keys=[key], args=[owner, int(lease_s * 1000)]))

    async def release(self, key: str, owner: str) -> None:
        """Gives a lease back; does nothing when another owner holds it."""
        async with unavailable_if_down(f"release the lease {key}"):
            await self._release(keys=[key], args=[owner])
