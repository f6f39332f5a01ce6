"""The most that callers may have in work at once in a process: streams, and bytes of requests.

It counts before a message is parsed; what computing costs is the services' own admission. Streams that are read whole
before their work begins have a share of their own: they last, and other requests need not wait for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aeenc import errors
from services.kit.credentials.gate import Caller

CALL_BYTES = 16 * 1024  # what a call takes beside its message
SHARE = 4  # this part of the streams is the most of one caller, of all health watches, and of one connection
WHOLE = 2  # this part of the bytes is the most of all streams that are read whole
STREAMS_WAIT_AT = 0.75  # of the bytes: what a stream then sends is still taken
RETRY_S = 0.25
STREAM_RETRY_S = 10.0  # streams last


class Bounds:
    """Counts streams and bytes; raises Overloaded beyond `streams` and `request_bytes`.

    A caller may have a quarter of the streams, unless they act on behalf of others or have the token of all.
    """

    def __init__(self, streams: int, request_bytes: int) -> None:
        self._streams = streams
        self._open: Counter[str] = Counter()
        self.messages = HeldBytes(request_bytes)
        self.whole = HeldBytes(request_bytes // WHOLE, "half of MAX_REQUEST_BYTES")

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        """Counts a stream of a caller while the body runs."""
        name, most = caller.name, self._streams if caller.on_behalf else max(1, self._streams // SHARE)
        if self._open[name] >= most or self._open.total() >= self._streams:
            raise errors.Overloaded(
                f"{self._open.total()} streams are open, of at most {self._streams} (MAX_STREAMS), and of {name!r} "
                f"{self._open[name]}, of at most {most}; end some, or come back later",
                retry_after_s=STREAM_RETRY_S,
            )
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


class HeldBytes:
    """Bytes of requests in work, of at most `most_bytes`."""

    def __init__(self, most_bytes: int, setting: str = "MAX_REQUEST_BYTES") -> None:
        self._most_bytes, self._setting = most_bytes, setting
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def take(self, size_bytes: int, mine_bytes: int = 0) -> None:
        """Counts bytes of a call that holds `mine_bytes`, to be released. A single call is always taken."""
        if self._held_bytes > mine_bytes and self._held_bytes + size_bytes > self._most_bytes:
            raise errors.Overloaded(
                f"requests of {self._held_bytes:,} bytes are in work, of at most {self._most_bytes:,} "
                f"({self._setting}), and this one has {size_bytes:,}; come back later",
                retry_after_s=RETRY_S,
            )
        self._count(size_bytes)

    def release(self, size_bytes: int) -> None:
        """Takes back what was taken."""
        self._count(-size_bytes)

    def _count(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._held_bytes < self._most_bytes * STREAMS_WAIT_AT:
            self._room.set()
        else:
            self._room.clear()

    async def room(self) -> None:
        """Waits until there is room for a message of a stream: it waits where a single request is refused."""
        await self._room.wait()
