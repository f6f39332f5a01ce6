"""The label `run-<id>` of each live run, which keeps the encoder version that it retrieves with loaded."""

from __future__ import annotations

import contextlib
import re

from aeenc import errors
from aeenc.registry import RegistryClient
from services.kit.logs import get
from services.sampler.records.runs import Run

log = get(__name__)

_LABEL = re.compile("run-([0-9a-f]{16})")  # the label of a run, not one that a person has named so


class RunLabels:
    """Sets and deletes the labels of runs. Does nothing without a registry."""

    def __init__(self, registry: RegistryClient | None) -> None:
        self._registry = registry

    async def hold(self, run: Run) -> None:
        """Points the run's label at its version."""
        if self._registry is None:
            return
        try:
            await self._registry.set_label(self._label(run.id), run.version)
        except errors.AeencError as error:
            log.warning("run goes on without its label", run=run.id, label=self._label(run.id), reason=error.message)

    async def drop(self, run_id: str) -> bool:
        """Deletes the run's label. False: it stays for now."""
        if self._registry is None:
            return True
        try:
            with contextlib.suppress(errors.NotFound):
                await self._registry.delete_label(self._label(run_id))
        except errors.AeencError as error:
            log.warning("the label of an ended run stays", run=run_id, label=self._label(run_id), reason=error.message)
            return False
        return True

    async def held(self) -> list[str]:
        """The runs that have a label; none while the registry is away."""
        if self._registry is None:
            return []
        try:
            return [match[1] async for label in self._registry.list_labels() if (match := _LABEL.fullmatch(label.name))]
        except errors.AeencError as error:
            log.warning("labels of ended runs stay for now", reason=error.message)
            return []

    async def close(self) -> None:
        """Closes the connection."""
        if self._registry is not None:
            await self._registry.channel.close()

    @staticmethod
    def _label(run_id: str) -> str:
        return f"run-{run_id}"
