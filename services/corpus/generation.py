"""One corpus generation on disk: premises and their vectors. The index writes it, the trainer reads it.

    id or text -> hash -> sorted table, memory-mapped -> ordinal -> start of the line -> line of premises.jsonl

`premises.jsonl` holds one premise a line in the order of insertion, which is its ordinal. The memory-mapped tables
beside it hold the start of each line, the sorted hashes of ids and texts with their ordinals, and each premise's group:
those with the same splits and tags. A hash only proposes a premise; its id or text decides. `vectors.npy` has one row a
premise, float32 or, as the manifest says, float16. Everything else that a search engine needs belongs to the index.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import map_array
from services.corpus.sameness import same_key
from services.store.artifacts import Artifact, ArtifactStore, Hold
from services.store.formats import damage_is_data_loss

Storage = Literal["float32", "float16"]
DTYPES: dict[Storage, str] = {"float32": "<f4", "float16": "<f2"}
KIND = "generation"
VECTORS = "vectors.npy"
_CORPUS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
PREMISES = "premises.jsonl"
STARTS = "premises.starts.npy"
IDS = "premises.ids.npy"
TEXTS = "premises.texts.npy"
GROUPS = "premises.groups.npy"
GROUP_NAMES = "premises.groups.json"
KEPT_RECORDS, KEPT_LINE_BYTES = 32_768, 1024  # decoded premises kept for the next call, if their line is no longer
KEPT_IDS = 32_768  # about 100 bytes each
KEPT_MASKS = 8
Names = frozenset[str]
Clause = tuple[Names, Names]  # tags that a premise has, and tags that it has not
_ID, _TEXT = b'{"id": "', b'", "text": "'  # what stands around an id in a line as `to_line` writes it


@dataclass(frozen=True)
class PremiseRecord:
    """A premise: its id, its text, other ids of the same text, the splits that contain the text, and its tags."""

    id: str
    text: str
    aliases: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @classmethod
    def of_line(cls, line: bytes) -> PremiseRecord:
        """Reads a line of `premises.jsonl`. Raises ValueError, KeyError or TypeError for anything else."""
        record = json.loads(line.decode())
        names = (tuple(record[name]) for name in ("aliases", "splits", "tags"))
        return cls(record["id"], record["text"], *names)

    def to_line(self) -> str:
        """Writes the premise as a line of `premises.jsonl`."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Tables:
    """The tables beside the lines of n premises.

    `starts` (n + 1,) int64: the byte where each line begins, and the end. `ids` (2, ids and aliases) and `texts` (2, n)
    uint64: sorted hashes over their ordinals. `groups` (n,) uint32: which of `group_names`, splits and tags, it has.
    """

    starts: NDArray[np.int64]
    ids: NDArray[np.uint64]
    texts: NDArray[np.uint64]
    groups: NDArray[np.uint32]
    group_names: list[tuple[Names, Names]]

    @classmethod
    def of(cls, lines: Iterable[tuple[PremiseRecord, int]]) -> Tables:
        """Makes the tables of premises, each with the size of its line in bytes."""
        starts, ids, id_ordinals, texts, groups = array("q", [0]), array("Q"), array("Q"), array("Q"), array("I")
        known: dict[tuple[Names, Names], int] = {}
        for ordinal, (premise, size_bytes) in enumerate(lines):
            starts.append(starts[-1] + size_bytes)
            texts.append(hash64(premise.text))
            for one in (premise.id, *premise.aliases):
                ids.append(hash64(one))
                id_ordinals.append(ordinal)
            groups.append(known.setdefault((frozenset(premise.splits), frozenset(premise.tags)), len(known)))
        return cls(
            np.array(starts, dtype=np.int64),
            _sort(np.array(ids, dtype=np.uint64), np.array(id_ordinals, dtype=np.uint64)),
            _sort(np.array(texts, dtype=np.uint64), np.arange(len(texts), dtype=np.uint64)),
            np.array(groups, dtype=np.uint32),
            list(known),
        )

    @classmethod
    def open(cls, artifact: Artifact) -> Tables:
        """Memory-maps the tables of an artifact. Raises DataLoss, or ValueError, KeyError, TypeError for damage."""
        starts, ids, texts, groups = (map_array(artifact.file(name)) for name in (STARTS, IDS, TEXTS, GROUPS))
        names = [
            (frozenset(splits), frozenset(tags)) for splits, tags in json.loads(artifact.file(GROUP_NAMES).read_bytes())
        ]
        return cls(starts, ids, texts, groups, names)

    def write(self, path: Path) -> None:
        """Writes the tables into the directory `path`."""
        for name, table in ((STARTS, self.starts), (IDS, self.ids), (TEXTS, self.texts), (GROUPS, self.groups)):
            np.save(path / name, table, allow_pickle=False)
        names = [[sorted(splits), sorted(tags)] for splits, tags in self.group_names]
        (path / GROUP_NAMES).write_text(json.dumps(names, ensure_ascii=False), encoding="utf-8")

    def fit(self, size_bytes: int) -> bool:
        """Whether the tables fit each other and lines of `size_bytes` in all. Reads each table once."""
        if self.starts.ndim != 1 or self.groups.ndim != 1 or not len(self.starts):
            return False
        rows = len(self.starts) - 1
        return bool(
            self.starts.dtype == np.int64
            and self.groups.dtype == np.uint32
            and int(self.starts[0]) == 0
            and int(self.starts[-1]) == size_bytes
            and np.all(self.starts[1:] > self.starts[:-1])
            and self.groups.shape == (rows,)
            and (not rows or int(self.groups.max()) < len(self.group_names))
            and self.texts.shape == (2, rows)
            and all(_is_sorted(table, rows) for table in (self.ids, self.texts))
        )


class Ordinals(Mapping[str, int]):
    """Ordinals by name: found by hash, confirmed by the `names` of the premise."""

    def __init__(
        self, table: NDArray[np.uint64], premises: Premises, names: Callable[[PremiseRecord], Iterable[str]]
    ) -> None:
        self._hashes, self._ordinals = np.asarray(table[0]), np.asarray(table[1])
        self._premises, self._names = premises, names

    def __getitem__(self, name: str) -> int:
        wanted = np.uint64(hash64(name))
        first, end = (np.searchsorted(self._hashes, wanted, side) for side in ("left", "right"))
        for ordinal in self._ordinals[first:end].tolist():
            if name in self._names(self._premises[ordinal]):
                return int(ordinal)
        raise KeyError(name)

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[str]:
        for premise in self._premises:
            yield from self._names(premise)


class Premises(Sequence[PremiseRecord]):
    """All premises of a generation by ordinal, each decoded on access. Immutable, shared by threads.

    `ordinal_by_id` has ids and aliases, `ordinal_by_text` the texts, which are distinct. Raises DataLoss with the name
    of the file for a line that is not a premise.
    """

    def __init__(self, lines: bytes | mmap.mmap, tables: Tables, path: Path = Path(PREMISES)) -> None:
        starts = np.asarray(tables.starts)
        self._rows = len(starts) - 1

        def decode(ordinal: int) -> PremiseRecord:
            try:
                return PremiseRecord.of_line(lines[starts[ordinal] : starts[ordinal + 1]])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise errors.DataLoss(
                    f"{path} cannot be read at line {ordinal + 1} ({error}); build the generation again"
                ) from error

        def read_id(ordinal: int) -> str:
            line, after = starts[ordinal : ordinal + 2].tolist()
            start = line + len(_ID)
            end = lines.find(_TEXT, start, after)
            raw = lines[start : max(start, end)]
            if lines[line:start] != _ID or end < 0 or b"\\" in raw or not raw.isascii():
                return decode(ordinal).id  # the few that JSON writes otherwise
            return raw.decode()

        def read(ordinal: int) -> PremiseRecord:
            return (kept if starts[ordinal + 1] - starts[ordinal] <= KEPT_LINE_BYTES else decode)(ordinal)

        kept = lru_cache(maxsize=KEPT_RECORDS)(decode)
        self._decode, self._read = decode, read
        self._id = lru_cache(maxsize=KEPT_IDS)(read_id)
        self._mask = lru_cache(maxsize=KEPT_MASKS)(lambda splits, clauses: _mask(tables, splits, clauses))
        self.splits = frozenset[str]().union(*(splits for splits, _ in tables.group_names))
        self.tags = frozenset[str]().union(*(tags for _, tags in tables.group_names))
        self.ordinal_by_id = Ordinals(tables.ids, self, lambda premise: (premise.id, *premise.aliases))
        self.ordinal_by_text = Ordinals(tables.texts, self, lambda premise: (premise.text,))

    @classmethod
    def of(cls, records: Iterable[PremiseRecord]) -> Premises:
        """Makes premises in memory."""
        lines = [(record, record.to_line().encode()) for record in records]
        return cls(b"".join(line for _, line in lines), Tables.of((record, len(line)) for record, line in lines))

    @classmethod
    def open(cls, artifact: Artifact) -> Premises:
        """Opens the premises of an artifact. Raises DataLoss, or ValueError, KeyError, TypeError for damage."""
        path = artifact.file(PREMISES)
        with path.open("rb") as file:
            lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if not Tables.open(artifact).fit(len(lines)):  # what only the check reads leaves the memory with its maps
            raise errors.DataLoss(f"{path} and the tables beside it do not fit together; build the generation again")
        return cls(lines, Tables.open(artifact), path)

    @overload
    def __getitem__(self, ordinal: int) -> PremiseRecord: ...
    @overload
    def __getitem__(self, ordinal: slice) -> list[PremiseRecord]: ...
    def __getitem__(self, ordinal: int | slice) -> PremiseRecord | list[PremiseRecord]:
        if isinstance(ordinal, slice):
            return [self._decode(n) for n in range(*ordinal.indices(self._rows))]
        if ordinal < 0:
            ordinal += self._rows
        if not 0 <= ordinal < self._rows:
            raise IndexError(ordinal)
        return self._read(ordinal)

    def ids_of(self, ordinals: Iterable[int]) -> list[str]:
        """Returns the ids of premises by their ordinals, from 0. It reads no more of a line than its id."""
        return [*map(self._id, ordinals)]

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[PremiseRecord]:
        return map(self._decode, range(len(self)))

    def passing(self, splits: Names, clauses: frozenset[Clause] = frozenset()) -> NDArray[np.bool_]:
        """Returns which premises (n,) have one of `splits` or no split, and fit one of `clauses`; empty ones allow all.

        The array is shared and read-only.
        """
        return self._mask(splits, clauses)


def write_premises(path: Path, premises: Iterable[PremiseRecord]) -> None:
    """Writes the premises and their tables into the directory `path`."""
    with (path / PREMISES).open("wb") as file:
        Tables.of((premise, file.write(premise.to_line().encode())) for premise in premises).write(path)


def _mask(tables: Tables, splits: Names, clauses: frozenset[Clause]) -> NDArray[np.bool_]:
    def passes(own: Names, tags: Names) -> bool:
        fits = not clauses or any(tags >= wanted and tags.isdisjoint(unwanted) for wanted, unwanted in clauses)
        return fits and (not splits or not own or not own.isdisjoint(splits))

    mask: NDArray[np.bool_] = np.array([passes(*names) for names in tables.group_names], dtype=bool)[tables.groups]
    mask.setflags(write=False)
    return mask


def hash64(name: str) -> int:
    """Returns 64 bits of a text's hash; files are looked up and parted by it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _sort(hashes: NDArray[np.uint64], ordinals: NDArray[np.uint64]) -> NDArray[np.uint64]:
    order = np.argsort(hashes, kind="stable")
    return np.stack([hashes[order], ordinals[order]])


def _is_sorted(table: NDArray[np.uint64], rows: int) -> bool:
    if table.dtype != np.uint64 or table.ndim != 2 or len(table) != 2:
        return False
    hashes, ordinals = np.asarray(table[0]), np.asarray(table[1])
    return bool(np.all(hashes[1:] >= hashes[:-1]) and (not len(ordinals) or int(ordinals.max()) < rows))


@dataclass(frozen=True, eq=False)
class Generation:
    """An open generation: premises by ordinal, the order of insertion, and memory-mapped vectors (n, dim)."""

    artifact: Artifact
    premises: Premises
    vectors: NDArray[np.float32] | NDArray[np.float16]
    corpus: str
    space_id: str
    premise_version: str
    dim: int
    held: Hold | None = None  # ends with the generation, and then its files may go

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.artifact.id

    @property
    def is_folded(self) -> bool:
        """Whether premises that say the same are one."""
        return bool(self.artifact.meta.get("sameness", "EXACT") != "EXACT")

    @cached_property
    def _ordinal_by_key(self) -> dict[str, int]:
        keys = (same_key(premise.text) for premise in self.premises)
        return {key: ordinal for ordinal, key in reversed(list(enumerate(keys)))}

    @property
    def says_nothing_twice(self) -> bool:
        """Whether no two premises say the same; a folded generation may have such ones of an unfolded base."""
        return len(self._ordinal_by_key) == len(self.premises)

    def stored(self, text: str) -> str:
        """Returns the text that stands for one: its own or, in a folded generation, the first that says the same."""
        is_own = not self.is_folded or text in self.premises.ordinal_by_text
        ordinal = None if is_own else self._ordinal_by_key.get(same_key(text))
        return text if ordinal is None else self.premises[ordinal].text

    def float32(self) -> NDArray[np.float32]:
        """The vectors in float32 (n, dim): the memory map itself, or a copy where they are stored in float16."""
        return np.asarray(self.vectors, dtype=np.float32)


def is_corpus_name(name: str) -> bool:
    """Whether a corpus may bear this name: 1 to 64 of A-Z a-z 0-9 - _ . and no leading dot."""
    return _CORPUS.fullmatch(name) is not None


def check_corpus_name(name: str, field: str = "corpus") -> None:
    """Raises InvalidArgument for an invalid corpus name."""
    if not is_corpus_name(name):
        raise errors.InvalidArgument.field(
            field, f"{name[:80]!r} is not a corpus name; use 1 to 64 of A-Z a-z 0-9 - _ . and no leading dot"
        )


def folder_of(corpus: str) -> str:
    """Returns the artifact folder of a corpus's generations. Raises InvalidArgument for an invalid name."""
    check_corpus_name(corpus)
    return f"generations/{corpus}"


def corpora_of(store: ArtifactStore) -> list[str]:
    """Lists the names of all corpora of a store, sorted."""
    return [name for name in store.folders("generations") if is_corpus_name(name)]


def open_generation(
    store: ArtifactStore, corpus: str, generation_id: str, *, verify: Literal["full", "size"] = "size"
) -> Generation:
    """Opens a generation, whose files stay as long as it is in use, whoever deletes it meanwhile.

    Raises NotFound, or DataLoss with the name of the file that differs from the manifest.
    """
    held = store.hold(folder_of(corpus), generation_id)
    artifact = store.open(folder_of(corpus), generation_id, verify=verify)
    meta = artifact.meta
    with damage_is_data_loss(artifact.path, "build the generation again"):
        premises = Premises.open(artifact)
        vectors = map_array(artifact.file(VECTORS))
        expected = (meta["premises"], meta["dim"])
        stored = np.dtype(DTYPES[meta["storage"]])
        stamp = (meta["space_id"], meta["premise_version"])
    if len(premises) != expected[0] or vectors.shape != expected or vectors.dtype != stored:
        found = f"{len(premises)} premises and {vectors.dtype} vectors {vectors.shape}"
        raise errors.DataLoss(f"{artifact.path} holds {found}, its manifest says {expected}; build it again")
    return Generation(artifact, premises, vectors, corpus, *stamp, dim=expected[1], held=held)
