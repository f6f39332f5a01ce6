"""The label `run-<id>`: keeps the encoder version of a live run loaded while `stable` moves on.

A help, not a condition: without a trainer the run works for as long as some label names its version.
"""

from __future__ import annotations

import contextlib

from aeenc import errors
from aeenc.registry import RegistryClient
from services.kit.logs import get
from services.sampler.runs import Run

log = get(__name__)


class RunLabels:
    """Sets and deletes the labels of runs; without a registry it does nothing."""

    def __init__(self, registry: RegistryClient | None) -> None:
        self._registry = registry

    async def hold(self, run: Run) -> None:
        """Points the run's label at its version."""
        if self._registry is None:
            return
        try:
            await self._registry.set_label(_label(run), run.model_version)
        except errors.AeencError as error:
            log.warning("run goes on without its label", run=run.id, label=_label(run), reason=error.message)

    async def drop(self, run: Run) -> None:
        """Deletes the run's label."""
        if self._registry is None:
            return
        try:
            with contextlib.suppress(errors.NotFound):
                await self._registry.delete_label(_label(run))
        except errors.AeencError as error:
            log.warning("the label of an ended run stays", run=run.id, label=_label(run), reason=error.message)

    async def close(self) -> None:
        """Closes the connection."""
        if self._registry is not None:
            await self._registry.channel.close()


def _label(run: Run) -> str:
    return f"run-{run.id}"
