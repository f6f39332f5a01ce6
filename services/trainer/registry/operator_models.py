"""The operator's models at a start: each exported as a checkpoint once, registered, and served if nothing else is.

A child process exports; its notes in the state directory tell the next start what was made of which source.

    settings ─► base_model.find_* ─► OperatorModels.version ► Checkpoints.register ─► Registry.set_label("stable")
                                       │ child process           (row in Redis)        (only if none stands)
                                       └ <command>.json, <command>.result
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from aeenc import errors
from services.kit.logs import get
from services.store.files import sha256_of
from services.store.formats import NewerFormat
from services.store.redis import once_redis_answers
from services.store.registry import CheckpointRow, Registry
from services.trainer.models.base_model import FILES, TOKENIZER_FILES, find_base_model, find_cross_encoder
from services.trainer.models.space import check_labels
from services.trainer.registry.checkpoints import FOLDER, Checkpoints
from services.trainer.registry.child import Child

log = get(__name__)

RETRY_S = 0.5
STABLE = "stable"
EXPORTER = 1  # raise it to have the next start export the cross-encoder again


class OperatorModels:
    """The models that the settings name: each is exported once, and served unless its space serves something.

    `space_id` is that of the base model, the default. A cross-encoder scores a query with one premise; jobs in mode
    CROSS_ENCODER train others.
    """

    def __init__(self, checkpoints: Checkpoints, registry: Registry, state_dir: Path) -> None:
        self._checkpoints, self._registry, self._state_dir = checkpoints, registry, state_dir
        self.space_id = ""

    async def version(self, command: str, model: str, source: dict[str, Any], **inputs: Any) -> str:
        """Returns the checkpoint that the child's `command` makes of `source`, made now or by an earlier start.

        `inputs` go to the child, too, but a change of theirs does not cause another export. Raises FailedPrecondition
        with the child's reason when the export fails, NewerFormat when a newer release has written the checkpoint.
        """
        path = self._state_dir / f"{command}.json"
        store = self._checkpoints.store
        request = {"artifacts_dir": str(store.root.resolve()), **inputs, **source}
        if (known := self._remembered(path, source, inputs)) and await self._checkpoints.is_intact(known):
            return known
        log.info("exporting", model=model)
        result = await Child.answer(command, path, request)
        if "version" not in result:
            raise errors.FailedPrecondition(f"cannot export the {model} into {store.root}: {result['error']}")
        return str(result["version"])

    def _remembered(self, path: Path, source: dict[str, Any], inputs: Collection[str]) -> str:
        """The version that an earlier start made of the same source; empty if none did."""
        with suppress(FileNotFoundError, ValueError, AttributeError):  # none, or a damaged one, is made anew
            request, result = (json.loads(one.read_bytes()) for one in (path, path.with_suffix(".result")))
            if {name: value for name, value in request.items() if name not in {"artifacts_dir", *inputs}} == source:
                return str(result.get("version", ""))
        return ""

    async def ensure_base_model(self, name: str, options: dict[str, Any], sha256: str = "", precision: str = "") -> str:
        """Does what is missing; waits for Redis. Returns why it leaves one of a newer release alone; empty if none.

        `sha256` is what that of the weights must be, as find_base_model takes it; `precision` that of queries. Raises
        what find_base_model raises, and FailedPrecondition for one that cannot be exported.
        """
        await asyncio.to_thread(self._checkpoints.store.sweep, FOLDER)  # remains of killed jobs
        directory = await asyncio.to_thread(find_base_model, name, sha256)
        source = {"directory": str(directory), "base_model": name, **options}
        try:
            version = await self.version("pretrained", f"base model {name!r}", source)
            row = await once_redis_answers(lambda: self._serve(version, precision), RETRY_S)
        except NewerFormat as error:
            default = await once_redis_answers(self._registry.checkpoints.default_space, RETRY_S)
            self.space_id = default or ""
            return _left_alone("base model", error)
        self.space_id = row.space_id
        return ""

    async def ensure_cross_encoder(self, name: str) -> str:
        """Does the same for a cross-encoder; nothing without a name. Raises FailedPrecondition, Unavailable."""
        if not name:
            return ""
        directory = await asyncio.to_thread(find_cross_encoder, name)
        check_labels(name, directory)
        source = {"exporter": EXPORTER, "sha256": await asyncio.to_thread(_hashes, directory)}
        inputs = {"directory": str(directory), "base_model": name}
        try:
            version = await self.version("cross-encoder", f"cross-encoder {name!r}", source, **inputs)
            await once_redis_answers(lambda: self._serve(version), RETRY_S)
        except NewerFormat as error:
            return _left_alone("cross-encoder", error)
        return ""

    async def _serve(self, version: str, precision: str = "") -> CheckpointRow:
        """Registers a version, and points `stable` at it unless the label stands: from then on it is the operator's."""
        row = await self._checkpoints.register(version, verify="size")  # its hashes were checked just now
        if row.pretrained:
            await self._registry.checkpoints.set_space(row.space_id, version, default=True)
        try:
            await self._registry.set_label(row.space_id, STABLE, version, expected_revision=0, precision=precision)
        except errors.Aborted:
            serving = await self._registry.label(row.space_id, STABLE)
            if not row.pretrained and serving is not None and serving.version != version:
                log.warning(
                    "another cross-encoder is served; publish this one to change that",
                    version=version,
                    serving=serving.version,
                )
        except NewerFormat:
            if not row.pretrained:
                raise
        return row


def _left_alone(model: str, error: NewerFormat) -> str:
    log.warning("the trainer goes on without a model of a newer release", model=model, reason=error.message)
    return f"the {model} is left as it is: {error.message}"


def _hashes(directory: Path) -> dict[str, str]:
    return {name: sha256_of(directory / name) for name in (*FILES, *TOKENIZER_FILES) if (directory / name).is_file()}
