"""Makes sure that the deployment's space exists: the pre-trained encoder as a checkpoint, registered and served."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from aeenc import errors
from services.kit.artifacts import atomic_write
from services.kit.logs import get
from services.kit.registry import Registry
from services.trainer.base_model import find_base_model
from services.trainer.checkpoints import FOLDER, Checkpoints
from services.trainer.child import Child, describe_exit

log = get(__name__)

STABLE = "stable"
RETRY_S = 0.5


class PretrainedSpace:
    """Exports the base model once, makes its space the default, and has it served where nothing is served yet."""

    def __init__(
        self, checkpoints: Checkpoints, registry: Registry, state_dir: Path, base_model: str, options: dict[str, Any]
    ) -> None:
        self._checkpoints, self._registry = checkpoints, registry
        self._state_dir, self._base_model, self._options = state_dir, base_model, options
        self.space_id = ""

    async def ensure(self) -> None:
        """Does what is missing; waits for Redis. Raises FailedPrecondition or DataLoss for an unusable base model."""
        version = await self._exported()
        while True:
            try:
                row = await self._checkpoints.register(version, verify="size")  # hashed just now
                await self._registry.set_space(row.space_id, version, default=True)
                with contextlib.suppress(errors.Aborted):  # it is served already, or something better is
                    await self._registry.set_label(row.space_id, STABLE, version, expected_revision=0)
                break
            except errors.Unavailable as error:
                log.warning("the trainer waits for redis", reason=error.message)
                await asyncio.sleep(RETRY_S)
        self.space_id = row.space_id

    async def _exported(self) -> str:
        """The version of the base model's checkpoint, exported now or by an earlier start."""
        await asyncio.to_thread(self._checkpoints.store.sweep, FOLDER)  # what killed jobs left behind
        directory = await asyncio.to_thread(find_base_model, self._base_model)
        request = {
            "artifacts_dir": str(self._checkpoints.store.root.resolve()),
            "directory": str(directory),
            "base_model": self._base_model,
            **self._options,
        }
        path = self._state_dir / "pretrained.json"
        done = path.with_suffix(".result")
        if path.is_file() and done.is_file() and json.loads(path.read_bytes()) == request:
            version = str(json.loads(done.read_bytes())["version"])
            try:
                await asyncio.to_thread(self._checkpoints.store.open, FOLDER, version)
                return version
            except errors.NotFound:
                log.warning("the exported base model is gone", version=version)
            except errors.DataLoss as error:
                log.warning("the exported base model is damaged", version=version, reason=error.message)
                await asyncio.to_thread(self._checkpoints.store.delete, FOLDER, version)
        log.info("exporting the base model", base_model=self._base_model)
        done.unlink(missing_ok=True)
        await asyncio.to_thread(atomic_write, path, json.dumps(request).encode())
        child = await Child.start("pretrained", str(path.resolve()))
        try:
            status = await child.wait()
        finally:
            await child.end()
        if status or not done.is_file():
            raise errors.FailedPrecondition(f"cannot export base model {self._base_model!r}: {describe_exit(status)}")
        return str(json.loads(done.read_bytes())["version"])
