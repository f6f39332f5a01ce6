"""Building blocks for asyncio: tasks and child processes that surely end, steps again and again, threads waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from aeenc import errors
from services.kit.logs import get

log = get(__name__)
P = ParamSpec("P")
T = TypeVar("T")

REPEAT_S = 0.2
END_S = 5.0  # that a child process may take to end
EXIT_DISK_FULL = 4  # its exit status


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `work` as `asyncio.to_thread` does, but returns only when the thread has ended, even when cancelled.

    So a lock that is held around the call is held as long as the work goes on.
    """
    return await finish(asyncio.to_thread(work, *args, **kwargs))


async def finish(work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Waits until work has ended, however often the waiting task is cancelled meanwhile, and returns its result."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits until they have ended, however often the waiting task is cancelled meanwhile.

    Repeats the cancellation: a library may swallow one (a timeout that fires at the same moment does in Python 3.11),
    and its task would run for ever.
    """
    tasks, cancelled = list(tasks), False
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=REPEAT_S)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def every(
    seconds: float,
    step: Callable[[], Awaitable[object]],
    trouble: str,
    *,
    wake: asyncio.Event | None = None,
    tell: Callable[[str], None] | None = None,
) -> None:
    """Does a step again and again, with pauses that `wake` ends, until it is cancelled.

    `tell` gets the reason of each failure. Of failures of one kind in a row the first is logged as `trouble`.
    """
    wake = wake or asyncio.Event()
    failing: type[Exception] | None = None
    while True:
        try:
            await step()
            failing = None
        except Exception as error:  # one failed step must not end the loop
            expected = isinstance(error, errors.AeencError | OSError)
            if type(error) is not failing and expected:
                log.warning(trouble, reason=str(error), exc_info=True)
            elif type(error) is not failing:
                log.exception(trouble)
            if tell is not None:
                tell(str(error) if expected else f"{trouble} ({type(error).__name__}); the log has it")
            failing = type(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
        wake.clear()


class Turns:
    """A lock for each name, which goes when nobody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: Hashable) -> asyncio.Lock:
        """Returns the lock of a name, for `async with`."""
        return self._locks.setdefault(name, asyncio.Lock())


def observe_failure(future: asyncio.Future[Any]) -> None:
    """Done-callback for a future that nobody may await: asyncio then does not report its failure as lost."""
    if not future.cancelled():
        future.exception()


async def with_pauses(messages: AsyncIterator[Sequence[T]], pause_s: float) -> AsyncGenerator[Sequence[T], None]:
    """Yields the messages, and an empty one whenever none has come for `pause_s`."""
    while True:
        read = asyncio.ensure_future(anext(messages, None))
        try:
            while not (await asyncio.wait([read], timeout=pause_s))[0]:
                yield ()
        finally:
            read.cancel()  # does nothing to a read that has ended
        message = read.result()
        if message is None:
            return
        yield message


class ChildProcess:
    """A process that this one starts. It shares our output, and ends when this one dies if it has `end_with_parent`."""

    def __init__(self, *command: str, line: str = "", environment: dict[str, str] | None = None) -> None:
        """Starts a command with a pipe on its standard input, which carries `line`, then tells it that we live.

        Avoids asyncio: uvloop forks, and grpc's handlers in a forked process crash it one time in seventy and sometimes
        break this process's connections. `subprocess` uses vfork, which runs none of our code before the exec.
        In a session of its own, it does not get the Ctrl-C of the terminal that this process was started from.
        """
        # unbuffered: a buffer that a dead child did not read would be written again when its pipe closes
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, start_new_session=True, env=environment
        )
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._watch, args=(asyncio.get_running_loop(),), daemon=True).start()
        if line and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died: its exit status tells
                self._process.stdin.write(f"{line}\n".encode())

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed before
            loop.call_soon_threadsafe(self._ended.set_result, status)

    async def wait(self) -> int:
        """Its exit status; negative for a signal."""
        return await asyncio.shield(self._ended)

    async def end(self, patience_s: float = END_S) -> None:
        """Ends it: asked first, then forced."""
        if not self._ended.done():
            self._process.terminate()
            if not (await asyncio.wait([self._ended], timeout=patience_s))[0]:
                log.error("a process does not end; it is killed", pid=self._process.pid)
                self._process.kill()
                await self.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def end_with_parent(end: Callable[[], object]) -> None:
    """Calls `end` in a thread once standard input closes: the parent, who holds its other end, has died."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        end()

    threading.Thread(target=wait, daemon=True).start()
