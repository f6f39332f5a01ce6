"""One index as operators run it: its own process, files on disk, calls over loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from aeenc import Channel, IndexClient
from benchmarks.encoder.encoder_fleet import end, serving
from benchmarks.harness.rows import ROOT
from services.launcher.processes import free_port


@dataclass
class IndexProcess:
    """A running index. `starting_s` is the time from its start to health SERVING."""

    process: subprocess.Popen[bytes]
    target: str
    metrics_port: int
    artifacts_dir: Path
    starting_s: float = 0.0

    def client(self, *, timeout_s: float = 60.0) -> IndexClient:
        """A client on a connection of its own."""
        return IndexClient(Channel(self.target, timeout_s=timeout_s))

    def resident_mb(self) -> float:
        """Resident memory, anonymous and mapped files, in MB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6


@asynccontextmanager
async def running_index(artifacts_dir: Path | None = None, **settings: object) -> AsyncIterator[IndexProcess]:
    """Starts an index over a directory of its own, or over `artifacts_dir`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        port, metrics_port = free_port(set()), free_port(set())
        chosen = {
            "port": port,
            "metrics_port": metrics_port,
            "artifacts_dir": artifacts_dir or home / "artifacts",
            "log_level": "warning",
            **settings,
        }
        environment = {**os.environ, **{f"AEENC_INDEX_{name.upper()}": str(value) for name, value in chosen.items()}}
        log = home / "index.log"
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: ASYNC220 -- nothing else runs on this loop yet
                [sys.executable, "-m", "services.index"], cwd=ROOT, env=environment, stdout=output, stderr=output
            )
        index = IndexProcess(process, f"127.0.0.1:{port}", metrics_port, Path(str(chosen["artifacts_dir"])))
        try:
            await serving(index.target, process, log)
            index.starting_s = time.monotonic() - started
            yield index
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(end, process)
