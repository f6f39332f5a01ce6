"""One corpus generation on disk: premises and their vectors. The index writes it, the trainer reads it.

Files: `premises.jsonl` (one premise a line, in the order of insertion) and `vectors.npy` (float32, one row a premise).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.kit.artifacts import Artifact, ArtifactStore, atomic_write

KIND = "generation"
PREMISES = "premises.jsonl"
VECTORS = "vectors.npy"
ACTIVE = ".active.json"
FORMAT_VERSION = 1
_CORPUS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class PremiseRecord:
    """One premise: its id, its text, the other ids of the same text, and the splits in which the text stands."""

    id: str
    text: str
    aliases: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()

    def to_line(self) -> str:
        """The premise as one line of `premises.jsonl`."""
        record = {"id": self.id, "text": self.text, "aliases": self.aliases, "splits": self.splits}
        return json.dumps(record, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Generation:
    """A generation in memory: premises in the order of insertion (the ordinal) and memory-mapped vectors (n, dim)."""

    artifact: Artifact
    premises: list[PremiseRecord]
    vectors: NDArray[np.float32]
    corpus: str
    space_id: str
    premise_version: str
    dim: int

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.artifact.id

    @cached_property
    def ordinal_by_id(self) -> dict[str, int]:
        """Ordinal of each id and alias."""
        ordinals = {alias: n for n, premise in enumerate(self.premises) for alias in premise.aliases}
        ordinals.update((premise.id, n) for n, premise in enumerate(self.premises))
        return ordinals

    @cached_property
    def ordinal_by_text(self) -> dict[str, int]:
        """Ordinal of each text; texts are distinct."""
        return {premise.text: n for n, premise in enumerate(self.premises)}


def is_corpus_name(name: str) -> bool:
    """Whether a corpus may bear this name: 1 to 64 of A-Z a-z 0-9 - _ . and no dot in front."""
    return _CORPUS.fullmatch(name) is not None


def check_corpus_name(name: str, field: str = "corpus") -> None:
    """Raises InvalidArgument for a name that cannot be a corpus's."""
    if not is_corpus_name(name):
        raise errors.InvalidArgument.field(
            field, f"{name[:80]!r} is no corpus name; use 1 to 64 of A-Z a-z 0-9 - _ . and no dot in front"
        )


def folder_of(corpus: str) -> str:
    """The artifact folder of a corpus's generations. Raises InvalidArgument for a name that cannot be a corpus's."""
    check_corpus_name(corpus)
    return f"generations/{corpus}"


def write_premises(path: Path, premises: Iterable[PremiseRecord]) -> None:
    """Writes `premises.jsonl` into the directory `path`."""
    with (path / PREMISES).open("w", encoding="utf-8") as file:
        file.writelines(premise.to_line() for premise in premises)


def generation_meta(*, corpus: str, space_id: str, premise_version: str, dim: int, premises: int) -> dict[str, Any]:
    """The manifest's meta of a generation with a flat engine."""
    return {
        "corpus": corpus,
        "space_id": space_id,
        "premise_version": premise_version,
        "dim": dim,
        "premises": premises,
        "engine": "flat",
    }


def open_generation(
    store: ArtifactStore, corpus: str, generation_id: str, *, verify: Literal["full", "size"] = "size"
) -> Generation:
    """Opens a generation. Raises NotFound, or DataLoss naming the file that is not as its manifest says."""
    artifact = store.open(folder_of(corpus), generation_id, verify=verify)
    meta = artifact.meta
    try:
        with artifact.file(PREMISES).open(encoding="utf-8") as file:
            premises = [_record(line) for line in file]
        vectors = np.load(artifact.file(VECTORS), mmap_mode="r", allow_pickle=False)
        expected = (meta["premises"], meta["dim"])
        stamp = (meta["space_id"], meta["premise_version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.DataLoss(f"{artifact.path} cannot be read ({error}); build the generation again") from error
    if len(premises) != expected[0] or vectors.shape != expected or vectors.dtype != np.float32:
        found = f"{len(premises)} premises and {vectors.dtype} vectors {vectors.shape}"
        raise errors.DataLoss(f"{artifact.path} holds {found}, its manifest says {expected}; build it again")
    return Generation(artifact, premises, vectors, corpus, *stamp, dim=expected[1])


def read_active(store: ArtifactStore, corpus: str) -> str | None:
    """The generation that searches see; None before the first activation."""
    path = store.root / folder_of(corpus) / ACTIVE
    try:
        return str(json.loads(path.read_bytes())["generation"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.DataLoss(f"{path} cannot be read ({error}); activate a generation again") from error


def write_active(store: ArtifactStore, corpus: str, generation_id: str) -> None:
    """Moves the pointer, durably and as a whole."""
    record = {"format_version": FORMAT_VERSION, "generation": generation_id}
    atomic_write(store.root / folder_of(corpus) / ACTIVE, json.dumps(record).encode())


def _record(line: str) -> PremiseRecord:
    record = json.loads(line)
    return PremiseRecord(record["id"], record["text"], tuple(record["aliases"]), tuple(record["splits"]))
