"""Cancelling tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.2


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits for their end. Asks again and again: a Redis call that is connecting may swallow it."""
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=AGAIN_S)
