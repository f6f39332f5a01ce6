"""A Milvus for tests: milvus-lite as a server of its own, spoken to as any cluster is; it can go and come back."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

REASON = "milvus-lite and pymilvus are not installed (extra index-milvus, and milvus-lite of the extra dev)"


def need_milvus() -> None:
    """Skips the test where the packages are missing."""
    if importlib.util.find_spec("pymilvus") is None or importlib.util.find_spec("milvus_lite") is None:
        pytest.skip(REASON, allow_module_level=True)


class MilvusServer:
    """milvus-lite over `directory` on a port that stays the same across restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it listens."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(self.directory)]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            assert self._process.poll() is None, "milvus-lite ended at its start"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("milvus-lite does not listen")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it by a signal."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
