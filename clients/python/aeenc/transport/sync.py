"""The thread of a blocking call and the event loop of its awaiting twin. `aeenc.blocking` is generated on top of it.

    caller's thread   call ──────► waits ◄─ items, progress ─┐ ◄──── answer
    event loop                └──► async method ─ asks for ──┘ ──────┘

One background loop per process runs all calls. What the caller gives is the caller's: iterables are gone through and
callbacks called in the thread that waits, so that they may make blocking calls themselves.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

from aeenc.errors import FailedPrecondition
from aeenc.transport.checks import FIRST_CONNECTED

T = TypeVar("T")
P = ParamSpec("P")
# Python misses a signal that comes just before a thread begins to wait, or that another thread gets. It checks again
# when the wait is over.
SIGNAL_S = 0.5
AHEAD = 32  # items that are taken from a caller's iterable before the call wants them
_AT_HAND = (str, bytes, list, tuple, set, frozenset, range, Mapping)  # going through these runs no code of the caller's


class _Loop:
    """The event loop of this process's blocking clients; runs in a daemon thread, started at first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        FIRST_CONNECTED.refuse_child()  # before the lock, which the fork may have copied in another's hands
        if sys.is_finalizing():  # the thread has ended
            raise FailedPrecondition("the program is ending; close clients and iterators before its last line")
        with self._lock:
            if self._loop is None:
                FIRST_CONNECTED.remember()  # before the rest: another thread may fork meanwhile, with the lock held
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="aeenc-sdk", daemon=True)
                thread.start()
                self._thread = thread
                self._loop = loop  # last: Ctrl-C may come at any point, and a loop without a thread answers no call
            return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine. Raises FailedPrecondition after a fork, on the loop's own thread, and as Python ends."""
        try:
            loop = self.get()
            self._refuse_own_thread()
        except BaseException:
            coroutine.close()
            raise
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, loop)
        except BaseException:  # Ctrl-C: the loop may have it already, and then ends it
            loop.call_soon_threadsafe(_abandon, coroutine, loop)
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and waits for its result."""
        return Caller().run(coroutine)

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.current_thread() is self._thread

    def _refuse_own_thread(self) -> None:
        if self.is_own_thread:
            raise FailedPrecondition(
                "a blocking call on the event loop of the blocking clients would wait for itself; make it in another "
                "thread, or await the same call of aeenc.connect_async()"
            )


LOOP = _Loop()
run = LOOP.run


class Caller:
    """The thread of one blocking call: while it waits, it does what the call asks of it."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], object] | Future[Any]] = SimpleQueue()
        self._future: Future[Any] | None = None
        self._passes: list[_Pass[Any]] = []

    @property
    def is_answered(self) -> bool:
        """Whether the call has ended, so that nobody wants more of the caller."""
        return self._future is None or self._future.done()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop. Raises what it raises, and what the caller's own code raises meanwhile."""
        future = LOOP.submit(coroutine)
        try:
            self._future = future
            future.add_done_callback(self._asked.put)
            while True:
                try:
                    asked = self._asked.get(timeout=SIGNAL_S)
                except Empty:
                    continue
                if isinstance(asked, Future):
                    break
                asked()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def ask(self, work: Callable[[], object]) -> None:
        """Has the caller do something; called by the loop."""
        self._asked.put(work)

    def iterate(self, iterator: AsyncIterator[T]) -> Iterator[T]:
        """Yields what an async iterator yields, and closes it when the iteration is left."""
        turn = asyncio.Lock()
        try:
            while True:
                try:
                    yield self.run(_next(iterator, turn))
                except StopAsyncIteration:
                    return
        finally:
            if not (sys.is_finalizing() or LOOP.is_own_thread):  # the process ends, or the loop closes it by itself
                LOOP.run(_close(iterator, turn))

    def each(self, items: Iterable[T]) -> Iterable[T] | AsyncIterable[T]:
        """Lends an iterable to the call, which goes through it bit by bit in the caller's thread."""
        if isinstance(items, _AT_HAND) or not isinstance(items, Iterable):
            return items
        return self.go_through(items) if isinstance(items, Iterator) else _Lent(self, items)

    def in_thread(self, callback: Callable[P, None] | None) -> Callable[P, None] | None:
        """Makes a callback that the call can make, and that runs in the caller's thread."""
        if callback is None:
            return None

        def tell(*args: P.args, **kwargs: P.kwargs) -> None:
            self.ask(partial(callback, *args, **kwargs))

        return tell

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the call: the loop keeps no iterable of the caller's, whose clean-up may make calls of its own."""
        for one in self._passes:
            one.forget()

    def go_through(self, items: Iterable[T]) -> _Pass[T]:
        """Begins to go through an iterable."""
        begun = _Pass(self, items)
        self._passes.append(begun)
        return begun


class _Lent(AsyncIterable[T]):
    """A caller's iterable that can be gone through again and again."""

    def __init__(self, caller: Caller, items: Iterable[T]) -> None:
        self._caller, self._items = caller, items

    def __aiter__(self) -> AsyncIterator[T]:
        return self._caller.go_through(self._items)


class _Pass(AsyncIterator[T], Generic[T]):
    """One pass through a caller's iterable: its items come from the caller's thread, a few before they are wanted."""

    def __init__(self, caller: Caller, items: Iterable[T]) -> None:
        self._caller = caller
        self._items: Iterable[T] | None = items
        self._arrived: deque[T] = deque()
        self._news = asyncio.Event()
        self._is_asked = self._is_over = False

    async def __anext__(self) -> T:
        while True:
            is_over = self._is_over  # read first: the last item arrives before
            if self._arrived:
                return self._arrived.popleft()
            if is_over:
                raise StopAsyncIteration
            if not self._is_asked:
                self._is_asked = True
                self._caller.ask(self._take)
            self._news.clear()
            await self._news.wait()

    def forget(self) -> None:
        """Lets go of the iterable; called in the caller's thread."""
        self._items = None

    def _take(self) -> None:
        """Takes some items, in the caller's thread; hands each over at once, for the next may be long in coming."""
        loop = LOOP.get()
        try:
            if not isinstance(self._items, Iterator):
                self._items = iter(self._items or ())
            for _ in range(AHEAD):
                if self._caller.is_answered:
                    return
                try:
                    item = next(self._items)
                except StopIteration:
                    self._is_over = True
                    return
                self._arrived.append(item)
                loop.call_soon_threadsafe(self._news.set)
        finally:
            self._is_asked = False
            loop.call_soon_threadsafe(self._news.set)


async def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop of the blocking clients, awaited by another; cancelled with the one who waits."""
    return await asyncio.wrap_future(LOOP.submit(coroutine))


def given(value: T) -> T:
    """Makes a list of an iterable that must be gone through in the caller's thread, before the call begins."""
    if not isinstance(value, Iterable) or isinstance(value, _AT_HAND) or hasattr(value, "__array__"):
        return value
    return cast("T", list(value))


def given_options(options: Any) -> Any:
    """Makes lists of the iterables among keyword arguments, as `given` does."""
    return {name: given(value) for name, value in options.items()}


def _abandon(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Ends a coroutine whose caller was interrupted as they handed it over, whether it has become a task or not."""
    tasks = [task for task in asyncio.all_tasks(loop) if task.get_coro() is coroutine]
    for task in tasks:
        task.cancel()
    if not tasks:
        coroutine.close()


async def _next(iterator: AsyncIterator[T], turn: asyncio.Lock) -> T:
    async with turn:
        return await anext(iterator)


async def _close(iterator: Any, turn: asyncio.Lock) -> None:
    async with turn:  # a step that was interrupted may still be ending
        await iterator.aclose()
