"""Candidates on their way to serving: looked up, fetched, hashed, loaded and checked in one thread of low priority.

The thread's low priority is the kernel's: while callers are served, it gets what they leave. Sessions own no threads
(see onnx_session), so none of theirs can inherit it.
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
from services.encoder.priority import CANDIDATE, lower_priority
from services.kit.artifacts import ArtifactStore
from services.kit.registry import Registry

T = TypeVar("T")

FOLDER = "checkpoints"


class Candidates:
    """Loads checkpoints of a store that the registry knows, one at a time."""

    def __init__(self, registry: Registry, store: ArtifactStore, options: LoadOptions) -> None:
        self._registry, self._store, self._options = registry, store, options
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="load", initializer=lower_priority, initargs=(CANDIDATE,)
        )

    async def load(self, space_id: str, version: str, dim: int | None) -> Model:
        """The model of a version. Raises NotFound, and what is wrong with its files or values."""
        row = await self._registry.checkpoint(version)
        if row is None:
            raise errors.NotFound(f"the registry does not know checkpoint {version}; publish it again")
        return await self.load_known(space_id, version, row.manifest_sha256, dim)

    async def load_known(self, space_id: str, version: str, manifest_sha256: str, dim: int | None) -> Model:
        """As `load`, with the digest that the manifest must have already at hand: needs no registry."""

        def load() -> Model:
            try:
                artifact = self._store.open(FOLDER, version, expected_manifest_sha256=manifest_sha256, verify="full")
                return load_model(artifact, self._options, space_id=space_id, dim=dim)
            except errors.AeencError:
                raise
            except Exception as error:  # noqa: BLE001 -- whatever a bad file makes a library raise is a reason
                raise errors.DataLoss(
                    f"checkpoint {version} cannot be loaded: {type(error).__name__}: {str(error)[:200]}"
                ) from None
            finally:
                _return_memory()

        return await self._run(load)

    async def release(self, models: list[Model]) -> None:
        """Lets go of models that nobody uses any more; `models` is empty afterwards."""

        def release() -> None:
            models.clear()
            _return_memory()

        await self._run(release)

    def close(self) -> None:
        """Stops the thread after what it does at the moment."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _return_memory() -> None:
    """Gives freed memory back to the system; glibc alone keeps the holes that a load leaves."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
