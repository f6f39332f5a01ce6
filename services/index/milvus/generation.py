"""A generation in Milvus as the index's calls see it, and the check that it is what its record says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.corpus.inner_products import norms_of
from services.index.corpus import check_found
from services.index.milvus.collection import FLAT, GenerationCollection
from services.index.milvus.link import MilvusLink
from services.index.milvus.records import StoredGeneration
from services.store.artifacts import Artifact

PROBES = 32
NORM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class MilvusFacts:
    """What is known of a generation. `premises` has those that one answer found, by ordinal."""

    artifact: Artifact
    corpus: str
    premises: Mapping[int, PremiseRecord] = field(default_factory=dict)

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
    """A generation to search and to read. Holds no premises but those of an answer."""

    generation: MilvusFacts
    collection: GenerationCollection
    link: MilvusLink

    @classmethod
    def of(cls, stored: StoredGeneration, link: MilvusLink) -> MilvusGeneration:
        """The generation of a record."""
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
    def is_exact(self) -> bool:
        """Whether Milvus compares with every premise."""
        return self.collection.engine == FLAT

    def with_premises(self, premises: Mapping[int, PremiseRecord]) -> MilvusGeneration:
        """The same generation with the premises of an answer."""
        facts = MilvusFacts(self.generation.artifact, self.generation.corpus, premises)
        return MilvusGeneration(facts, self.collection, self.link)

    async def find(self, ids: Iterable[str]) -> list[PremiseRecord]:
        """The premises of ids or aliases, in that order. Raises NotFound naming the first unknown ones."""
        wanted = list(ids)
        found = await self.link.read(self.collection.by_ids, wanted)
        check_found(self, [one for one in wanted if one not in found])
        return [found[one] for one in wanted]

    async def page(self, start: int, count: int) -> list[PremiseRecord]:
        """At most `count` premises from the ordinal `start` on, in the order of insertion."""
        return await self.link.read(self.collection.records, start, min(start + count, self.rows))


def probed_ordinals(rows: int) -> list[int]:
    """The premises whose digests a record keeps: a few, spread evenly."""
    spread = np.unique(np.linspace(0, rows - 1, num=min(rows, PROBES), dtype=np.int64))
    return [int(ordinal) for ordinal in spread]


def digest_of(record: PremiseRecord, vector: NDArray[np.float32]) -> str:
    """The digest of a premise with its vector (dim,)."""
    return hashlib.sha256(record.to_line().encode() + vector.astype("<f4").tobytes()).hexdigest()


def check(served: MilvusGeneration, stored: StoredGeneration, patience_s: float) -> None:
    """Raises DataLoss unless all premises are there, those probed are as recorded, and each probe finds itself.

    It blocks. Not every row is read again: that of a billion would take hours.
    """
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
                f"premise {record.id!r} of generation {served.id} is not what was written; build it again"
            )
    vectors = np.stack([vector for _, vector in rows])
    if not (_are_unit(vectors) and _find_themselves(collection, vectors)):
        raise errors.DataLoss(f"vectors of generation {served.id} do not find themselves; build it again")


def _are_unit(vectors: NDArray[np.float32]) -> bool:
    return bool(np.all(np.abs(norms_of(vectors) - 1.0) <= NORM_TOLERANCE))


def _find_themselves(collection: GenerationCollection, vectors: NDArray[np.float32]) -> bool:
    # another premise may have an equal vector, so the score is compared and not the ordinal
    found: Sequence[NDArray[np.float32]] = [one.raw for one in collection.candidates(vectors, 1, "")]
    return all(len(raw) and abs(float(raw[0]) - 1.0) <= 2 * NORM_TOLERANCE for raw in found)
