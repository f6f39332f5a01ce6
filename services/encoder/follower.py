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
from services.encoder.candidates import Candidates
from services.encoder.local_state import Memory, SavedLabel
from services.encoder.metrics import EncoderMetrics
from services.encoder.model import CROSS_ENCODERS, Model
from services.encoder.spaces import PREMISES, Spaces
from services.encoder.swaps import Swaps
from services.encoder.versions import STABLE, LabelHere, Versions
from services.kit.concurrency import cancel_all
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.store.registry import LabelRow, Registry, RolloutRow

log = get(__name__)

HEARTBEAT_S = 5.0
RETRY_S = 1.0
DRAIN_POLL_S = 0.1
FALLEN_BACK = 0  # in the place of a revision: the label's own version cannot be served


@dataclass(frozen=True)
class Following:
    """Who follows, where it remembers, how often it looks in seconds.

    `space_id` is the one space to serve; empty: the registry's default and every other in which a label stands.
    """

    instance: str
    space_id: str
    state_dir: Path
    poll_s: float


class Follower:
    """Follows the labels of the registry. `start` it once; `stop` ends its tasks."""

    def __init__(
        self,
        following: Following,
        registry: Registry,
        candidates: Candidates,
        versions: Versions,
        swaps: Swaps,
        readiness: Readiness,
        metrics: EncoderMetrics,
    ) -> None:
        self._following, self._registry, self._candidates = following, registry, candidates
        self._versions, self.swaps, self._readiness, self._metrics = versions, swaps, readiness, metrics
        self._failed: dict[tuple[str, str], tuple[int, str]] = {}  # label -> revision and version that failed here
        self._told: dict[tuple[str, str], tuple[int, str]] = {}  # label -> what was acknowledged last
        self._memory = Memory(following.state_dir)
        self._spaces = Spaces(registry, candidates, versions, swaps)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serves what the registry says, or, when it is away, what this encoder served last; then keeps following."""
        try:
            last_event = await self._registry.last_event()
            await self._apply(retry_failed=True)
        except errors.Unavailable as error:
            last_event = "0-0"
            await self._restore(error.message)
        except errors.AeencError as error:  # such as a checkpoint that is not in the store yet: looked at again
            last_event = "0-0"
            self._readiness.starting(error.message)
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
            try:
                await self._registry.heartbeat(self._following.instance)
            except errors.Unavailable:
                pass
            except Exception:  # without a heartbeat a serving encoder would be taken for dead
                log.exception("the heartbeat failed")
            await asyncio.sleep(HEARTBEAT_S)

    async def _apply(self, *, retry_failed: bool) -> None:
        """One round: make what is served equal to the rows, as far as the candidates are good."""
        space_id = self._following.space_id or await self._registry.default_space()
        premise_version = await self._registry.space(space_id) if space_id else None
        if space_id is None or premise_version is None:
            self._nothing_to_follow("the registry names no space; start the trainer, it publishes the base model")
            return
        await self._spaces.open_default(space_id, premise_version, retry_failed=retry_failed)
        space_id = self._versions.space_id
        rows = await self._rows(space_id)
        others = {row.space_id for row in rows} - {space_id, CROSS_ENCODERS}
        for other in sorted(others):
            await self._spaces.open(other, retry_failed=retry_failed)
        for row in sorted(rows, key=self._urgency):
            await self._follow_row(row, retry_failed=retry_failed)
        stable = next((row for row in rows if (row.space_id, row.name) == (space_id, STABLE)), None)
        if stable is None:
            self._nothing_to_follow("label `stable` names nothing")
            return
        for key in set(self._versions.labels) - {(row.space_id, row.name) for row in rows}:
            del self._versions.labels[key]
            self._metrics.unserved(*key)
        if not self._versions.complete:
            await self._fall_back(stable)
        self._spaces.close_all_but(others)
        self._drop_unnamed()
        await self._memory.save(self._versions)
        self._tell_readiness(stable, [row for row in rows if row.space_id in others and row.name == STABLE])

    async def _rows(self, space_id: str) -> list[LabelRow]:
        """The labels to follow: of the one space that this encoder is told to serve, or of all."""
        if not self._following.space_id:
            return await self._registry.labels()
        return [*await self._registry.labels(space_id), *await self._registry.labels(CROSS_ENCODERS)]

    def _urgency(self, row: LabelRow) -> tuple[bool, bool]:
        """What is loaded already goes first, then `stable`: a way back waits for nobody's load."""
        return row.version not in self._versions.models, row.name != STABLE

    def _nothing_to_follow(self, why: str) -> None:
        """An empty registry takes nothing away from who serves."""
        if self._versions.complete:
            self._readiness.degraded(f"serving the last labels: {why}")
        else:
            self._readiness.starting(why)

    async def _follow_row(self, row: LabelRow, *, retry_failed: bool) -> None:
        key, wanted = (row.space_id, row.name), (row.revision, row.version)
        here = self._versions.labels.get(key)
        if here is not None and (here.revision, here.version, here.share) == (*wanted, row.share):
            if self._told.get(key) != wanted:  # the acknowledgement was lost, or was another process's
                await self._acknowledge(row, ok=True)
        elif retry_failed or self._failed.get(key) != wanted:
            await self._swap(row)

    async def _fall_back(self, stable: LabelRow) -> None:
        """At a start where `stable` names what must not serve: serves what it named here last, or named before."""
        state = await self._memory.load()
        key = (stable.space_id, stable.name)
        served = [label.version for label in (state.labels if state else ()) if (label.space_id, label.name) == key]
        for version in (*served, stable.previous):
            try:
                model = await self._spaces.model(stable.space_id, version)
            except errors.AeencError as error:
                log.warning("no way back", version=version, reason=error.message)
                continue
            self._serve(key, model, LabelHere(version, FALLEN_BACK))
            return

    def _tell_readiness(self, stable: LabelRow, elsewhere: list[LabelRow]) -> None:
        here = self._versions.labels.get((stable.space_id, stable.name))
        reason = self.swaps.last_failure((stable.space_id, STABLE), (stable.space_id, PREMISES))
        if here is None:
            self._readiness.starting(f"no version can be served: {reason}")
        elif here.revision == FALLEN_BACK:
            self._readiness.degraded(f"label `stable` names {stable.version}, serving {here.version}: {reason}")
        elif unserved := [row.space_id for row in elsewhere if (row.space_id, STABLE) not in self._versions.labels]:
            reason = self.swaps.last_failure((unserved[0], STABLE), (unserved[0], PREMISES))
            self._readiness.degraded(f"space {unserved[0]} is not served: {reason}")
        else:
            self._readiness.serving()

    async def _swap(self, row: LabelRow) -> None:
        """Tries to serve a label's version. A label that moves meanwhile is followed at once."""
        key = (row.space_id, row.name)
        while True:
            started = time.monotonic()
            model, failure = None, ""
            try:
                model = await self._spaces.model(row.space_id, row.version)
            except errors.AeencError as error:
                failure = error.message
            latest = await self._registry.label(*key)
            if latest is None:
                return
            if latest.revision == row.revision:
                break
            failure = failure or f"overtaken by revision {latest.revision} ({latest.version})"
            self.swaps.note(row, time.monotonic() - started, failure)
            await self._acknowledge(row, ok=False, reason=failure)
            row = latest
        self.swaps.note(row, time.monotonic() - started, failure)
        if model is None:
            self._failed[key] = (row.revision, row.version)
        else:
            self._serve(key, model, LabelHere(row.version, row.revision, row.share))
            self._failed.pop(key, None)
        await self._acknowledge(row, ok=model is not None, reason=failure)

    def _serve(self, key: tuple[str, str], model: Model, here: LabelHere) -> None:
        self._versions.models[here.version] = model
        self._versions.labels[key] = here  # the swap
        self._metrics.serves(*key, here.version, here.revision)

    def _drop_unnamed(self) -> None:
        """Forgets what nothing names any more; its memory goes when its last call has ended."""
        dropped = self._versions.drop_unnamed()
        if dropped:
            task = asyncio.create_task(self._drain(dropped))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _drain(self, models: list[Model]) -> None:
        while any(self._versions.in_flight[model] for model in models):  # noqa: ASYNC110 -- no hurry
            await asyncio.sleep(DRAIN_POLL_S)
        await self._candidates.release(models)

    async def _acknowledge(self, row: LabelRow, *, ok: bool, reason: str = "") -> None:
        instance = self._following.instance
        await self._registry.heartbeat(instance)
        rollout = RolloutRow(instance, row.revision, ok=ok, reason=reason, at=datetime.now(UTC))
        await self._registry.acknowledge(row.space_id, row.name, rollout)
        self._told[row.space_id, row.name] = (row.revision, row.version)

    async def _restore(self, why: str) -> None:
        state = await self._memory.load()
        if state is None:
            self._readiness.starting(f"nothing was served here before, and the registry is away: {why}")
            return
        await self._spaces.restore(state.spaces[0])
        self._versions.space_id = state.spaces[0].space_id
        for other in state.spaces[1:]:
            try:
                await self._spaces.restore(other)
            except errors.AeencError as error:
                log.warning("a saved space cannot be served", space=other.space_id, reason=error.message)
        await self._restore_labels(state.labels)
        if self._versions.complete:
            self._readiness.degraded(f"serving the labels of the last run: {why}")

    async def _restore_labels(self, labels: Iterable[SavedLabel]) -> None:
        for label in labels:
            try:
                model = await self._spaces.restore_model(label.space_id, label.version, label.manifest_sha256)
            except errors.AeencError as error:
                log.exception("a saved label cannot be served", label=label.name, reason=error.message)
                continue
            here = LabelHere(label.version, label.revision, label.share)
            self._serve((label.space_id, label.name), model, here)
