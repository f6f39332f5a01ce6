"""Candidates on their way to serving: looked up, fetched, hashed, loaded and checked in a thread that runs when idle.

While callers are served, the kernel gives that thread only what they leave, and takes it back at once. Where they leave
nothing for seconds, a second thread, of low priority but with a share of its own, does the same work anew. Sessions own
no threads (see onnx_session), so none of theirs can inherit a priority.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aeenc import errors
from services.encoder.loading import LoadOptions, load_model
from services.encoder.model import Model
from services.encoder.priority import CANDIDATE, lower_priority, only_when_idle
from services.encoder.tokenization import Tokenizers
from services.kit.concurrency import observe_failure
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry

E = TypeVar("E", bound=Exception)

FOLDER = "checkpoints"
PATIENCE_S = 3.0  # before the thread with a share of its own begins as well; idle ones take one to two


class Candidates:
    """Loads checkpoints of a store that the registry knows, one at a time."""

    def __init__(self, registry: Registry, store: ArtifactStore, options: LoadOptions) -> None:
        self._registry, self._store, self._options = registry, store, options
        self._tokenizers = Tokenizers()
        self._idle = ThreadPoolExecutor(1, thread_name_prefix="load-idle", initializer=only_when_idle)
        self._low = ThreadPoolExecutor(
            1, thread_name_prefix="load-low", initializer=lower_priority, initargs=(CANDIDATE,)
        )
        self._idle_is_busy = False

    async def load(self, space_id: str, version: str, dim: int | None, *, beside: bool = False) -> Model:
        """The model of a version, loaded `beside` one that serves or before any does.

        Raises NotFound, and what is wrong with its files or values.
        """
        row = await self._registry.checkpoint(version)
        if row is None:
            raise errors.NotFound(f"the registry does not know checkpoint {version}; publish it again")
        return await self.load_known(space_id, version, row.manifest_sha256, dim, beside=beside)

    async def load_known(
        self, space_id: str, version: str, manifest_sha256: str, dim: int | None, *, beside: bool = False
    ) -> Model:
        """As `load`, with the digest that the manifest must have already at hand: needs no registry."""

        def load() -> Model:
            try:
                artifact = self._store.open(FOLDER, version, expected_manifest_sha256=manifest_sha256, verify="full")
                return load_model(artifact, self._options, space_id=space_id, dim=dim, tokenizers=self._tokenizers)
            except errors.AeencError as error:
                raise _bare(error) from None
            except Exception as error:  # noqa: BLE001 -- whatever a bad file makes a library raise is a reason
                reason = f"{type(error).__name__}: {str(error)[:200]}"
                _bare(error)
                raise errors.DataLoss(f"checkpoint {version} cannot be loaded: {reason}") from None
            finally:
                _return_memory()

        return await (self._when_idle(load) if beside else self._soon(load))

    async def release(self, models: list[Model]) -> None:
        """Lets go of models that nobody uses any more; `models` is empty afterwards.

        Not in the thread of low priority: freeing a session holds the interpreter's lock for ten milliseconds, and a
        thread that the kernel takes off the processor meanwhile would keep it much longer.
        """

        def release() -> None:
            models.clear()
            _return_memory()

        await asyncio.to_thread(release)

    def close(self) -> None:
        """Stops the threads after what they do at the moment."""
        self._idle.shutdown(wait=False, cancel_futures=True)
        self._low.shutdown(wait=False, cancel_futures=True)

    async def _when_idle(self, load: Callable[[], Model]) -> Model:
        """In the idle thread; when that one is still at another or gets no turn, soon."""
        if not self._idle_is_busy:
            self._idle_is_busy = True
            quiet = asyncio.get_running_loop().run_in_executor(self._idle, load)
            quiet.add_done_callback(self._idle_again)
            await asyncio.wait([quiet], timeout=PATIENCE_S)
            if quiet.done():
                return quiet.result()
        return await self._soon(load)

    def _idle_again(self, quiet: asyncio.Future[Model]) -> None:
        """Keeps nothing of the result: a model that came too late must not stay in memory."""
        self._idle_is_busy = False
        observe_failure(quiet)

    async def _soon(self, load: Callable[[], Model]) -> Model:
        return await asyncio.get_running_loop().run_in_executor(self._low, load)


def _bare(error: E) -> E:
    """The error without what led to it: the frames of a failed load hold a session, until a collector comes by."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _return_memory() -> None:
    """Gives freed memory back to the system; glibc alone keeps the holes that a load leaves."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
