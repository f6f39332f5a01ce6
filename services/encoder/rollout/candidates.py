"""Candidates on their way to serving, and the spaces that they need.

    registry row ──► store: manifest digest, sha256 of every file ──► load_model: open, warm, golden check ──► Model
                     └──────── idle thread; after PATIENCE_S also a thread of low priority ────────┘

While callers are served, an idle-priority thread loads: the kernel gives it only the time they leave. When that is none
for seconds, a second thread, of low priority but with a share of its own, does the same work again. Sessions create no
threads (see onnx_session), so none can inherit such a priority.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

from aeenc import errors
from services.encoder.rollout.history import SavedSpace, SwapHistory
from services.encoder.rollout.loading import LoadOptions, check_place, load_model
from services.encoder.rollout.versions import STABLE, ServedLabel, Versions
from services.encoder.runtime.model import CROSS_ENCODERS, Model, TokenizerCache
from services.encoder.runtime.thread_priority import CANDIDATE, lower_priority, run_when_idle
from services.kit.concurrency import observe_failure
from services.store.artifacts import ArtifactStore
from services.store.registry import LabelRow, Registry

E = TypeVar("E", bound=Exception)

FOLDER = "checkpoints"
PATIENCE_S = 3.0  # until the thread of low priority starts as well; an idle-priority load takes 1 to 2 s
PREMISES = "(premises)"  # stands for a label in the swap history: the space's premise encoder


class CandidateLoader:
    """Loads checkpoints that the registry knows from the store, one at a time."""

    def __init__(self, registry: Registry, store: ArtifactStore, options: LoadOptions) -> None:
        self._registry, self._store, self._options = registry, store, options
        self._tokenizers = TokenizerCache()
        self._idle = ThreadPoolExecutor(1, thread_name_prefix="load-idle", initializer=run_when_idle)
        self._low = ThreadPoolExecutor(
            1, thread_name_prefix="load-low", initializer=lower_priority, initargs=(CANDIDATE,)
        )
        self._idle_is_busy = False

    async def load(self, space_id: str, version: str, dim: int | None, *, beside: bool = False) -> Model:
        """Loads a version, `beside` a serving one or before any serves.

        Raises NotFound, and errors that name the wrong file or value.
        """
        row = await self._registry.checkpoint(version)
        if row is None:
            raise errors.NotFound(f"the registry does not know checkpoint {version}; publish it again")
        return await self.load_known(space_id, version, row.manifest_sha256, dim, beside=beside)

    async def load_known(
        self, space_id: str, version: str, manifest_sha256: str, dim: int | None, *, beside: bool = False
    ) -> Model:
        """Loads a version whose manifest digest is known, without the registry."""

        def load() -> Model:
            try:
                artifact = self._store.open(FOLDER, version, expected_manifest_sha256=manifest_sha256, verify="full")
                return load_model(artifact, self._options, space_id=space_id, dim=dim, tokenizers=self._tokenizers)
            except errors.AeencError as error:
                raise _strip(error) from None
            except Exception as error:  # noqa: BLE001 -- a bad file may make a library raise anything
                reason = f"{type(error).__name__}: {str(error)[:200]}"
                _strip(error)
                raise errors.DataLoss(f"checkpoint {version} cannot be loaded: {reason}") from None
            finally:
                _return_memory()

        return await (self._when_idle(load) if beside else self._at_low_priority(load))

    async def release(self, models: list[Model]) -> None:
        """Frees models that no call uses any more, and empties `models`.

        It avoids the thread of low priority: freeing a session holds the interpreter's lock for 10 ms, and a thread
        that the kernel preempts meanwhile would hold it much longer.
        """

        def release() -> None:
            models.clear()
            _return_memory()

        await asyncio.to_thread(release)

    def close(self) -> None:
        """Stops the threads after their current load."""
        self._idle.shutdown(wait=False, cancel_futures=True)
        self._low.shutdown(wait=False, cancel_futures=True)

    async def _when_idle(self, load: Callable[[], Model]) -> Model:
        """Loads in the idle thread, or in the one of low priority when the idle one is busy or gets no time."""
        if not self._idle_is_busy:
            self._idle_is_busy = True
            quiet = asyncio.get_running_loop().run_in_executor(self._idle, load)
            quiet.add_done_callback(self._mark_idle)
            await asyncio.wait([quiet], timeout=PATIENCE_S)
            if quiet.done():
                return quiet.result()
        return await self._at_low_priority(load)

    def _mark_idle(self, quiet: asyncio.Future[Model]) -> None:
        """Drops the result: a model that came too late must not stay in memory."""
        self._idle_is_busy = False
        observe_failure(quiet)

    async def _at_low_priority(self, load: Callable[[], Model]) -> Model:
        return await asyncio.get_running_loop().run_in_executor(self._low, load)


class Spaces:
    """Opens spaces, and finds or loads their models.

    A space is served as a whole or not at all: without its premise encoder, its query vectors would fit nothing.
    """

    def __init__(self, registry: Registry, loader: CandidateLoader, versions: Versions, history: SwapHistory) -> None:
        self._registry, self._loader = registry, loader
        self._versions, self._history = versions, history
        self._failed: dict[str, str] = {}  # space -> the premise encoder that failed here

    async def open_default(self, space_id: str, version: str, *, retry_failed: bool) -> None:
        """Makes a space the default and serves its `stable`. Raises the failure when nothing else serves."""
        if (self._versions.space_id, self._versions.premise_version) == (space_id, version):
            return
        if self._failed.get(space_id) == version and self._versions.complete and not retry_failed:
            return
        try:
            premises = await self._load(space_id, version)
        except errors.AeencError:
            if not self._versions.complete:
                raise
            return
        stable = None
        row = await self._registry.label(space_id, STABLE)
        if row is not None and (space_id, STABLE) not in self._versions.labels:
            with contextlib.suppress(errors.AeencError):  # the same round follows the label and records the failure
                stable = await self._loader.load(space_id, row.version, premises.dim)
        self._versions.open_space(space_id, premises, default=True)
        if row is not None and stable is not None:
            self._versions.serve((space_id, STABLE), stable, ServedLabel(row.version, row.revision, row.share))

    async def open(self, space_id: str, *, retry_failed: bool) -> None:
        """Serves the premises of another space. A failure is recorded, and the space's labels are then refused."""
        version = await self._registry.space(space_id)
        if version is None or self._versions.premise_versions.get(space_id) == version:
            return
        if self._failed.get(space_id) == version and not retry_failed:
            return
        with contextlib.suppress(errors.AeencError):
            self._versions.open_space(space_id, await self._load(space_id, version))

    async def model(self, space_id: str, version: str) -> Model:
        """Returns a version of a space, loaded already or now. Raises the reason to refuse it."""
        dim = self._dim(space_id)
        model = self._versions.models.get(version)
        if model is None:
            return await self._loader.load(space_id, version, dim, beside=True)
        check_place(model.description, space_id, dim)
        return model

    async def restore(self, saved: SavedSpace, *, default: bool) -> None:
        """Opens a space as it was served last, without the registry."""
        digest = saved.premise_manifest_sha256
        premises = await self._loader.load_known(saved.space_id, saved.premise_version, digest, None)
        self._versions.open_space(saved.space_id, premises, default=default)

    async def restore_model(self, space_id: str, version: str, manifest_sha256: str) -> Model:
        """Returns a version of a space as it was served last, without the registry."""
        dim = self._dim(space_id)
        model = self._versions.models.get(version)
        return model or await self._loader.load_known(space_id, version, manifest_sha256, dim)

    def _dim(self, space_id: str) -> int | None:
        """Returns the dimension of a space; None for cross-encoders."""
        if space_id == CROSS_ENCODERS:
            return None
        version = self._versions.premise_versions.get(space_id)
        if version is None:
            why = self._history.last_failure((space_id, PREMISES)) or "the registry names none"
            raise errors.FailedPrecondition(f"the premise encoder of space {space_id} cannot be served: {why}")
        return self._versions.models[version].dim

    async def _load(self, space_id: str, version: str) -> Model:
        started = time.monotonic()
        try:
            loaded = self._versions.models.get(version)
            beside = self._versions.complete
            model = loaded or await self._loader.load(space_id, version, None, beside=beside)
        except errors.AeencError as error:
            row = LabelRow(space_id, PREMISES, version, 0, "", datetime.now(UTC))
            self._history.record(row, time.monotonic() - started, error.message)
            self._failed[space_id] = version
            raise
        self._failed.pop(space_id, None)
        return model


def _strip(error: E) -> E:
    """Strips an error of its causes and frames, which keep a session of a failed load in memory."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _return_memory() -> None:
    """Gives freed memory back to the system; glibc would keep the holes that a load leaves."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
