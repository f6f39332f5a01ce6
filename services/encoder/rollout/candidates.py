"""Candidates on their way to serving, and the spaces that they need.

    registry row ──► store: manifest digest, sizes ──► load_steps: sha256, open, warm, golden check ──► Model
                                  └── idle thread, after PATIENCE_S a thread of low priority ──┘

While callers are served, an idle-priority thread takes the steps of a load: the kernel gives it only the time they
leave. When that is too little, a thread of low priority, with a share of its own, goes on with the next step, so
nothing is done twice. Sessions create no threads (see onnx_session), so none can inherit such a priority. A load that
is cancelled or out of time ends after its step. A step that never ends keeps its thread, and MAX_HUNG of them end all
loading.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
import weakref
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from aeenc import errors
from services.encoder.rollout.calibration import Calibration
from services.encoder.rollout.history import PREMISES, SavedLabel, SavedSpace, SwapHistory
from services.encoder.rollout.loading import LoadOptions, Steps, check_place, load_steps, model_bytes
from services.encoder.rollout.versions import STABLE, Versions
from services.encoder.runtime.model import Model, TokenizerCache
from services.encoder.runtime.thread_priority import CANDIDATE, lower_priority, run_when_idle
from services.store.artifacts import ArtifactStore
from services.store.registry import LabelRow, Registry
from services.store.registry_rows import CROSS_ENCODERS, versions_of

E = TypeVar("E", bound=Exception)

FOLDER = "checkpoints"
PATIENCE_S = 3.0  # until the thread of low priority goes on; an idle-priority load takes 1 to 2 s
GRACE_S = 2.0  # that a load waits for the last step of the one before
MAX_HUNG = 2  # threads with a step that never ends
LOAD_S = 120.0
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class CandidateLoader:
    """Loads checkpoints that the registry knows from the store, one at a time.

    `load_s`: the time limit of one load. `loaded_bytes`: most bytes of model files in memory; 0: half of the memory.
    """

    def __init__(
        self,
        registry: Registry,
        store: ArtifactStore,
        options: LoadOptions,
        *,
        load_s: float = LOAD_S,
        loaded_bytes: int = 0,
    ) -> None:
        self._registry, self._store, self._options = registry, store, options
        self._load_s, self._memory = load_s, Memory(loaded_bytes or memory_bytes() // 2)
        self._tokenizers, self._calibration = TokenizerCache(), Calibration()
        self._threads: set[threading.Thread] = set()

    async def load(self, space_id: str, version: str, dim: int | None, *, beside: bool = False) -> Model:
        """Loads a version, `beside` a serving one or before any serves.

        Raises NotFound, DeadlineExceeded, and errors that name the wrong file or value.
        """
        row = await self._registry.checkpoint(version)
        if row is None:
            raise errors.NotFound(f"the registry does not know checkpoint {version}; publish it again")
        return await self.load_known(space_id, version, row.manifest_sha256, dim, beside=beside)

    async def load_known(
        self, space_id: str, version: str, manifest_sha256: str, dim: int | None, *, beside: bool = False
    ) -> Model:
        """Loads a version whose manifest digest is known, without the registry."""
        await self._await_the_load_before()
        steps = self._steps(space_id, version, manifest_sha256, dim)
        try:
            async with asyncio.timeout(self._load_s):
                model = await self._advance(version, steps, idle=True) if beside else None
                return model or await self._finish(version, steps)
        except TimeoutError:
            raise errors.DeadlineExceeded(
                f"loading checkpoint {version} took longer than {self._load_s:g} s; look at the disk, or raise "
                "AEENC_ENCODER_LOAD_S"
            ) from None
        finally:
            with contextlib.suppress(ValueError):  # it is at a step; then its thread closes it
                steps.close()

    async def release(self, models: list[Model]) -> None:
        """Frees models that no call uses any more, and empties `models`.

        It avoids the thread of low priority: freeing a session holds the interpreter's lock for 10 ms, and a thread
        that the kernel preempts meanwhile would hold it much longer.
        """

        def release() -> None:
            models.clear()
            _return_memory()

        await asyncio.to_thread(release)

    def check_precision(self, model: Model) -> None:
        """Raises FailedPrecondition for a query encoder without the precision that was asked for by name."""
        wanted = self._options.precision
        if self._options.strict and model.model_type == "sentence-encoder" and wanted not in model.runners:
            raise errors.FailedPrecondition(
                f"version {model.version} cannot be computed in {wanted} here: {model.precision_reason}; publish one "
                f"that can, or set AEENC_ENCODER_PRECISION=prefer-{wanted}"
            )

    def _steps(self, space_id: str, version: str, manifest_sha256: str, dim: int | None) -> Steps:
        artifact = self._store.open(FOLDER, version, expected_manifest_sha256=manifest_sha256, verify="size")
        reserved = self._memory.reserve(version, model_bytes(artifact, self._options))
        model = yield from load_steps(
            artifact,
            self._options,
            space_id=space_id,
            dim=dim,
            tokenizers=self._tokenizers,
            calibration=self._calibration,
        )
        reserved.size_bytes = model_bytes(artifact, self._options, model.runners)
        model.reserved = reserved
        return model

    async def _await_the_load_before(self) -> None:
        """Waits a while for a step that goes on after its load was given up. Raises FailedPrecondition for too many."""
        until = time.monotonic() + GRACE_S
        for thread in list(self._threads):
            await asyncio.to_thread(thread.join, max(until - time.monotonic(), 0.0))
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        if len(self._threads) >= MAX_HUNG:
            raise errors.FailedPrecondition(
                f"{len(self._threads)} loads hang in this process and nothing more is loaded; look at the disk, and "
                "restart the encoder"
            )

    async def _finish(self, version: str, steps: Steps) -> Model:
        model = await self._advance(version, steps, idle=False)
        if model is None:
            raise errors.DataLoss(f"checkpoint {version} ended its load without a model")
        return model

    async def _advance(self, version: str, steps: Steps, *, idle: bool) -> Model | None:
        """Takes steps in a thread of its own; None when they have not ended after an idle thread's patience."""
        stop, given_up, taken = threading.Event(), threading.Event(), Future[Model | None]()
        taken.set_running_or_notify_cancel()  # from here on only the thread ends it

        def take() -> None:
            run_when_idle() if idle else lower_priority(CANDIDATE)
            try:
                model = _take(version, steps, stop)
                if given_up.is_set():
                    steps.close()  # frees what it has opened, whoever still refers to it
            except errors.AeencError as error:
                taken.set_exception(error)
            else:
                taken.set_result(model)

        # A daemon: a hanging step must not keep the process from ending.
        thread = threading.Thread(target=take, name="load-idle" if idle else "load-low", daemon=True)
        self._threads.add(thread)
        thread.start()
        timer = asyncio.get_running_loop().call_later(PATIENCE_S, stop.set) if idle else None
        try:
            return await asyncio.wrap_future(taken)
        except asyncio.CancelledError:
            given_up.set()
            raise
        finally:
            stop.set()
            if timer is not None:
                timer.cancel()


class Memory:
    """Bytes of model files in memory: of loads that have begun and of models that anybody still holds."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._reserved: weakref.WeakSet[Reservation] = weakref.WeakSet()

    def reserve(self, version: str, size_bytes: int) -> Reservation:
        """Returns a reservation that lasts as long as it is referred to. Raises FailedPrecondition over the limit."""
        held = sum(one.size_bytes for one in self._reserved)
        if held + size_bytes > self._limit_bytes:
            raise errors.FailedPrecondition(
                f"checkpoint {version} has {size_bytes:,} bytes of models, which with the {held:,} loaded is over the "
                f"limit of {self._limit_bytes:,}; delete a label, or raise AEENC_ENCODER_LOADED_BYTES"
            )
        reservation = Reservation(size_bytes)
        self._reserved.add(reservation)
        return reservation


class Reservation:
    """A number of bytes, held as long as this object lives."""

    __slots__ = ("__weakref__", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


def memory_bytes() -> int:
    """Returns the memory of this container or machine."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(int(CGROUP_LIMIT.read_text()), machine)
    except (OSError, ValueError):  # no control group, or "max"
        return machine


class Spaces:
    """Opens spaces, and finds or loads their models.

    A space is served as a whole or not at all: without its premise encoder, its query vectors would fit nothing.
    """

    def __init__(self, registry: Registry, loader: CandidateLoader, versions: Versions, history: SwapHistory) -> None:
        self._registry, self._loader = registry, loader
        self._versions, self._history = versions, history

    async def open_default(
        self, space_id: str, version: str, *, retry_failed: bool
    ) -> tuple[LabelRow, list[Model], str] | None:
        """Makes a space the default, once its `stable` can be served. Raises the failure when nothing else serves.

        Returns what it tried as its `stable`: the model to serve at once, or the reason to refuse it.
        """
        if (self._versions.space_id, self._versions.premise_version) == (space_id, version):
            return None
        if self._versions.complete and not retry_failed and self._has_failed(space_id, version):
            return None
        row = await self._registry.label(space_id, STABLE)
        is_served = (space_id, STABLE) in self._versions.labels
        is_bad = row is not None and not retry_failed and self._history.has_failed(row)
        if (row is None or is_bad) and not is_served and self._versions.complete:
            return None
        try:
            premises = await self._load(space_id, version)
        except errors.AeencError:
            if not self._versions.complete:
                raise
            return None
        tried = None if row is None or is_served else await self._stable(row, premises)
        can_serve = is_served or (tried is not None and bool(tried[1]))
        if can_serve or not self._versions.complete:
            self._versions.open_space(space_id, premises, default=True)
        return tried

    async def _stable(self, row: LabelRow, premises: Model) -> tuple[LabelRow, list[Model], str] | None:
        """Loads what `stable` names, or says why it cannot be served; None if that could not be found out."""
        try:
            model = premises
            if row.version != premises.version:
                beside = self._versions.complete
                model = await self._loader.load(row.space_id, row.version, premises.dim, beside=beside)
            self._loader.check_precision(model)
        except errors.Unavailable:  # the same round follows the label and tries again
            return None
        except errors.AeencError as error:
            return row, [], error.message
        return row, [model], ""

    async def open(self, space_id: str, *, retry_failed: bool) -> None:
        """Serves the premises of another space. A failure is recorded, and the space's labels are then refused."""
        version = await self._registry.space(space_id)
        if version is None or self._versions.premise_versions.get(space_id) == version:
            return
        if not retry_failed and self._has_failed(space_id, version):
            return
        with contextlib.suppress(errors.AeencError):
            self._versions.open_space(space_id, await self._load(space_id, version))

    async def models(self, space_id: str, version: str) -> list[Model]:
        """Returns the model of a label's version, or those of its ensemble. Raises the reason to refuse one."""
        return [await self.model(space_id, one) for one in versions_of(version)]

    async def model(self, space_id: str, version: str) -> Model:
        """Returns a version of a space, loaded already or now. Raises the reason to refuse it."""
        dim = self._dim(space_id)
        beside = self._versions.complete
        model = self._versions.models.get(version) or await self._loader.load(space_id, version, dim, beside=beside)
        check_place(model.description, space_id, dim)
        self._loader.check_precision(model)
        return model

    def loaded(self, space_id: str, version: str) -> list[Model]:
        """Returns what can serve a label's version, or its ensemble, without a load; empty when there is none."""
        models = [self._versions.models.get(one) for one in versions_of(version)]
        here = [model for model in models if model is not None]
        if len(here) < len(models):
            return []
        try:
            for model in here:
                check_place(model.description, space_id, self._dim(space_id))
                self._loader.check_precision(model)
        except errors.AeencError:
            return []
        return here

    async def restore(self, saved: SavedSpace, *, default: bool) -> None:
        """Opens a space as it was served last, without the registry. One that is open keeps its premise encoder."""
        version = self._versions.premise_versions.get(saved.space_id, saved.premise_version)
        premises = self._versions.models.get(version)
        if premises is None:
            premises = await self._loader.load_known(saved.space_id, version, saved.premise_manifest_sha256, None)
        self._versions.open_space(saved.space_id, premises, default=default)

    async def restore_models(self, label: SavedLabel) -> list[Model]:
        """Returns the version or the ensemble of a label as it was served last, without the registry."""
        dim, models = self._dim(label.space_id), []
        for version, digest in zip(versions_of(label.version), versions_of(label.manifest_sha256), strict=True):
            model = self._versions.models.get(version)
            model = model or await self._loader.load_known(label.space_id, version, digest, dim)
            self._loader.check_precision(model)
            models.append(model)
        return models

    def _dim(self, space_id: str) -> int | None:
        """Returns the dimension of a space; None for cross-encoders."""
        if space_id == CROSS_ENCODERS:
            return None
        version = self._versions.premise_versions.get(space_id)
        if version is None:
            why = self._history.failure(space_id, PREMISES) or "the registry names none"
            raise errors.FailedPrecondition(f"the premise encoder of space {space_id} cannot be served: {why}")
        return self._versions.models[version].dim

    async def _load(self, space_id: str, version: str) -> Model:
        started = time.monotonic()
        try:
            loaded = self._versions.models.get(version)
            beside = self._versions.complete
            model = loaded or await self._loader.load(space_id, version, None, beside=beside)
        except errors.AeencError as error:
            self._history.record(_premises_row(space_id, version), time.monotonic() - started, error.message)
            raise
        self._history.forget((space_id, PREMISES))
        return model

    def _has_failed(self, space_id: str, version: str) -> bool:
        return self._history.has_failed(_premises_row(space_id, version))


def _premises_row(space_id: str, version: str) -> LabelRow:
    return LabelRow(space_id, PREMISES, version, 0, "", datetime.now(UTC))


def _take(version: str, steps: Steps, stop: threading.Event) -> Model | None:
    """Takes steps until they end or `stop` is set, but at least one. Raises errors without causes and frames."""
    try:
        while True:
            next(steps)
            if stop.is_set():
                return None
    except StopIteration as end:
        model: Model = end.value
        return model
    except errors.AeencError as error:
        raise _strip(error) from None
    except Exception as error:  # noqa: BLE001 -- a bad file may make a library raise anything
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        _strip(error)
        raise errors.DataLoss(f"checkpoint {version} cannot be loaded: {reason}") from None
    finally:
        _return_memory()


def _strip(error: E) -> E:
    """Strips an error of its causes and frames, which keep a session of a failed load in memory."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _return_memory() -> None:
    """Gives freed memory back to the system; glibc would keep the holes that a load leaves."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
