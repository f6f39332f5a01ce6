"""The blocking face of the async SDK: one generic wrapper over one background event loop per process.

Methods block, and async iterators become iterators. Nothing is written twice: all that the clients offer appears here.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from aeenc.errors import FailedPrecondition

T = TypeVar("T")
# Python misses a signal that comes just before a thread begins to wait, or that another thread gets. It checks again
# when the wait is over.
SIGNAL_S = 0.5


class _Loop:
    """The event loop of this process's blocking clients; runs in a daemon thread, started at first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="aeenc-sdk", daemon=True).start()
            elif self._pid != os.getpid():
                raise FailedPrecondition(
                    f"the AE-Enc client was used in process {self._pid} before the fork; start worker processes with "
                    "the spawn method, or connect after the fork"
                )
            return self._loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.get())
        except BaseException:
            coroutine.close()
            raise
        try:
            while True:
                try:
                    return future.result(SIGNAL_S)
                except TimeoutError:
                    if future.done():
                        return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


LOOP = _Loop()


class Blocking:
    """Wraps an async client (or a tree of them) so that its methods block."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        if inspect.iscoroutinefunction(value):
            return _blocking_call(value)
        if inspect.isasyncgenfunction(value):
            return _blocking_iterator(value)
        if type(value).__module__.startswith("aeenc."):
            return Blocking(value)
        return value

    def __dir__(self) -> list[str]:
        return dir(self._wrapped)

    def __repr__(self) -> str:
        return f"Blocking({self._wrapped!r})"

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _blocking_call(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    def call(*args: Any, **kwargs: Any) -> T:
        return LOOP.run(function(*args, **kwargs))

    call.__doc__ = function.__doc__
    return call


def _blocking_iterator(function: Callable[..., AsyncIterator[T]]) -> Callable[..., Iterator[T]]:
    def iterate(*args: Any, **kwargs: Any) -> Iterator[T]:
        iterator = function(*args, **kwargs)
        try:
            while True:
                try:
                    yield LOOP.run(_next(iterator))
                except StopAsyncIteration:
                    return
        finally:
            LOOP.run(iterator.aclose())  # type: ignore[attr-defined]

    iterate.__doc__ = function.__doc__
    return iterate


async def _next(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)
