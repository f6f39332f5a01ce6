"""What a live run keeps, under its name `run-<id>`: its encoder version loaded, and its generation from deletion.

A label of the registry does the former, a hold of the index the latter (`corpus.holds`). A run may follow its own label
to a newer version: what is not judged yet is retrieved by the version that the label names now.

    label moves ─▶ follow: run-<id> holds the new version ─▶ the run's current version ─▶ open tasks are withdrawn
                                                                                             │
    the worker retrieves their nodes again, and every later node, by the current version ◀───┘

A live run does so by itself; any other one when somebody asks for it. The generation never changes.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from aeenc import errors
from aeenc.registry import RegistryClient
from services.corpus.holds import GenerationHolds
from services.kit.concurrency import every
from services.kit.logs import get
from services.sampler.execution.retrieval import Retrieval
from services.sampler.oracles.gateway import Gateway
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run

log = get(__name__)

FOLLOW_S = 5.0  # between two looks at the label of a live run


class RunHolds:
    """Sets and ends the labels of runs, and their holds, and moves runs to newer versions.

    Without a registry there are no labels. Raises the classes of `aeenc.errors`.
    """

    def __init__(
        self, generations: GenerationHolds, registry: RegistryClient | None, store: RunStore, retrieval: Retrieval
    ) -> None:
        self._generations, self._registry = generations, registry
        self._store, self._retrieval = store, retrieval

    async def hold(self, run: Run) -> None:
        """Points the run's label at its version, and holds its generation."""
        await self.hold_generation(run)
        try:
            if self._registry is not None:
                await self._registry.set_label(self._generations.name(run.id), run.version)
        except errors.AeencError as error:
            log.warning("run goes on without its label", run=run.id, reason=error.message)

    async def hold_generation(self, run: Run) -> None:
        """Keeps the run's generation from deletion. To do it again changes nothing."""
        await self._generations.hold(run.id, run.config.corpus, run.generation)

    async def drop(self, run_id: str) -> bool:
        """Deletes the run's label and ends its hold. False: one of them stays for now."""
        is_released = await self._generations.release(run_id)
        try:
            with contextlib.suppress(errors.NotFound):
                if self._registry is not None:
                    await self._registry.delete_label(self._generations.name(run_id))
        except errors.AeencError as error:
            log.warning("the label of an ended run stays", run=run_id, reason=error.message)
            return False
        return is_released

    async def held(self) -> list[str]:
        """The runs that have a label or a hold; of labels none while the registry is away."""
        held = set(await self._generations.held())
        try:
            labels = [label.name async for label in self._registry.list_labels()] if self._registry else []
            held.update(name.removeprefix("run-") for name in labels)
        except errors.AeencError as error:
            log.warning("labels of ended runs stay for now", reason=error.message)
        return sorted(held)

    async def follow(self, run_id: str, *, dry_run: bool = False) -> Run:
        """The run, with the version that its label names now as the current one.

        Raises FailedPrecondition for a run that has ended (RUN_ENDED) or names a version itself (VERSION_FIXED), and
        what Retrieve raises, such as for a label that names no version in the space of the run's generation.
        """
        run = await self._store.get(run_id)
        if run.ended:
            message = f"run {run_id} has ended ({run.state}); there is nothing left to retrieve for"
            raise errors.FailedPrecondition(message, reason="RUN_ENDED")
        if run.config.model and run.config.model.version:
            message = f"run {run_id} names version {run.config.model.version}; start runs with a label to follow it"
            raise errors.FailedPrecondition(message, reason="VERSION_FIXED")
        version, _ = await self._retrieval.resolve(run.config, run.config.corpus, run.generation)
        newer = replace(run, current_version=version)
        if version != run.version and not dry_run:
            await self.hold(newer)
            if await self._store.follow(run_id, version):
                log.info("run follows its label", run=run_id, version=version, before=run.version)
            else:  # it has ended meanwhile
                await self.drop(run_id)
        return newer

    async def keep_up(self, run_id: str, oracle: Gateway) -> None:
        """Follows the label of a live run until it is cancelled."""

        async def step() -> None:
            await oracle.send_back(await self.follow(run_id))

        await every(FOLLOW_S, step, f"run {run_id} stays with its version for now")

    async def close(self) -> None:
        """Closes the connections."""
        await self._generations.close()
        if self._registry is not None:
            await self._registry.channel.close()
