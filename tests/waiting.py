"""Waits for what comes true soon, on machines of any speed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aeenc import EncoderClient


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits for a condition; fails the test when it does not come true."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def eventually(check: Callable[[], Awaitable[bool]], timeout_s: float = 20.0) -> None:
    """As `until`, of something that must be asked for."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not await check():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


async def serves(client: EncoderClient, version: str) -> None:
    """Waits until a version answers; fails the test when it does not."""

    async def answers() -> bool:
        return (await client.encode(["sun"])).model_version == version

    await eventually(answers)
