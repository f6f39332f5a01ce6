"""One watch of all queues for all browsers, as server-sent events.

    people.watch() ─▶ Events ─▶ a queue a browser ─▶ text/event-stream

A browser that falls behind is cut off; it connects again and reads the state anew, as after a lost connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from aeenc import AsyncClient
from aeenc.errors import AeencError
from aeenc_workbench.plain import plain

BACKLOG = 256  # events that one browser may be behind
BEAT_S = 15.0  # proxies close a stream that says nothing for long
PAUSE_S = 1.0
NO_STORE = {"cache-control": "no-store"}


def server_sent(event: Any, seq: int | None = None) -> bytes:
    """Formats an event. A browser that loses the stream asks for what follows the last `seq`."""
    identity = "" if seq is None else f"id: {seq}\n"
    return f"{identity}data: {json.dumps(plain(event))}\n\n".encode()


class Events:
    """Follows the sampler's events from its start on."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._browsers: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    def start(self) -> None:
        """Begins to follow."""
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Ends all streams."""
        self._stopped.set()
        for browser in self._browsers:
            _end(browser)
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def stream(self, lives: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yields the events from now on, and a comment now and then, for as long as the session lives."""
        browser: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(BACKLOG)
        self._browsers.add(browser)
        try:
            yield b"retry: 1000\n\n"
            while True:
                try:
                    async with asyncio.timeout(BEAT_S):  # wait_for of Python 3.11 may swallow a cancellation
                        event = await browser.get()
                except TimeoutError:
                    event = {}
                if event is None or not lives():
                    return
                yield server_sent(event) if event else b": still here\n\n"
        finally:
            self._browsers.discard(browser)

    async def relay(self, events: AsyncGenerator[bytes, None], lives: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yields the events of another stream until it, the session or all streams end."""
        stopped = asyncio.create_task(self._stopped.wait())
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                await asyncio.wait({coming, stopped}, return_when=asyncio.FIRST_COMPLETED)
                event = coming.result() if coming.done() else None
                if event is None or not lives():
                    return
                yield event
                coming = asyncio.ensure_future(anext(events, None))
        finally:
            coming.cancel()
            stopped.cancel()
            await asyncio.gather(coming, stopped, return_exceptions=True)
            await events.aclose()  # only now: a generator that still runs cannot be closed

    async def _follow(self) -> None:
        seq = 0
        while True:
            try:
                async for event in self._client.people.watch(from_seq=seq + 1, from_now=not seq):
                    seq = event.seq
                    # who acted is not told: people who share a task judge it blindly
                    self._tell({"event": event.kind.name.lower(), "run": event.run_id, "task": event.task_id})
            except AeencError as error:
                seq = 0 if error.reason == "EVENTS_GONE" else seq
                self._tell({"event": "away", "detail": error.message})
            await asyncio.sleep(PAUSE_S)

    def _tell(self, event: dict[str, Any]) -> None:
        for browser in list(self._browsers):
            if browser.full():
                _end(browser)
            else:
                browser.put_nowait(event)


def _end(browser: asyncio.Queue[dict[str, Any] | None]) -> None:
    while browser.full():
        browser.get_nowait()
    browser.put_nowait(None)
