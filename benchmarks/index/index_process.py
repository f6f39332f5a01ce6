"""The index as operators run it, in a process of its own that can be killed at any moment and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from aeenc import Channel, IndexClient, errors
from aeenc.v1 import types_pb2
from benchmarks.harness.rows import ROOT
from services.launcher.processes import free_port

START_S = 30.0


class IndexProcess:
    """Starts `python -m services.index` over `home`/artifacts; `client` is a connection without retries."""

    client: IndexClient

    def __init__(self, home: Path, encoder_target: str, **settings: object) -> None:
        self._port = free_port(set())
        self.artifacts = home / "artifacts"
        self._log = home / "index.log"
        chosen = {
            "port": self._port,
            "artifacts_dir": self.artifacts,
            "encoder_target": encoder_target,
            "log_level": "warning",
            **settings,
        }
        own = {f"AEENC_INDEX_{name.upper()}": str(value) for name, value in chosen.items()}
        path = os.pathsep.join([str(ROOT), str(ROOT / "clients" / "python")])
        self._environment = {**os.environ, **own, "PYTHONPATH": path}
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Starts the process and waits for nothing."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.index"], cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )

    async def start(self) -> float:
        """Starts the process and waits until it answers; returns the seconds. Ends the run when it does not."""
        begun = time.monotonic()
        self.spawn()
        assert self._process is not None
        while time.monotonic() - begun < START_S:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    break
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.01)
        self.client = IndexClient(Channel(f"127.0.0.1:{self._port}", retry=False, timeout_s=10))
        while time.monotonic() - begun < START_S and self._process.poll() is None:
            with contextlib.suppress(errors.Unavailable):
                if (await self.client.info()).service.state != types_pb2.SERVICE_STATE_STARTING:
                    return time.monotonic() - begun
            await asyncio.sleep(0.01)
        sys.exit(f"the index does not start:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    async def disconnect(self) -> None:
        """Closes the client's connection."""
        await self.client.channel.close()

    async def __aenter__(self) -> IndexProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
