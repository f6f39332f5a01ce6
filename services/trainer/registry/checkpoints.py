"""Checkpoints: files in the artifact store and a row in the registry. A checkpoint exists once its row does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aeenc.errors import AeencError, DataLoss, NotFound
from services.corpus.active import read_active
from services.kit.concurrency import run_in_thread
from services.kit.convert import page_newest_first
from services.kit.logs import get
from services.kit.tracing import traceparent
from services.store.artifacts import Artifact, ArtifactStore
from services.store.formats import check_format, damage_is_data_loss, made_of
from services.store.registry import CheckpointRow, Registry

log = get(__name__)

FOLDER = "checkpoints"
OF_META = ("space_id", "pretrained", "base_version", "job_id", "validation_map", "dim")  # in the row, too
SERVING = ("stable", "canary")  # labels that calls go to without naming one
CROSS_ENCODER = "cross-encoder"  # `model_type` in a cross-encoder's meta, which sentence encoders lack, and its space


@dataclass(frozen=True)
class Metrics:
    """How a checkpoint ranks the gold premises of each validation query, as its job measured it: `metrics.json`.

    `measured` are the average precisions of other versions, by version: that which the job began with, and what served.
    They belong to the same queries, which the other fields tell apart.
    """

    average_precisions: Sequence[float]
    measured: Mapping[str, Sequence[float]]
    generation: str
    queries_sha256: str
    reranks: str = ""  # the version whose rankings a cross-encoder re-ranked


METRICS_VERSION = 1  # the format of `metrics.json`


class Checkpoints:
    """The checkpoints of one deployment."""

    def __init__(self, store: ArtifactStore, registry: Registry) -> None:
        self.store, self._registry = store, registry

    async def register(self, version: str, *, verify: Literal["full", "size"] = "full") -> CheckpointRow:
        """Registers a committed artifact, by default after checking every hash. Repeating it changes nothing.

        A deleted version comes back, unless its files are just being removed: Unavailable.
        """
        await self._registry.checkpoints.revive(version)  # first: what is opened next stays
        await asyncio.to_thread(self.store.open, FOLDER, version, verify=verify)
        artifact = await asyncio.to_thread(self.store.push, FOLDER, version)
        row = CheckpointRow(
            version=version,
            manifest_sha256=artifact.manifest_sha256,
            created_at=artifact.created_at,
            size_bytes=artifact.size_bytes,
            traceparent=traceparent(),
            **{name: artifact.meta[name] for name in OF_META},
        )
        await self._registry.checkpoints.add(row)
        return row

    async def is_intact(self, version: str) -> bool:
        """Tells whether a version's files are there, each with its hash.

        Removes damaged ones: they can be made again. Raises NewerFormat for those of a newer release, which stay.
        """
        try:
            await asyncio.to_thread(self.store.open, FOLDER, version)
        except NotFound:
            log.warning("a checkpoint is gone", version=version)
            return False
        except DataLoss as error:
            log.warning("a checkpoint is damaged", version=version, reason=error.message)
            await run_in_thread(self.store.delete, FOLDER, version)  # not beside a successor that makes it again
            return False
        return True

    async def get(self, version: str) -> CheckpointRow:
        """Returns a checkpoint's row. Raises NotFound."""
        row = await self._registry.checkpoints.get(version)
        if row is None:
            raise NotFound(f"checkpoint {version!r} does not exist; ListCheckpoints (`aeenc checkpoints`) names all")
        return row

    async def brought(self, version: str) -> CheckpointRow:
        """As `get`, after registering a version whose files somebody has brought into the store and nobody deleted."""
        rows = self._registry.checkpoints
        is_known = await rows.get(version) is not None or await rows.is_buried(version)
        if not is_known and version in await asyncio.to_thread(self.store.list, FOLDER):
            row = await self.register(version)
            if row.pretrained and await rows.space(row.space_id) is None:  # it encodes the premises of a new space
                await rows.set_space(row.space_id, version)
        return await self.get(version)

    async def labels_of(self, version: str) -> list[str]:
        """Returns the names of the labels that point at a version."""
        return [label.name for label in await self._registry.labels(readable=True) if version in label.versions]

    async def serving(self, base_version: str, *, cross_encoders: bool) -> tuple[str, ...]:
        """Returns what labels for callers serve: versions of a base's space, or cross-encoders."""
        base = await self._registry.checkpoints.get(base_version)
        space_id = CROSS_ENCODER if cross_encoders or base is None else base.space_id
        rows = await self._registry.labels(space_id, readable=True)
        return tuple(dict.fromkeys(one for row in rows if row.name in SERVING for one in row.versions))

    async def pages(self) -> Callable[[int, str], Awaitable[tuple[list[tuple[CheckpointRow, list[str]]], str]]]:
        """Reads the checkpoints and labels; returns what cuts pages, newest first, by size and token.

        That raises InvalidArgument for a malformed token.
        """
        rows = await self._registry.checkpoints.all(readable=True)
        labels = await self._registry.labels(readable=True)

        async def cut(size: int, token: str) -> tuple[list[tuple[CheckpointRow, list[str]]], str]:
            page, token = page_newest_first(rows, lambda row: (row.created_at, row.version), size, token)
            return [(row, [label.name for label in labels if row.version in label.versions]) for row in page], token

        return cut

    async def files(self, versions: Sequence[str]) -> set[str]:
        """Returns the names of the files that all of these versions have. Cross-encoders compute from ONNX alone."""

        def read() -> set[str]:
            opened = [self.store.described(FOLDER, version) for version in versions]
            names = set.intersection(*(set(artifact.files) for artifact in opened))
            return {name for name in names if name.endswith(".onnx")} if _is_of_pairs(opened[0]) else names

        return await asyncio.to_thread(read)

    async def metrics(self, version: str) -> Metrics | None:
        """Reads a checkpoint's validation metrics; None if it was trained without validation queries.

        Raises NotFound, NewerFormat and DataLoss.
        """

        def read() -> Metrics | None:
            artifact = self.store.open(FOLDER, version, verify="size")
            if "metrics.json" not in artifact.files:
                return None
            with damage_is_data_loss(path := artifact.file("metrics.json"), f"restore {version}, or train it again"):
                record = json.loads(path.read_bytes())
                check_format(record, METRICS_VERSION, str(path))
                return made_of(Metrics, record)

        return await asyncio.to_thread(read)


def active_generation(store: ArtifactStore, corpus: str) -> str:
    """Reads the id of the generation that a corpus serves. Raises NotFound."""
    if (generation := read_active(store, corpus)) is None:
        raise NotFound(f"there is no corpus {corpus!r}; build it and activate a generation")
    return generation


def is_cross_encoder(store: ArtifactStore, version: str) -> bool:
    """Tells whether a version's files are a cross-encoder's; False if they are missing."""
    try:
        artifact = store.described(FOLDER, version)
    except AeencError:
        return False
    return _is_of_pairs(artifact)


def _is_of_pairs(artifact: Artifact) -> bool:
    return bool(artifact.meta.get("model_type") == CROSS_ENCODER)
