"""Generations' vectors in a Milvus: collections that are derived from the files, and propose ordinals.

    first search ──► is all of it there? ── no ──► the one who locks the vectors' file sends them, then indexes
                             │ yes
                             └──► search: ordinals and products, of the premises that a selection allows

    <artifacts>/milvus/<generation>.<corpus>    a document, older than the collection that it names

The primary key is the ordinal, so that writing a premise again replaces it. Expressions hold digests of splits and
tags, never these names themselves, which may contain any character: nothing needs quoting, and nothing can be injected.
The index over the vectors is made after all of them are written: a collection without it is not whole.

What holds a generation's files also keeps its collection. After the last one has let go it stays for `lease_s`, since
processes of other hosts may still be at a search. Any process drops it; that twice does no harm.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray
from pymilvus import CollectionSchema, DataType, MilvusClient
from pymilvus.client.types import LoadState
from pymilvus.exceptions import MilvusException

from aeenc import errors
from services.corpus.generation import VECTORS, Clause, Generation, PremiseRecord, folder_of
from services.index.milvus.link import RETRY_AFTER_S, MilvusLink, MilvusNotFound, MilvusNotLoaded
from services.index.values import Selection
from services.kit import logs
from services.store.artifacts import ArtifactStore
from services.store.files import try_lock

log = logs.get(__name__)
ORDINAL, VECTOR, SPLIT_KEYS, TAG_KEYS = "ordinal", "vector", "split_keys", "tag_keys"
K_MOST = 16_384  # the most results that Milvus returns for a query
NAMES_MOST = 4_096  # the most elements of an array in Milvus
KEY_CHARS = 32
_UNSPLIT = "-"  # stands for "no split at all"; not a digest
_INDEXES: dict[str, tuple[str, dict[str, int]]] = {
    "milvus-flat": ("FLAT", {}),
    "milvus-hnsw": ("HNSW", {"M": 32, "efConstruction": 200}),
}
_EF = 256  # breadth of an HNSW search, at least the number of results
_POLL_S = (0.05, 2.0)  # first and longest pause while Milvus indexes and loads
_ANSWER_HITS = 1_000_000  # of one search; a cluster refuses answers over 64 MiB
_UPSERT_ROWS = 256
FOLDER = "milvus"
LOOKS = 4  # within `lease_s`


class GenerationCollection:
    """The collection `name` of one generation. `announce` is called before it is made, so that it is found and dropped.

    Milvus has `patience_s` to index and to load it.
    """

    most = K_MOST

    def __init__(
        self, link: MilvusLink, name: str, generation: Generation, announce: Callable[[], None], patience_s: float
    ) -> None:
        self.name, self.threads = name, link.threads
        self._link, self._generation = link, generation
        self._announce, self._patience_s = announce, patience_s
        self._engine = str(generation.artifact.meta["engine"])
        self.exact = self._engine == "milvus-flat"
        self._is_whole = False

    def propose(
        self, queries: NDArray[np.float32], width: int, selection: Selection, breadth: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yields the best ordinals for each query (n, dim) and their products, as RemoteProposer says.

        Raises Unavailable when Milvus is away, and while somebody else sends the vectors; a search that finds vectors
        missing sends them first.
        """
        if not self.find():
            with self._alone():
                if not self.find():  # another may just have sent it
                    self._send()
        at_once, params = max(1, _ANSWER_HITS // width), {} if self.exact else {"ef": max(breadth or _EF, width)}
        for start in range(0, len(queries), at_once):
            try:
                found = self._read(
                    "search",
                    data=list(queries[start : start + at_once]),
                    anns_field=VECTOR,
                    filter=expression_of(selection),
                    limit=width,
                    search_params={"metric_type": "IP", "params": params},
                    consistency_level="Bounded",
                )
            except MilvusNotFound as error:
                self._is_whole = False
                raise errors.Unavailable(
                    f"collection {self.name} is gone from Milvus; the next search sends it again from the files",
                    retry_after_s=RETRY_AFTER_S,
                ) from error
            for hits in found:
                yield np.array(hits.ids, dtype=np.int64), np.array(hits.distances, dtype=np.float32)

    def find(self) -> bool:
        """Whether all vectors are in Milvus, indexed and loaded; it is asked until they are."""
        if not self._is_whole:
            self._announce()
            if self._call("has_collection") and self._call("list_indexes", field_name=VECTOR):
                self._load()
                self._is_whole = self._count() == len(self._generation.premises)
        return self._is_whole

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other processes that share the files from sending; the kernel lets go when a process dies."""
        with self._generation.artifact.file(VECTORS).open("r+b") as vectors:
            if not try_lock(vectors):
                raise errors.Unavailable(
                    f"the vectors of generation {self._generation.id} are being sent to Milvus; come back later",
                    retry_after_s=RETRY_AFTER_S,
                )
            yield

    def _send(self) -> None:
        """Writes all premises, indexes and loads them. Raises Unavailable unless Milvus then has them all."""
        started, rows = time.monotonic(), len(self._generation.premises)
        if self._call("has_collection") and self._call("list_indexes", field_name=VECTOR):  # no sender was killed
            log.warning("a collection lacks premises and is made again", collection=self.name)
            drop(self._link, self.name)
        if not self._call("has_collection"):
            # without an index, so that indexing does not slow down writing
            self._call("create_collection", schema=schema_of(self._generation.dim), consistency_level="Bounded")
        for start in range(0, rows, _UPSERT_ROWS):
            part = slice(start, start + _UPSERT_ROWS)
            vectors = np.asarray(self._generation.vectors[part], dtype=np.float32)
            records = enumerate(zip(self._generation.premises[part], vectors, strict=True), start)
            sent = [row_of(ordinal, record, vector) for ordinal, (record, vector) in records]
            if (written := self._call("upsert", data=sent)["upsert_count"]) != len(sent):
                raise errors.Unavailable(f"Milvus took {written} of {len(sent)} premises; activate again")
        self._index()
        if not self.find():
            raise errors.Unavailable(f"Milvus has not all {rows:,} premises in {self.name}; activate again")
        log.info("sent to Milvus", collection=self.name, premises=rows, elapsed_s=round(time.monotonic() - started, 1))

    def _index(self) -> None:
        """Flushes and indexes what was written; waits until Milvus reports all of it indexed."""
        end = time.monotonic() + self._patience_s
        self._call("flush", timeout_s=self._patience_s)
        filters = self._index_filters()
        kind, params = _INDEXES[self._engine]
        index = MilvusClient.prepare_index_params()
        index.add_index(VECTOR, index_name=VECTOR, index_type=kind, metric_type="IP", params=params)
        # not `sync`: it would sleep, then look
        self._call("create_index", index_params=index, timeout_s=self._patience_s, sync=False)
        self._wait("index", lambda: self._is_indexed(filters), end)

    def _index_filters(self) -> Sequence[str]:
        """Begins to index the fields that filters use, and returns their names. milvus-lite cannot, and scans."""
        index = MilvusClient.prepare_index_params()
        for name in (SPLIT_KEYS, TAG_KEYS):
            index.add_index(name, index_name=name, index_type="INVERTED")
        try:
            self._call("create_index", index_params=index, timeout_s=self._patience_s, sync=False)
        except MilvusException as error:
            log.info("filters will scan", collection=self.name, reason=error.message)
            error.__traceback__ = None  # else its circle (link.py) holds the generation's files
            return ()
        return SPLIT_KEYS, TAG_KEYS

    def _is_indexed(self, filters: Iterable[str]) -> bool:
        """Whether the vectors are indexed, and the fields of filters too, or Milvus has given up on those."""
        states = {name: self._call("describe_index", index_name=name) or {} for name in (VECTOR, *filters)}
        has_failed = {name for name, state in states.items() if state.get("state") == "Failed"}
        if VECTOR in has_failed:
            reason = states[VECTOR].get("index_state_fail_reason")
            raise errors.Unavailable(f"Milvus cannot index {self.name} ({reason}); mend it and activate again")
        return all(
            name in has_failed or (state.get("state") == "Finished" and not int(state.get("pending_index_rows") or 0))
            for name, state in states.items()
        )

    def _load(self) -> None:
        if not self._is_loaded():
            self._call("load_collection", timeout_s=self._patience_s)
            self._wait("load", self._is_loaded, time.monotonic() + self._patience_s)

    def _is_loaded(self) -> bool:
        return bool(self._call("get_load_state").get("state") == LoadState.Loaded)

    def _count(self) -> int:
        """Counts the premises, including all writes so far."""
        [row] = self._read("query", filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])

    def _wait(self, what: str, is_done: Callable[[], bool], end: float) -> None:
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
        except MilvusNotLoaded:  # milvus-lite unloads all collections when it restarts
            self._call("load_collection")
            return self._call(method, **arguments)

    def _call(self, method: str, /, **arguments: Any) -> Any:
        return self._link.call(method, collection_name=self.name, **arguments)


def drop(link: MilvusLink, name: str) -> None:
    """Drops a collection, which may be gone."""
    if link.call("has_collection", collection_name=name):
        link.call("drop_collection", collection_name=name)


def schema_of(dim: int) -> CollectionSchema:
    """The fields of a collection of vectors of this dimension."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(ORDINAL, DataType.INT64, is_primary=True)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
    for name in (SPLIT_KEYS, TAG_KEYS):
        schema.add_field(
            name, DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=NAMES_MOST, max_length=KEY_CHARS
        )
    return schema


def row_of(ordinal: int, record: PremiseRecord, vector: NDArray[np.float32]) -> dict[str, Any]:
    """Converts a premise with its vector (dim,). Raises FailedPrecondition for too many splits."""
    if len(record.splits) > NAMES_MOST:
        raise errors.FailedPrecondition(
            f"premise {record.id!r} has {len(record.splits):,} splits, in Milvus it has at most {NAMES_MOST:,}; leave "
            "some out"
        )
    return {
        ORDINAL: ordinal,
        VECTOR: vector,
        SPLIT_KEYS: [_key_of(split) for split in record.splits] or [_UNSPLIT],
        TAG_KEYS: [_key_of(tag) for tag in record.tags],
    }


def expression_of(selection: Selection) -> str:
    """Turns a selection into an expression; "" selects all."""
    splits = sorted(map(_key_of, selection.splits))
    parts = [_any_of(SPLIT_KEYS, [_UNSPLIT, *splits])] if splits else []
    parts += [f"not ({_among(selection.excluded)})"] if selection.excluded else []
    parts += [_among(selection.only)] if selection.only is not None else []
    parts += [f"{ORDINAL} < {selection.before}"] if selection.before is not None else []
    clauses = sorted(map(_fitting, selection.clauses))
    parts += [f"({' or '.join(clauses)})"] if clauses else []
    return " and ".join(parts)


def _among(ordinals: Iterable[int]) -> str:
    return f"{ORDINAL} in [{', '.join(map(str, sorted(ordinals)))}]"


def _fitting(clause: Clause) -> str:
    """Selects the premises that fit a clause of tags."""
    wanted, unwanted = (sorted(map(_key_of, names)) for names in clause)
    parts = [_any_of(TAG_KEYS, [key]) for key in wanted]
    return f"({' and '.join(parts + [f'not {_any_of(TAG_KEYS, unwanted)}'] * bool(unwanted))})"


def _any_of(field: str, keys: Iterable[str]) -> str:
    quoted = ", ".join(f'"{key}"' for key in keys)
    return f"array_contains_any({field}, [{quoted}])"


def _key_of(name: str) -> str:
    """The digest that stands for a name."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:KEY_CHARS]


class Collections:
    """The collections of one store's generations. Their names start with `prefix`."""

    def __init__(
        self, store: ArtifactStore, link: MilvusLink, prefix: str, *, lease_s: float, patience_s: float
    ) -> None:
        self._store, self._link, self._prefix = store, link, prefix
        self._lease_s, self._patience_s = lease_s, patience_s
        self._gone_since: dict[str, float] = {}  # by document
        self._opened = deque[ref[GenerationCollection]]()  # since the last look
        self._sweep_at = 0.0

    def of(self, generation: Generation) -> GenerationCollection:
        """Opens the collection of a generation, which asks nothing of Milvus yet."""
        key = f"{generation.id}.{generation.corpus}"
        name = f"{self._prefix}_g_{hashlib.sha256(key.encode()).hexdigest()[:32]}"

        def announce() -> None:
            self._store.documents.write(f"{FOLDER}/{key}", name.encode())

        opened = GenerationCollection(self._link, name, generation, announce, self._patience_s)
        self._opened.append(ref(opened))
        return opened

    async def close(self) -> None:
        """Closes the link."""
        await self._link.close()

    def look(self) -> None:
        """Loads what was opened, and drops what belongs to no generation; the link reports whether Milvus answers.

        It blocks; call it every few seconds.
        """
        self._link.call("has_collection", collection_name=self._prefix)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + self._lease_s / LOOKS
            self._sweep()
        while self._opened:
            if (collection := self._opened.popleft()()) is not None:
                collection.find()

    def _sweep(self) -> None:
        now = time.monotonic()
        names = self._store.documents.names(FOLDER)
        self._gone_since = {key: self._gone_since.get(key, now) for key in names if self._is_gone(key)}
        for key, since in self._gone_since.items():
            name = self._store.documents.read(f"{FOLDER}/{key}")
            if now - since >= self._lease_s and name is not None:
                drop(self._link, name.decode())
                self._store.documents.remove(f"{FOLDER}/{key}")
                log.info("dropped the collection of a deleted generation", collection=name.decode(), generation=key)

    def _is_gone(self, key: str) -> bool:
        """Whether a generation is deleted and nobody holds its files. Raises Unavailable where the store is away."""
        generation_id, _, corpus = key.partition(".")
        with suppress(errors.NotFound):
            self._store.check_exists(folder_of(corpus), generation_id)
            return False
        return not self._store.has_deleted(folder_of(corpus))
