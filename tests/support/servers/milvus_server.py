"""A Milvus for tests: milvus-lite as a server of its own, spoken to as any cluster is; it can go and come back."""

from __future__ import annotations

import importlib.util
import signal
import uuid
from pathlib import Path

import pytest

from services.launcher.processes import free_port
from support.service_process import ServiceProcess

REASON = "milvus-lite and pymilvus are not installed (extra index-milvus, and milvus-lite of the extra dev)"


def need_milvus() -> None:
    """Skips the test where the packages are missing."""
    if importlib.util.find_spec("pymilvus") is None or importlib.util.find_spec("milvus_lite") is None:
        pytest.skip(REASON, allow_module_level=True)


class MilvusServer:
    """milvus-lite over `directory` on a port that stays the same across restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        port = free_port(set())
        self.uri = f"http://127.0.0.1:{port}"
        command = ["-m", "milvus_lite", "server", "--data-dir", str(directory), "--host", "127.0.0.1"]
        self._process = ServiceProcess(
            directory.name,
            [*command, "--port", str(port)],
            directory.parent,
            port=port,
            environment={"OMP_NUM_THREADS": "1"},
            has_health=False,
        )

    def settings(self, prefix: str = "") -> dict[str, str]:
        """Those of an index that searches by it, under a prefix of its own unless one is given."""
        return {"backend": "milvus", "milvus_uri": self.uri, "milvus_prefix": prefix or f"t{uuid.uuid4().hex[:12]}"}

    def start(self) -> None:
        """Starts it and waits until it listens."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process.start()
        self._process.wait_listening()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it by a signal."""
        if self._process.alive:
            self._process.end(number)
