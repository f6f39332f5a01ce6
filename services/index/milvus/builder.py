"""Builds a generation into Milvus.

    premises ──► Folding ──► BatchEncoder ──► upsert ──► seal (index, load) ──► check ──► commit a row ──► move alias

Folding, encoding and the course of a build are those of files (building/builder.py). Nothing of a build can be seen
before its record is committed. A build that fails or is cancelled is removed; the sweeper removes what a killed process
leaves (catalogue.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from aeenc import errors
from aeenc.transport.channel import Channel
from services.corpus.generation import PremiseRecord
from services.index.building.builder import BuildFlow, check_base, while_indexing
from services.index.building.folding import Draft, Folding
from services.index.building.journal import FinishedBuild, StreamedPremises
from services.index.building.vectors import BatchEncoder
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.ledger.records import Records
from services.index.milvus.link import MilvusLink
from services.index.milvus.writer import GenerationWriter
from services.index.values import BuildOptions, BuildProgress, BuildSpec
from services.kit import logs
from services.kit.concurrency import cancel_all, finish
from services.kit.limits import Limits
from services.store.artifacts import Artifact

log = logs.get(__name__)
PAGE = 1000  # premises of a base generation per read
BEATS = 4  # within the time after which a silent build is swept


@dataclass(frozen=True)
class MilvusBuildOptions:
    """How builds use Milvus: the engine, its time to index and load, and the silence after which a build is dead."""

    engine: str = "auto"
    patience_s: float = 3600.0
    lease_s: float = 60.0


class MilvusBuilder(BuildFlow[MilvusCatalogue]):
    """Builds generations into Milvus. It keeps nothing of unfinished builds, so `resume_from` is refused."""

    def __init__(
        self,
        link: MilvusLink,
        records: Records,
        catalogue: MilvusCatalogue,
        encoders: Channel,
        limits: Limits,
        options: BuildOptions,
        milvus: MilvusBuildOptions,
    ) -> None:
        super().__init__(catalogue, encoders, limits, options)
        self._link, self._records, self._milvus = link, records, milvus

    async def _built_before(self, spec: BuildSpec) -> tuple[FinishedBuild, BuildProgress] | None:
        built = await self._link.read(self._records.finished, spec.corpus, spec.request_id)
        if built is None:
            return None
        try:
            served = await self._catalogue.resolve(spec.corpus, built.generation)
        except errors.NotFound:
            return None
        return built, BuildProgress(
            served.rows, served.rows, "DURABLE", served.rows, served.generation.artifact, built.activated
        )

    async def _build_anew(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[BuildProgress, None]:
        if spec.resume_from:
            raise errors.FailedPrecondition(
                f"header.resume_from is {spec.resume_from:,}, but the back end milvus keeps nothing of "
                "unfinished builds; stream the premises from the first"
            )
        folding, base = Folding(self._limits, spec.sameness), await self._base(spec)
        if base is not None:
            records = await self._all_of(base)
            await asyncio.to_thread(folding.start_from, records, spec.delete_ids)
        writer = GenerationWriter(self._link, self._records, spec.corpus, self._milvus.engine, self._options.lexical)
        facts = base.generation if base else None
        space_id, version = (facts.space_id, facts.premise_version) if facts else (spec.space_id, "")
        batches = self._batches(spec, space_id, version)
        pipeline = _MilvusPipeline(self._link, writer, batches, base, self._options.batch)
        streamed = StreamedPremises()
        beating = asyncio.ensure_future(self._beat(writer))
        try:
            async for chunk in chunks:
                await asyncio.to_thread(folding.add, chunk)
                await asyncio.to_thread(streamed.add, chunk)
                async for _ in pipeline.advance(folding.drafts):
                    yield BuildProgress(folding.received, writer.rows)
                yield BuildProgress(folding.received, writer.rows)
            # A vanished caller looks like a finished stream. Send progress: the send fails if they are gone.
            yield BuildProgress(folding.received, writer.rows)
            async for _ in pipeline.drain(folding.drafts):
                yield BuildProgress(folding.received, writer.rows)
            committing = asyncio.create_task(self._commit(spec, pipeline, folding, streamed))
            async with aclosing(while_indexing(committing, BuildProgress(folding.received, writer.rows))) as reports:
                async for progress in reports:
                    yield progress
            artifact = committing.result()
        finally:
            await cancel_all([beating])
            await pipeline.close()
            if not writer.is_committed:
                with suppress(errors.Unavailable, errors.Overloaded):  # then the sweeper removes it
                    await self._link.write(writer.abandon)
        yield BuildProgress(folding.received, len(folding.drafts), "DURABLE", folding.received, artifact)

    async def _base(self, spec: BuildSpec) -> MilvusGeneration | None:
        if not spec.base_generation:
            return None
        base = await self._catalogue.resolve(spec.corpus, spec.base_generation)
        check_base(spec.base_generation, base.generation.space_id, spec.space_id)
        return base

    async def _all_of(self, base: MilvusGeneration) -> list[PremiseRecord]:
        records: list[PremiseRecord] = []
        while len(records) < base.rows:
            page = await base.page(len(records), PAGE)
            if not page:
                raise errors.DataLoss(f"generation {base.id} lacks premises in Milvus; build the whole corpus again")
            records += page
        return records

    async def _beat(self, writer: GenerationWriter) -> None:
        while True:
            await asyncio.sleep(self._milvus.lease_s / BEATS)
            if writer.rows:
                with suppress(errors.Unavailable, errors.Overloaded):
                    await self._link.write(writer.beat)

    async def _commit(
        self, spec: BuildSpec, pipeline: _MilvusPipeline, folding: Folding, streamed: StreamedPremises
    ) -> Artifact:
        if pipeline.writer.rows == 0:
            raise errors.InvalidArgument.field("premises", "are missing; stream at least one premise")
        batches = pipeline.batches
        stored = await self._link.write(
            pipeline.writer.commit, folding.drafts, batches.space_id, batches.version, self._milvus.patience_s
        )
        await finish(asyncio.create_task(self._publish(spec, stored.artifact, streamed)))
        return stored.artifact

    async def _publish(self, spec: BuildSpec, artifact: Artifact, streamed: StreamedPremises) -> None:
        asked = {**spec.fingerprint(), **streamed.to_record()}
        built = FinishedBuild(artifact.id, activated=False, asked=asked)
        await self._link.write(self._records.put_finished, spec.corpus, spec.request_id, built)
        await self._catalogue.refresh()
        log.info("built", corpus=spec.corpus, generation=artifact.id, premises=artifact.meta["premises"])

    async def _note_activated(self, spec: BuildSpec) -> None:
        await self._link.write(self._records.mark_activated, spec.corpus, spec.request_id)


class _MilvusPipeline:
    """The batches of one build on their way from the encoders to Milvus, in order."""

    def __init__(
        self,
        link: MilvusLink,
        writer: GenerationWriter,
        batches: BatchEncoder,
        base: MilvusGeneration | None,
        batch: int,
    ) -> None:
        self.writer = writer
        self.batches = batches
        self._link, self._batch = link, batch
        self._base = None if base is None else base.collection
        self._sent = 0
        self._under_way: deque[Sequence[Draft]] = deque()

    async def advance(self, drafts: Sequence[Draft], least: int = 0) -> AsyncIterator[None]:
        """Sends batches of at least `least` drafts (0: full ones) and takes finished ones; yields after each write."""
        while len(drafts) - self._sent >= (least or self._batch):
            while self.batches.is_full or self.batches.is_ready:
                await self._take()
                yield
            part = drafts[self._sent : self._sent + self._batch]
            self.batches.put(part)
            self._under_way.append(part)
            self._sent += len(part)

    async def drain(self, drafts: Sequence[Draft]) -> AsyncIterator[None]:
        """Sends the rest and waits for all batches."""
        async for _ in self.advance(drafts, least=1):
            yield
        while self._under_way:
            await self._take()
            yield

    async def close(self) -> None:
        """Cancels the batches still at the encoders."""
        await self.batches.close()

    async def _take(self) -> None:
        vectors = await self.batches.take(self._base)
        await self._link.write(self.writer.append, self._under_way.popleft(), vectors)
