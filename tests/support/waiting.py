"""Waiting for conditions that come true soon, on machines of any speed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aeenc import EncoderClient
from aeenc.errors import Unavailable

T = TypeVar("T")


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits for a condition; fails the test when it does not come true."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def eventually(
    check: Callable[[], Awaitable[T]], timeout_s: float = 20.0, *, is_so: Callable[[T], object] = bool
) -> T:
    """As `until`, of something that must be asked for; returns the first answer that `is_so` takes."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not is_so(answer := await check()):
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)
    return answer


async def reached(call: Callable[[], Awaitable[T]], times: int = 20) -> T:
    """Calls again while no connection comes about: on a busy machine a handshake may take longer than is allowed."""
    for _ in range(times - 1):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.1)
    return await call()


async def serves(client: EncoderClient, version: str) -> None:
    """Waits until a version answers; fails the test when it does not."""
    await eventually(lambda: client.encode(["sun"]), is_so=lambda answer: answer.model_version == version)
