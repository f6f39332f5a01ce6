"""Workarounds for three faults of grpcio 1.85; try each new release without them.

- It never frees a message that arrives for a cancelled read: each message that a caller sends after a refusal would
  cost memory. `RequestStream` never cancels a read.
- A vanished caller looks like a finished stream. `RequestStream` sends something at the end: that fails if they are
  gone.
- A request whose path is not UTF-8 ends the server's accepting loop, and so all connections, without telling anybody.
  `start` returns the loop's tasks, and `end_of` waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from services.kit.concurrency import observe_failure


class RequestStream:
    """Iterates over `source`. A cancelled read goes on by itself, and the next reader gets its message.

    Before each read it awaits `ready`, and each message is shown to `check`, which may raise. At the end it awaits
    `confirm`, which sends the caller something and raises when they are gone.
    """

    def __init__(
        self,
        source: AsyncIterator[Any],
        ready: Callable[[], Awaitable[None]],
        check: Callable[[Any], None],
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._source, self._ready, self._check, self._confirm = source, ready, check, confirm
        self._read: asyncio.Future[Any] | None = None

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        if self._read is None:
            await self._ready()
            self._read = asyncio.ensure_future(anext(self._source))
            self._read.add_done_callback(observe_failure)  # when the call ends, nobody awaits the last read
        try:
            message = await asyncio.shield(self._read)
        except StopAsyncIteration:
            if self._confirm is not None:
                confirm, self._confirm = self._confirm, None
                await confirm()
            raise
        self._read = None
        self._check(message)
        return message


async def start(server: Any) -> set[asyncio.Task[Any]]:
    """Starts a `grpc.aio` server; returns the tasks of its accepting loop."""
    before = asyncio.all_tasks()
    await server.start()
    started = asyncio.all_tasks() - before
    return {task for task in started if "_server_main_loop" in getattr(task.get_coro(), "__qualname__", "")}


async def end_of(accepting: set[asyncio.Task[Any]]) -> bool:
    """Waits until an accepting loop has ended; False at once where this grpcio has none to wait for."""
    if accepting:
        await asyncio.wait(accepting)
    return bool(accepting)
