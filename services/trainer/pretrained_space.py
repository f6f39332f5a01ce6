"""Makes sure that the deployment's space exists: the pre-trained encoder as a checkpoint, registered and served."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aeenc import errors
from services.store.registry import CheckpointRow, Registry
from services.trainer.base_model import find_base_model
from services.trainer.checkpoints import FOLDER, Checkpoints
from services.trainer.exports import Exports, once_redis_answers

STABLE = "stable"


class PretrainedSpace:
    """Exports the base model once, makes its space the default, and has it served where nothing is served yet."""

    def __init__(
        self, checkpoints: Checkpoints, registry: Registry, exports: Exports, base_model: str, options: dict[str, Any]
    ) -> None:
        self._checkpoints, self._registry, self._exports = checkpoints, registry, exports
        self._base_model, self._options = base_model, options
        self.space_id = ""

    async def ensure(self) -> None:
        """Does what is missing; waits for Redis. Raises FailedPrecondition or DataLoss for an unusable base model."""
        await asyncio.to_thread(self._checkpoints.store.sweep, FOLDER)  # what killed jobs left behind
        directory = await asyncio.to_thread(find_base_model, self._base_model)
        source = {"directory": str(directory), "base_model": self._base_model, **self._options}
        version = await self._exports.version("pretrained", f"base model {self._base_model!r}", source)
        self.space_id = (await once_redis_answers(lambda: self._publish(version))).space_id

    async def _publish(self, version: str) -> CheckpointRow:
        row = await self._checkpoints.register(version, verify="size")  # hashed just now
        await self._registry.set_space(row.space_id, version, default=True)
        with contextlib.suppress(errors.Aborted):  # it is served already, or something better is
            await self._registry.set_label(row.space_id, STABLE, version, expected_revision=0)
        return row
