"""Builds a generation from streamed premises, into files.

    premises ──► Folding ──► BatchEncoder ──► VectorFile ──► index process ──► commit ──► activate
                    │            (encoders)        │          (FAISS, BM25)   (rename)   (catalogue)
                    └──────────► Journal ◄─────────┘  with a request id: what a retry need not send again

A build works in a hidden directory; nothing of it can be seen before its commit. A build that fails or is cancelled is
removed, unless it has a request id: then a call with the same id continues it, also behind a premise that was refused
and has been corrected. One that a Milvus searches is built like any other; its vectors are sent behind the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aeenc import errors
from aeenc.transport.channel import Channel
from services.corpus.generation import (
    Generation,
    PremiseRecord,
    check_corpus_name,
    corpora_of,
    folder_of,
    open_generation,
    write_premises,
)
from services.index.building.folding import Folding
from services.index.building.index_process import index_generation
from services.index.building.journal import (
    FinishedBuild,
    Journal,
    StreamedPremises,
    finished_build,
    sweep_journals,
    tidy_journal,
)
from services.index.building.pipeline import BuildPipeline
from services.index.building.vectors import BatchEncoder
from services.index.catalogue.catalogue import Catalogue
from services.index.values import REMOTE_ENGINES, BuildOptions, BuildProgress, BuildSpec
from services.kit import logs
from services.kit.concurrency import Turns, cancel_all, finish, run_in_thread, with_pauses
from services.kit.limits import Limits
from services.store.artifacts import Artifact, ArtifactStore, remove_directory
from services.store.files import full_disk_is_unavailable
from services.store.formats import check_same

log = logs.get(__name__)
REPORT_S = 2.0
FULL_DISK_REMEDY = (
    "free space and build again: with the same request_id it continues behind what was durable, "
    "without one it starts over"
)
PATIENCE_SHARE = 0.5  # of its caller's time, that a build waits at most for an encoder


class Builder:
    """Builds generations. Several builds may run at once; two calls with one request id take turns."""

    def __init__(
        self, store: ArtifactStore, catalogue: Catalogue, encoders: Channel, limits: Limits, options: BuildOptions
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._encoders = encoders
        self._limits = limits
        self._options = options
        self._turns = Turns()

    async def sweep(self, *corpora: str) -> None:
        """Removes builds that nobody has continued for long, and records of old ones, of these corpora or of all."""
        ages = self._options.keep_s, self._options.request_keep_s
        await asyncio.to_thread(lambda: sweep_journals(self._store, corpora or corpora_of(self._store), *ages))

    async def build(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[BuildProgress, None]:
        """Builds and reports progress; the last report names the generation.

        Raises InvalidArgument for a bad premise or none, NotFound for an unknown base, SpaceMismatch when the encoder
        has another space than the base, Unavailable when the encoder or the storage does not answer or is full,
        AlreadyExists when the request id stands for other premises, FailedPrecondition when `resume_from` skips
        premises that are not kept.
        """
        check_spec(spec)
        async with self._turns.of((spec.corpus, spec.request_id) if spec.request_id else object()):
            with full_disk_is_unavailable("the disk", FULL_DISK_REMEDY):
                found = await self._built_before(spec) if spec.request_id else None
                last = None
                if found is not None:
                    built, last = found
                    await check_asked_again(spec, built, chunks)
                else:
                    async with aclosing(self._build_anew(spec, chunks)) as steps:
                        async for last in steps:
                            yield last
                assert last is not None
                yield await self._activated(spec, last)

    async def _built_before(self, spec: BuildSpec) -> tuple[FinishedBuild, BuildProgress] | None:
        finished = await asyncio.to_thread(finished_build, self._store, spec.corpus, spec.request_id)
        if finished is None:
            return None
        try:
            artifact = await run_in_thread(self._complete, spec, finished.generation)
        except errors.DataLoss as error:
            log.warning("a finished build is damaged; building it again", corpus=spec.corpus, reason=error.message)
            return None
        count = int(artifact.meta["premises"])
        return finished, BuildProgress(count, count, "DURABLE", count, artifact)

    def _complete(self, spec: BuildSpec, generation_id: str) -> Artifact:
        """Opens what the request built, and does what the first call may not have come to: the upload, tidying up."""
        self._store.open(folder_of(spec.corpus), generation_id)
        artifact = self._store.push(folder_of(spec.corpus), generation_id)
        tidy_journal(self._store, spec.corpus, spec.request_id)
        return artifact

    async def _base(self, spec: BuildSpec) -> Generation | None:
        """Opens the generation to change. Raises SpaceMismatch for a build in another space than its own."""
        if not spec.base_generation:
            return None
        await self._catalogue.check_known(spec.corpus)
        # by hash: a new generation must not copy a damaged vector
        base = await asyncio.to_thread(open_generation, self._store, spec.corpus, spec.base_generation, verify="full")
        if spec.space_id not in {"", base.space_id}:
            raise errors.SpaceMismatch(
                f"base generation {base.id} is of space {base.space_id}, the build of space {spec.space_id}; stream "
                "the whole corpus, without a base generation"
            )
        return base

    async def _commit(self, spec: BuildSpec, pipeline: BuildPipeline) -> Artifact:
        """Completes the files of premises and vectors, indexes them and makes them visible."""
        if pipeline.file is None:
            raise errors.InvalidArgument.field("premises", "are missing; stream at least one premise")
        await run_in_thread(pipeline.file.finish)
        drafts = pipeline.folding.drafts
        await run_in_thread(write_premises, pipeline.writer.path, (draft.record() for draft in drafts))
        sizes = pipeline.file.written.rows, pipeline.file.written.largest_norm
        engine = await index_generation(pipeline.writer.path, self._options.engines, *sizes)
        artifact = await finish(self._publish(spec, pipeline, engine))  # cancelled: on disk and in memory, or neither
        if artifact.meta["engine"] in REMOTE_ENGINES:
            try:
                await self._catalogue.prepare(spec.corpus, artifact.id)
            except (errors.Unavailable, errors.Overloaded) as error:
                log.warning("vectors are sent when the generation is activated", reason=error.message)
        return artifact

    async def _publish(self, spec: BuildSpec, pipeline: BuildPipeline, engine: dict[str, Any]) -> Artifact:
        artifact = await asyncio.to_thread(self._write, spec, pipeline, engine)
        self._catalogue.added(spec.corpus, artifact.id)
        pipeline.keep = False
        log.info("built", corpus=spec.corpus, generation=artifact.id, premises=artifact.meta["premises"])
        return artifact

    def _write(self, spec: BuildSpec, pipeline: BuildPipeline, engine: dict[str, Any]) -> Artifact:
        """Commits and uploads. If that fails, and no journal is kept for a retry, what was committed goes."""
        # announced before it can be seen: no kill leaves a generation that its request does not know
        assert pipeline.file is not None
        if pipeline.folding.rule != "EXACT":
            engine |= {"sameness": pipeline.folding.rule}
        meta = pipeline.file.meta(spec.corpus, pipeline.batches.space_id, pipeline.batches.version, **engine)
        artifact = pipeline.writer.commit(meta, id_prefix="g", announce=pipeline.announce)
        folder = folder_of(spec.corpus)
        try:
            return self._store.push(folder, artifact.id)
        except Exception:
            is_ours = pipeline.writer.has_placed and self._store.awaits_push(folder, artifact.id)
            if is_ours and not pipeline.durable:  # without a journal nobody knows it
                with suppress(OSError):
                    remove_directory(artifact.path)
            raise

    async def _build_anew(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[BuildProgress, None]:
        """Builds the generation; the last progress names it."""
        with suppress(OSError):  # swept by another process, or not readable
            await asyncio.to_thread(self._store.sweep, folder_of(spec.corpus))
        await self.sweep(spec.corpus)
        base = await self._base(spec)
        is_folded = base is not None and base.is_folded
        folding = Folding(self._limits, spec.folding or ("NORMALIZED" if is_folded else "EXACT"))
        if base is not None:
            await asyncio.to_thread(folding.start_from, base.premises, spec.delete_ids)
        journal = Journal(self._store, spec.corpus, spec.request_id, spec.fingerprint()) if spec.request_id else None
        batches = partial(self._batches, spec)
        pipeline = BuildPipeline(folding, batches, base, journal, self._options, spec.space_id)
        try:
            await pipeline.open(self._store, folder_of(spec.corpus), spec.resume_from)
            async with aclosing(self._steps(pipeline, chunks)) as steps:
                async for progress in steps:
                    yield progress
            committing = asyncio.create_task(self._commit(spec, pipeline))
            async with aclosing(while_indexing(committing, _progress(pipeline))) as reports:
                async for progress in reports:
                    yield progress
            artifact = committing.result()
        finally:
            await pipeline.close()
        yield BuildProgress(
            folding.received, len(folding.drafts), "DURABLE", folding.received, artifact, stage="INDEXING"
        )

    async def _steps(
        self, pipeline: BuildPipeline, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[BuildProgress, None]:
        """Receives, encodes and writes all premises."""
        last = _progress(pipeline)
        if pipeline.durable:
            yield last
        async with aclosing(with_pauses(chunks, self._options.sync_s)) as received:
            async for chunk in received:
                await pipeline.receive(chunk)
                async for _ in pipeline.advance():
                    yield _progress(pipeline)
                await pipeline.sync_if_due()
                if last != (last := _progress(pipeline)):
                    yield last
        # A vanished caller looks like a finished stream. Send progress: the send fails if they are gone.
        yield _progress(pipeline)
        async for _ in pipeline.drain():
            yield _progress(pipeline)

    def _batches(self, spec: BuildSpec, space_id: str, version: str) -> BatchEncoder:
        """Makes an encoder. It gives up early enough for the caller to learn the encoder's reason."""
        options = self._options
        if spec.timeout_s is not None:
            options = replace(options, patience_s=min(options.patience_s, PATIENCE_SHARE * spec.timeout_s))
        return BatchEncoder(self._encoders, space_id, version, options, truncate=spec.truncate)

    async def _activated(self, spec: BuildSpec, last: BuildProgress) -> BuildProgress:
        """Activates where asked and makes the last report. A retry of an activated build does not activate again."""
        generation = last.generation
        assert generation is not None
        if spec.activate:
            find = partial(finished_build, self._store, spec.corpus, spec.request_id)
            built = await asyncio.to_thread(find) if spec.request_id else None
            await self._catalogue.activate(spec.corpus, generation.id, request_id=built.activation if built else "")
        is_active = self._catalogue.active_id(spec.corpus) == generation.id
        return replace(last, ack_level="SEARCHABLE" if is_active else "DURABLE", is_last=True)


async def while_indexing(
    committing: asyncio.Task[Artifact], progress: BuildProgress
) -> AsyncGenerator[BuildProgress, None]:
    """Reports every `REPORT_S` seconds that a build is being indexed, and ends its commit when nobody listens."""
    try:
        yield replace(progress, stage="INDEXING")
        while not (await asyncio.wait([committing], timeout=REPORT_S))[0]:
            yield replace(progress, stage="INDEXING")
    finally:
        await cancel_all([committing])


def check_spec(spec: BuildSpec) -> None:
    """Refuses a header whose parts do not fit together."""
    check_corpus_name(spec.corpus, "header.corpus")
    if spec.resume_from and not spec.request_id:
        raise errors.InvalidArgument.field("header.resume_from", "needs the request_id of the build to continue")
    if spec.delete_ids and not spec.base_generation:
        raise errors.InvalidArgument.field("header.delete_ids", "needs base_generation; name the generation to change")


async def check_asked_again(
    spec: BuildSpec, built: FinishedBuild, chunks: AsyncIterator[Sequence[PremiseRecord]]
) -> None:
    """Raises AlreadyExists when a finished build asked for something else, or streamed other premises.

    Of premises that `resume_from` skips only the number is compared.
    """
    before = dict(built.asked)
    premises = {name: before.pop(name, None) for name in StreamedPremises().to_record()}
    check_same(spec.request_id, before, {"request_id": spec.request_id, **spec.fingerprint()})
    streamed = StreamedPremises()
    async for chunk in chunks:
        await asyncio.to_thread(streamed.add, chunk)
    now = streamed.to_record()
    if spec.resume_from:
        now = {"premises": spec.resume_from + streamed.count, "premises_crc32": premises["premises_crc32"]}
    check_same(spec.request_id, premises, now)


def _progress(pipeline: BuildPipeline) -> BuildProgress:
    return BuildProgress(pipeline.folding.received, pipeline.written, pipeline.ack_level, pipeline.durable)
