"""The requests of a stream, read so that no message is lost by a reader that gives up.

grpcio 1.85 never frees a message that arrives for a read that was cancelled: a caller who sends on after a refusal
would take memory from the process with every message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from services.kit.tasks import seen


class Requests:
    """Goes over `source`. A read that is cancelled goes on by itself, and the next reader has its message."""

    def __init__(self, source: AsyncIterator[Any]) -> None:
        self._source = source
        self._read: asyncio.Future[Any] | None = None

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        if self._read is None:
            self._read = asyncio.ensure_future(anext(self._source))
            self._read.add_done_callback(seen)  # the call's end is that of a read that nobody waits for
        message = await asyncio.shield(self._read)
        self._read = None
        return message
