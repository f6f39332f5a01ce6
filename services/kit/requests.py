"""The requests of a stream, read so that no message is lost by a reader that gives up, and none is taken for the last.

grpcio 1.85 never frees a message that arrives for a read that was cancelled: a caller who sends on after a refusal
would take memory from the process with every message. And to a reader, a caller who has gone looks like one who has
sent everything; only sending him something tells them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from services.kit.tasks import seen


class Requests:
    """Goes over `source`. A read that is cancelled goes on by itself, and the next reader has its message.

    At the end `confirm` is awaited: it sends the caller something, and raises when he is not there any more.
    """

    def __init__(self, source: AsyncIterator[Any], confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        self._source = source
        self._confirm = confirm
        self._read: asyncio.Future[Any] | None = None

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        if self._read is None:
            self._read = asyncio.ensure_future(anext(self._source))
            self._read.add_done_callback(seen)  # the call's end is that of a read that nobody waits for
        try:
            message = await asyncio.shield(self._read)
        except StopAsyncIteration:
            if self._confirm is not None:
                confirm, self._confirm = self._confirm, None
                await confirm()
            raise
        self._read = None
        return message
