"""Makes sure that the operator's cross-encoder is there: exported as a checkpoint, registered, served if none was.

A cross-encoder scores a query with one premise; its labels live in a space of their own. Jobs of mode CROSS_ENCODER
train others.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aeenc import errors
from services.kit.logs import get
from services.store.artifacts import ArtifactStore, sha256_of
from services.store.registry import Registry
from services.trainer.base_model import FILES, TOKENIZER_FILES, find_cross_encoder
from services.trainer.checkpoints import FOLDER, Checkpoints
from services.trainer.exports import Exports, once_redis_answers
from services.trainer.pretrained_space import STABLE

log = get(__name__)

MODEL_TYPE = "cross-encoder"  # in a checkpoint's meta; one without is a sentence encoder
SPACE = "cross-encoder"
EXPORTER = 1  # another number makes the next start export again


class CrossEncoder:
    """The cross-encoder that the setting names; an empty name: none, and nothing is done."""

    def __init__(self, checkpoints: Checkpoints, registry: Registry, exports: Exports, name: str) -> None:
        self._checkpoints, self._registry, self._exports, self._name = checkpoints, registry, exports, name

    async def ensure(self) -> None:
        """Does what is missing; waits for Redis. Raises FailedPrecondition for a model that is no cross-encoder."""
        if not self._name:
            return
        directory = await asyncio.to_thread(find_cross_encoder, self._name)
        check_labels(self._name, json.loads((directory / "config.json").read_bytes()))
        source = {"exporter": EXPORTER, "sha256": await asyncio.to_thread(_hashes, directory)}
        version = await self._exports.version(
            MODEL_TYPE, f"cross-encoder {self._name!r}", source, directory=str(directory), base_model=self._name
        )
        await once_redis_answers(lambda: self._publish(version))

    async def _publish(self, version: str) -> None:
        row = await self._checkpoints.register(version, verify="size")
        try:
            await self._registry.set_label(row.space_id, STABLE, version, expected_revision=0)
        except errors.Aborted:  # the label is the operator's from now on
            serving = await self._registry.label(row.space_id, STABLE)
            if serving is not None and serving.version != version:
                log.warning(
                    "another cross-encoder is served; publish this one to change that",
                    version=version,
                    serving=serving.version,
                )


def check_labels(name: str, config: dict[str, Any]) -> None:
    """Raises FailedPrecondition unless a config.json is of a model with exactly one output."""
    labels = len(config.get("id2label") or {}) or config.get("num_labels", 2)  # 2 is what transformers takes it to be
    if labels != 1:
        raise errors.FailedPrecondition(
            f"cross-encoder {name!r} has {labels} labels, a score is one number; name a model with one label in "
            "AEENC_TRAINER_CROSS_ENCODER"
        )


def is_cross_encoder(store: ArtifactStore, version: str) -> bool:
    """Whether a version's files are a cross-encoder's; False when they are not here."""
    try:
        artifact = store.open(FOLDER, version, verify="size")
    except errors.AeencError:
        return False
    return artifact.meta.get("model_type") == MODEL_TYPE


def _hashes(directory: Path) -> dict[str, str]:
    return {name: sha256_of(directory / name) for name in (*FILES, *TOKENIZER_FILES) if (directory / name).is_file()}
