"""Writes one generation to Milvus: premises in order of insertion, then their words, then a check, then the commit.

Its row of kind `building` comes first and goes last, so that what a killed process leaves is found and swept. Every
method blocks: call it in a thread.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import generation_meta
from services.index.building.folding import Draft
from services.index.lexical.bm25 import LexicalIndex
from services.index.milvus import schema
from services.index.milvus.generation import COUNT, FLAT, HNSW, KEY, GenerationCollection, digest_of, probed_ordinals
from services.index.milvus.ledger.records import Records, StoredGeneration, artifact_of
from services.index.milvus.ledger.tables import Table
from services.index.milvus.link import MilvusLink
from services.index.milvus.words import sparse_vectors
from services.index.values import LexicalSettings
from services.store.artifacts import FileEntry

FLAT_UP_TO = 250_000  # premises, with the engine `auto`
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
        self._beat = 0
        self._is_over = False
        self._row = threading.Lock()  # a late beat must not restore the row of a build
        self._vectors = hashlib.sha256()
        self._written: list[tuple[int, int]] = []  # for each premise, its number of aliases and splits in Milvus

    def beat(self) -> None:
        """Shows that this build is alive, as long as it is."""
        with self._row:
            if not self._is_over:
                self._beat += 1
                self._records.put_unfinished("building", self._name, self._beat)

    def append(self, drafts: Sequence[Draft], vectors: NDArray[np.float32]) -> None:
        """Writes the next premises with their vectors (n, dim)."""
        if self._collection is None:
            self.beat()
            self._collection = GenerationCollection(self._link, self._name, _checked(vectors.shape[1]))
            self._collection.create()
        self._upsert(self.rows, drafts, vectors)
        self._vectors.update(vectors.astype("<f4").tobytes())
        self._written += map(_size, drafts)
        self.rows += len(drafts)

    def commit(self, drafts: Sequence[Draft], space_id: str, version: str, patience_s: float) -> StoredGeneration:
        """Seals, adds late aliases and splits, checks and commits, unless the same generation exists already."""
        collection = self._collection
        assert collection is not None
        collection.engine = self._chosen()
        collection.seal(patience_s)
        if self._write_again(collection, drafts):
            collection.flush(patience_s)
        index = LexicalIndex.of([draft.text for draft in drafts], self._lexical)
        worded = self._write_words(collection.words, index, drafts, patience_s)
        vocabulary = self._write_frequencies(collection.frequencies, index, patience_s)
        words = {"words": worded, "vocabulary": vocabulary, "rounds": self._rounds()}
        stored = self._described(collection, drafts, space_id, version, words)
        same = [
            one
            for one in self._records.all().generations
            if (one.corpus, one.artifact.id) == (self._corpus, stored.artifact.id)
        ]
        if same:
            return same[0]
        with self._row:
            if not self._records.is_building(self._name):
                raise errors.Aborted(
                    f"the build of corpus {self._corpus!r} was silent for too long and was swept; build again"
                )
            self._is_over = True
            self._records.put_generation(stored)
            self.is_committed = True
        return stored

    def abandon(self) -> None:
        """Removes what was written."""
        with self._row:
            self._is_over = True
        if self._collection is not None:
            self._collection.drop()
            self._records.remove(self._name)

    def _write_words(
        self, words: GenerationCollection, index: LexicalIndex, drafts: Sequence[Draft], patience_s: float
    ) -> int:
        """Writes the premises that have words; returns how many. Their weights depend on all texts, hence only now."""
        rows = (
            {**schema.to_row(ordinal, draft.record(), vectors.weights), schema.UNIT: vectors.unit}
            for ordinal, (draft, vectors) in enumerate(zip(drafts, sparse_vectors(index), strict=True))
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

    def _rounds(self) -> dict[str, float]:
        settings = self._lexical
        return {name: getattr(settings, name) for name in ("first_scale", "downscale", "growth")}

    def _described(
        self,
        collection: GenerationCollection,
        drafts: Sequence[Draft],
        space_id: str,
        version: str,
        words: Mapping[str, Any],
    ) -> StoredGeneration:
        """Makes the record of what is in Milvus. Raises Unavailable unless that equals what was sent."""
        ordinals = probed_ordinals(self.rows)
        found = collection.whole(ordinals)
        sent = [drafts[ordinal].record() for ordinal in ordinals]
        if (count := collection.count()) != self.rows or [record for record, _ in found] != sent:
            raise errors.Unavailable(f"Milvus has {count:,} of {self.rows:,} premises, or different ones; build again")
        for name, table in (("words", collection.words), ("vocabulary", collection.frequencies)):
            if words[name] and (count := table.count()) != words[name]:
                raise errors.Unavailable(f"Milvus has {count:,} of {words[name]:,} rows of {table.name}; build again")
        lines, size_bytes = hashlib.sha256(), 0
        for draft in drafts:
            line = draft.record().to_line().encode()
            lines.update(line)
            size_bytes += len(line)
        files = {
            "premises": FileEntry(lines.hexdigest(), size_bytes),
            "vectors": FileEntry(self._vectors.hexdigest(), self.rows * collection.dim * 4),
        }
        facts = generation_meta(
            corpus=self._corpus, space_id=space_id, premise_version=version, dim=collection.dim, premises=self.rows
        )
        meta = {**facts, "engine": collection.engine, **words}
        probes = {ordinal: digest_of(record, vector) for ordinal, (record, vector) in zip(ordinals, found, strict=True)}
        artifact = artifact_of(self._name, meta, files, datetime.now(UTC))
        return StoredGeneration(self._name, self._corpus, artifact, probes)

    def _chosen(self) -> str:
        if self._engine == "auto":
            return FLAT if self.rows <= FLAT_UP_TO else HNSW
        return FLAT if self._engine == "flat" else HNSW

    def _write_again(self, collection: GenerationCollection, drafts: Sequence[Draft]) -> bool:
        """Writes premises again that got an alias or a split after they were written; their vectors stay.

        Vectors can be read only once sealed. Returns whether there were any.
        """
        late = [
            n for n, (draft, written) in enumerate(zip(drafts, self._written, strict=True)) if _size(draft) != written
        ]
        for part in _parts(late):
            self._upsert_rows(part, [drafts[ordinal] for ordinal in part], collection[part])
        return bool(late)

    def _upsert(self, start: int, drafts: Sequence[Draft], vectors: NDArray[np.float32]) -> None:
        for part in _parts(range(len(drafts))):
            ordinals = [start + position for position in part]
            self._upsert_rows(ordinals, [drafts[position] for position in part], vectors[part])

    def _upsert_rows(self, ordinals: Sequence[int], drafts: Sequence[Draft], vectors: NDArray[np.float32]) -> None:
        assert self._collection is not None
        self._collection.upsert(
            [
                schema.to_row(ordinal, draft.record(), vector)
                for ordinal, draft, vector in zip(ordinals, drafts, vectors, strict=True)
            ]
        )


def _size(draft: Draft) -> tuple[int, int]:
    """Counts aliases and splits. A draft only ever gains them, so a new count means a change."""
    return len(draft.aliases), len(draft.splits)


def _parts(positions: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(positions), _UPSERT_ROWS):
        yield list(positions[start : start + _UPSERT_ROWS])


def _checked(dim: int) -> int:
    if dim > schema.DIM_MOST:
        raise errors.FailedPrecondition(
            f"the encoder's vectors have {dim:,} dimensions, Milvus takes {schema.DIM_MOST:,}; use another encoder"
        )
    return dim
