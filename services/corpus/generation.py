"""One corpus generation on disk: premises and their vectors. The index writes it, the trainer reads it.

Files: `premises.jsonl` with its tables (premises.py) and `vectors.npy` (one row a premise, float32 or, as the manifest
says, float16). Everything else that a search engine needs belongs to the index.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import map_array
from services.corpus.premises import PREMISES, PremiseRecord, Premises, write_premises
from services.store.artifacts import Artifact, ArtifactStore, Hold

__all__ = [
    "KIND",
    "PREMISES",
    "VECTORS",
    "Generation",
    "PremiseRecord",
    "Premises",
    "Storage",
    "check_corpus_name",
    "folder_of",
    "generation_meta",
    "is_corpus_name",
    "open_generation",
    "write_premises",
]

Storage = Literal["float32", "float16"]
KIND = "generation"
VECTORS = "vectors.npy"
_CORPUS = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


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

    def ids_of(self, ordinals: Iterable[int]) -> list[str]:
        """Returns the ids of premises by their ordinals."""
        return self.premises.ids_of(ordinals)

    @property
    def ordinal_by_id(self) -> Mapping[str, int]:
        """Ordinal of each id and alias."""
        return self.premises.ordinal_by_id

    @property
    def ordinal_by_text(self) -> Mapping[str, int]:
        """Ordinal of each text; texts are distinct."""
        return self.premises.ordinal_by_text

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


def generation_meta(
    *,
    corpus: str,
    space_id: str,
    premise_version: str,
    dim: int,
    premises: int,
    storage: Storage = "float32",
    engine: str = "flat",
    **details: Any,
) -> dict[str, Any]:
    """Returns the `meta` of a generation's manifest; `details` belong to its engine."""
    return {
        "corpus": corpus,
        "space_id": space_id,
        "premise_version": premise_version,
        "dim": dim,
        "premises": premises,
        "storage": storage,
        "engine": engine,
        **details,
    }


def open_generation(
    store: ArtifactStore, corpus: str, generation_id: str, *, verify: Literal["full", "size"] = "size"
) -> Generation:
    """Opens a generation, whose files stay as long as it is in use, whoever deletes it meanwhile.

    Raises NotFound, or DataLoss with the name of the file that differs from the manifest.
    """
    held = store.hold(folder_of(corpus), generation_id)
    artifact = store.open(folder_of(corpus), generation_id, verify=verify)
    meta = artifact.meta
    try:
        premises = Premises.open(artifact)
        vectors = map_array(artifact.file(VECTORS))
        expected = (meta["premises"], meta["dim"])
        stored = np.dtype({"float32": np.float32, "float16": np.float16}[meta["storage"]])
        stamp = (meta["space_id"], meta["premise_version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.DataLoss(f"{artifact.path} cannot be read ({error}); build the generation again") from error
    if len(premises) != expected[0] or vectors.shape != expected or vectors.dtype != stored:
        found = f"{len(premises)} premises and {vectors.dtype} vectors {vectors.shape}"
        raise errors.DataLoss(f"{artifact.path} holds {found}, its manifest says {expected}; build it again")
    return Generation(artifact, premises, vectors, corpus, *stamp, dim=expected[1], held=held)
