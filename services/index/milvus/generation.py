"""One generation in Milvus: its collection, its face to the index's calls, and the check before it becomes active.

A collection is written once, sealed, then only read. The methods of GenerationCollection block: call them in a thread.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus import MilvusClient
from pymilvus.client.types import LoadState
from pymilvus.exceptions import MilvusException

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.corpus.inner_products import norms_of
from services.index.catalogue.served import check_found
from services.index.milvus import schema
from services.index.milvus.ledger.records import StoredGeneration
from services.index.milvus.ledger.tables import Table
from services.index.milvus.link import MilvusLink, MilvusNotFound, MilvusNotLoaded
from services.index.values import LexicalSettings
from services.kit import logs
from services.kit.limits import AnswerRoom
from services.store.artifacts import Artifact

log = logs.get(__name__)
FLAT, HNSW, WORDS = "milvus-flat", "milvus-hnsw", "milvus-words"
KEY, COUNT = "key", "count"  # of the table of frequencies
_INDEXES: dict[str, tuple[str, dict[str, int]]] = {
    FLAT: ("FLAT", {}),
    HNSW: ("HNSW", {"M": 32, "efConstruction": 200}),
    WORDS: ("SPARSE_INVERTED_INDEX", {}),
}
_EF = 256  # breadth of an HNSW search, at least the number of results
_POLL_S = (0.05, 2.0)  # first and longest pause while Milvus indexes and loads
_ANSWER_BYTES = 16 * 1024 * 1024  # of one search; a cluster refuses over 64 MiB
_ROW_BYTES = 512  # of a premise without its vector, roughly
_KEYS_AT_ONCE = 1000
PROBES = 32
NORM_TOLERANCE = 1e-3
_WORDS_LOST = {"damaged": "words"}  # of an error: the premises are sound


@dataclass(frozen=True)
class Candidates:
    """Milvus's answer to one query, best first: raw scores, vectors, and the premises themselves.

    Vectors are an array (n, dim), or a dict for each premise where they are sparse.
    """

    ordinals: NDArray[np.int64]
    raw: NDArray[np.float32]
    vectors: Any
    records: Sequence[PremiseRecord]


class GenerationCollection:
    """One collection by name. Every method blocks.

    The words of a generation have a collection of their own, `words`, since their weights are known only at the end of
    a build. Its `dim` is 0: its vectors are sparse, one of the weights and one of length 1. The table `frequencies`
    says in how many premises a word is.
    """

    def __init__(self, link: MilvusLink, name: str, dim: int, engine: str = FLAT) -> None:
        self._link = link
        self.name = name
        self.dim = dim
        self.engine = engine

    @property
    def words(self) -> GenerationCollection:
        """The collection of the same premises by words; one without any word is not in it."""
        return GenerationCollection(self._link, self._sibling("w"), 0, WORDS)

    @property
    def frequencies(self) -> Table:
        """The number of premises that contain each word, by its digest."""
        return Table(self._link, self._sibling("f"), {KEY: schema.KEY_CHARS, COUNT: 0})

    def create(self) -> None:
        """Creates the collection without an index, so that indexing does not slow down writing."""
        self._call("create_collection", schema=schema.generation_schema(self.dim), consistency_level="Bounded")

    def upsert(self, rows: Sequence[dict[str, Any]]) -> None:
        """Writes premises, replacing those with the same ordinals."""
        written = self._call("upsert", data=list(rows))["upsert_count"]
        if written != len(rows):
            raise errors.Unavailable(f"Milvus took {written} of {len(rows)} premises; build again")

    def seal(self, patience_s: float) -> None:
        """Flushes, indexes and loads the collection; waits until Milvus reports all of it indexed and loaded."""
        end = time.monotonic() + patience_s
        self._call("flush", timeout_s=patience_s)
        index = MilvusClient.prepare_index_params()
        kind, params = _INDEXES[self.engine]
        for name in self._vector_fields:
            index.add_index(name, index_name=name, index_type=kind, metric_type="IP", params=params)
        self._call("create_index", index_params=index, timeout_s=patience_s, sync=False)  # it would sleep, then look
        filters = self._index_names(patience_s)
        self._wait("index", lambda: self._is_indexed(filters), end)
        self._call("load_collection", timeout_s=patience_s)
        self._wait("load", self._is_loaded, end)

    def load(self, patience_s: float) -> None:
        """Loads the collection again, for example after a restart of Milvus."""
        if not self._is_loaded():
            self._call("load_collection", timeout_s=patience_s)
            self._wait("load", self._is_loaded, time.monotonic() + patience_s)

    def drop(self) -> None:
        """Drops the collection if it exists, after those of its words."""
        if self.engine != WORDS:
            self.frequencies.drop()
            self.words.drop()
        try:
            if self._call("has_collection"):
                self._call("drop_collection")
        except MilvusNotFound:
            return

    def count(self) -> int:
        """Counts the premises, including all writes so far."""
        [row] = self._read("query", filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])

    def records(self, start: int, end: int) -> list[PremiseRecord]:
        """Reads the premises from ordinal `start` up to but not including `end`, in order."""
        rows = self._rows(schema.between(start, end), schema.RECORD_FIELDS, end - start)
        return [schema.to_record(row) for row in rows]

    def by_ids(self, ids: Sequence[str]) -> dict[str, PremiseRecord]:
        """Reads the premises with one of the ids or aliases, by each of these."""
        rows = self._rows(schema.with_any_id(ids), schema.RECORD_FIELDS, len(ids))
        found = map(schema.to_record, rows)
        by_name = {name: record for record in found for name in (record.id, *record.aliases)}
        return {one: by_name[one] for one in ids if one in by_name}

    def ordinals(self, ids: Sequence[str]) -> dict[str, int]:
        """Finds the ordinals of the premises with one of the ids or aliases, by each of these."""
        rows = self._rows(schema.with_any_id(ids), [schema.ORDINAL, schema.IDS], len(ids))
        by_name = {name: int(row[schema.ORDINAL]) for row in rows for name in row[schema.IDS]}
        return {one: by_name[one] for one in ids if one in by_name}

    def containing(self, words: Iterable[str]) -> dict[str, int]:
        """Reads how many premises contain each word; it leaves out words that none contains."""
        by_key = {schema.key_of(word): word for word in words}
        keys, found = list(by_key), dict[str, int]()
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            quoted = ", ".join(f'"{key}"' for key in keys[start : start + _KEYS_AT_ONCE])
            rows = self.frequencies.find(f"{KEY} in [{quoted}]", _KEYS_AT_ONCE)
            found |= {by_key[row[KEY]]: int(row[COUNT]) for row in rows}
        return found

    def whole(self, ordinals: Sequence[int]) -> list[tuple[PremiseRecord, NDArray[np.float32]]]:
        """Reads premises with their vectors (dim,), in order of their ordinals, including all writes so far."""
        fields = [*schema.RECORD_FIELDS, schema.VECTOR]
        rows = self._rows(schema.with_ordinals(ordinals), fields, len(ordinals), "Strong")
        if [row[schema.ORDINAL] for row in rows] != sorted(ordinals):
            raise errors.DataLoss(f"collection {self.name} lacks premises; build the generation again")
        return [_with_vector(row) for row in rows]

    def sparse(self, ordinals: Sequence[int]) -> dict[int, tuple[PremiseRecord, dict[int, float]]]:
        """Reads premises with their sparse vectors, by ordinal; it leaves out those without words."""
        fields = [*schema.FOUND_FIELDS, schema.ORDINAL]
        rows = self._rows(schema.with_ordinals(ordinals), fields, len(ordinals))
        return {int(row[schema.ORDINAL]): (schema.to_record(row), row[schema.VECTOR]) for row in rows}

    def with_vectors(self, ids: Sequence[str]) -> dict[str, tuple[PremiseRecord, NDArray[np.float32]]]:
        """Reads the premises with one of the ids or aliases, with their vectors (dim,), by each of these."""
        rows = self._rows(schema.with_any_id(ids), [*schema.RECORD_FIELDS, schema.VECTOR], len(ids))
        found = map(_with_vector, rows)
        by_name = {name: pair for pair in found for name in (pair[0].id, *pair[0].aliases)}
        return {one: by_name[one] for one in ids if one in by_name}

    def __getitem__(self, ordinals: list[int], /) -> NDArray[np.float32]:
        """Reads the vectors (n, dim) of ordinals, in the order given."""
        if not ordinals:
            return np.empty((0, self.dim), np.float32)
        fetched = sorted(set(ordinals))
        matrix = np.stack([vector for _, vector in self.whole(fetched)])
        return matrix[np.searchsorted(fetched, ordinals)]

    def candidates(
        self,
        queries: NDArray[np.float32] | Sequence[Any],
        width: int,
        expression: str,
        *,
        field: str = schema.VECTOR,
        breadth: int = 0,
        timeout_s: float | None = None,
    ) -> Iterator[Candidates]:
        """Yields at most `width` premises for each query (dim,) or sparse, by inner product as Milvus computes it.

        Milvus compares with the vectors of `field`. `breadth` is that of an HNSW search; 0 takes the default. Only one
        answer of Milvus is in memory, with its premises' vectors.
        """
        at_once = max(1, _ANSWER_BYTES // (width * (self.dim * 4 + _ROW_BYTES)))
        for start in range(0, len(queries), at_once):
            hits = self._read(
                "search",
                data=list(queries[start : start + at_once]),
                anns_field=field,
                filter=expression,
                limit=width,
                output_fields=schema.FOUND_FIELDS,
                search_params={"metric_type": "IP", "params": self._search_params(width, breadth)},
                consistency_level="Bounded",
                timeout_s=timeout_s,
            )
            yield from map(self._candidates, hits)

    @property
    def _vector_fields(self) -> list[str]:
        return [schema.VECTOR, schema.UNIT] if self.engine == WORDS else [schema.VECTOR]

    def _sibling(self, kind: str) -> str:
        prefix, _, unique = self.name.rpartition("_g_")
        return f"{prefix}_{kind}_{unique}"

    def _index_names(self, patience_s: float) -> Sequence[str]:
        """Begins to index the fields that filters use, and returns their names. milvus-lite cannot, and scans."""
        names = (schema.ID_KEYS, schema.SPLIT_KEYS)
        index = MilvusClient.prepare_index_params()
        for name in names:
            index.add_index(name, index_name=name, index_type="INVERTED")
        try:
            self._call("create_index", index_params=index, timeout_s=patience_s, sync=False)
        except MilvusException as error:
            log.info("filters will scan", collection=self.name, reason=error.message)
            return ()
        return names

    def _candidates(self, hits: Iterable[Any]) -> Candidates:
        found = list(hits)
        rows = [hit["entity"] for hit in found]
        vectors = [row[schema.VECTOR] for row in rows]
        return Candidates(
            np.array([hit[schema.ORDINAL] for hit in found], dtype=np.int64),
            np.array([hit["distance"] for hit in found], dtype=np.float32),
            np.array(vectors, dtype=np.float32).reshape(len(rows), self.dim) if self.dim else vectors,
            [schema.to_record(row) for row in rows],
        )

    def _search_params(self, width: int, breadth: int) -> dict[str, int]:
        return {"ef": max(breadth or _EF, width)} if self.engine == HNSW else {}

    def _rows(
        self, expression: str, fields: Sequence[str], most: int, consistency: str = "Bounded"
    ) -> list[dict[str, Any]]:
        if most == 0:
            return []
        rows = self._read(
            "query", filter=expression, output_fields=list(fields), limit=most, consistency_level=consistency
        )
        return sorted(rows, key=lambda row: int(row[schema.ORDINAL]))

    def _is_indexed(self, filters: Iterable[str]) -> bool:
        """Whether the vectors are indexed, and the fields of filters too, or Milvus has given up on those."""
        states = {
            name: self._call("describe_index", index_name=name) or {} for name in (*self._vector_fields, *filters)
        }
        has_failed = {name for name, state in states.items() if state.get("state") == "Failed"}
        for name in has_failed.intersection(self._vector_fields):
            reason = states[name].get("index_state_fail_reason")
            raise errors.Unavailable(f"Milvus cannot index {self.name}: {reason}")
        return all(
            name in has_failed or (one.get("state") == "Finished" and not int(one.get("pending_index_rows") or 0))
            for name, one in states.items()
        )

    def _is_loaded(self) -> bool:
        return bool(self._call("get_load_state").get("state") == LoadState.Loaded)

    def _wait(self, what: str, is_done: Any, end: float) -> None:
        pause_s, longest_s = _POLL_S
        while not is_done():
            if time.monotonic() > end:
                raise errors.Unavailable(
                    f"Milvus did not {what} {self.name} in time; raise AEENC_INDEX_MILVUS_PATIENCE_S or add nodes"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def _read(self, method: str, /, **arguments: Any) -> Any:
        try:
            return self._call(method, **arguments)
        except MilvusNotLoaded:
            self.load(self._link.timeout_s)
            return self._call(method, **arguments)

    def _call(self, method: str, /, **arguments: Any) -> Any:
        return self._link.call(method, collection_name=self.name, **arguments)


def _with_vector(row: Mapping[str, Any]) -> tuple[PremiseRecord, NDArray[np.float32]]:
    return schema.to_record(row), np.asarray(row[schema.VECTOR], dtype=np.float32)


@dataclass(frozen=True)
class MilvusFacts:
    """The manifest of a generation. `premises` has those of one answer, by ordinal."""

    artifact: Artifact
    corpus: str
    premises: Mapping[int, PremiseRecord] = field(default_factory=dict)

    def ids_of(self, ordinals: Iterable[int]) -> list[str]:
        """Returns the ids of premises of the answer by their ordinals."""
        return [self.premises[ordinal].id for ordinal in ordinals]

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.artifact.id

    @property
    def space_id(self) -> str:
        """The space of its vectors."""
        return str(self.artifact.meta["space_id"])

    @property
    def premise_version(self) -> str:
        """The checkpoint that encoded its premises."""
        return str(self.artifact.meta["premise_version"])

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return int(self.artifact.meta["dim"])


@dataclass(frozen=True)
class MilvusGeneration:
    """A generation to search and to read. It holds only the premises of an answer."""

    generation: MilvusFacts
    collection: GenerationCollection
    link: MilvusLink

    @classmethod
    def of(cls, stored: StoredGeneration, link: MilvusLink) -> MilvusGeneration:
        """Makes the generation of a record."""
        facts = MilvusFacts(stored.artifact, stored.corpus)
        engine = str(stored.artifact.meta["engine"])
        return cls(facts, GenerationCollection(link, stored.collection, facts.dim, engine), link)

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.generation.id

    @property
    def rows(self) -> int:
        """The number of premises."""
        return int(self.generation.artifact.meta["premises"])

    @property
    def worded(self) -> int:
        """The number of premises with words."""
        return int(self.generation.artifact.meta["words"])

    @property
    def lexical(self) -> LexicalSettings:
        """How it ranks in rounds."""
        return LexicalSettings.of_record(self.generation.artifact.meta["rounds"])

    @property
    def is_exact(self) -> bool:
        """Whether Milvus compares a query with every premise."""
        return self.collection.engine == FLAT

    def with_premises(self, premises: Mapping[int, PremiseRecord]) -> MilvusGeneration:
        """Returns the same generation with the premises of an answer."""
        facts = MilvusFacts(self.generation.artifact, self.generation.corpus, premises)
        return MilvusGeneration(facts, self.collection, self.link)

    async def find(self, ids: Iterable[str], most_bytes: int) -> list[PremiseRecord]:
        """Finds premises by id or alias, in the order given.

        Raises NotFound naming the first unknown ones, TooLarge when their texts take more than `most_bytes`.
        """
        wanted = list(ids)
        found = await self.link.read(self.collection.by_ids, wanted)
        check_found(self, [one for one in wanted if one not in found])
        AnswerRoom(most_bytes).take(sum(len(found[one].text) for one in wanted))
        return [found[one] for one in wanted]

    async def page(self, start: int, count: int, _most_bytes: int) -> list[PremiseRecord]:
        """Returns at most `count` premises from the ordinal `start` on, in order of insertion."""
        return await self.link.read(self.collection.records, start, min(start + count, self.rows))


def probed_ordinals(rows: int) -> list[int]:
    """Chooses the premises whose digests a record keeps: a few, evenly spread."""
    spread = np.unique(np.linspace(0, rows - 1, num=min(rows, PROBES), dtype=np.int64))
    return [int(ordinal) for ordinal in spread]


def digest_of(record: PremiseRecord, vector: NDArray[np.float32]) -> str:
    """Computes the digest of a premise with its vector (dim,)."""
    return hashlib.sha256(record.to_line().encode() + vector.astype("<f4").tobytes()).hexdigest()


def check(served: MilvusGeneration, stored: StoredGeneration, patience_s: float) -> None:
    """Raises DataLoss unless all premises are there, the probes are as recorded, and each probe finds itself.

    Where the words alone are damaged, its metadata says so. It blocks. It does not read every row again: a billion rows
    would take hours.
    """
    generation = f"generation {served.id} of corpus {stored.corpus!r}"
    try:
        _check_rows(served, stored, patience_s)
    except MilvusNotFound as error:
        raise errors.DataLoss(
            f"{generation} lacks its collection {stored.collection} in Milvus; build it again"
        ) from error
    try:
        _check_words(served, patience_s)
    except MilvusNotFound as error:
        lost = f"{generation} lacks a collection of its words beside {stored.collection} in Milvus; build it again"
        raise errors.DataLoss(lost, metadata=_WORDS_LOST) from error


def _check_rows(served: MilvusGeneration, stored: StoredGeneration, patience_s: float) -> None:
    collection, ordinals = served.collection, sorted(stored.probes)
    collection.load(patience_s)
    if (count := collection.count()) != served.rows:
        raise errors.DataLoss(
            f"generation {served.id} has {count:,} premises in Milvus, its record says {served.rows:,}; build it again"
        )
    rows = collection.whole(ordinals)
    for ordinal, (record, vector) in zip(ordinals, rows, strict=True):
        if digest_of(record, vector) != stored.probes[ordinal]:
            raise errors.DataLoss(
                f"premise {record.id!r} of generation {served.id} has changed since it was written; build it again"
            )
    vectors = np.stack([vector for _, vector in rows])
    if not (_are_unit(vectors) and _find_themselves(collection, vectors)):
        raise errors.DataLoss(f"vectors of generation {served.id} do not find themselves; build it again")


def _check_words(served: MilvusGeneration, patience_s: float) -> None:
    meta = served.generation.artifact.meta
    if not meta.get("words"):
        return
    words = served.collection.words
    words.load(patience_s)
    if (count := words.count()) != served.worded:
        raise errors.DataLoss(
            f"generation {served.id} has the words of {count:,} premises in Milvus, its record says "
            f"{served.worded:,}; build it again",
            metadata=_WORDS_LOST,
        )
    if (count := served.collection.frequencies.count()) != meta["vocabulary"]:
        raise errors.DataLoss(
            f"generation {served.id} has the frequencies of {count:,} words in Milvus, its record says "
            f"{meta['vocabulary']:,}; build it again",
            metadata=_WORDS_LOST,
        )


def _are_unit(vectors: NDArray[np.float32]) -> bool:
    return bool(np.all(np.abs(norms_of(vectors) - 1.0) <= NORM_TOLERANCE))


def _find_themselves(collection: GenerationCollection, vectors: NDArray[np.float32]) -> bool:
    # compares scores and not ordinals: another premise may have an equal vector
    found: Sequence[NDArray[np.float32]] = [one.raw for one in collection.candidates(vectors, 1, "")]
    return all(len(raw) and abs(float(raw[0]) - 1.0) <= 2 * NORM_TOLERANCE for raw in found)
