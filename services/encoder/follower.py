"""Keeps the loaded versions in step with the registry: fetch, verify, load, warm, golden check, swap, acknowledge.

Level-triggered: an event only wakes it, what counts is the row; it also reads the rows at start and every `poll_s`. A
candidate that fails changes nothing but the reason that GetInfo shows. Nothing on the encode path waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aeenc import errors
from services.encoder import local_state
from services.encoder.metrics import EncoderMetrics
from services.encoder.model import Model, load_model
from services.encoder.versions import LabelHere, Versions
from services.kit.artifacts import ArtifactStore
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.kit.registry import LabelRow, Registry, RolloutRow
from services.kit.tasks import cancel_all

log = get(__name__)

FOLDER = "checkpoints"
HEARTBEAT_S = 5.0
RETRY_S = 1.0
SWAPS_SHOWN = 20


@dataclass(frozen=True)
class Swap:
    """The outcome of one attempt to serve a version under a label; `reason` says why it failed."""

    label: str
    version: str
    revision: int
    ok: bool
    reason: str
    finished_at: datetime
    duration_s: float


class Follower:
    """Follows one space of the registry. `start` it once; `stop` ends its tasks."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: ArtifactStore,
        versions: Versions,
        readiness: Readiness,
        metrics: EncoderMetrics,
        instance: str,
        space_id: str,
        state_dir: Path,
        poll_s: float,
        max_file_bytes: int,
        providers: Sequence[str],
    ) -> None:
        self._registry, self._store, self._versions = registry, store, versions
        self._readiness, self._metrics = readiness, metrics
        self._instance, self._wanted_space = instance, space_id
        self._state_dir, self._poll_s, self._max_file_bytes = state_dir, poll_s, max_file_bytes
        self._providers = providers
        self._failed: dict[str, int] = {}  # label -> revision that failed here
        self._tasks: list[asyncio.Task[None]] = []
        self.swaps: deque[Swap] = deque(maxlen=SWAPS_SHOWN)

    async def start(self) -> None:
        """Serves what the registry says, or, when it is away, what this encoder served last; then keeps following."""
        try:
            last_event = await self._registry.last_event()
            await self._apply(retry_failed=True)
        except errors.Unavailable as error:
            last_event = "0-0"
            await self._restore(error.message)
        self._tasks = [asyncio.create_task(self._follow(last_event)), asyncio.create_task(self._beat())]

    async def stop(self) -> None:
        """Ends following and signs off."""
        await cancel_all(self._tasks)
        with contextlib.suppress(errors.Unavailable, TimeoutError):
            await asyncio.wait_for(self._registry.sign_off(self._instance), 1.0)

    async def _follow(self, last_event: str) -> None:
        while True:
            try:
                seen = await self._registry.wait_for_event(
                    last_event, self._poll_s if self._versions.complete else RETRY_S
                )
                await self._apply(retry_failed=seen == last_event)
                last_event = seen
            except errors.Unavailable as error:
                if self._versions.complete:
                    self._readiness.degraded(f"following no labels: {error.message}")
                await asyncio.sleep(RETRY_S)
            except Exception:  # following must outlive whatever one round meets
                log.exception("following the registry failed")
                await asyncio.sleep(RETRY_S)

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(errors.Unavailable):
                await self._registry.heartbeat(self._instance)
            await asyncio.sleep(HEARTBEAT_S)

    async def _apply(self, *, retry_failed: bool) -> None:
        """One round: make what is served equal to the rows, as far as the candidates are good."""
        space_id = self._wanted_space or await self._registry.default_space()
        premise_version = await self._registry.space(space_id) if space_id else None
        if space_id is None or premise_version is None:
            self._readiness.starting("the registry names no space yet; start the trainer, it publishes the base model")
            return
        await self._load_premise_encoder(space_id, premise_version)
        rows = await self._registry.labels(space_id)
        changed = False
        for row in sorted(rows, key=lambda row: row.name != "stable"):
            here = self._versions.labels.get(row.name)
            known_bad = self._failed.get(row.name) == row.revision and not retry_failed
            if (here is None or here.revision != row.revision) and not known_bad:
                changed |= await self._swap(row)
        gone = set(self._versions.labels) - {row.name for row in rows}
        for name in gone:
            del self._versions.labels[name]
        self._versions.drop_unnamed()
        if changed or gone:
            await self._save()
        if self._versions.complete:
            self._readiness.serving()
        else:
            self._readiness.starting(self._why_incomplete())

    async def _load_premise_encoder(self, space_id: str, version: str) -> None:
        if self._versions.premise_version == version and version in self._versions.models:
            return
        if self._versions.space_id and self._versions.space_id != space_id:
            self._versions.labels.clear()
        try:
            model = await self._load(space_id, version, None)
        except errors.AeencError as error:
            self._note(
                LabelRow(space_id, "(premises)", version, 0, "", datetime.now(UTC)), time.monotonic(), error.message
            )
            raise
        self._versions.space_id, self._versions.premise_version = space_id, version
        self._versions.models[version] = model

    async def _swap(self, row: LabelRow) -> bool:
        """Tries to serve a label's new version; whether it serves now."""
        started = time.monotonic()
        try:
            model = self._versions.models.get(row.version) or await self._load(row.space_id, row.version, self._dim())
        except errors.AeencError as error:
            self._failed[row.name] = row.revision
            await self._acknowledge(row, self._note(row, started, error.message))
            return False
        self._versions.models[row.version] = model
        self._versions.labels[row.name] = LabelHere(row.version, row.revision)  # the swap
        self._failed.pop(row.name, None)
        await self._acknowledge(row, self._note(row, started, ""))
        return True

    async def _load(self, space_id: str, version: str, dim: int | None) -> Model:
        row = await self._registry.checkpoint(version)
        if row is None:
            raise errors.NotFound(f"the registry does not know checkpoint {version}; publish it again")
        return await self._load_from_store(space_id, version, row.manifest_sha256, dim)

    async def _load_from_store(self, space_id: str, version: str, manifest_sha256: str, dim: int | None) -> Model:
        def load() -> Model:
            artifact = self._store.open(FOLDER, version, expected_manifest_sha256=manifest_sha256)
            return load_model(
                artifact,
                space_id=space_id,
                dim=dim,
                max_file_bytes=self._max_file_bytes,
                providers=self._providers,
            )

        try:
            return await asyncio.to_thread(load)
        except (OSError, MemoryError) as error:
            raise errors.DataLoss(f"checkpoint {version} cannot be read: {error}") from error

    async def _acknowledge(self, row: LabelRow, swap: Swap) -> None:
        rollout = RolloutRow(self._instance, row.revision, ok=swap.ok, reason=swap.reason, at=swap.finished_at)
        await self._registry.heartbeat(self._instance)
        await self._registry.acknowledge(row.space_id, row.name, rollout)

    def _note(self, row: LabelRow, started: float, reason: str) -> Swap:
        duration_s = time.monotonic() - started
        swap = Swap(row.name, row.version, row.revision, not reason, reason, datetime.now(UTC), duration_s)
        self.swaps.appendleft(swap)
        self._metrics.swaps.labels(row.name, "ok" if swap.ok else "failed").inc()
        if swap.ok:
            self._metrics.serving.labels(row.name, row.version).set(row.revision)
            log.info(
                "label serves", label=row.name, version=row.version, revision=row.revision, seconds=round(duration_s, 3)
            )
        else:
            log.error("label keeps its version", label=row.name, refused=row.version, reason=reason)
        return swap

    def _dim(self) -> int:
        return self._versions.models[self._versions.premise_version].dim

    def _why_incomplete(self) -> str:
        failed = next((swap for swap in self.swaps if not swap.ok), None)
        return f"no version can be served: {failed.reason}" if failed else "label `stable` names nothing yet"

    async def _save(self) -> None:
        models, premise = self._versions.models, self._versions.premise_version
        labels = tuple(
            local_state.SavedLabel(name, here.version, here.revision, models[here.version].manifest_sha256)
            for name, here in sorted(self._versions.labels.items())
        )
        state = local_state.SavedState(self._versions.space_id, premise, models[premise].manifest_sha256, labels)
        try:
            await asyncio.to_thread(local_state.save, self._state_dir, state)
        except OSError as error:
            log.warning("the labels could not be saved; a restart will need Redis", reason=str(error))

    async def _restore(self, why: str) -> None:
        state = await asyncio.to_thread(local_state.load, self._state_dir)
        if state is None:
            self._readiness.starting(f"nothing was served here before, and the registry is away: {why}")
            return
        premise = await self._load_from_store(
            state.space_id, state.premise_version, state.premise_manifest_sha256, None
        )
        self._versions.space_id, self._versions.premise_version = state.space_id, state.premise_version
        self._versions.models[premise.version] = premise
        await self._restore_labels(state.space_id, state.labels, premise.dim)
        if self._versions.complete:
            self._readiness.degraded(f"serving the labels of the last run: {why}")

    async def _restore_labels(self, space_id: str, labels: Iterable[local_state.SavedLabel], dim: int) -> None:
        for label in labels:
            model = self._versions.models.get(label.version)
            if model is None:
                try:
                    model = await self._load_from_store(space_id, label.version, label.manifest_sha256, dim)
                except errors.AeencError as error:
                    log.exception("a saved label cannot be served", label=label.name, reason=error.message)
                    continue
            self._versions.models[label.version] = model
            self._versions.labels[label.name] = LabelHere(label.version, label.revision)
