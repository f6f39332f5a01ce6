"""Builds a generation into Milvus: check and fold, encode, upsert, seal, commit, activate.

Folding and encoding are those of the files' builder. Nothing of a build is seen before its record is committed; what
fails or is cancelled before is removed, and what a killed process leaves the sweeper removes (sweeping.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from aeenc import errors
from aeenc.transport.channel import Channel
from services.corpus.generation import PremiseRecord, check_corpus_name
from services.index.building import BuildOptions, BuildSpec, Progress
from services.index.checks import check_base
from services.index.finished import FinishedBuild
from services.index.folding import Draft, Folding
from services.index.milvus.catalogue import MilvusCatalogue
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.link import MilvusLink
from services.index.milvus.records import Records
from services.index.milvus.writing import GenerationWriter
from services.index.vectors import BatchEncoder
from services.kit import logs
from services.kit.concurrency import cancel_all
from services.kit.limits import Limits
from services.store.artifacts import Artifact

log = logs.get(__name__)

PAGE = 1000  # premises of a base generation read at once
BEATS = 4  # in the time after which a silent build is swept


@dataclass(frozen=True)
class MilvusBuildOptions:
    """How builds use Milvus: the engine, the time it may take to index and load, and when a silent build is dead."""

    engine: str = "auto"
    patience_s: float = 3600.0
    lease_s: float = 60.0


class MilvusBuilder:
    """Builds generations, several at a time where callers ask for it; two calls with one request id take turns."""

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
        self._link, self._records, self._catalogue = link, records, catalogue
        self._encoders, self._limits = encoders, limits
        self._options, self._milvus = options, milvus
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def build(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]:
        """Builds, reporting progress; the last one names the generation.

        Raises InvalidArgument for a bad premise or none, NotFound for an unknown base, SpaceMismatch when the encoder
        has another space than the base, Unavailable when it or Milvus does not answer, FailedPrecondition for premises
        left out by `resume_from`: unfinished builds are not kept.
        """
        check_corpus_name(spec.corpus, "header.corpus")
        if spec.resume_from and not spec.request_id:
            raise errors.InvalidArgument.field("header.resume_from", "needs the request_id of the build to go on with")
        if spec.delete_ids and not spec.base_generation:
            raise errors.InvalidArgument.field(
                "header.delete_ids", "needs base_generation; name the generation to change"
            )
        own = asyncio.Lock()
        turn = self._turns.setdefault((spec.corpus, spec.request_id), own) if spec.request_id else own
        async with turn:
            last = await self._built_before(spec)
            if last is None:
                async with aclosing(self._build_anew(spec, chunks)) as steps:
                    async for last in steps:
                        yield last
            assert last is not None
            yield await self._activated(spec, last)

    async def _built_before(self, spec: BuildSpec) -> Progress | None:
        """What the request built before; None when nothing, or when that generation has been deleted since."""
        if not spec.request_id:
            return None
        built = await self._link.read(self._records.finished, spec.corpus, spec.request_id)
        if built is None:
            return None
        try:
            served = await self._catalogue.resolve(spec.corpus, built.generation)
        except errors.NotFound:
            return None
        return Progress(served.rows, served.rows, "DURABLE", served.rows, served.generation.artifact, built.activated)

    async def _build_anew(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]:
        if spec.resume_from:
            raise errors.FailedPrecondition(
                f"header.resume_from is {spec.resume_from:,}, but the back end milvus keeps no premises of unfinished "
                "builds; stream them from the first"
            )
        folding, base = Folding(self._limits, spec.sameness), await self._base(spec)
        if base is not None:
            records = await self._all_of(base)
            await asyncio.to_thread(folding.start_from, records, spec.delete_ids)
        writer = GenerationWriter(self._link, self._records, spec.corpus, self._milvus.engine)
        work = _Work(self._link, writer, self._batches(base, spec.space_id), base, self._options.batch)
        beating = asyncio.ensure_future(self._beat(writer))
        is_kept = False
        try:
            async for chunk in chunks:
                await asyncio.to_thread(folding.add, chunk)
                async for _ in work.advance(folding.drafts):
                    yield Progress(folding.received, writer.rows)
                yield Progress(folding.received, writer.rows)
            # What a caller who has gone had sent looks like all of it: only telling him something shows that he has.
            yield Progress(folding.received, writer.rows)
            async for _ in work.drain(folding.drafts):
                yield Progress(folding.received, writer.rows)
            artifact, is_kept = await self._commit(spec, work, folding)
        finally:
            await cancel_all([beating])
            await work.close()
            if not is_kept:
                with suppress(errors.Unavailable, errors.Overloaded):  # the sweeper will
                    await self._link.write(writer.abandon)
        yield Progress(folding.received, len(folding.drafts), "DURABLE", folding.received, artifact)

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

    def _batches(self, base: MilvusGeneration | None, space_id: str) -> BatchEncoder:
        batches = BatchEncoder(
            self._encoders,
            space_id=base.generation.space_id if base else space_id,
            window=self._options.window,
            patience_s=self._options.patience_s,
        )
        batches.version = base.generation.premise_version if base else ""
        return batches

    async def _beat(self, writer: GenerationWriter) -> None:
        while True:
            await asyncio.sleep(self._milvus.lease_s / BEATS)
            if writer.rows:
                with suppress(errors.Unavailable, errors.Overloaded):
                    await self._link.write(writer.beat)

    async def _commit(self, spec: BuildSpec, work: _Work, folding: Folding) -> tuple[Artifact, bool]:
        if work.writer.rows == 0:
            raise errors.InvalidArgument.field("premises", "there are none; a corpus has at least one premise")
        batches = work.batches
        stored, is_new = await self._link.write(
            work.writer.commit, folding.drafts, batches.space_id, batches.version, self._milvus.patience_s
        )
        built = FinishedBuild(stored.artifact.id, activated=False)
        await self._link.write(self._records.put_finished, spec.corpus, spec.request_id, built)
        await self._catalogue.refresh()
        log.info("built", corpus=spec.corpus, generation=stored.artifact.id, premises=work.writer.rows)
        return stored.artifact, is_new

    async def _activated(self, spec: BuildSpec, last: Progress) -> Progress:
        """The last answer of a build. A retry of a build that was activated once does not move the alias again."""
        generation = last.generation
        assert generation is not None
        if spec.activate and not last.activated:
            await self._catalogue.activate(spec.corpus, generation.id)
            built = FinishedBuild(generation.id, activated=True)
            await self._link.write(self._records.put_finished, spec.corpus, spec.request_id, built)
            last = replace(last, activated=True)
        is_active = self._catalogue.active_id(spec.corpus) == generation.id
        return replace(last, ack_level="SEARCHABLE" if is_active else "DURABLE", is_last=True)


class _Work:
    """The batches of one build between the encoders and Milvus, in order."""

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
        """Sends batches of at least `least` drafts (0: full ones), taking what is ready; yields after each write."""
        while len(drafts) - self._sent >= (least or self._batch):
            while self.batches.is_full or self.batches.is_ready:
                await self._take()
                yield
            part = drafts[self._sent : self._sent + self._batch]
            self.batches.put(part)
            self._under_way.append(part)
            self._sent += len(part)

    async def drain(self, drafts: Sequence[Draft]) -> AsyncIterator[None]:
        """Sends what is left and waits for all."""
        async for _ in self.advance(drafts, least=1):
            yield
        while self._under_way:
            await self._take()
            yield

    async def close(self) -> None:
        """Gives up what is still at the encoders."""
        await self.batches.close()

    async def _take(self) -> None:
        vectors = await self.batches.take(self._base)
        await self._link.write(self.writer.append, self._under_way.popleft(), vectors)
