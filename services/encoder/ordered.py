"""Answers a stream in order while a bounded number of its items are worked on at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def ordered(items: AsyncIterator[A], work: Callable[[A], Awaitable[B]], *, window: int) -> AsyncIterator[B]:
    """Yields `await work(item)` for each item, in order, with at most `window` items read and not yet yielded.

    The first failure is raised in its turn; what is in flight behind it is cancelled.
    """
    slots = asyncio.Semaphore(window)
    results: asyncio.Queue[asyncio.Task[B] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for item in items:
                await slots.acquire()
                results.put_nowait(asyncio.ensure_future(_run(work, item)))
        finally:
            results.put_nowait(None)

    reader = asyncio.ensure_future(read())
    try:
        while (task := await results.get()) is not None:
            result = await task
            slots.release()
            yield result
        await reader
    finally:
        reader.cancel()
        while not results.empty():
            pending = results.get_nowait()
            if pending is not None:
                pending.cancel()


async def _run(work: Callable[[A], Awaitable[B]], item: A) -> B:
    return await work(item)
