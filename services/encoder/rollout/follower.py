"""The follower keeps the served versions in step with the registry's labels.

    event or poll ──► rows ──► Spaces.model: fetch, verify, load beside, check ──► Versions.serve ──► acknowledge
                                        │ fails                                          │ swaps one reference
                                        ▼                                                ▼
                        the old version serves on; reason in GetInfo      drop unnamed, drain, release memory

It is level-triggered: an event only wakes it and the row decides. It also reads the rows at start and every `poll_s`.
If a label moves during a load, the newest revision wins. Nothing on the encode path waits for the follower.
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
from services.encoder.metrics import EncoderMetrics
from services.encoder.rollout.candidates import PREMISES, CandidateLoader, Spaces
from services.encoder.rollout.history import SavedLabel, StateFile, SwapHistory
from services.encoder.rollout.versions import STABLE, LabelKey, ServedLabel, Versions
from services.encoder.runtime.model import CROSS_ENCODERS, Model
from services.kit.concurrency import cancel_all
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.store.formats import NewerFormat
from services.store.registry import LabelRow, Registry, RolloutRow

log = get(__name__)

HEARTBEAT_S = 5.0
RETRY_S = 1.0
DRAIN_POLL_S = 0.1
FALLEN_BACK = 0  # stands for a revision: the label serves another version than its row names


@dataclass(frozen=True)
class FollowerOptions:
    """The instance that follows, the directory of its state, and its polling interval in seconds.

    `space_id` is the one space to serve; empty: the registry's default one and every other that has a label.
    """

    instance: str
    space_id: str
    state_dir: Path
    poll_s: float


class Follower:
    """Follows the labels of the registry. Call `start` once; `stop` ends its tasks."""

    def __init__(
        self,
        options: FollowerOptions,
        registry: Registry,
        loader: CandidateLoader,
        versions: Versions,
        history: SwapHistory,
        readiness: Readiness,
        metrics: EncoderMetrics,
    ) -> None:
        self._options, self._registry, self._loader = options, registry, loader
        self._versions, self._history, self._readiness, self._metrics = versions, history, readiness, metrics
        self._failed: dict[LabelKey, tuple[int, str]] = {}  # revision and version that failed here
        self._acknowledged: dict[LabelKey, tuple[int, str]] = {}  # revision and version acknowledged last
        self._state_file = StateFile(options.state_dir)
        self._spaces = Spaces(registry, loader, versions, history)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serves the registry's labels, or without the registry the saved ones; then keeps following."""
        try:
            last_event = await self._registry.last_event()
            await self._apply(retry_failed=True)
        except (errors.Unavailable, NewerFormat) as error:
            last_event = "0-0"
            await self._restore(error.message)
        except errors.AeencError as error:  # such as a checkpoint missing from the store: tried again later
            last_event = "0-0"
            self._readiness.starting(error.message)
        self._tasks |= {asyncio.create_task(self._follow(last_event)), asyncio.create_task(self._beat())}

    async def stop(self) -> None:
        """Stops following and signs off."""
        await cancel_all(list(self._tasks))
        self._loader.close()
        with contextlib.suppress(errors.Unavailable, TimeoutError):
            await asyncio.wait_for(self._registry.sign_off(self._options.instance), 1.0)

    async def _follow(self, last_event: str) -> None:
        while True:
            try:
                wait_s = self._options.poll_s if self._versions.complete else RETRY_S
                seen = await self._registry.wait_for_event(last_event, wait_s)
                await self._apply(retry_failed=seen == last_event)
                last_event = seen
            except (errors.Unavailable, NewerFormat) as error:
                if self._versions.complete:
                    self._readiness.degraded(f"following no labels: {error.message}")
                await asyncio.sleep(RETRY_S)
            except Exception:  # following must survive any error of one round
                log.exception("following the registry failed")
                await asyncio.sleep(RETRY_S)

    async def _beat(self) -> None:
        while True:
            try:
                await self._send_heartbeat()
            except errors.Unavailable:
                pass
            except Exception:  # without heartbeats a serving encoder would seem dead
                log.exception("the heartbeat failed")
            await asyncio.sleep(HEARTBEAT_S)

    async def _send_heartbeat(self) -> None:
        if await self._registry.heartbeat(self._options.instance):
            self._acknowledged.clear()  # the registry did not know this encoder: it has no answer of it either

    async def _apply(self, *, retry_failed: bool) -> None:
        """Runs one round: serves what the rows name, as far as the candidates pass."""
        space_id = self._options.space_id or await self._registry.default_space()
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
        for key in self._versions.withdraw_all_but({(row.space_id, row.name) for row in rows}):
            self._metrics.unserved(*key)
        if not self._versions.complete:
            await self._fall_back(stable)
        self._versions.close_spaces_but(others)
        self._drop_unnamed()
        await self._state_file.save(self._versions)
        self._set_readiness(stable, [row for row in rows if row.space_id in others and row.name == STABLE])

    async def _rows(self, space_id: str) -> list[LabelRow]:
        """Reads the labels to follow: those of the configured space, or all."""
        if not self._options.space_id:
            return await self._registry.labels()
        return [*await self._registry.labels(space_id), *await self._registry.labels(CROSS_ENCODERS)]

    def _urgency(self, row: LabelRow) -> tuple[bool, bool]:
        """Sorts loaded versions first, then `stable`: a rollback never waits for another load."""
        return row.version not in self._versions.models, row.name != STABLE

    def _nothing_to_follow(self, why: str) -> None:
        """Keeps serving: an empty registry takes no version away."""
        if self._versions.complete:
            self._readiness.degraded(f"serving the last labels: {why}")
        else:
            self._readiness.starting(why)

    async def _follow_row(self, row: LabelRow, *, retry_failed: bool) -> None:
        key, wanted = (row.space_id, row.name), (row.revision, row.version)
        here = self._versions.labels.get(key)
        if here == ServedLabel(row.version, row.revision, row.share):
            if self._acknowledged.get(key) != wanted:  # the acknowledgement was lost, or another process sent it
                await self._acknowledge(row, ok=True)
        elif retry_failed or self._failed.get(key) != wanted:
            await self._swap(row)

    async def _fall_back(self, stable: LabelRow) -> None:
        """Serves the version that `stable` named here last, or before, when its own cannot be served at the start."""
        state = await self._state_file.load()
        key = (stable.space_id, stable.name)
        served = [label.version for label in (state.labels if state else ()) if (label.space_id, label.name) == key]
        for version in (*served, stable.previous):
            try:
                model = await self._spaces.model(stable.space_id, version)
            except errors.AeencError as error:
                log.warning("cannot fall back", version=version, reason=error.message)
                continue
            self._serve(key, model, ServedLabel(version, FALLEN_BACK))
            return

    def _set_readiness(self, stable: LabelRow, elsewhere: list[LabelRow]) -> None:
        here = self._versions.labels.get((stable.space_id, stable.name))
        reason = self._history.last_failure((stable.space_id, STABLE), (stable.space_id, PREMISES))
        if here is None:
            self._readiness.starting(f"no version can be served: {reason}")
        elif here.revision == FALLEN_BACK:
            self._readiness.degraded(f"label `stable` names {stable.version}, serving {here.version}: {reason}")
        elif unserved := [row.space_id for row in elsewhere if (row.space_id, STABLE) not in self._versions.labels]:
            reason = self._history.last_failure((unserved[0], STABLE), (unserved[0], PREMISES))
            self._readiness.degraded(f"space {unserved[0]} is not served: {reason}")
        else:
            self._readiness.serving()

    async def _swap(self, row: LabelRow) -> None:
        """Tries to serve a label's version, and the next one if the label moves meanwhile."""
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
            self._history.record(row, time.monotonic() - started, failure)
            await self._acknowledge(row, ok=False, reason=failure)
            row = latest
        self._history.record(row, time.monotonic() - started, failure)
        if model is None:
            self._failed[key] = (row.revision, row.version)
        else:
            self._serve(key, model, ServedLabel(row.version, row.revision, row.share))
            self._failed.pop(key, None)
        await self._acknowledge(row, ok=model is not None, reason=failure)

    def _serve(self, key: LabelKey, model: Model, label: ServedLabel) -> None:
        self._versions.serve(key, model, label)
        self._metrics.serves(*key, label.version, label.revision)

    def _drop_unnamed(self) -> None:
        """Drops versions that nothing names; their memory goes when their last call has ended."""
        dropped = self._versions.drop_unnamed()
        if dropped:
            task = asyncio.create_task(self._drain(dropped))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _drain(self, models: list[Model]) -> None:
        while any(self._versions.in_flight[model] for model in models):  # noqa: ASYNC110 -- no hurry
            await asyncio.sleep(DRAIN_POLL_S)
        await self._loader.release(models)

    async def _acknowledge(self, row: LabelRow, *, ok: bool, reason: str = "") -> None:
        instance = self._options.instance
        await self._send_heartbeat()
        rollout = RolloutRow(instance, row.revision, ok=ok, reason=reason, at=datetime.now(UTC))
        await self._registry.acknowledge(row.space_id, row.name, rollout)
        self._acknowledged[row.space_id, row.name] = (row.revision, row.version)

    async def _restore(self, why: str) -> None:
        state = await self._state_file.load()
        if state is None:
            self._readiness.starting(f"nothing was served here before, and the registry is away: {why}")
            return
        await self._spaces.restore(state.spaces[0], default=True)
        for other in state.spaces[1:]:
            try:
                await self._spaces.restore(other, default=False)
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
            served = ServedLabel(label.version, label.revision, label.share)
            self._serve((label.space_id, label.name), model, served)
