"""A sampler as an operator starts it, on a port that stays the same, to be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class SamplerProcess:
    """`python -m services.sampler` with the given settings."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        values = {**settings, "log_format": "json", "log_level": "warning"}
        self._environment = {
            f"AEENC_SAMPLER_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process at the moment."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts it; whoever calls it waits until it answers."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.sampler",
            cwd=ROOT,
            env={**os.environ, **self._environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}"},
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
