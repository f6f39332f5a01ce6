"""Child processes of the trainer, in which torch computes: their start, their end, and the device they report."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from services.kit.concurrency import EXIT_DISK_FULL, ChildProcess, cancel_all
from services.kit.logs import get

log = get(__name__)

MODULE = "services.trainer.train"
# Of a thread of torch that waits for another, before it sleeps. By OpenMP's own 300,000, a job beside busy processes
# takes three times as long; alone, it is no faster (docs/experiments/trainer.md).
SPINS = "10000"


class Child(ChildProcess):
    """A process of `services.trainer.train`. Everything it keeps is replaced as a whole: its end can tear nothing."""

    def __init__(self, *command: str) -> None:
        """Starts a command. Its threads wait as our environment says, or else `SPINS` times."""
        told = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()  # the former overrules the latter
        super().__init__(*command, environment=None if told else {**os.environ, "GOMP_SPINCOUNT": SPINS})

    @classmethod
    async def start(cls, *arguments: str) -> Child:
        """Starts one that does what the arguments say."""
        return cls(sys.executable, "-m", MODULE, *arguments)

    @classmethod
    async def run(cls, *arguments: str) -> int:
        """Has one do what the arguments say, and returns its exit status."""
        child = await cls.start(*arguments)
        try:
            return await child.wait()
        finally:
            await child.end()


def asked_to_end(status: int) -> bool:
    """Tells whether a signal asked it to end, as an operating system or supervisor sends one when it stops."""
    return status in {-signal.SIGINT, -signal.SIGTERM}


def describe_exit(status: int) -> str:
    """Explains an exit status without a result, and names the remedy."""
    if status == EXIT_DISK_FULL:
        return "the disk is full; free some space, then start or resume it again"
    if status < 0:
        return f"its process was killed by signal {-status} (out of memory?); resume to go on from the last epoch"
    return f"its process ended with status {status}; the trainer's log says why; resume to try again"


class Device:
    """The device of one trainer's jobs. `name` is `cpu` or `cuda:0`, say; empty while unknown, or if it is missing.

    A child process finds it, since torch is never loaded here. Without a driver there is nothing to find: no child.
    """

    def __init__(self, wanted: str, gpu_bytes: int = 0) -> None:
        self.name = "cpu" if wanted == "cpu" else ""
        self._wanted, self._gpu_bytes = wanted, gpu_bytes
        self._asking: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Finds the name: at once without a driver, otherwise through a child within seconds."""
        if self.name:
            return
        if has_gpu_driver():
            self._asking = asyncio.create_task(self._ask())
        elif self._wanted == "cuda":
            log.error("jobs have no device", reason="AEENC_TRAINER_DEVICE=cuda, but this machine has no GPU driver")
        else:
            self.name = "cpu"

    async def close(self) -> None:
        """Stops that child."""
        if self._asking is not None:
            await cancel_all([self._asking])

    async def _ask(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            answer = Path(directory) / "device.json"
            status = await Child.run("device", str(answer), self._wanted, str(self._gpu_bytes))
            found = json.loads(answer.read_bytes()) if answer.is_file() else {"error": describe_exit(status)}
        self.name = found.get("device", "")
        if "error" in found:
            log.error("jobs have no device", reason=found["error"])


def has_gpu_driver() -> bool:
    """Tells whether a GPU's driver is installed, without which torch finds none: CUDA's library, or AMD's device."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True
