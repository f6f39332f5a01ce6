"""What a live run keeps, under its name `run-<id>`: its encoder version loaded, and its generation from deletion.

A label of the registry does the former, a hold of the index the latter (`corpus.holds`).
"""

from __future__ import annotations

import contextlib
import re

from aeenc import errors
from aeenc.registry import RegistryClient
from services.corpus.holds import GenerationHolds
from services.kit.logs import get
from services.sampler.records.runs import Run

log = get(__name__)

_LABEL = re.compile("run-([0-9a-f]{16})")  # the label of a run, not one that a person has named so


class RunHolds:
    """Sets and ends the labels of runs, and their holds. Without a registry there are no labels."""

    def __init__(self, generations: GenerationHolds, registry: RegistryClient | None) -> None:
        self._generations, self._registry = generations, registry

    async def hold(self, run: Run) -> None:
        """Points the run's label at its version, and holds its generation."""
        await self.hold_generation(run)
        if self._registry is None:
            return
        try:
            await self._registry.set_label(self._generations.name(run.id), run.version)
        except errors.AeencError as error:
            log.warning("run goes on without its label", run=run.id, reason=error.message)

    async def hold_generation(self, run: Run) -> None:
        """Keeps the run's generation from deletion. To do it again changes nothing."""
        await self._generations.hold(run.id, run.config.corpus, run.generation)

    async def drop(self, run_id: str) -> bool:
        """Deletes the run's label and ends its hold. False: one of them stays for now."""
        is_released = await self._generations.release(run_id)
        if self._registry is None:
            return is_released
        try:
            with contextlib.suppress(errors.NotFound):
                await self._registry.delete_label(self._generations.name(run_id))
        except errors.AeencError as error:
            log.warning("the label of an ended run stays", run=run_id, reason=error.message)
            return False
        return is_released

    async def held(self) -> list[str]:
        """The runs that have a label or a hold; of labels none while the registry is away."""
        held = set(await self._generations.held())
        if self._registry is None:
            return sorted(held)
        try:
            async for label in self._registry.list_labels():
                if (match := _LABEL.fullmatch(label.name)) is not None:
                    held.add(match[1])
        except errors.AeencError as error:
            log.warning("labels of ended runs stay for now", reason=error.message)
        return sorted(held)

    async def close(self) -> None:
        """Closes the connections."""
        await self._generations.close()
        if self._registry is not None:
            await self._registry.channel.close()
