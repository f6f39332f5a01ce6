"""Candidates on their way to serving, and the spaces that they need.

    registry row ──► store: manifest digest, sizes ──► load_model: sha256, open, warm, golden check ──► Model

A thread of low priority loads, so that callers and workers go first. Sessions create no threads (see onnx_session), so
none can inherit its priority. A load that is cancelled or out of time ends after its step. A step that never ends keeps
its thread, and MAX_HUNG of them end all loading.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime

from aeenc import errors
from services.devices import is_out_of_memory
from services.encoder.rollout.history import PREMISES, SwapHistory
from services.encoder.rollout.loading import LoadOptions, add_precision, check_place, load_model, model_bytes
from services.encoder.rollout.versions import Versions
from services.encoder.runtime.model import Description, Model
from services.encoder.runtime.thread_priority import CANDIDATE, lower_priority
from services.kit.settings import usable_memory_bytes
from services.store.artifacts import Artifact, ArtifactStore, Hold
from services.store.registry import LabelRow, Registry
from services.store.registry_rows import CROSS_ENCODERS

Pause = Callable[[], None]

FOLDER = "checkpoints"
GRACE_S = 2.0  # that a load waits for the last step of the one before
MAX_HUNG = 2  # threads with a step that never ends
DRAIN_POLL_S = 0.1


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
        load_s: float = 120.0,
        loaded_bytes: int = 0,
    ) -> None:
        self._registry, self._store, self._options = registry, store, options
        self._load_s, self._limit_bytes = load_s, loaded_bytes or usable_memory_bytes() // 2
        self._reserved: weakref.WeakKeyDictionary[Hold, int] = weakref.WeakKeyDictionary()  # bytes in memory
        self._threads: set[threading.Thread] = set()
        self.known: Mapping[str, str] = {}  # digests of manifests, by which to load without the registry

    async def load(self, space_id: str, version: str, premises: Description | None) -> Model:
        """Loads a version. Raises NotFound, DeadlineExceeded, and errors that name the wrong file or value."""
        manifest_sha256 = self.known.get(version, "")
        if not manifest_sha256:
            if (row := await self._registry.checkpoints.get(version)) is None:
                raise errors.NotFound(f"the registry does not know checkpoint {version}; publish it again")
            manifest_sha256 = row.manifest_sha256

        def load(artifact: Artifact, pause: Pause) -> Model:
            return load_model(artifact, self._options, space_id=space_id, premises=premises, pause=pause)

        return await self._in_thread(version, manifest_sha256, load)

    async def add_precision(self, model: Model, precision: str) -> None:
        """Loads a precision of a loaded version beside those that it has. Raises the reason why it cannot be."""

        def add(artifact: Artifact, pause: Pause) -> Model:
            return add_precision(model, artifact, self._options, precision, pause=pause)

        if precision not in model.runners:
            await self._in_thread(model.version, model.description.manifest_sha256, add, precision)

    async def release(self, models: list[Model]) -> None:
        """Frees models once no call uses them any more, and empties `models`.

        It avoids the thread of low priority: freeing a session holds the interpreter's lock for 10 ms, and a thread
        that the kernel preempts meanwhile would hold it much longer.
        """

        def release() -> None:
            models.clear()
            _return_memory()

        while any(model.in_flight for model in models):  # noqa: ASYNC110 -- no hurry
            await asyncio.sleep(DRAIN_POLL_S)
        await asyncio.to_thread(release)

    def _reserve(self, version: str, manifest_sha256: str, precision: str) -> tuple[Artifact, Hold]:
        """Opens a checkpoint. Counts the bytes of its models, and keeps its files, as long as the hold lives.

        They count beside those of loads that have begun and of models that anybody still holds. Raises
        FailedPrecondition over the limit.
        """
        hold = self._store.hold(FOLDER, version)  # neither a deletion nor a cache takes what is served
        artifact = self._store.open(FOLDER, version, expected_manifest_sha256=manifest_sha256, verify="size")
        size_bytes, held = model_bytes(artifact, self._options, precision), sum(self._reserved.values())
        if held + size_bytes > self._limit_bytes:
            raise errors.FailedPrecondition(
                f"checkpoint {version} has {size_bytes:,} bytes of models, which with the {held:,} loaded is over the "
                f"limit of {self._limit_bytes:,}; delete a label, or raise AEENC_ENCODER_LOADED_BYTES"
            )
        self._reserved[hold] = size_bytes
        return artifact, hold

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

    async def _in_thread(
        self, version: str, manifest_sha256: str, load: Callable[[Artifact, Pause], Model], precision: str = ""
    ) -> Model:
        """Loads in a thread of its own. `load` gets the files, and what it is to call between its steps."""
        await self._await_the_load_before()
        given_up, loaded = threading.Event(), Future[Model]()
        loaded.set_running_or_notify_cancel()  # from here on only the thread ends it

        def pause() -> None:
            if given_up.is_set():
                raise errors.Aborted("the load was given up")

        def attempt() -> Model:
            artifact, hold = self._reserve(version, manifest_sha256, precision)
            model = load(artifact, pause)
            model.reserved.append(hold)
            pause()  # what comes too late is freed, whoever still refers to the future
            return model

        def run() -> None:
            lower_priority(CANDIDATE)
            try:
                model = attempt()
            except Exception as error:  # noqa: BLE001 -- a bad file may make a library raise anything
                loaded.set_exception(_reason(version, error))
            else:
                loaded.set_result(model)
            _return_memory()

        # A daemon: a hanging step must not keep the process from ending.
        thread = threading.Thread(target=run, name="load", daemon=True)
        self._threads.add(thread)
        thread.start()
        try:
            async with asyncio.timeout(self._load_s):
                return await asyncio.wrap_future(loaded)
        except TimeoutError:
            raise errors.DeadlineExceeded(
                f"loading checkpoint {version} took longer than {self._load_s:g} s; look at the disk, or raise "
                "AEENC_ENCODER_LOAD_S"
            ) from None
        finally:
            given_up.set()


def _reason(version: str, error: Exception) -> errors.AeencError:
    """Returns an error of ours without causes and frames, which would keep a session of a failed load in memory."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    if is_out_of_memory(error):  # also what a check of ours has made of it
        return errors.FailedPrecondition(
            f"checkpoint {version} is over the device's memory beside what is loaded ({str(error)[:500]}); delete a "
            "label, or raise AEENC_ENCODER_GPU_BYTES where that bounds it"
        )
    if isinstance(error, errors.AeencError):
        return error
    return errors.DataLoss(f"checkpoint {version} cannot be loaded: {type(error).__name__}: {str(error)[:500]}")


def _return_memory() -> None:
    """Gives freed memory back to the system; glibc would keep the holes that a load leaves."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Spaces:
    """Opens spaces, and finds or loads their models.

    A space is served as a whole or not at all: without its premise encoder, its query vectors would fit nothing.
    """

    def __init__(self, loader: CandidateLoader, versions: Versions, history: SwapHistory) -> None:
        self._loader, self._versions, self._history = loader, versions, history

    async def open(self, space_id: str, version: str, *, retry_failed: bool = True) -> None:
        """Serves the premises of a space by this encoder. A failure is recorded; labels of a closed space are refused.

        Raises Unavailable when no space is open: what was served last may be at hand while the store is away.
        """
        row, started = LabelRow(space_id, PREMISES, version, 0, "", datetime.now(UTC)), time.monotonic()
        if not retry_failed and self._history.failure(space_id, PREMISES, version):
            return
        try:
            premises = self._versions.models.get(version) or await self._loader.load(space_id, version, None)
        except errors.AeencError as error:
            if isinstance(error, errors.Unavailable) and not self._versions.premise_versions:
                raise
            self._history.record(row, time.monotonic() - started, error.message)
            return
        self._history.forget((space_id, PREMISES))
        self._versions.open_space(space_id, premises)

    async def load(self, row: LabelRow) -> None:
        """Loads the version of a label, or those of its ensemble, where they are not. Raises why one is refused."""
        premises = self._premises(row.space_id)
        for version in row.versions:
            model = self._versions.models.get(version) or await self._loader.load(row.space_id, version, premises)
            check_place(model.description, row.space_id, premises)
            await self._loader.add_precision(model, row.precision)
            self._versions.keep(model)

    def has_loaded(self, row: LabelRow) -> bool:
        """Whether all that a label names can serve without a load."""
        with contextlib.suppress(errors.AeencError, KeyError):
            models = [self._versions.models[version] for version in row.versions]
            for model in models:
                check_place(model.description, row.space_id, self._premises(row.space_id))
            return all(row.precision in model.runners for model in models)
        return False

    def _premises(self, space_id: str) -> Description | None:
        """Describes the premise encoder of a space; None for cross-encoders."""
        if space_id == CROSS_ENCODERS:
            return None
        version = self._versions.premise_versions.get(space_id)
        if version is None:
            why = self._history.failure(space_id, PREMISES) or "the registry names none"
            raise errors.FailedPrecondition(f"the premise encoder of space {space_id} cannot be served: {why}")
        return self._versions.models[version].description
