"""Builds a generation from streamed premises: check and fold, encode, write, commit, activate.

Everything is written into a hidden directory; until its commit nothing of a build can be seen. What fails or is
cancelled before is removed, unless the build has a request id: then a call with the same one goes on with it.
Activation is the catalogue's.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from weakref import WeakValueDictionary

from aeenc import errors
from aeenc.transport.channel import Channel
from services.corpus.generation import (
    Generation,
    PremiseRecord,
    check_corpus_name,
    folder_of,
    generation_meta,
    open_generation,
    write_premises,
)
from services.index.catalogue import Catalogue
from services.index.checks import check_base
from services.index.finished import FinishedBuild, FinishedBuilds
from services.index.folding import Folding, Sameness
from services.index.indexer import index_generation
from services.index.journal import Journal, sweep_abandoned
from services.index.lexical import write_lexical
from services.index.plan import EngineOptions
from services.index.vectors import BatchEncoder, finish_in_thread
from services.index.work import Work
from services.kit import logs
from services.kit.concurrency import with_pauses
from services.kit.limits import Limits
from services.store.artifacts import Artifact, ArtifactStore

log = logs.get(__name__)

AckLevel = Literal["RECEIVED", "DURABLE", "SEARCHABLE"]
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class BuildSpec:
    """What to build: the header of a build call."""

    corpus: str
    request_id: str = ""
    base_generation: str = ""
    delete_ids: tuple[str, ...] = ()
    activate: bool = False
    resume_from: int = 0
    sameness: Sameness = "EXACT"
    space_id: str = ""

    def asked(self) -> dict[str, str]:
        """What is asked for besides the premises, in short; activation may be asked for at any time."""
        deleted = json.dumps(sorted(self.delete_ids)).encode()
        return {
            "base_generation": self.base_generation,
            "deleted_sha256": hashlib.sha256(deleted).hexdigest(),
            "sameness": self.sameness,
            **({"space_id": self.space_id} if self.space_id else {}),
        }


@dataclass(frozen=True)
class Progress:
    """How far a build is. `ack_level` is promised for what `encoded` counts; the last one names the generation.

    `durable` counts the streamed premises that need not be streamed again.
    """

    received: int
    encoded: int
    ack_level: AckLevel = "RECEIVED"
    durable: int = 0
    generation: Artifact | None = None
    activated: bool = False
    is_last: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """How a build uses the encoders: texts a batch, batches at once at each, seconds without any answer.

    With a request id, how many seconds pass until what is new is put on the disk, and until an unfinished build is
    removed. `engines` search what is built.
    """

    batch: int = 128
    window: int = 4
    patience_s: float = 120.0
    sync_s: float = 1.0
    keep_s: float = 24 * 3600.0
    engines: EngineOptions = field(default_factory=EngineOptions)


class Builder:
    """Builds generations, several at a time where callers ask for it; two calls with one request id take turns."""

    def __init__(
        self,
        store: ArtifactStore,
        catalogue: Catalogue,
        encoders: Channel,
        limits: Limits,
        options: BuildOptions,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._encoders = encoders
        self._limits = limits
        self._options = options
        self._finished = FinishedBuilds(store)
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def sweep(self) -> None:
        """Removes unfinished builds that nobody has gone on with for long."""
        await asyncio.to_thread(sweep_abandoned, self._store, self._options.keep_s)

    async def build(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]:
        """Builds, reporting progress; the last one names the generation.

        Raises InvalidArgument for a bad premise or none, NotFound for an unknown base, SpaceMismatch when the encoder
        has another space than the base, Unavailable when it does not answer or the disk is full; AlreadyExists when the
        request id stands for other premises, FailedPrecondition when `resume_from` skips some that are not kept.
        """
        check_corpus_name(spec.corpus, "header.corpus")
        if spec.resume_from and not spec.request_id:
            raise errors.InvalidArgument.field("header.resume_from", "needs the request_id of the build to go on with")
        if spec.delete_ids and not spec.base_generation:
            raise errors.InvalidArgument.field(
                "header.delete_ids", "needs base_generation; name the generation to change"
            )
        turn = (
            self._turns.setdefault((spec.corpus, spec.request_id), asyncio.Lock())
            if spec.request_id
            else asyncio.Lock()
        )
        with disk_full_is_unavailable():
            async with turn:
                last = await self._built_before(spec)
                if last is None:
                    async with aclosing(self._build_anew(spec, chunks)) as steps:
                        async for last in steps:
                            yield last
                assert last is not None
                assert last.generation is not None
                yield await self._activated(spec, last)

    async def _built_before(self, spec: BuildSpec) -> Progress | None:
        if not spec.request_id:
            return None
        finished = await asyncio.to_thread(self._finished.get, spec.corpus, spec.request_id)
        if finished is None:
            return None
        artifact = await asyncio.to_thread(self._store.open, folder_of(spec.corpus), finished.generation, verify="size")
        count = int(artifact.meta["premises"])
        return Progress(count, count, "DURABLE", count, artifact, finished.activated)

    async def _build_anew(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]:
        await self.sweep()
        base = await self._open_base(spec)
        folding = Folding(self._limits, spec.sameness)
        if base is not None:
            await asyncio.to_thread(folding.start_from, base.premises, spec.delete_ids)
        journal = Journal(self._store, spec.corpus, spec.request_id, spec.asked()) if spec.request_id else None
        options = self._options
        work = Work(folding, self._batches, base, journal, options.sync_s, options.engines.storage, spec.space_id)
        try:
            await work.open(self._store, folder_of(spec.corpus), spec.resume_from)
            async with aclosing(self._steps(work, chunks)) as steps:
                async for progress in steps:
                    yield progress
            artifact = await self._commit(spec, work, folding)
            work.keep = False
        except errors.InvalidArgument:
            work.keep = False
            raise
        finally:
            await work.close()
        yield Progress(folding.received, len(folding.drafts), "DURABLE", folding.received, artifact)

    async def _steps(
        self, work: Work, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]:
        """Receives, encodes and writes all premises."""
        batch, told = self._options.batch, _progress(work)
        if work.durable:
            yield told
        try:
            async with aclosing(with_pauses(chunks, self._options.sync_s)) as received:
                async for chunk in received:
                    await work.receive(chunk)
                    async for _ in work.advance(batch):
                        yield _progress(work)
                    await work.sync_if_due()
                    if told != (told := _progress(work)):
                        yield told
            # What a caller who has gone had sent looks like all of it: only telling him something shows that he has.
            yield _progress(work)
            async for _ in work.drain(batch):
                yield _progress(work)
        except errors.FailedPrecondition:  # the encoder's; the premises are as good as before
            await work.forget_vectors()
            raise

    async def _open_base(self, spec: BuildSpec) -> Generation | None:
        if not spec.base_generation:
            return None
        await self._catalogue.resolve(spec.corpus, spec.base_generation)  # knows what there is
        # by hash: a damaged vector must not be copied into a new generation
        base = await asyncio.to_thread(open_generation, self._store, spec.corpus, spec.base_generation, verify="full")
        check_base(spec.base_generation, base.space_id, spec.space_id)
        return base

    def _batches(self, space_id: str, version: str) -> BatchEncoder:
        batches = BatchEncoder(
            self._encoders, space_id=space_id, window=self._options.window, patience_s=self._options.patience_s
        )
        batches.version = version
        return batches

    async def _commit(self, spec: BuildSpec, work: Work, folding: Folding) -> Artifact:
        if work.file is None:
            raise errors.InvalidArgument.field("premises", "there are none; a corpus has at least one premise")
        await finish_in_thread(work.file.finish)
        await finish_in_thread(write_premises, work.writer.path, (draft.record() for draft in folding.drafts))
        engine = await index_generation(work.writer.path, self._options.engines, work.file)
        if engine["engine"] == "flat":
            await finish_in_thread(write_lexical, work.writer.path, [draft.text for draft in folding.drafts])
        artifact = await finish_in_thread(self._write, spec, work, engine)
        self._catalogue.added(spec.corpus)
        log.info("built", corpus=spec.corpus, generation=artifact.id, premises=len(folding.drafts))
        return artifact

    def _write(self, spec: BuildSpec, work: Work, engine: dict[str, Any]) -> Artifact:
        assert work.file is not None
        meta = generation_meta(
            corpus=spec.corpus,
            space_id=work.batches.space_id,
            premise_version=work.batches.version,
            dim=work.file.dim,
            premises=work.file.rows,
            largest_norm=work.file.largest_norm,
            storage=work.file.storage,
            **engine,
        )

        def announce(
            generation_id: str,
        ) -> None:  # before it is seen: no kill leaves one that its request does not know
            self._finished.put(spec.corpus, spec.request_id, FinishedBuild(generation_id, activated=False))

        return work.writer.commit(meta, id_prefix="g", announce=announce)

    async def _activated(self, spec: BuildSpec, last: Progress) -> Progress:
        """The last answer of a build. A retry of a build that was activated once does not move the pointer again."""
        generation = last.generation
        assert generation is not None
        if spec.activate and not last.activated:
            await self._catalogue.activate(spec.corpus, generation.id)
            finished = FinishedBuild(generation.id, activated=True)
            await asyncio.to_thread(self._finished.put, spec.corpus, spec.request_id, finished)
            last = replace(last, activated=True)
        is_active = self._catalogue.active_id(spec.corpus) == generation.id
        return replace(last, ack_level="SEARCHABLE" if is_active else "DURABLE", is_last=True)


@contextmanager
def disk_full_is_unavailable() -> Iterator[None]:
    """Turns a full disk into Unavailable, with what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise errors.Unavailable(
            f"the disk is full or a file-size limit is reached ({error.strerror}); free space and build again: with "
            "the same request_id it goes on behind what was durable, without one nothing of it is left"
        ) from None


def _progress(work: Work) -> Progress:
    level: AckLevel = "DURABLE" if work.is_all_durable else "RECEIVED"
    return Progress(work.folding.received, work.written, level, work.durable)
