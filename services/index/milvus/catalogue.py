"""The corpora and generations in a Milvus, which generation is active, and the switch: an alias for each corpus.

    every refresh_s ──► Sweeper ──► read records and aliases ──► CatalogueSnapshot ──► searches (one call each)
                           └──► drop what builds and deletions left that have been silent for lease_s

Searches use the last snapshot, so `refresh_s` is how soon a process sees an activation by another one. The same round
finds Milvus again after an outage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aeenc import errors
from services.index.catalogue.catalogue import check_expected, check_inactive, check_known, none_active
from services.index.catalogue.requests import RequestKind, RequestNote, check_same
from services.index.milvus.generation import GenerationCollection, MilvusGeneration, check
from services.index.milvus.link import MilvusLink, MilvusNotFound
from services.index.milvus.records import Records, StoredGeneration
from services.index.values import Activation, ReplicaState
from services.kit import logs
from services.kit.concurrency import cancel_all, finish
from services.store.artifacts import Artifact

log = logs.get(__name__)
LOAD_S = 600.0  # most seconds that an activation waits for Milvus to load a generation
LOOKS = 4  # within the time after which a silent build is swept


@dataclass(frozen=True)
class CatalogueSnapshot:
    """The generations of each corpus by id, oldest first, and the id of each active one."""

    generations: Mapping[str, Mapping[str, StoredGeneration]] = field(default_factory=dict)
    active: Mapping[str, str] = field(default_factory=dict)


class MilvusCatalogue:
    """The generations of all corpora in one Milvus under one prefix."""

    def __init__(self, link: MilvusLink, records: Records) -> None:
        self._link = link
        self._records = records
        self._seen: CatalogueSnapshot | None = None
        self._begun = self._taken = 0  # reads and switches; one that began earlier must not replace a later one
        self._switching = asyncio.Lock()

    async def refresh(self) -> None:
        """Reads all records and aliases. Raises Unavailable when Milvus is away; then the last snapshot stays."""
        self._begun += 1
        mine = self._begun
        seen = await self._link.read(self._read)
        if mine > self._taken:
            self._seen, self._taken = seen, mine

    def corpora(self) -> list[tuple[str, MilvusGeneration | None]]:
        """Lists all corpora by name, with their active generations, as last seen."""
        seen = self._seen or CatalogueSnapshot()
        return [(corpus, self._active(seen, corpus)) for corpus in sorted(seen.generations)]

    def replicas(self, _corpus: str) -> tuple[ReplicaState, ...]:
        """None: index processes over one Milvus do not know of each other."""
        return ()

    def active_id(self, corpus: str) -> str | None:
        """The id of the active generation as last seen; None when there is none."""
        return (self._seen or CatalogueSnapshot()).active.get(corpus)

    async def resolve(self, corpus: str, generation_id: str = "") -> MilvusGeneration:
        """Finds the named generation, by default the active one.

        Raises NotFound for an unknown corpus or generation, or if none is active; Unavailable before Milvus has
        answered once.
        """
        seen = self._seen
        if seen is None or (generation_id and generation_id not in seen.generations.get(corpus, {})):
            await self.refresh()
        stored = self._known(corpus)
        wanted = generation_id or self.active_id(corpus)
        if not wanted:
            raise none_active(corpus)
        return MilvusGeneration.of(_named(stored, corpus, wanted), self._link)

    async def activate(
        self, corpus: str, generation_id: str, *, expected: str | None = None, request_id: str = ""
    ) -> Activation:
        """Checks a generation, then points the corpus's alias to it.

        `expected` is the id that the caller believes active ("" for none). Raises NotFound, Aborted when another one is
        active, DataLoss for a generation that changed since it was written. Milvus has no compare-and-set, so between
        processes the comparison is not atomic.
        """
        async with self._switching:
            await self.refresh()
            stored = _named(self._known(corpus), corpus, generation_id)
            previous = self.active_id(corpus)
            note = RequestNote({"generation": generation_id, "expected_generation": expected}, previous or "")
            before = await self._noted(corpus, "activate", request_id, note)
            if before is not None and (before.done or previous == generation_id):
                return Activation(stored.artifact, before.previous or None)
            check_expected(corpus, previous, expected)
            await self._link.read(check, MilvusGeneration.of(stored, self._link), stored, LOAD_S)
            await finish(
                asyncio.create_task(self._move(corpus, stored, request_id, note))
            )  # a cancelled call moves both or none
        log.info("activated", corpus=corpus, generation=generation_id, previous=previous or "")
        return Activation(stored.artifact, previous)

    async def generations(self, corpus: str) -> list[Artifact]:
        """Lists the generations of a corpus, newest first. Raises NotFound for an unknown corpus."""
        await self.refresh()
        found = [stored.artifact for stored in self._known(corpus).values()]
        return sorted(found, key=lambda artifact: (artifact.created_at, artifact.id), reverse=True)

    async def delete(self, corpus: str, generation_id: str, *, request_id: str = "") -> tuple[ReplicaState, ...]:
        """Deletes a generation. Raises FailedPrecondition for the active one, NotFound for an unknown one."""
        async with self._switching:
            await self.refresh()
            note = RequestNote({"generation": generation_id})
            before = await self._noted(corpus, "delete", request_id, note)
            ids = (self._seen or CatalogueSnapshot()).generations.get(corpus, {})
            if before is not None and (before.done or generation_id not in ids):
                return ()
            stored = _named(self._known(corpus), corpus, generation_id)
            check_inactive(corpus, generation_id, self.active_id(corpus))
            await finish(asyncio.create_task(self._remove(corpus, stored.collection, request_id, note)))
        return ()

    async def _noted(self, corpus: str, kind: RequestKind, request_id: str, note: RequestNote) -> RequestNote | None:
        """Finds what the request left before, or None. Raises AlreadyExists when it asked for something else."""
        before = await self._link.read(self._records.note, corpus, kind, request_id) if request_id else None
        if before is not None:
            check_same(request_id, before.asked, note.asked)
        return before

    async def _move(self, corpus: str, stored: StoredGeneration, request_id: str, note: RequestNote) -> None:
        """Moves the alias, and what this process knows of it."""
        await self._link.write(self._records.put_note, corpus, "activate", request_id, note)
        await self._link.write(self._point, corpus, stored.collection)
        seen = self._seen or CatalogueSnapshot()
        self._seen = CatalogueSnapshot(seen.generations, {**seen.active, corpus: stored.artifact.id})
        self._begun += 1
        self._taken = self._begun
        await self._link.write(self._records.put_note, corpus, "activate", request_id, replace(note, done=True))

    async def _remove(self, corpus: str, collection: str, request_id: str, note: RequestNote) -> None:
        await self._link.write(self._records.put_note, corpus, "delete", request_id, note)
        await self._link.write(self._drop, collection)
        await self._link.write(self._records.put_note, corpus, "delete", request_id, replace(note, done=True))
        await self.refresh()

    async def verify(self, corpus: str, generation_id: str) -> Artifact:
        """Counts and probes a generation ("": the active one) as an activation does.

        Raises NotFound, DataLoss for one that has changed.
        """
        await self.refresh()
        wanted = generation_id or self.active_id(corpus)
        if not wanted:
            raise none_active(corpus)
        stored = _named(self._known(corpus), corpus, wanted)
        await self._link.read(check, MilvusGeneration.of(stored, self._link), stored, LOAD_S)
        return stored.artifact

    async def check_known(self, corpus: str) -> None:
        """Raises NotFound for a corpus without any generation."""
        self._known(corpus)

    def _read(self) -> CatalogueSnapshot:
        generations: dict[str, dict[str, StoredGeneration]] = {}
        for (
            stored
        ) in self._records.all().generations:  # oldest first: of two with the same content the older one counts
            generations.setdefault(stored.corpus, {}).setdefault(stored.artifact.id, stored)
        active: dict[str, str] = {}
        for corpus, by_id in generations.items():
            pointed = self._pointed(corpus)
            active.update((corpus, one) for one, stored in by_id.items() if stored.collection == pointed)
        return CatalogueSnapshot(generations, active)

    def _pointed(self, corpus: str) -> str | None:
        try:
            return str(self._link.call("describe_alias", alias=self._alias(corpus))["collection_name"])
        except MilvusNotFound:
            return None

    def _point(self, corpus: str, collection: str) -> None:
        method = "create_alias" if self._pointed(corpus) is None else "alter_alias"
        self._link.call(method, collection_name=collection, alias=self._alias(corpus))

    def _drop(self, collection: str) -> None:
        self._records.put_unfinished("dropping", collection, 0)  # from now on it does not exist
        GenerationCollection(self._link, collection, 0).drop()
        self._records.remove(collection)

    def _alias(self, corpus: str) -> str:
        return f"{self._records.prefix}_active_{corpus.encode().hex()}"  # Milvus allows no dots and dashes in names

    def _active(self, seen: CatalogueSnapshot, corpus: str) -> MilvusGeneration | None:
        active = seen.active.get(corpus)
        return None if active is None else MilvusGeneration.of(seen.generations[corpus][active], self._link)

    def _known(self, corpus: str) -> Mapping[str, StoredGeneration]:
        generations = (self._seen or CatalogueSnapshot()).generations
        check_known(corpus, generations)
        return generations[corpus]


def _named(stored: Mapping[str, StoredGeneration], corpus: str, generation_id: str) -> StoredGeneration:
    if generation_id not in stored:
        raise errors.NotFound(f"corpus {corpus!r} has no generation {generation_id!r}; ListGenerations shows them")
    return stored[generation_id]


class Sweeper:
    """Refreshes the catalogue every `refresh_s`, and drops unfinished collections that were silent for `lease_s`.

    A build changes its row now and then; one whose row is the same after `lease_s` is dead. No clocks of two machines
    are compared.
    """

    def __init__(
        self, link: MilvusLink, records: Records, catalogue: MilvusCatalogue, *, refresh_s: float, lease_s: float
    ) -> None:
        self._link, self._records, self._catalogue = link, records, catalogue
        self._refresh_s, self._lease_s = refresh_s, lease_s
        self._seen: dict[
            str, tuple[int, float]
        ] = {}  # unfinished collections: their beat, and since when it is the same
        self._look_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads everything once and starts. If Milvus is away, a later round finds it."""
        await self._round()
        self._task = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Stops."""
        if self._task is not None:
            await cancel_all([self._task])

    def sweep(self) -> None:
        """Drops what has been silent for too long. It blocks."""
        now = time.monotonic()
        unfinished = self._records.all().unfinished
        self._seen = {
            one.collection: seen
            if (seen := self._seen.get(one.collection)) and seen[0] == one.beat
            else (one.beat, now)
            for one in unfinished
        }
        for name, (_, since) in self._seen.items():
            # read again: dropping the one before took time, in which this one may have shown life or been committed.
            # Milvus has no compare-and-set, so milliseconds stay: a build that was silent all this time and commits
            # between this look and the drop is lost. The lease is long: only a suspended process is so silent.
            if now - since >= self._lease_s and self._records.beat_of(name) == self._seen[name][0]:
                GenerationCollection(self._link, name, 0).drop()
                self._records.remove(name)
                log.warning("removed what a killed build or deletion left", collection=name)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self._round()

    async def _round(self) -> None:
        try:
            await self._catalogue.refresh()
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + self._lease_s / LOOKS
                await self._link.write(self.sweep)
        except errors.AeencError as error:  # the link has reported it; the next round may succeed
            log.warning("the catalogue in Milvus cannot be read", reason=error.message)
        except Exception:
            log.exception("the catalogue in Milvus cannot be read")
