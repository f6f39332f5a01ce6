"""Processes that are killed at random moments and started again at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.harness.processes import Child
from services.launcher.private_redis import PrivateRedis, start_private_redis
from services.launcher.processes import becomes_free

PAUSE_S = (0.3, 1.5)


class Victim(Protocol):
    """What can be killed and started again."""

    @property
    def name(self) -> str: ...

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""

    async def restart(self) -> None:
        """Starts it again and waits until it serves."""


class RedisVictim:
    """A private Redis, append-only, every write on disk before it is acknowledged."""

    name = "redis"

    def __init__(self, home: Path) -> None:
        self._home = home
        self.server: PrivateRedis = start_private_redis(home)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.server.process.kill()
        self.server.process.wait()

    async def restart(self) -> None:
        """Starts it over the same files."""
        self.server = await asyncio.to_thread(start_private_redis, self._home)


class ChildVictim:
    """A child process; `ready` waits until it serves."""

    def __init__(self, child: Child, ready: Callable[[], Awaitable[None]]) -> None:
        self._child, self._ready = child, ready

    @property
    def name(self) -> str:
        """The child's name."""
        return self._child.name

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self._child.kill()

    async def restart(self) -> None:
        """Starts it and waits until it serves."""
        await asyncio.to_thread(becomes_free, self._child.target)
        self._child.start()
        await self._ready()


async def kill_at_random(
    victims: Sequence[Victim], kills: int, going_on: Callable[[], bool], seed: int
) -> Counter[str]:
    """Kills one victim after another that has come up again, until it is enough or nothing goes on any more."""
    rng, killed = random.Random(seed), Counter[str]()
    restarting: dict[str, asyncio.Task[None]] = {}
    while killed.total() < kills:
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        up = [victim for victim in victims if victim.name not in restarting or restarting[victim.name].done()]
        if not going_on():
            break
        if not up:
            continue
        victim = rng.choice(up)
        if victim.name in restarting:
            await restarting[victim.name]
        await asyncio.to_thread(victim.kill)
        killed[victim.name] += 1
        restarting[victim.name] = asyncio.create_task(victim.restart())
    await asyncio.gather(*restarting.values())
    return killed
