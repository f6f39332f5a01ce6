"""Ends background tasks for sure, and lets failures that nobody asks for pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

REPEAT_S = 0.2


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but returns only when the thread has ended, also when it is cancelled.

    So a lock that is held around it is held as long as the work goes on.
    """
    task = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs))
    await finish(task)
    return task.result()


async def finish(task: asyncio.Task[Any]) -> None:
    """Waits until a clean-up has ended, however often the waiting task is cancelled meanwhile."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits until they have ended.

    A library that swallows a cancellation (a timeout that fires at the same moment does in Python 3.11) would leave its
    task running for ever, so the cancellation is repeated.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=REPEAT_S)


def seen(future: asyncio.Future[Any]) -> None:
    """A done-callback for a future whose failure nobody may ask for: asyncio then does not complain of it."""
    if not future.cancelled():
        future.exception()
