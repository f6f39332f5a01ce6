"""The follower keeps the served versions in step with the registry's labels.

    event or poll ──► rows ──► Spaces.model: fetch, verify, load beside, check ──► Versions.serve ──► acknowledge
          │                             │ fails                                          │ swaps one reference
          ▼                             ▼                                                ▼
    is loaded: serve at once   the old version serves on; reason in GetInfo   drop unnamed, drain, release memory

It is level-triggered: an event only wakes it and the row decides. It also reads the rows at start and every `poll_s`.
One task waits for events and applies at once what needs no load; another runs rounds, which load. A label that moves
during its load ends it, and the newest revision wins. Nothing on the encode path waits for the follower.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aeenc import errors
from services.encoder.rollout.candidates import CandidateLoader, Spaces
from services.encoder.rollout.history import PREMISES, SavedState, StateFile, SwapHistory
from services.encoder.rollout.versions import STABLE, LabelKey, Versions
from services.encoder.runtime.model import FLOAT32
from services.kit import tracing
from services.kit.concurrency import cancel_all, every
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.store.formats import NewerFormat
from services.store.registry import LabelRow, Registry, RolloutRow
from services.store.registry_rows import CROSS_ENCODERS

log = get(__name__)

HEARTBEAT_S = 5.0
RETRY_S = 1.0
TROUBLE = "following the registry failed"
START_PATIENCE_S = 10.0


class Follower:
    """Follows the labels of the registry, and reads them every `poll_s` seconds. Call `start` once; `stop` ends it.

    `space_id` is the one space to serve; empty: the registry's default one and every other that has a label.
    `faster`: what the encoder offers to compute, as `Registry.heartbeat` has it. `handicap`: why it computes on less
    than it has; such an encoder reports DEGRADED.
    """

    def __init__(
        self,
        registry: Registry,
        loader: CandidateLoader,
        versions: Versions,
        history: SwapHistory,
        readiness: Readiness,
        *,
        instance: str,
        space_id: str,
        state_dir: Path,
        poll_s: float,
        faster: Mapping[str, str],
        handicap: str,
    ) -> None:
        self._registry, self._loader, self._versions = registry, loader, versions
        self._history, self._readiness = history, readiness
        self._instance, self._space_id, self._poll_s = instance, space_id, poll_s
        self._faster, self._handicap = faster, handicap
        self._acknowledged: dict[LabelKey, tuple[int, str]] = {}  # revision and version acknowledged last
        self._state_file = StateFile(state_dir)
        self._spaces = Spaces(loader, versions, history)
        self._tasks: set[asyncio.Task[None]] = set()
        self._applying = asyncio.Lock()  # from reading a row to serving it: an older row never follows a newer one
        self._loading: tuple[LabelRow, asyncio.Task[None]] | None = None
        self._tried: set[LabelRow] = set()  # what was loaded or could not be, since what failed was tried again
        self._begun: dict[str, float] = {}  # when the load of a row's versions began, until its outcome is recorded
        self._wake, self._retry_failed, self._retried = asyncio.Event(), False, time.monotonic()
        self._last_event = "0-0"
        self._preferred = ""  # the space to make the default one, once its `stable` is served
        self._stable: LabelRow | None = None  # as read last
        self._elsewhere: list[str] = []  # the other spaces with a `stable`
        self._unread: dict[LabelKey, str] = {}  # labels that stay as they are here, and why
        self._behind = ""  # why the labels are not followed, or not all of them

    async def start(self) -> None:
        """Serves the registry's labels, or without the registry the saved ones; then keeps following."""
        with contextlib.suppress(errors.Unavailable):  # then the first reading of the labels says so
            self._last_event = await self._registry.last_event()
        self._spawn(every(RETRY_S, self._watch, TROUBLE, tell=self._fall_behind))
        self._spawn(every(HEARTBEAT_S, self._send_heartbeat, "the heartbeat failed"))
        try:
            await self._apply(retry_failed=True)
        except (errors.Unavailable, NewerFormat) as error:
            await self._restore(error.message)
        except errors.AeencError as error:  # such as a checkpoint missing from the store: tried again later
            self._readiness.starting(error.message)
        except Exception:  # the next round may go well
            log.exception(TROUBLE)
        self._spawn(self._rounds())

    async def stop(self) -> None:
        """Stops following and signs off."""
        await cancel_all(list(self._tasks))
        with contextlib.suppress(errors.Unavailable, TimeoutError):
            await asyncio.wait_for(self._registry.sign_off(self._instance), 1.0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Waits for events, applies at once what needs no load, and wakes the rounds for the rest, until that fails.

        What has failed is tried again after each `poll_s`, however many events there are.
        """
        try:
            while True:
                wait_s = self._poll_s if self._versions.complete else RETRY_S
                seen = await self._registry.wait_for_event(self._last_event, wait_s)
                if time.monotonic() - self._retried >= wait_s:
                    self._retry_failed, self._retried = True, time.monotonic()
                await self._apply_loaded()
                self._last_event = seen
                self._wake.set()
        finally:
            self._wake.set()

    async def _rounds(self) -> None:
        await self._wake.wait()  # the start was the first one
        self._wake.clear()
        await every(self._poll_s, self._round, TROUBLE, wake=self._wake, tell=self._fall_behind)

    async def _round(self) -> None:
        retry_failed, self._retry_failed = self._retry_failed, False
        await self._apply(retry_failed=retry_failed)

    async def _send_heartbeat(self) -> None:
        if await self._registry.heartbeat(self._instance, self._faster):
            self._acknowledged.clear()  # the registry did not know this encoder: it has no answer of it either

    async def _apply(self, *, retry_failed: bool) -> None:
        """Serves what the rows name, as far as the candidates pass."""
        preferred = self._space_id or await self._registry.checkpoints.default_space()
        if preferred is None:
            self._name_nothing("the registry names no space; start the trainer, it publishes the base model")
            return
        self._preferred = preferred
        self._versions.prefer(preferred)
        named = await self._load_all(preferred, retry_failed=retry_failed)
        space_id = self._versions.space_id or preferred
        if (space_id, STABLE) not in named:
            self._stable = None
            self._name_nothing("label `stable` names nothing")
            return
        self._stable = named[space_id, STABLE] or self._stable
        if not self._versions.complete and self._stable is not None:
            await self._fall_back(self._stable)
        others = {space for space, _ in named} - {space_id, CROSS_ENCODERS}
        self._versions.close_spaces_but(others)
        if dropped := self._versions.drop_unnamed():
            self._spawn(self._loader.release(dropped))
        await self._state_file.save(self._versions)
        self._behind = next((f"{why}; the other labels are followed" for why in self._unread.values()), "")
        self._elsewhere = [space for space, name in named if space in others and name == STABLE]
        self.show_readiness()

    async def _load_all(self, preferred: str, *, retry_failed: bool) -> Mapping[LabelKey, LabelRow | None]:
        """Loads what the rows name, the default space and `stable` first; each is served once it is loaded.

        Returns what `_apply_loaded` returns.
        """
        opened = set[str]()
        if retry_failed:
            self._tried.clear()
        while True:
            named = await self._apply_loaded()  # also what labels have moved to during the loads
            if (why := self._unread.get((preferred, STABLE))) and not self._versions.complete:
                raise NewerFormat(why)
            rows = sorted(filter(None, named.values()), key=lambda row: (row.space_id != preferred, row.name != STABLE))
            row = next((row for row in rows if row.space_id not in opened or self._is_to_load(row)), None)
            if row is None:
                return named
            if row.space_id not in opened:
                opened.add(row.space_id)
                if premises := await self._registry.checkpoints.space(row.space_id):
                    await self._spaces.open(row.space_id, premises, retry_failed=retry_failed)
            if self._is_to_load(row):
                self._tried.add(row)
                await self._load(row)

    async def _apply_loaded(self) -> Mapping[LabelKey, LabelRow | None]:
        """Serves what the rows name if it is loaded, withdraws what they name no longer, ends loads they overtook.

        Returns the labels that name something, and their rows; None for one that cannot be read.
        """
        async with self._applying:
            rows = await self._rows()
            named = {**dict.fromkeys(self._unread), **{(row.space_id, row.name): row for row in rows}}
            await self._end_overtaken(named)
            if (self._versions.space_id or self._preferred, STABLE) in named:
                self._versions.withdraw_all_but(named.keys())
                self._history.forget_all_but(named.keys())
                self._acknowledged = {key: sent for key, sent in self._acknowledged.items() if key in named}
            for row in sorted(rows, key=lambda row: row.name != STABLE):  # a rollback goes first
                if not self._is_served(row) and self._spaces.has_loaded(row):
                    with _span_of("swap", row):
                        self._history.record(row, self._took_s(row))
                        self._serve(row)
            # First: after a restart without the registry no version is served whose rollback was acknowledged. Until
            # the first round has ended, what the last process served is kept beside.
            await self._state_file.save(self._versions, complete=self._stable is not None)
            for row in filter(self._is_served, rows):
                if self._acknowledged.get((row.space_id, row.name)) != (row.revision, row.version):
                    await self._acknowledge(row, ok=True)  # now, or again: it was lost, or another process sent it
            if self._stable is not None and (self._versions.space_id, STABLE) in named:  # else the first round says it
                self._stable = named[self._versions.space_id, STABLE] or self._stable
                self.show_readiness()
            return named

    async def _end_overtaken(self, named: Mapping[LabelKey, LabelRow | None]) -> None:
        """Ends a load whose label names something else by now, or tells that it was in vain."""
        if self._loading is None:
            return
        row, task = self._loading
        latest = named.get((row.space_id, row.name))
        is_overtaken = latest is None or not _is_same(latest, row)
        if is_overtaken or task.done():
            self._loading = None
        # A load that has just failed tells of that itself.
        if is_overtaken and (task.cancel() or not task.exception()) and latest is not None:
            await self._refuse(row, f"overtaken by revision {latest.revision} ({latest.version})")

    async def _rows(self) -> list[LabelRow]:
        """Reads the labels to follow: those of the configured space, or all; and which cannot be read."""
        space_id, unread = self._space_id, dict[LabelKey, str]()
        rows = await self._registry.labels(unread=unread)
        followed = (space_id, CROSS_ENCODERS)
        self._unread = {key: why for key, why in unread.items() if not space_id or key[0] in followed}
        return [row for row in rows if not space_id or row.space_id in followed]

    def _name_nothing(self, why: str) -> None:
        if not self._versions.complete:
            self._readiness.starting(why)
        self._fall_behind(why)

    def _fall_behind(self, why: str) -> None:
        """Keeps serving: an empty registry, or one that is away, takes no version away."""
        if self._versions.complete:
            self._behind = f"following no labels: {why}"
            self.show_readiness()

    def _is_served(self, row: LabelRow) -> bool:
        return self._versions.labels.get((row.space_id, row.name)) == row

    def _is_to_load(self, row: LabelRow) -> bool:
        return row not in self._tried and not self._is_served(row)

    async def _fall_back(self, stable: LabelRow) -> None:
        """Serves the version that `stable` named here last, or before, when its own cannot be served at the start."""
        state, key = await self._state_file.load(), (stable.space_id, stable.name)
        rows = [row for row in (state.labels if state else ()) if (row.space_id, row.name) == key]
        for row in (*rows, replace(stable, version=stable.previous, precision=FLOAT32)):
            if row.version and not _is_same(row, stable) and not await self._bring_back(replace(row, revision=0)):
                return

    async def _bring_back(self, row: LabelRow) -> str:
        """Serves what was served before, unless its label has come to serve; returns why that cannot be."""
        key = (row.space_id, row.name)
        try:
            if key not in self._versions.labels:
                await self._spaces.load(row)
        except errors.AeencError as error:
            log.warning("cannot serve again", label=row.name, version=row.version, reason=error.message)
            return error.message
        if key not in self._versions.labels:  # nor has an event had it served meanwhile
            self._serve(row)
        return ""

    def show_readiness(self) -> None:
        """Derives readiness from what is served, what fails and what is followed."""
        space_id, stable = self._versions.space_id or self._preferred, self._stable
        row = self._versions.labels.get((space_id, STABLE))
        reason = self._history.failure(space_id, STABLE)
        if row is None:
            self._readiness.starting(f"no version can be served: {reason}")
        elif failing := self._versions.failing({(row.version, row.precision), self._versions.premises}):
            self._readiness.starting(failing)
        elif self._behind:
            self._readiness.degraded(self._behind)
        elif row.revision == 0 and stable is not None:
            self._readiness.degraded(f"label `stable` names {stable.version}, serving {row.version}: {reason}")
        elif unserved := [one for one in self._elsewhere if (one, STABLE) not in self._versions.labels]:
            self._readiness.degraded(f"space {unserved[0]} is not served: {self._history.failure(unserved[0], STABLE)}")
        elif refused := [one for one in self._versions.premise_versions if self._history.failure(one, PREMISES)]:
            reason = self._history.failure(refused[0], PREMISES)
            self._readiness.degraded(f"space {refused[0]} keeps its premise encoder: {reason}")
        elif failing := self._versions.failing():
            self._readiness.degraded(failing)
        elif self._handicap:
            self._readiness.degraded(self._handicap)
        else:
            self._readiness.serving()

    async def _load(self, row: LabelRow) -> None:
        """Loads what a row names, until another row overtakes it. A failure is recorded and acknowledged."""
        self._begun[row.version] = time.monotonic()
        self._loading = (row, task := asyncio.ensure_future(self._spaces.load(row)))
        with _span_of("load", row):
            try:
                await asyncio.wait([task])
                _ = task.cancelled() or task.result()
            except errors.AeencError as error:
                tracing.failed()
                async with self._applying:
                    await self._refuse(row, error.message)
            finally:
                task.cancel()

    def _took_s(self, row: LabelRow) -> float:
        now = time.monotonic()
        return now - self._begun.pop(row.version, now)

    async def _refuse(self, row: LabelRow, reason: str) -> None:
        """Keeps what is served."""
        self._history.record(row, self._took_s(row), reason)
        await self._acknowledge(row, ok=False, reason=reason)

    def _serve(self, row: LabelRow) -> None:
        self._versions.serve(row)
        self._versions.prefer(self._preferred)
        if self._readiness.state == "STARTING" and self._versions.complete:  # the other labels may load for long
            asyncio.get_running_loop().call_later(START_PATIENCE_S, self.show_readiness)

    async def _acknowledge(self, row: LabelRow, *, ok: bool, reason: str = "") -> None:
        await self._send_heartbeat()
        rollout = RolloutRow(self._instance, row.revision, ok=ok, reason=reason, at=datetime.now(UTC))
        await self._registry.acknowledge(row.space_id, row.name, rollout)
        self._acknowledged[row.space_id, row.name] = (row.revision, row.version)

    async def _restore(self, why: str) -> None:
        """Serves what was served last, and takes nothing back that the first round has served already."""
        state = await self._state_file.load() or SavedState({}, [], {})
        if not self._versions.complete:
            if not (state.spaces and state.labels):
                self._readiness.starting(f"nothing was served here before, and the registry is away: {why}")
                return
            self._preferred = next(iter(state.spaces))
        self._behind, failure = f"serving the labels of the last run: {why}", ""
        self._loader.known = state.manifests
        try:
            for space_id, version in state.spaces.items():  # one that is open keeps its premise encoder
                try:
                    await self._spaces.open(space_id, self._versions.premise_versions.get(space_id, version))
                except errors.Unavailable as error:  # the next space may be at hand
                    failure = failure or error.message
            for row in state.labels:
                why_not = await self._bring_back(row)
                failure = failure or why_not  # the first is the cause of the others
        finally:
            self._loader.known = {}
        if self._versions.complete:
            self.show_readiness()
        else:  # the next rounds try again
            self._readiness.starting(f"{why}; nor can what was served here last: {failure}")


def _is_same(row: LabelRow, other: LabelRow) -> bool:
    """Whether two states of a label ask for the same computation."""
    return (row.version, row.precision) == (other.version, other.precision)


def _span_of(step: str, row: LabelRow) -> AbstractContextManager[tracing.Span]:
    """Makes the span of a load or swap, within the trace of the call that moved the label."""
    return tracing.span(step, within=row.traceparent, label=row.name, version=row.version, revision=row.revision)
