"""The operator's models at a start: each exported as a checkpoint once, registered, and served if nothing else is.

A child process exports; its notes in the state directory tell the next start what was made of which source.

    settings ─► base_model.find_* ─► ModelExports.version ─► Checkpoints.register ─► Registry.set_label("stable")
                                       │ child process           (row in Redis)        (only if none stands)
                                       └ <command>.json, <command>.result
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from aeenc import errors
from services.kit.logs import get
from services.store.artifacts import ArtifactStore
from services.store.files import atomic_write, sha256_of
from services.store.formats import NewerFormat
from services.store.registry import CheckpointRow, Registry
from services.trainer.models.base_model import (
    FILES,
    TOKENIZER_FILES,
    check_labels,
    find_base_model,
    find_cross_encoder,
)
from services.trainer.registry.checkpoints import FOLDER, Checkpoints, is_intact
from services.trainer.registry.child import Child, describe_exit

log = get(__name__)

RETRY_S = 0.5
STABLE = "stable"
EXPORTER = 1  # raise it to have the next start export the cross-encoder again
T = TypeVar("T")


class ModelExports:
    """Turns model directories into checkpoints, once each. It registers nothing and moves no label."""

    def __init__(self, store: ArtifactStore, state_dir: Path) -> None:
        self._store, self._state_dir = store, state_dir

    async def version(self, command: str, model: str, source: dict[str, Any], **inputs: Any) -> str:
        """Returns the checkpoint that the child's `command` makes of `source`, made now or by an earlier start.

        `inputs` go to the child, too, but a change of theirs does not cause another export. Raises FailedPrecondition
        with the child's reason when the export fails, NewerFormat when a newer release has written the checkpoint.
        """
        path = self._state_dir / f"{command}.json"
        done = path.with_suffix(".result")
        request = {"artifacts_dir": str(self._store.root.resolve()), **inputs, **source}
        if (known := self._remembered(path, done, source, inputs)) and await is_intact(self._store, known):
            return known
        log.info("exporting", model=model)
        done.unlink(missing_ok=True)
        await asyncio.to_thread(atomic_write, path, json.dumps(request).encode())
        status = await Child.run(command, str(path.resolve()))
        result = json.loads(done.read_bytes()) if done.is_file() else {"error": describe_exit(status)}
        if "version" not in result:
            raise errors.FailedPrecondition(f"cannot export the {model}: {result['error']}")
        return str(result["version"])

    def _remembered(self, path: Path, done: Path, source: dict[str, Any], inputs: Collection[str]) -> str:
        """The version that an earlier start made of the same source; empty if none did."""
        if not (path.is_file() and done.is_file()):
            return ""
        request = json.loads(path.read_bytes())
        if {name: value for name, value in request.items() if name not in {"artifacts_dir", *inputs}} != source:
            return ""
        return str(json.loads(done.read_bytes()).get("version", ""))


async def once_redis_answers(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call until Redis answers it, however long that takes."""
    while True:
        try:
            return await call()
        except errors.Unavailable as error:
            log.warning("the trainer waits for redis", reason=error.message)
            await asyncio.sleep(RETRY_S)


class PretrainedSpace:
    """Exports the base model once, makes its space the default, and serves it unless the space serves something."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        registry: Registry,
        exports: ModelExports,
        base_model: str,
        options: dict[str, Any],
        sha256: str = "",
        precision: str = "",
    ) -> None:
        """`sha256` is what that of the base model's weights must be, as find_base_model takes it.

        `precision` is that of queries by the base model.
        """
        self._checkpoints, self._registry, self._exports = checkpoints, registry, exports
        self._base_model, self._options, self._sha256, self._precision = base_model, options, sha256, precision
        self.space_id = ""

    async def ensure(self) -> str:
        """Does what is missing; waits for Redis. Returns why it leaves one of a newer release alone; empty if none.

        Raises FailedPrecondition or DataLoss for an unusable base model.
        """
        await asyncio.to_thread(self._checkpoints.store.sweep, FOLDER)  # remains of killed jobs
        directory = await asyncio.to_thread(find_base_model, self._base_model, self._sha256)
        source = {"directory": str(directory), "base_model": self._base_model, **self._options}
        try:
            version = await self._exports.version("pretrained", f"base model {self._base_model!r}", source)
            self.space_id = (await once_redis_answers(lambda: self._publish(version))).space_id
        except NewerFormat as error:
            self.space_id = await once_redis_answers(self._default_space)
            return _left_alone("base model", error)
        return ""

    async def _default_space(self) -> str:
        return await self._registry.checkpoints.default_space() or ""

    async def _publish(self, version: str) -> CheckpointRow:
        row = await self._checkpoints.register(version, verify="size")  # its hashes were checked just now
        await self._registry.checkpoints.set_space(row.space_id, version, default=True)
        # The space serves this version or another one already, perhaps under a newer release's label.
        with contextlib.suppress(errors.Aborted, NewerFormat):
            precision = self._precision
            await self._registry.set_label(row.space_id, STABLE, version, expected_revision=0, precision=precision)
        return row


class CrossEncoder:
    """The cross-encoder that the setting names, which scores a query with one premise. Does nothing without a name.

    Its labels live in a space of their own. Jobs in mode CROSS_ENCODER train others.
    """

    def __init__(self, checkpoints: Checkpoints, registry: Registry, exports: ModelExports, name: str) -> None:
        self._checkpoints, self._registry, self._exports, self._name = checkpoints, registry, exports, name

    async def ensure(self) -> str:
        """Does what is missing; waits for Redis. Returns why it leaves one of a newer release alone; empty if none.

        Raises FailedPrecondition unless the model is a cross-encoder.
        """
        if not self._name:
            return ""
        directory = await asyncio.to_thread(find_cross_encoder, self._name)
        check_labels(self._name, json.loads((directory / "config.json").read_bytes()))
        source = {"exporter": EXPORTER, "sha256": await asyncio.to_thread(_hashes, directory)}
        inputs = {"directory": str(directory), "base_model": self._name}
        try:
            version = await self._exports.version("cross-encoder", f"cross-encoder {self._name!r}", source, **inputs)
            await once_redis_answers(lambda: self._publish(version))
        except NewerFormat as error:
            return _left_alone("cross-encoder", error)
        return ""

    async def _publish(self, version: str) -> None:
        row = await self._checkpoints.register(version, verify="size")
        try:
            await self._registry.set_label(row.space_id, STABLE, version, expected_revision=0)
        except errors.Aborted:  # a label stands already; from then on it is the operator's
            serving = await self._registry.label(row.space_id, STABLE)
            if serving is not None and serving.version != version:
                log.warning(
                    "another cross-encoder is served; publish this one to change that",
                    version=version,
                    serving=serving.version,
                )


def _left_alone(model: str, error: NewerFormat) -> str:
    log.warning("the trainer goes on without a model of a newer release", model=model, reason=error.message)
    return f"the {model} is left as it is: {error.message}"


def _hashes(directory: Path) -> dict[str, str]:
    return {name: sha256_of(directory / name) for name in (*FILES, *TOKENIZER_FILES) if (directory / name).is_file()}
