"""Builds a generation from streamed premises: check and fold, encode, write, commit, activate.

Everything is written into a hidden directory; until its commit nothing of a build can be seen, and what fails or is
cancelled before is removed. Activation is the catalogue's.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np

from aeenc import errors
from aeenc.channel import Channel
from services.index.catalogue import Catalogue
from services.index.finished import FinishedBuild, FinishedBuilds
from services.index.folding import Draft, Folding
from services.index.indexer import index_vectors
from services.index.lexical import write_lexical
from services.index.plan import EngineOptions
from services.index.vectors import BatchEncoder, VectorFile, finish_in_thread
from services.kit import logs
from services.kit.artifacts import Artifact, ArtifactStore, ArtifactWriter
from services.kit.checks import Limits
from services.kit.generation import (
    KIND,
    VECTORS,
    Generation,
    PremiseRecord,
    Storage,
    check_corpus_name,
    folder_of,
    generation_meta,
    open_generation,
    write_premises,
)

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


@dataclass(frozen=True)
class Progress:
    """How far a build is. `ack_level` is promised for what `encoded` counts; the last one names the generation."""

    received: int
    encoded: int
    ack_level: AckLevel = "RECEIVED"
    generation: Artifact | None = None
    activated: bool = False
    is_last: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """How a build uses the encoders: texts a batch, batches at once at each, seconds without answer; and engines."""

    batch: int = 128
    window: int = 4
    patience_s: float = 120.0
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

    async def build(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]:
        """Builds, reporting progress; the last one names the generation.

        Raises InvalidArgument for a bad premise or none, NotFound for an unknown base, SpaceMismatch when the encoder
        has another space than the base, Unavailable when it does not answer or the disk is full.
        """
        check_corpus_name(spec.corpus, "header.corpus")
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
        return Progress(count, count, "DURABLE", artifact, finished.activated)

    async def _build_anew(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]:
        base = await self._open_base(spec)
        folding = Folding(self._limits)
        if base is not None:
            await asyncio.to_thread(folding.start_from, base.premises, spec.delete_ids)
        folder = folder_of(spec.corpus)
        with self._store.writer(KIND, folder) as writer:
            work = _Work(writer, self._batches(base), base, self._options.engines.storage)
            try:
                async for chunk in chunks:
                    await asyncio.to_thread(folding.add, chunk)
                    async for encoded in work.advance(folding.drafts, self._options.batch):
                        yield Progress(folding.received, encoded)
                    yield Progress(folding.received, work.written)
                async for encoded in work.drain(folding.drafts, self._options.batch):
                    yield Progress(folding.received, encoded)
                artifact = await self._commit(spec, work, folding)
            finally:
                await work.close()
        yield Progress(folding.received, len(folding.drafts), "DURABLE", artifact)

    async def _open_base(self, spec: BuildSpec) -> Generation | None:
        if not spec.base_generation:
            return None
        await self._catalogue.resolve(spec.corpus, spec.base_generation)  # knows what there is
        # by hash: a damaged vector must not be copied into a new generation
        return await asyncio.to_thread(open_generation, self._store, spec.corpus, spec.base_generation, verify="full")

    def _batches(self, base: Generation | None) -> BatchEncoder:
        batches = BatchEncoder(
            self._encoders,
            space_id=base.space_id if base else "",
            window=self._options.window,
            patience_s=self._options.patience_s,
        )
        batches.version = base.premise_version if base else ""
        return batches

    async def _commit(self, spec: BuildSpec, work: _Work, folding: Folding) -> Artifact:
        if work.file is None:
            raise errors.InvalidArgument.field("premises", "there are none; a corpus has at least one premise")
        await finish_in_thread(work.file.finish)
        engine = await index_vectors(work.writer.path, self._options.engines, work.file)
        artifact = await finish_in_thread(self._write, spec, work, folding.drafts, engine)
        self._catalogue.added(spec.corpus)
        log.info("built", corpus=spec.corpus, generation=artifact.id, premises=len(folding.drafts))
        return artifact

    def _write(self, spec: BuildSpec, work: _Work, drafts: Sequence[Draft], engine: dict[str, Any]) -> Artifact:
        assert work.file is not None
        write_premises(work.writer.path, (draft.record() for draft in drafts))
        write_lexical(work.writer.path, [draft.text for draft in drafts])
        meta = generation_meta(
            corpus=spec.corpus,
            space_id=work.batches.space_id,
            premise_version=work.batches.version,
            dim=work.file.dim,
            premises=work.file.rows,
            largest_norm=work.file.largest_norm,
            storage=work.storage,
            **engine,
        )
        artifact = work.writer.commit(meta, id_prefix="g")
        self._finished.put(spec.corpus, spec.request_id, FinishedBuild(artifact.id, activated=False))
        return artifact

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


class _Work:
    """The vectors of one build: which drafts have been sent, and the file that receives their rows in order."""

    def __init__(
        self, writer: ArtifactWriter, batches: BatchEncoder, base: Generation | None, storage: Storage
    ) -> None:
        self.writer = writer
        self.storage: Storage = storage
        self.batches = batches
        self.file: VectorFile | None = None
        self._base = None if base is None else base.vectors
        self._sent = 0

    @property
    def written(self) -> int:
        """Rows written so far."""
        return self.file.rows if self.file else 0

    async def advance(self, drafts: Sequence[Draft], batch: int) -> AsyncIterator[int]:
        """Sends all full batches; yields the number of rows written whenever it grows."""
        while len(drafts) - self._sent >= batch:
            async for written in self._send(drafts[self._sent : self._sent + batch]):
                yield written

    async def drain(self, drafts: Sequence[Draft], batch: int) -> AsyncIterator[int]:
        """Sends what is left and waits for all."""
        async for written in self.advance(drafts, batch):
            yield written
        if self._sent < len(drafts):
            async for written in self._send(drafts[self._sent :]):
                yield written
        while not self.batches.is_empty:
            yield await self._receive()

    async def close(self) -> None:
        """Gives up what is still under way and closes the file."""
        await self.batches.close()
        if self.file is not None:
            self.file.abandon()

    async def _send(self, drafts: Sequence[Draft]) -> AsyncIterator[int]:
        while self.batches.is_full or self.batches.is_ready:
            yield await self._receive()
        self.batches.put(drafts)
        self._sent += len(drafts)

    async def _receive(self) -> int:
        rows = await self.batches.take(self._base)
        await finish_in_thread(self._append, rows)
        return self.written

    def _append(self, rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        if self.file is None:
            self.file = VectorFile(self.writer.path / VECTORS, rows.shape[1], self.storage)
        self.file.append(rows)


@contextmanager
def disk_full_is_unavailable() -> Iterator[None]:
    """Turns a full disk into Unavailable, with what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise errors.Unavailable(
            f"the disk is full or a file-size limit is reached ({error.strerror}); nothing of this build is left: "
            "free space and build again"
        ) from None
