"""Writes one generation to Milvus: premises in the order of insertion, their words, a check, the commit.

Its row of kind `building` comes first and goes last, so that what a killed process leaves is found and swept. The
methods of GenerationWriter block; `loading` calls them in threads.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.index.lexical.bm25 import LexicalIndex
from services.index.milvus import schema
from services.index.milvus.generation import (
    COUNT,
    FLAT,
    HNSW,
    KEY,
    GenerationCollection,
    MilvusGeneration,
    check,
    digest_of,
    probed_ordinals,
)
from services.index.milvus.ledger.records import Records, StoredGeneration
from services.index.milvus.ledger.switches import Switches
from services.index.milvus.ledger.tables import Table
from services.index.milvus.link import MilvusLink
from services.index.milvus.words import sparse_vectors
from services.index.values import LexicalSettings
from services.kit import logs
from services.kit.concurrency import cancel_all
from services.store.artifacts import Artifact

log = logs.get(__name__)
FLAT_UP_TO = 250_000  # premises, with the engine `auto`
BLOCK = 4096  # premises between two looks at whether the build was cancelled
BEATS = 4  # within the time after which a silent build is swept
_UPSERT_ROWS = 256
_TABLE_ROWS = 10_000


class GenerationWriter:
    """Writes one generation of `corpus`. `engine` is `flat`, `hnsw` or `auto`; words are ranked as `lexical` says."""

    def __init__(
        self, link: MilvusLink, records: Records, corpus: str, engine: str, lexical: LexicalSettings | None = None
    ) -> None:
        self.rows = 0
        self.is_committed = False
        self._link, self._records = link, records
        self._corpus, self._engine = corpus, engine
        self._lexical = lexical or LexicalSettings()
        self._name = f"{records.prefix}_g_{uuid.uuid4().hex}"
        self._collection: GenerationCollection | None = None
        self._probes: Mapping[int, str] = {}
        self._beat = 0
        self._is_over = False
        self._row = threading.Lock()  # a late beat must not restore the row of a build

    def beat(self) -> None:
        """Shows that this build is alive, as long as it is."""
        with self._row:
            if not self._is_over:
                self._beat += 1
                self._records.put_unfinished("building", self._name, self._beat)

    def append(self, premises: Sequence[PremiseRecord], vectors: NDArray[np.float32]) -> None:
        """Writes the next premises with their vectors (n, dim)."""
        if self._collection is None:
            self.beat()
            self._collection = GenerationCollection(self._link, self._name, _checked(vectors.shape[1]))
            self._collection.create()
        self._upsert(self.rows, premises, vectors)
        self.rows += len(premises)

    def seal(self, premises: Sequence[PremiseRecord], patience_s: float) -> dict[str, Any]:
        """Indexes all premises, which were appended in this order, writes their words, and checks what is in Milvus.

        Returns what a manifest says of the engine. Raises Unavailable unless Milvus has what was sent.
        """
        collection = self._collection
        assert collection is not None
        collection.engine = self._chosen()
        collection.seal(patience_s)
        index = LexicalIndex.of([premise.text for premise in premises], self._lexical)
        worded = self._write_words(collection.words, index, premises, patience_s)
        vocabulary = self._write_frequencies(collection.frequencies, index, patience_s)
        self._check(collection, premises)
        for table, rows in ((collection.words, worded), (collection.frequencies, vocabulary)):
            if rows and (count := table.count()) != rows:
                raise errors.Unavailable(f"Milvus has {count:,} of {rows:,} rows of {table.name}; build again")
        rounds = {name: getattr(self._lexical, name) for name in ("first_scale", "downscale", "growth")}
        return {"engine": collection.engine, "words": worded, "vocabulary": vocabulary, "rounds": rounds}

    def commit(self, artifact: Artifact, patience_s: float) -> StoredGeneration:
        """Commits what was sealed under its manifest, unless the same generation stands already and is sound.

        One that Milvus has damaged or lost gives way, also where it is active. Raises Aborted for a swept build.
        """
        known = self._records.all().generations
        standing = [one for one in known if (one.corpus, one.artifact.id) == (self._corpus, artifact.id)]
        damaged = [one for one in standing if not self._is_sound(one, patience_s)]
        sound = [one for one in standing if one not in damaged]
        stored = sound[0] if sound else self._commit_own(artifact)
        for one in damaged:
            self._replace(one, stored)
        return stored

    def _is_sound(self, stored: StoredGeneration, patience_s: float) -> bool:
        try:
            check(MilvusGeneration.of(stored, self._link), stored, patience_s)
        except errors.DataLoss as error:
            log.warning("a damaged generation is replaced", corpus=self._corpus, reason=error.message)
            return False
        return True

    def _commit_own(self, artifact: Artifact) -> StoredGeneration:
        stored = StoredGeneration(self._name, self._corpus, artifact, self._probes)
        with self._row:
            if not self._records.is_building(self._name):
                raise errors.Aborted(
                    f"the build of corpus {self._corpus!r} was silent for too long and was swept; build again"
                )
            self._is_over = True
            self._records.put_generation(stored)
            self.is_committed = True
        return stored

    def _replace(self, damaged: StoredGeneration, sound: StoredGeneration) -> None:
        """Puts a sound generation in the place of a damaged one, which the sweeper drops. Repeating it does no harm."""
        switches = Switches(self._link, self._records.prefix, self._records.name, "active")
        while (last := switches.last().get(self._corpus)) and last.collection == damaged.collection:
            switches.make(self._corpus, last.number + 1, sound.collection)
        self._records.put_unfinished("dropping", damaged.collection, 0)

    def abandon(self) -> None:
        """Removes what was written."""
        with self._row:
            self._is_over = True
        if self._collection is not None:
            self._records.put_unfinished("dropping", self._name, 0)  # its commit may have been made, the answer lost
            self._collection.drop()
            self._records.remove(self._name)

    def _write_words(
        self, words: GenerationCollection, index: LexicalIndex, premises: Sequence[PremiseRecord], patience_s: float
    ) -> int:
        """Writes the premises that have words; returns how many. Their weights depend on all texts, hence only now."""
        rows = (
            {**schema.to_row(ordinal, premise, vectors.weights), schema.UNIT: vectors.unit}
            for ordinal, (premise, vectors) in enumerate(zip(premises, sparse_vectors(index), strict=True))
            if vectors.weights
        )
        written = 0
        while part := list(islice(rows, _UPSERT_ROWS)):
            if not written:
                words.create()
            words.upsert(part)
            written += len(part)
        if written:
            words.seal(patience_s)
        return written

    def _write_frequencies(self, table: Table, index: LexicalIndex, patience_s: float) -> int:
        """Writes in how many premises each word is; returns the number of words."""
        rows = ({KEY: schema.key_of(word), COUNT: count} for word, count in index.frequencies())
        written = 0
        while part := list(islice(rows, _TABLE_ROWS)):
            if not written:
                table.open()
            table.put(part)
            written += len(part)
        if written:
            table.flush(patience_s)
        return written

    def _check(self, collection: GenerationCollection, premises: Sequence[PremiseRecord]) -> None:
        """Raises Unavailable unless Milvus has as many premises, and some of them as sent; keeps their digests."""
        ordinals = probed_ordinals(self.rows)
        found = collection.whole(ordinals)
        sent = [premises[ordinal] for ordinal in ordinals]
        if (count := collection.count()) != self.rows or [record for record, _ in found] != sent:
            raise errors.Unavailable(f"Milvus has {count:,} of {self.rows:,} premises, or different ones; build again")
        self._probes = {
            ordinal: digest_of(record, vector) for ordinal, (record, vector) in zip(ordinals, found, strict=True)
        }

    def _chosen(self) -> str:
        if self._engine == "auto":
            return FLAT if self.rows <= FLAT_UP_TO else HNSW
        return FLAT if self._engine == "flat" else HNSW

    def _upsert(self, start: int, premises: Sequence[PremiseRecord], vectors: NDArray[np.float32]) -> None:
        assert self._collection is not None
        for at in range(0, len(premises), _UPSERT_ROWS):
            part = slice(at, at + _UPSERT_ROWS)
            numbered = enumerate(zip(premises[part], vectors[part], strict=True), start=start + at)
            self._collection.upsert([schema.to_row(ordinal, premise, row) for ordinal, (premise, row) in numbered])


@dataclass(frozen=True)
class MilvusBuildOptions:
    """How builds use Milvus: the engine, its time to index and load, and the silence after which a build is dead."""

    engine: str = "auto"
    patience_s: float = 3600.0
    lease_s: float = 60.0


class Loading:
    """A generation on its way into Milvus, from files: `send` all of it, `commit` it under its manifest."""

    def __init__(self, link: MilvusLink, writer: GenerationWriter, patience_s: float) -> None:
        self._link, self._writer, self._patience_s = link, writer, patience_s

    async def send(self, premises: Sequence[PremiseRecord], vectors: NDArray[np.float32]) -> dict[str, Any]:
        """Writes all premises with their vectors (n, dim), and indexes them; returns what the manifest says of it."""
        for start in range(0, len(premises), BLOCK):
            part = slice(start, start + BLOCK)
            await self._link.write(self._writer.append, premises[part], vectors[part])
        return await self._link.write(self._writer.seal, premises, self._patience_s)

    async def commit(self, artifact: Artifact) -> StoredGeneration:
        """Makes the generation visible. Raises Aborted for one that was swept meanwhile."""
        return await self._link.write(self._writer.commit, artifact, self._patience_s)


@asynccontextmanager
async def loading(
    link: MilvusLink, records: Records, corpus: str, options: MilvusBuildOptions, lexical: LexicalSettings
) -> AsyncIterator[Loading]:
    """Shows meanwhile that the build is alive, and at the end removes what was not committed."""
    writer = GenerationWriter(link, records, corpus, options.engine, lexical)

    async def beat() -> None:
        while True:
            await asyncio.sleep(options.lease_s / BEATS)
            if writer.rows:
                with suppress(errors.Unavailable, errors.Overloaded):
                    await link.write(writer.beat)

    beating = asyncio.ensure_future(beat())
    try:
        yield Loading(link, writer, options.patience_s)
    finally:
        await cancel_all([beating])
        if not writer.is_committed:
            with suppress(errors.Unavailable, errors.Overloaded):  # then the sweeper removes it
                await link.write(writer.abandon)


def _checked(dim: int) -> int:
    if dim > schema.DIM_MOST:
        raise errors.FailedPrecondition(
            f"the encoder's vectors have {dim:,} dimensions, Milvus takes {schema.DIM_MOST:,}; use another encoder"
        )
    return dim
