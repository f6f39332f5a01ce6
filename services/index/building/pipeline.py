"""The pipeline of one build: folds premises, encodes them in batches, and writes their vectors in order.

With a journal a build can continue after a kill; without one, what is not committed is lost with the build.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import KIND, VECTORS, Generation, PremiseRecord
from services.index.building.folding import Draft, Folding
from services.index.building.journal import Journal
from services.index.building.vectors import BatchEncoder, VectorFile, WrittenVectors
from services.index.values import AckLevel, BuildOptions
from services.kit.concurrency import run_in_thread
from services.store.artifacts import ArtifactStore, ArtifactWriter


class BuildPipeline:
    """One build: `open` it, `receive` premises, `advance` or `drain`, commit its `writer`, `close` it.

    `batches` makes an encoder for a space and a version ("": whichever answers). Without a `base`, `space_id` names the
    space ("": the encoder's default). The journal outlives the build if `keep` is set. Vectors that it has keep their
    storage.
    """

    def __init__(
        self,
        folding: Folding,
        batches: Callable[[str, str], BatchEncoder],
        base: Generation | None,
        journal: Journal | None,
        options: BuildOptions,
        space_id: str = "",
    ) -> None:
        self.writer: ArtifactWriter
        self.folding = folding
        self.batches = batches(base.space_id, base.premise_version) if base else batches(space_id, "")
        self.file: VectorFile | None = None
        self.keep = True
        self._make_batches = batches
        self._base = base
        self._journal = journal
        self._options = options
        self._synced_at = time.monotonic()
        self._sent = 0
        self._open = ExitStack()

    @property
    def written(self) -> int:
        """Rows written so far."""
        return self.file.written.rows if self.file else 0

    @property
    def durable(self) -> int:
        """Streamed premises that are durable."""
        return self._journal.kept.streamed.count if self._journal else 0

    def announce(self, generation_id: str) -> None:
        """Records, where there is a journal, which generation is about to be visible."""
        if self._journal is not None:
            self._journal.finish(generation_id)

    @property
    def ack_level(self) -> AckLevel:
        """The durability of all rows written so far."""
        is_durable = self._journal is not None and 0 < self.written == self._journal.kept.vectors.rows
        return "DURABLE" if is_durable else "RECEIVED"

    async def open(self, store: ArtifactStore, folder: str, resume_from: int) -> None:
        """Makes the directory, or takes over what the journal keeps. Raises what Journal.open raises."""
        await run_in_thread(self._open_files, store, folder, resume_from)
        if self._journal is not None and self.file is not None:
            kept = self._journal.kept
            self.batches = self._make_batches(kept.space_id, kept.premise_version)

    async def receive(self, premises: Sequence[PremiseRecord]) -> None:
        """Takes streamed premises. Raises InvalidArgument for a bad one, AlreadyExists for one unlike the kept one."""
        await run_in_thread(self._add, premises)

    async def advance(self) -> AsyncIterator[None]:
        """Sends all full batches; yields after each write."""
        batch = self._options.batch
        while len(self.folding.drafts) - self._sent >= batch:
            async for _ in self._send(self.folding.drafts[self._sent : self._sent + batch]):
                yield
        while self.batches.is_ready:
            await self._take()
            yield

    async def drain(self) -> AsyncIterator[None]:
        """Sends the rest and waits for all. Raises AlreadyExists when the stream is shorter than the one before."""
        if self._journal is not None:
            self._journal.check_all_seen()
        async for _ in self.advance():
            yield
        if self._sent < len(self.folding.drafts):
            async for _ in self._send(self.folding.drafts[self._sent :]):
                yield
        while not self.batches.is_empty:
            await self._take()
            yield

    async def sync_if_due(self) -> None:
        """Syncs new work to disk once `sync_s` has passed."""
        if (
            self._journal is not None
            and time.monotonic() - self._synced_at >= self._options.sync_s
            and self._journal.has_news(self.written)
        ):
            await self._sync(self.file)

    async def close(self) -> None:
        """Cancels what is under way and closes the files."""
        try:
            await self.batches.close()
        finally:
            await run_in_thread(self._close)

    async def _send(self, drafts: Sequence[Draft]) -> AsyncIterator[None]:
        while self.batches.is_full or self.batches.is_ready:
            await self._take()
            yield
        self.batches.put(drafts)
        self._sent += len(drafts)

    async def _take(self) -> None:
        try:
            taken = await self.batches.take(None if self._base is None else self._base.vectors)
        except errors.InvalidArgument:  # a premise of the batch; what is before it stays, and the retry corrects it
            if self._journal is not None:
                refused = next(one for one in self.folding.drafts[self.written :] if one.base_ordinal is None)
                await run_in_thread(self._journal.cut_before, refused.id)
                await self._sync(self.file)
            raise
        except errors.FailedPrecondition:  # the encoder that made the vectors is gone; the premises are still good
            if self._journal is not None:
                await self._sync(None)
            raise
        await run_in_thread(self._append, *taken)
        await self.sync_if_due()

    async def _sync(self, file: VectorFile | None) -> None:
        assert self._journal is not None
        await run_in_thread(self._journal.sync, file, self.batches.space_id, self.batches.version)
        self._synced_at = time.monotonic()

    def _open_files(self, store: ArtifactStore, folder: str, resume_from: int) -> None:
        if self._journal is None:
            self.writer = self._open.enter_context(store.writer(KIND, folder))
            return
        self._journal.open(resume_from)
        self.writer = self._open.enter_context(store.writer(KIND, folder, directory=self._journal.generation))
        self.folding.add(self._journal.premises)
        self.file = self._journal.vectors()
        self._sent = self.written

    def _add(self, premises: Sequence[PremiseRecord]) -> None:
        if self._journal is not None:
            premises = self._journal.unseen(premises)
        self.folding.add(premises)
        if self._journal is not None:
            self._journal.append(premises)

    def _append(self, rows: NDArray[np.float32], truncated: int) -> None:
        if self.file is None:
            nothing = WrittenVectors(rows.shape[1], self._options.engines.storage)
            self.file = VectorFile(self.writer.path / VECTORS, nothing)
        self.file.append(rows, truncated)

    def _close(self) -> None:
        if self.file is not None:
            self.file.abandon()
        self._open.close()
        if self._journal is not None:
            self._journal.close(keep=self.keep)
