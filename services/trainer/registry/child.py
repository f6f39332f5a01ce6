"""Child processes of the trainer, in which torch computes: their start, their end, and the device they report."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.kit.concurrency import EXIT_DISK_FULL, ChildProcess, cancel_all
from services.kit.logs import get
from services.store.files import atomic_write

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
    async def answer(cls, command: str, path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
        """Writes a request to a path, has one carry it out, and returns the result beside it, or an `error`."""
        result = path.with_suffix(".result")
        result.unlink(missing_ok=True)  # first: that of another request never stands beside this one
        await asyncio.to_thread(atomic_write, path, json.dumps(request).encode())
        child = await cls.start(command, str(path))
        try:
            status = await child.wait()
        finally:
            await child.end()
        return dict(json.loads(result.read_bytes())) if result.is_file() else {"error": describe_exit(status)}


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
            request = {"wanted": self._wanted, "gpu_bytes": self._gpu_bytes}
            found = await Child.answer("device", Path(directory) / "device.json", request)
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
