"""The trainer's child processes: how they are started, watched and ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import subprocess
import sys
import threading

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
EXIT_DISK_FULL = 4
MODULE = "services.trainer.learning"
END_S = 5.0


class Child:
    """A process of `services.trainer.learning`. It ends by itself when this process dies, whatever it dies of."""

    def __init__(self, *command: str) -> None:
        """Starts a command with a pipe as its lifeline; its output goes to ours.

        Not by asyncio: uvloop forks, and what grpc does in a forked process crashes there one time in seventy and now
        and then breaks this process's connections. `subprocess` uses vfork, which runs nothing of ours before the exec.
        In a session of its own, it does not get the Ctrl-C of the terminal that this process was started from.
        """
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._watch, args=(asyncio.get_running_loop(),), daemon=True).start()

    @classmethod
    async def start(cls, *arguments: str) -> Child:
        """Starts one that does what the arguments say."""
        return cls(sys.executable, "-m", MODULE, *arguments)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed before
            loop.call_soon_threadsafe(self._ended.set_result, status)

    async def wait(self) -> int:
        """Its exit status; negative for a signal."""
        return await asyncio.shield(self._ended)

    async def end(self) -> None:
        """Ends it: asked first, then forced. Everything it keeps is replaced as a whole, so nothing can be torn."""
        if not self._ended.done():
            self._process.terminate()
            try:
                async with asyncio.timeout(END_S):
                    await self.wait()
            except TimeoutError:
                self._process.kill()
                await self.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def asked_to_end(status: int) -> bool:
    """Whether somebody has asked it to end, as an operating system does that stops or a supervisor with all it runs."""
    return status in {-signal.SIGINT, -signal.SIGTERM}


def describe_exit(status: int) -> str:
    """What an exit status without a result means, and what to do."""
    if status == EXIT_DISK_FULL:
        return "the disk is full; free some space, then resume"
    if status < 0:
        return f"its process was killed by signal {-status} (out of memory?); resume to go on from the last epoch"
    return f"its process ended with status {status}; the trainer's log says why; resume to try again"
