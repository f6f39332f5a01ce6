"""Keeps the loaded versions in step with the registry: load beside, check, swap, acknowledge, drain.

Level-triggered: an event only wakes it, what counts is the row; it also reads the rows at start and every `poll_s`. A
candidate that fails changes nothing but the reason that GetInfo shows. Of two moves at once the newest wins. Nothing on
the encode path waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aeenc import errors
from services.encoder import local_state
from services.encoder.candidates import Candidates
from services.encoder.model import Model
from services.encoder.swaps import Swap, Swaps
from services.encoder.versions import CROSS_ENCODERS, STABLE, LabelHere, Versions
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.kit.registry import LabelRow, Registry, RolloutRow
from services.kit.tasks import cancel_all

log = get(__name__)

HEARTBEAT_S = 5.0
RETRY_S = 1.0
DRAIN_POLL_S = 0.1
FALLEN_BACK = 0  # in the place of a revision: the label's own version cannot be served


@dataclass(frozen=True)
class Following:
    """Who follows, which space ("": the registry's default), where it remembers, how often it looks in seconds."""

    instance: str
    space_id: str
    state_dir: Path
    poll_s: float


class Follower:
    """Follows one space of the registry, and its cross-encoders. `start` it once; `stop` ends its tasks."""

    def __init__(
        self,
        following: Following,
        registry: Registry,
        candidates: Candidates,
        versions: Versions,
        swaps: Swaps,
        readiness: Readiness,
    ) -> None:
        self._following, self._registry, self._candidates = following, registry, candidates
        self._versions, self.swaps, self._readiness = versions, swaps, readiness
        self._failed: dict[tuple[str, str], int] = {}  # label -> revision that failed here
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serves what the registry says, or, when it is away, what this encoder served last; then keeps following."""
        try:
            last_event = await self._registry.last_event()
            await self._apply(retry_failed=True)
        except errors.Unavailable as error:
            last_event = "0-0"
            await self._restore(error.message)
        self._tasks |= {asyncio.create_task(self._follow(last_event)), asyncio.create_task(self._beat())}

    async def stop(self) -> None:
        """Ends following and signs off."""
        await cancel_all(list(self._tasks))
        self._candidates.close()
        with contextlib.suppress(errors.Unavailable, TimeoutError):
            await asyncio.wait_for(self._registry.sign_off(self._following.instance), 1.0)

    async def _follow(self, last_event: str) -> None:
        while True:
            try:
                wait_s = self._following.poll_s if self._versions.complete else RETRY_S
                seen = await self._registry.wait_for_event(last_event, wait_s)
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
                await self._registry.heartbeat(self._following.instance)
            await asyncio.sleep(HEARTBEAT_S)

    async def _apply(self, *, retry_failed: bool) -> None:
        """One round: make what is served equal to the rows, as far as the candidates are good."""
        space_id = self._following.space_id or await self._registry.default_space()
        premise_version = await self._registry.space(space_id) if space_id else None
        if space_id is None or premise_version is None:
            self._readiness.starting("the registry names no space yet; start the trainer, it publishes the base model")
            return
        await self._load_premise_encoder(space_id, premise_version)
        rows = [*await self._registry.labels(space_id), *await self._registry.labels(CROSS_ENCODERS)]
        changed = False
        for row in sorted(rows, key=lambda row: row.name != STABLE):
            key = (row.space_id, row.name)
            here = self._versions.labels.get(key)
            known_bad = self._failed.get(key) == row.revision and not retry_failed
            if (here is None or here.revision != row.revision) and not known_bad:
                changed |= await self._swap(row)
        gone = set(self._versions.labels) - {(row.space_id, row.name) for row in rows}
        for key in gone:
            del self._versions.labels[key]
            self.swaps.unserved(key[1])
        stable = next((row for row in rows if (row.space_id, row.name) == (space_id, STABLE)), None)
        if stable is None:
            self._readiness.starting("label `stable` names nothing yet")
            return
        if not self._versions.complete:
            await self._fall_back(stable)
        self._drop_unnamed()
        if changed or gone:
            await self._save()
        self._tell_readiness(stable)

    async def _fall_back(self, stable: LabelRow) -> None:
        """At a start where `stable` names what must not serve: serves what it named here last, or named before."""
        state = await asyncio.to_thread(local_state.load, self._following.state_dir)
        key = (stable.space_id, stable.name)
        served = [label.version for label in (state.labels if state else ()) if (label.space_id, label.name) == key]
        for version in (*served, stable.previous):
            try:
                model = await self._candidates.load(stable.space_id, version, self._dim(stable.space_id))
            except errors.AeencError as error:
                log.warning("no way back", version=version, reason=error.message)
                continue
            self._versions.models[version] = model
            self._versions.labels[key] = LabelHere(version, FALLEN_BACK)
            return

    def _tell_readiness(self, stable: LabelRow) -> None:
        here = self._versions.labels.get((stable.space_id, stable.name))
        reason = self.swaps.last_failure()
        if here is None:
            self._readiness.starting(f"no version can be served: {reason}")
        elif here.revision == FALLEN_BACK:
            self._readiness.degraded(f"label `stable` names {stable.version}, serving {here.version}: {reason}")
        else:
            self._readiness.serving()

    async def _load_premise_encoder(self, space_id: str, version: str) -> None:
        if self._versions.premise_version == version and version in self._versions.models:
            return
        if self._versions.space_id and self._versions.space_id != space_id:
            self._versions.labels.clear()
        started = time.monotonic()
        try:
            model = await self._candidates.load(space_id, version, None)
        except errors.AeencError as error:
            row = LabelRow(space_id, "(premises)", version, 0, "", datetime.now(UTC))
            self.swaps.note(row, time.monotonic() - started, error.message)
            raise
        self._versions.space_id, self._versions.premise_version = space_id, version
        self._versions.models[version] = model

    async def _swap(self, row: LabelRow) -> bool:
        """Tries to serve a label's version; whether it serves now. A label that moves meanwhile is followed at once."""
        key = (row.space_id, row.name)
        while True:
            started = time.monotonic()
            failure = ""
            try:
                model = self._versions.models.get(row.version)
                if model is None:
                    model = await self._candidates.load(row.space_id, row.version, self._dim(row.space_id))
            except errors.AeencError as error:
                failure = error.message
            latest = await self._registry.label(*key)
            if latest is None:
                return False
            if latest.revision == row.revision:
                break
            overtaken = f"overtaken by revision {latest.revision} ({latest.version})"
            await self._acknowledge(row, self.swaps.note(row, time.monotonic() - started, failure or overtaken))
            row = latest
        if failure or model is None:
            self._failed[key] = row.revision
            await self._acknowledge(row, self.swaps.note(row, time.monotonic() - started, failure))
            return False
        self._versions.models[row.version] = model
        self._versions.labels[key] = LabelHere(row.version, row.revision, row.share)  # the swap
        self._failed.pop(key, None)
        await self._acknowledge(row, self.swaps.note(row, time.monotonic() - started))
        return True

    def _drop_unnamed(self) -> None:
        """Forgets what nothing names any more; its memory goes when its last call has ended."""
        dropped = self._versions.drop_unnamed()
        if dropped:
            task = asyncio.create_task(self._drain(dropped))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _drain(self, models: list[Model]) -> None:
        while any(self._versions.in_flight[model.version] for model in models):  # noqa: ASYNC110 -- no hurry
            await asyncio.sleep(DRAIN_POLL_S)
        await self._candidates.release(models)

    async def _acknowledge(self, row: LabelRow, swap: Swap) -> None:
        instance = self._following.instance
        rollout = RolloutRow(instance, row.revision, ok=swap.ok, reason=swap.reason, at=swap.finished_at)
        await self._registry.heartbeat(instance)
        await self._registry.acknowledge(row.space_id, row.name, rollout)

    def _dim(self, space_id: str) -> int | None:
        return None if space_id == CROSS_ENCODERS else self._versions.models[self._versions.premise_version].dim

    async def _save(self) -> None:
        models, premise = self._versions.models, self._versions.premise_version
        labels = tuple(
            local_state.SavedLabel(
                space_id,
                name,
                here.version,
                here.revision,
                here.share,
                models[here.version].description.manifest_sha256,
            )
            for (space_id, name), here in sorted(self._versions.labels.items())
        )
        digest = models[premise].description.manifest_sha256
        state = local_state.SavedState(self._versions.space_id, premise, digest, labels)
        try:
            await asyncio.to_thread(local_state.save, self._following.state_dir, state)
        except OSError as error:
            log.warning("the labels could not be saved; a restart will need Redis", reason=str(error))

    async def _restore(self, why: str) -> None:
        state = await asyncio.to_thread(local_state.load, self._following.state_dir)
        if state is None:
            self._readiness.starting(f"nothing was served here before, and the registry is away: {why}")
            return
        premise = await self._candidates.load_known(
            state.space_id, state.premise_version, state.premise_manifest_sha256, None
        )
        self._versions.space_id, self._versions.premise_version = state.space_id, state.premise_version
        self._versions.models[premise.version] = premise
        await self._restore_labels(state.labels)
        if self._versions.complete:
            self._readiness.degraded(f"serving the labels of the last run: {why}")

    async def _restore_labels(self, labels: Iterable[local_state.SavedLabel]) -> None:
        for label in labels:
            model = self._versions.models.get(label.version)
            if model is None:
                try:
                    model = await self._candidates.load_known(
                        label.space_id, label.version, label.manifest_sha256, self._dim(label.space_id)
                    )
                except errors.AeencError as error:
                    log.exception("a saved label cannot be served", label=label.name, reason=error.message)
                    continue
            self._versions.models[label.version] = model
            self._versions.labels[label.space_id, label.name] = LabelHere(label.version, label.revision, label.share)
