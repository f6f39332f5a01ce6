"""A sampler as an operator starts it, on a port that stays the same, to be killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class SamplerProcess:
    """`python -m services.sampler` with the given settings."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        values = {**settings, "log_format": "json", "log_level": "warning"}
        self._environment = {
            f"AEENC_SAMPLER_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process at the moment."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it; whoever calls it waits until it answers."""
        self._process = subprocess.Popen(  # not by asyncio, whose uvloop forks under grpc's feet
            [sys.executable, "-m", "services.sampler"],
            cwd=ROOT,
            env={**os.environ, **self._environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone. Nothing happens to one that was never started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
