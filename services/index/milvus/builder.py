"""Builds a generation into Milvus.

    premises ──► Folding ──► BatchEncoder ──► files ──► upsert ──► seal (index, load) ──► check ──► commit ──► activate
                                 (as building/builder.py)             (writer.py)

Until all premises are encoded, a build is one into files, and can be continued as such. The files stay, as an artifact
like any generation: the trainer reads them. Nothing of a build can be seen before its record is committed. A build that
fails or is cancelled leaves nothing in Milvus; the sweeper removes what a killed process leaves (catalogue.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aeenc import errors
from aeenc.transport.channel import Channel
from services.corpus.arrays import map_array
from services.corpus.generation import VECTORS, PremiseRecord
from services.index.building.builder import BuildFlow
from services.index.building.finished import FinishedBuild
from services.index.building.journal import remove_journal
from services.index.building.pipeline import Base, BuildPipeline
from services.index.building.vectors import finish_in_thread
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.ledger.records import Records
from services.index.milvus.link import MilvusLink
from services.index.milvus.writer import Loading, MilvusBuildOptions, loading
from services.index.values import BuildOptions, BuildProgress, BuildSpec
from services.kit import logs
from services.kit.concurrency import finish
from services.kit.limits import Limits
from services.store.artifacts import Artifact, ArtifactStore

log = logs.get(__name__)
PAGE = 1000  # premises of a base generation per read


class MilvusBuilder(BuildFlow[MilvusCatalogue]):
    """Builds generations into Milvus."""

    def __init__(
        self,
        store: ArtifactStore,
        link: MilvusLink,
        records: Records,
        catalogue: MilvusCatalogue,
        encoders: Channel,
        limits: Limits,
        options: BuildOptions,
        milvus: MilvusBuildOptions,
    ) -> None:
        super().__init__(store, catalogue, encoders, limits, options, "float32")
        self._link, self._records, self._milvus = link, records, milvus

    async def _built_before(self, spec: BuildSpec) -> tuple[FinishedBuild, BuildProgress] | None:
        built = await self._link.read(self._records.finished, spec.corpus, spec.request_id)
        if built is None:
            return None
        try:
            artifact = await self._catalogue.verify(spec.corpus, built.generation)
        except errors.NotFound:
            return None
        except errors.DataLoss as error:
            log.warning("a finished build is damaged; building it again", corpus=spec.corpus, reason=error.message)
            return None
        await finish_in_thread(remove_journal, self._store, spec.corpus, spec.request_id)
        count = int(artifact.meta["premises"])
        return built, BuildProgress(count, count, "DURABLE", count, artifact, built.activated)

    async def _note_activated(self, spec: BuildSpec) -> None:
        await self._link.write(self._records.mark_activated, spec.corpus, spec.request_id)

    async def _base(self, spec: BuildSpec) -> Base | None:
        if not spec.base_generation:
            return None
        base = await self._catalogue.resolve(spec.corpus, spec.base_generation)
        served = base.generation
        return Base(await self._all_of(base), base.collection, served.space_id, served.premise_version)

    async def _all_of(self, base: MilvusGeneration) -> list[PremiseRecord]:
        records: list[PremiseRecord] = []
        while len(records) < base.rows:
            page = await base.page(len(records), PAGE, self._limits.message_bytes)
            if not page:
                raise errors.DataLoss(f"generation {base.id} lacks premises in Milvus; build the whole corpus again")
            records += page
        return records

    async def _commit(self, spec: BuildSpec, pipeline: BuildPipeline) -> Artifact:
        premises = [draft.record() for draft in pipeline.folding.drafts]
        vectors = await asyncio.to_thread(map_array, pipeline.writer.path / VECTORS)
        async with loading(self._link, self._records, spec.corpus, self._milvus, self._options.lexical) as under_way:
            engine = await under_way.send(premises, vectors)
            publishing = asyncio.create_task(self._publish(spec, pipeline, under_way, engine))
            await finish(publishing)  # a cancelled call publishes in both places or in none
        return publishing.result()

    async def _publish(
        self, spec: BuildSpec, pipeline: BuildPipeline, under_way: Loading, engine: Mapping[str, Any]
    ) -> Artifact:
        artifact = await asyncio.to_thread(self._keep_files, spec, pipeline, engine)
        stored = await under_way.commit(artifact)
        built = FinishedBuild(artifact.id, activated=False, asked={**spec.fingerprint(), **pipeline.streamed})
        await self._link.write(self._records.put_finished, spec.corpus, spec.request_id, built)
        pipeline.keep = False
        await self._catalogue.refresh()
        log.info("built", corpus=spec.corpus, generation=artifact.id, premises=artifact.meta["premises"])
        return stored.artifact

    def _keep_files(self, spec: BuildSpec, pipeline: BuildPipeline, engine: Mapping[str, Any]) -> Artifact:
        pipeline.keep_vectors()  # Milvus may yet refuse
        artifact = pipeline.writer.commit(self._meta(spec, pipeline, engine), id_prefix="g")
        return self._push(spec, pipeline, artifact)
