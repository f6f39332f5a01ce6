"""A service that is killed and started again at the same address, as an operator's supervisor would."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.encoder.encoder_fleet import end, serving
from benchmarks.harness.rows import ROOT


class Child:
    """One process; `target` is where it serves gRPC health, or empty when it has none. Its log goes to a file."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, object], home: Path) -> None:
        self.name = name
        self.target = ""
        self.log = home / f"{name}.log"
        self._command = [sys.executable, *command]
        self._environment = {**os.environ, **{key: str(value) for key, value in environment.items()}}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the last start."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it; `ready` waits until it serves."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=output, stderr=output
            )

    async def ready(self) -> None:
        """Waits until it serves; ends the benchmark when it does not."""
        await serving(self.target, self.process, self.log)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        """SIGTERM, and waits."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(end, self.process)

    def resident_mb(self) -> float:
        """Resident memory, in MB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6


async def listens(host_port: str, timeout_s: float = 30.0) -> None:
    """Waits until somebody accepts connections there."""
    host, _, port = host_port.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
    sys.exit(f"nobody listens on {host_port}")
