"""Builds a generation with a premise encoder that a job has trained: the last step of such a job.

The index builds, and has the encoders encode the premises. They load a space as long as a label stands in it: the job's
own label, removed once the generation is built. Nothing that serves changes.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aeenc import errors
from aeenc.index import IndexClient
from aeenc.values import Premise
from services.corpus.generation import open_generation
from services.kit.concurrency import finish
from services.kit.logs import get
from services.store.artifacts import ArtifactStore
from services.store.life_cycles import LIVE
from services.store.registry import Registry
from services.trainer.jobs.job import Job, JobStore
from services.trainer.registry.rollout import await_all
from services.trainer.registry.tandems import Tandem, Tandems

log = get(__name__)

PATIENCE_S = 300.0  # for encoders that are away or load slowly
LABEL = "job-"
_OF_BUILD = re.compile(rf"{LABEL}([0-9a-f]{{16}})-[0-9a-f]{{8}}")


@dataclass(frozen=True)
class _PremisesOf:
    """The premises of a generation, page by page; a build that is resumed begins them again."""

    index: IndexClient
    corpus: str
    generation: str

    def __aiter__(self) -> AsyncIterator[Premise]:
        return aiter(self.index.list_premises(self.corpus, generation=self.generation))


class TandemBuilder:
    """Makes tandems of the checkpoints of jobs in modes SIAMESE and DUAL."""

    def __init__(
        self,
        registry: Registry,
        index: IndexClient,
        tandems: Tandems,
        jobs: JobStore,
        store: ArtifactStore,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._registry, self._index, self._tandems, self._jobs = registry, index, tandems, jobs
        self._store, self._patience_s = store, patience_s

    async def build(self, job: Job, space_id: str, version: str, premise_version: str) -> Tandem:
        """Builds the generation, or continues an earlier attempt. The checkpoints must be registered.

        Raises FailedPrecondition if encoders do not load them, and what the index raises.
        """
        if (known := await self._tandems.get(version)) is not None:
            return known
        await self._registry.checkpoints.set_space(space_id, premise_version)
        name = f"{LABEL}{job.id}-{uuid.uuid4().hex[:8]}"  # of this attempt: one that is overtaken removes its own
        try:  # a label that was asked for may be set even if its answer does not arrive
            label = await self._registry.set_label(space_id, name, version)
            await await_all(self._registry, label, self._patience_s)
            corpus = job.config.corpus
            is_folded = await asyncio.to_thread(_is_folded, self._store, corpus, job.generation)
            generation = await self._index.build(
                corpus,
                _PremisesOf(self._index, corpus, job.generation),
                activate=False,
                request_id=f"tandem {job.id}",
                space_id=space_id,
                fold_similar=is_folded,
                truncate=True,  # as in its first generation, which may have been built so
            )
            if generation.premise_version != premise_version:
                raise errors.FailedPrecondition(
                    f"generation {generation.id} was encoded by {generation.premise_version}, not {premise_version}"
                )
            tandem = Tandem(version, premise_version, space_id, corpus, generation.id)
            await self._tandems.put(tandem)
            log.info("tandem built", job=job.id, version=version, generation=generation.id, space=space_id)
            return tandem
        finally:
            await finish(self._close(space_id, name))

    async def sweep(self) -> None:
        """Removes labels that killed trainers have left, of jobs that have ended or were deleted since."""
        for row in await self._registry.labels(readable=True):
            of_build = _OF_BUILD.fullmatch(row.name)  # else the label is a caller's
            if of_build and await self._jobs.state(of_build[1]) not in LIVE:
                await self._close(row.space_id, row.name)

    async def _close(self, space_id: str, name: str) -> None:
        try:
            await self._registry.delete_label(space_id, name)
        except errors.NotFound:
            pass
        except errors.Unavailable as error:  # a sweep removes it
            log.warning("the label of a job stays", label=name, reason=error.message)


def _is_folded(store: ArtifactStore, corpus: str, generation_id: str) -> bool:
    """Whether a build of a generation's premises is to fold them: where that joins none of them."""
    generation = open_generation(store, corpus, generation_id)
    return generation.is_folded and generation.says_nothing_twice
