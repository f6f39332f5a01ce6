"""Which corpora and generations a Milvus holds, which is active, and the switch: an alias for each corpus.

Searches use what was last read, so that one costs one call of Milvus; it is read again every `refresh_s`, which is how
fast an activation by another process is seen. The same round finds Milvus again after it was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from aeenc import errors
from services.index.catalogue import Activation
from services.index.milvus.generation import MilvusGeneration, check
from services.index.milvus.link import Absent, MilvusLink
from services.index.milvus.records import Records, StoredGeneration
from services.kit import logs
from services.store.artifacts import Artifact

log = logs.get(__name__)

LOAD_S = 600.0  # most seconds that an activation waits for Milvus to load a generation


@dataclass(frozen=True)
class Snapshot:
    """The generations of each corpus by id, oldest first, and the id of the active one of each that has one."""

    generations: Mapping[str, Mapping[str, StoredGeneration]] = field(default_factory=dict)
    active: Mapping[str, str] = field(default_factory=dict)


class MilvusCatalogue:
    """The generations of all corpora in one Milvus under one prefix."""

    def __init__(self, link: MilvusLink, records: Records) -> None:
        self._link = link
        self._records = records
        self._seen: Snapshot | None = None
        self._begun = self._taken = 0  # readings and switches; what began earlier must not replace what began later
        self._switching = asyncio.Lock()

    async def refresh(self) -> None:
        """Reads all records and aliases. Raises Unavailable when Milvus is away; what was seen before stays."""
        self._begun += 1
        mine = self._begun
        seen = await self._link.read(self._read)
        if mine > self._taken:
            self._seen, self._taken = seen, mine

    def corpora(self) -> list[tuple[str, MilvusGeneration | None]]:
        """All corpora by name, with their active generations, as last seen."""
        seen = self._seen or Snapshot()
        return [(corpus, self._active(seen, corpus)) for corpus in sorted(seen.generations)]

    def active_id(self, corpus: str) -> str | None:
        """The active generation's id as last seen, None when nothing is active."""
        return (self._seen or Snapshot()).active.get(corpus)

    async def resolve(self, corpus: str, generation_id: str = "") -> MilvusGeneration:
        """The named generation, by default the active one.

        Raises NotFound for an unknown corpus or generation or without an active one, Unavailable before Milvus has
        answered once.
        """
        seen = self._seen
        if seen is None or (generation_id and generation_id not in seen.generations.get(corpus, {})):
            await self.refresh()
        stored = self._known(corpus)
        wanted = generation_id or self.active_id(corpus)
        if not wanted:
            raise errors.NotFound(f"corpus {corpus!r} has no active generation; activate one of ListGenerations")
        return MilvusGeneration.of(_named(stored, corpus, wanted), self._link)

    async def activate(self, corpus: str, generation_id: str, *, expected: str | None = None) -> Activation:
        """Checks a generation, then points the corpus's alias to it.

        `expected` is the id believed active ("" for none). Raises NotFound, Aborted when another is active, DataLoss
        for a generation that is not what was written. Between processes the comparison is not atomic: Milvus has none.
        """
        async with self._switching:
            await self.refresh()
            stored = _named(self._known(corpus), corpus, generation_id)
            previous = self.active_id(corpus)
            if expected is not None and expected != (previous or ""):
                raise errors.Aborted(
                    f"corpus {corpus!r} has {previous or 'no generation'} active, expected {expected or 'none'}; "
                    "read ListGenerations again"
                )
            await self._link.read(check, MilvusGeneration.of(stored, self._link), stored, LOAD_S)
            await self._link.write(self._point, corpus, stored.collection)
            seen = self._seen or Snapshot()
            self._seen = Snapshot(seen.generations, {**seen.active, corpus: generation_id})
            self._begun += 1
            self._taken = self._begun
        log.info("activated", corpus=corpus, generation=generation_id, previous=previous or "")
        return Activation(stored.artifact, previous)

    async def generations(self, corpus: str) -> list[Artifact]:
        """The generations of a corpus, newest first. Raises NotFound for an unknown corpus."""
        await self.refresh()
        found = [stored.artifact for stored in self._known(corpus).values()]
        return sorted(found, key=lambda artifact: (artifact.created_at, artifact.id), reverse=True)

    async def delete(self, corpus: str, generation_id: str) -> None:
        """Deletes a generation. Raises FailedPrecondition for the active one, NotFound for an unknown one."""
        async with self._switching:
            await self.refresh()
            stored = _named(self._known(corpus), corpus, generation_id)
            if generation_id == self.active_id(corpus):
                raise errors.FailedPrecondition(
                    f"generation {generation_id} is the active one of corpus {corpus!r}; activate another one first"
                )
            await self._link.write(self._drop, stored.collection)
            await self.refresh()

    def check_known(self, corpus: str) -> None:
        """Raises NotFound for a corpus without any generation."""
        self._known(corpus)

    def _read(self) -> Snapshot:
        generations: dict[str, dict[str, StoredGeneration]] = {}
        for stored in self._records.all().generations:  # oldest first: of two with one content the older one counts
            generations.setdefault(stored.corpus, {}).setdefault(stored.artifact.id, stored)
        active: dict[str, str] = {}
        for corpus, by_id in generations.items():
            pointed = self._pointed(corpus)
            active.update((corpus, one) for one, stored in by_id.items() if stored.collection == pointed)
        return Snapshot(generations, active)

    def _pointed(self, corpus: str) -> str | None:
        try:
            return str(self._link.call("describe_alias", alias=self._alias(corpus))["collection_name"])
        except Absent:
            return None

    def _point(self, corpus: str, collection: str) -> None:
        method = "create_alias" if self._pointed(corpus) is None else "alter_alias"
        self._link.call(method, collection_name=collection, alias=self._alias(corpus))

    def _drop(self, collection: str) -> None:
        self._records.put_unfinished("dropping", collection, 0)  # from here on it does not exist
        self._link.call("drop_collection", collection_name=collection)
        self._records.remove(collection)

    def _alias(self, corpus: str) -> str:
        return f"{self._records.prefix}_active_{corpus.encode().hex()}"  # Milvus has no dots and dashes in names

    def _active(self, seen: Snapshot, corpus: str) -> MilvusGeneration | None:
        active = seen.active.get(corpus)
        return None if active is None else MilvusGeneration.of(seen.generations[corpus][active], self._link)

    def _known(self, corpus: str) -> Mapping[str, StoredGeneration]:
        generations = (self._seen or Snapshot()).generations
        if corpus not in generations:
            known = ", ".join(sorted(generations)[:10]) or "none yet"
            raise errors.NotFound(f"corpus {corpus!r} is unknown (known: {known}); build it with BuildGeneration")
        return generations[corpus]


def _named(stored: Mapping[str, StoredGeneration], corpus: str, generation_id: str) -> StoredGeneration:
    if generation_id not in stored:
        raise errors.NotFound(f"corpus {corpus!r} has no generation {generation_id!r}; ListGenerations shows them")
    return stored[generation_id]
