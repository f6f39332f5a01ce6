"""The trainer's child processes: how they are started, watched and ended."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Sequence

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
EXIT_DISK_FULL = 4
MODULE = "services.trainer.learning"
END_S = 5.0


class Child:
    """A process of `services.trainer.learning`. It ends by itself when this process dies, whatever it dies of."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *arguments: str) -> Child:
        """Starts one with a pipe as its lifeline; its output goes to ours."""
        command: Sequence[str] = (sys.executable, "-m", MODULE, *arguments)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE))

    async def wait(self) -> int:
        """Its exit status; negative for a signal."""
        return await self._process.wait()

    async def end(self) -> None:
        """Ends it: asked first, then forced. Everything it keeps is replaced as a whole, so nothing can be torn."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def describe_exit(status: int) -> str:
    """What an exit status without a result means, and what to do."""
    if status == EXIT_DISK_FULL:
        return "the disk is full; free some space, then resume"
    if status < 0:
        return f"its process was killed by signal {-status} (out of memory?); resume to go on from the last epoch"
    return f"its process ended with status {status}; the trainer's log says why; resume to try again"
