"""Where jobs compute on this machine, as torch sees it: asked of a child process, since torch is not loaded here."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from services.kit.concurrency import cancel_all
from services.kit.logs import get
from services.trainer.child import Child, describe_exit

log = get(__name__)


class Device:
    """The device of one trainer's jobs. `name` is such as `cpu` or `cuda:0`; empty: not known, or not there."""

    def __init__(self, wanted: str) -> None:
        self.name = "cpu" if wanted == "cpu" else ""
        self._wanted = wanted
        self._asking: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Begins to find out; a few seconds later the name is known."""
        if not self.name:
            self._asking = asyncio.create_task(self._ask())

    async def close(self) -> None:
        """Ends the asking."""
        if self._asking is not None:
            await cancel_all([self._asking])

    async def _ask(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            answer = Path(directory) / "device.json"
            child = await Child.start("device", str(answer), self._wanted)
            try:
                status = await child.wait()
            finally:
                await child.end()
            told = json.loads(answer.read_bytes()) if answer.is_file() else {"error": describe_exit(status)}
        self.name = told.get("device", "")
        if "error" in told:
            log.error("jobs have no device", reason=told["error"])
