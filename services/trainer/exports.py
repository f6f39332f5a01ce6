"""Model directories made into checkpoints by a child process, once: what was made is remembered with what it came from.

It registers nothing and names nothing; that is for whoever asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from aeenc import errors
from services.kit.logs import get
from services.store.artifacts import ArtifactStore, atomic_write
from services.trainer.checkpoints import FOLDER
from services.trainer.child import Child, describe_exit

log = get(__name__)

RETRY_S = 0.5
T = TypeVar("T")


class Exports:
    """Exports of one trainer. Its notes, `<command>.json` and `<command>.result`, lie in its state directory."""

    def __init__(self, store: ArtifactStore, state_dir: Path) -> None:
        self._store, self._state_dir = store, state_dir

    async def version(self, command: str, what: str, source: dict[str, Any], **inputs: Any) -> str:
        """The checkpoint that the child's `command` makes of `source`, made now or by an earlier start.

        `inputs` go to the child, too, but another value of theirs is no reason to export again. Raises
        FailedPrecondition with the child's reason when it cannot be done.
        """
        path = self._state_dir / f"{command}.json"
        done = path.with_suffix(".result")
        request = {"artifacts_dir": str(self._store.root.resolve()), **inputs, **source}
        if (known := self._remembered(path, done, source)) and await self._sound(known, what):
            return known
        log.info("exporting", model=what)
        done.unlink(missing_ok=True)
        await asyncio.to_thread(atomic_write, path, json.dumps(request).encode())
        child = await Child.start(command, str(path.resolve()))
        try:
            status = await child.wait()
        finally:
            await child.end()
        result = json.loads(done.read_bytes()) if done.is_file() else {"error": describe_exit(status)}
        if "version" not in result:
            raise errors.FailedPrecondition(f"cannot export the {what}: {result['error']}")
        return str(result["version"])

    def _remembered(self, path: Path, done: Path, source: dict[str, Any]) -> str:
        """The version that an earlier start made of the same source; empty: none."""
        if not (path.is_file() and done.is_file()):
            return ""
        request = json.loads(path.read_bytes())
        if any(request.get(name) != value for name, value in source.items()):
            return ""
        return str(json.loads(done.read_bytes()).get("version", ""))

    async def _sound(self, version: str, what: str) -> bool:
        try:
            await asyncio.to_thread(self._store.open, FOLDER, version)
        except errors.NotFound:
            log.warning("an export is gone", model=what, version=version)
            return False
        except errors.DataLoss as error:
            log.warning("an export is damaged", model=what, version=version, reason=error.message)
            await asyncio.to_thread(self._store.delete, FOLDER, version)
            return False
        return True


async def once_redis_answers(call: Callable[[], Awaitable[T]]) -> T:
    """Waits for Redis as long as it takes."""
    while True:
        try:
            return await call()
        except errors.Unavailable as error:
            log.warning("the trainer waits for redis", reason=error.message)
            await asyncio.sleep(RETRY_S)
