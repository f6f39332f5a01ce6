"""What a live run keeps, under its name `run-<id>`: its encoder version loaded, and its generation from deletion.

A label of the registry does the former, a hold of the index the latter. Redis notes which runs hold a generation, so
that a later look of any sampler ends what a dead one has left, and sets what the index was away for.
"""

from __future__ import annotations

import contextlib
import re

from aeenc import errors
from aeenc.index import IndexClient
from aeenc.registry import RegistryClient
from services.kit.logs import get
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run

log = get(__name__)

_LABEL = re.compile("run-([0-9a-f]{16})")  # the label of a run, not one that a person has named so
_PASSING = (errors.Unavailable, errors.Overloaded, errors.DeadlineExceeded)


class RunHolds:
    """Sets and ends the labels of runs, and their holds. Without a registry there are no labels."""

    def __init__(self, store: RunStore, index: IndexClient, registry: RegistryClient | None) -> None:
        self._store, self._index, self._registry = store, index, registry

    async def hold(self, run: Run) -> None:
        """Points the run's label at its version, and holds its generation."""
        await self.hold_generation(run)
        if self._registry is None:
            return
        try:
            await self._registry.set_label(self._name(run.id), run.version)
        except errors.AeencError as error:
            log.warning("run goes on without its label", run=run.id, label=self._name(run.id), reason=error.message)

    async def hold_generation(self, run: Run) -> None:
        """Keeps the run's generation from deletion. To do it again changes nothing."""
        try:
            await self._store.note_hold(run)
            await self._index.hold(run.config.corpus, run.generation, self._name(run.id))
        except errors.AeencError as error:
            log.warning("nothing keeps the run's generation", run=run.id, held=run.generation, reason=error.message)
            if not isinstance(error, _PASSING):  # else a later look tries again
                await self._store.forget_hold(run.id)

    async def drop(self, run_id: str) -> bool:
        """Deletes the run's label and ends its hold. False: one of them stays for now."""
        is_released = await self._release(run_id)
        if self._registry is None:
            return is_released
        try:
            with contextlib.suppress(errors.NotFound):
                await self._registry.delete_label(self._name(run_id))
        except errors.AeencError as error:
            log.warning("the label of an ended run stays", run=run_id, label=self._name(run_id), reason=error.message)
            return False
        return is_released

    async def _release(self, run_id: str) -> bool:
        try:
            if (held := (await self._store.holds()).get(run_id)) is not None:
                with contextlib.suppress(errors.NotFound):
                    await self._index.release(*held, self._name(run_id))
                await self._store.forget_hold(run_id)
        except errors.AeencError as error:
            log.warning("the hold of an ended run stays", run=run_id, reason=error.message)
            return False
        return True

    async def held(self) -> list[str]:
        """The runs that have a label or a hold; of labels none while the registry is away."""
        held = set(await self._store.holds())
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
        await self._index.channel.close()
        if self._registry is not None:
            await self._registry.channel.close()

    @staticmethod
    def _name(run_id: str) -> str:
        return f"run-{run_id}"
