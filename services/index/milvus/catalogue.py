"""The corpora and generations in a Milvus, which generation is active, and the switch of it.

    every refresh_s ──► Sweeper ──► read records and switches ──► CatalogueSnapshot ──► searches (one call each)
                           └──► drop what builds and deletions left that have been silent for lease_s

Searches use the last snapshot, so `refresh_s` is how soon a process sees an activation by another one. The same round
finds Milvus again after an outage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pymilvus.exceptions import MilvusException

from aeenc import errors
from services.corpus.generation import folder_of
from services.index.catalogue.checks import check_expected, check_inactive, check_known, none_active
from services.index.catalogue.holds import HoldersOf, check_holder, check_unheld
from services.index.catalogue.requests import RequestKind, RequestNote, check_same
from services.index.milvus.generation import GenerationCollection, MilvusGeneration, check
from services.index.milvus.ledger.explanations import ExplanationTables
from services.index.milvus.ledger.records import Records, StoredGeneration
from services.index.milvus.ledger.switches import Switch, Switches
from services.index.milvus.link import MilvusLink
from services.index.values import Activation, ReplicaState
from services.kit import logs
from services.kit.concurrency import cancel_all, finish
from services.store.artifacts import Artifact, ArtifactStore

log = logs.get(__name__)
LOAD_S = 600.0  # most seconds that an activation waits for Milvus to load a generation
LOOKS = 4  # within the time after which a silent build is swept


@dataclass(frozen=True)
class CatalogueSnapshot:
    """The generations of each corpus by id, oldest first, the id of each active one, and the number of its switch.

    `explained` has the last switch of each corpus's explanations. `unreadable` says why a record is left out: by corpus
    and generation, as far as the record tells them, and by corpus and "" for that of the active generation.
    """

    generations: Mapping[str, Mapping[str, StoredGeneration]] = field(default_factory=dict)
    active: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, int] = field(default_factory=dict)
    explained: Mapping[str, Switch] = field(default_factory=dict)
    unreadable: Mapping[tuple[str, str], errors.AeencError] = field(default_factory=dict)


class MilvusCatalogue:
    """The generations of all corpora in one Milvus under one prefix; `store` has their files."""

    def __init__(self, link: MilvusLink, records: Records, store: ArtifactStore) -> None:
        self._link = link
        self._records = records
        self._store = store
        self.holds = MilvusHolds(link, records, self.resolve)
        self._switches = Switches(link, records.prefix, records.name, "active")
        self._explanations = ExplanationTables(link, records)
        self._seen: CatalogueSnapshot | None = None
        self._begun = self._taken = 0  # reads and switches; one that began earlier must not replace a later one
        self._switching = asyncio.Lock()

    async def refresh(self) -> None:
        """Reads all records and switches. Raises Unavailable when Milvus is away; then the last snapshot stays."""
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

    def explained(self, corpus: str) -> Switch | None:
        """The last switch of a corpus's explanations, as last seen."""
        return (self._seen or CatalogueSnapshot()).explained.get(corpus)

    async def resolve(self, corpus: str, generation_id: str = "") -> MilvusGeneration:
        """Finds the named generation, by default the active one.

        Raises NotFound for an unknown corpus or generation, or if none is active; DataLoss or NewerFormat for one whose
        record cannot be read; Unavailable before Milvus has answered once.
        """
        seen = self._seen or CatalogueSnapshot()
        if (generation_id or seen.active.get(corpus)) not in seen.generations.get(corpus, {}):
            await self.refresh()  # another process may just have built or activated it
        return MilvusGeneration.of(self._named(corpus, generation_id or self.active_id(corpus)), self._link)

    async def activate(
        self, corpus: str, generation_id: str, *, expected: str | None = None, request_id: str = ""
    ) -> Activation:
        """Checks a generation, then makes the corpus's next switch, to it; "": to none.

        `expected` is the id that the caller believes active ("" for none). Raises NotFound, Aborted when another one is
        active, DataLoss for a generation that changed since it was written. Of processes that expect the same one, the
        first succeeds.
        """
        async with self._switching:
            await self.refresh()
            self._known(corpus)
            stored = self._named(corpus, generation_id) if generation_id else None
            asked = RequestNote({"generation": generation_id, "expected_generation": expected})
            before = await self._noted(corpus, "activate", request_id, asked)
            if before is not None and (before.done or (self.active_id(corpus) or "") == generation_id):
                return Activation(stored.artifact if stored else None, before.previous or None)
            check_expected(corpus, self.active_id(corpus), expected)
            moved = False
            while not moved:
                checked = stored
                if stored is not None:
                    await self._link.read(check, MilvusGeneration.of(stored, self._link), stored, LOAD_S)
                    await self.refresh()  # the check may have taken minutes
                    stored = self._named(corpus, generation_id)
                previous = self.active_id(corpus)
                check_expected(corpus, previous, expected)
                if stored and checked and stored.collection != checked.collection:  # a build has replaced it meanwhile
                    continue
                note = replace(asked, previous=previous or "")
                moving = asyncio.create_task(self._move(corpus, stored, request_id, note))
                await finish(moving)  # a cancelled call makes the switch and notes it, or does neither
                moved = moving.result()
        log.info("activated", corpus=corpus, generation=generation_id, previous=previous or "")
        return Activation(stored.artifact if stored else None, previous)

    async def generations(self, corpus: str) -> list[Artifact]:
        """Lists the generations of a corpus, in no order. Raises NotFound for an unknown corpus."""
        await self.refresh()
        return [stored.artifact for stored in self._known(corpus).values()]

    async def delete(
        self, corpus: str, generation_id: str, *, despite: Collection[str] = (), request_id: str = ""
    ) -> tuple[ReplicaState, ...]:
        """Deletes a generation, whoever of `despite` holds it. Raises NotFound for an unknown one.

        Raises FailedPrecondition for the active one and one that somebody else holds.
        """
        async with self._switching:
            await self.refresh()
            note = RequestNote({"generation": generation_id})
            before = await self._noted(corpus, "delete", request_id, note)
            ids = (self._seen or CatalogueSnapshot()).generations.get(corpus, {})
            if before is not None and (before.done or generation_id not in ids):
                return ()
            stored = self._named(corpus, generation_id)
            check_inactive(corpus, generation_id, self.active_id(corpus))
            await self._link.read(self._check_unheld, stored, despite)
            await finish(asyncio.create_task(self._remove(corpus, stored, despite, request_id, note)))
        return ()

    async def _noted(self, corpus: str, kind: RequestKind, request_id: str, note: RequestNote) -> RequestNote | None:
        """Finds what the request left before, or None. Raises AlreadyExists when it asked for something else."""
        before = await self._link.read(self._records.note, corpus, kind, request_id) if request_id else None
        if before is not None:
            check_same(request_id, before.asked, note.asked)
        return before

    async def _move(self, corpus: str, stored: StoredGeneration | None, request_id: str, note: RequestNote) -> bool:
        """Makes the switch, also in what this process knows. Returns False if another process was faster."""
        seen = self._seen or CatalogueSnapshot()
        number = seen.switches.get(corpus, 0) + 1
        await self._link.write(self._records.put_note, corpus, "activate", request_id, note)
        collection = stored.collection if stored else self._records.name  # to which spent numbers point, too
        if not await self._link.write(self._switches.make, corpus, number, collection):
            return False
        active, switches = (
            {**seen.active, corpus: stored.artifact.id if stored else ""},
            {**seen.switches, corpus: number},
        )
        if not stored:
            del active[corpus]
        self._seen = replace(seen, active=active, switches=switches)
        self._begun += 1
        self._taken = self._begun
        await self._link.write(self._records.put_note, corpus, "activate", request_id, replace(note, done=True))
        try:
            await self._link.write(self._switches.spend, corpus, number)
        except (errors.AeencError, MilvusException) as error:  # the switch is made, whatever becomes of earlier ones
            log.warning("earlier switches are left to the next one", corpus=corpus, reason=str(error))
        return True

    async def _remove(
        self, corpus: str, stored: StoredGeneration, despite: Collection[str], request_id: str, note: RequestNote
    ) -> None:
        await self._link.write(self._records.put_note, corpus, "delete", request_id, note)
        await self._link.write(self._drop, stored, despite)
        with suppress(errors.NotFound):  # on a host without this directory
            await asyncio.to_thread(self._store.delete, folder_of(corpus), stored.artifact.id)
        await self._link.write(self._records.put_note, corpus, "delete", request_id, replace(note, done=True))
        await self.refresh()

    async def verify(self, corpus: str, generation_id: str) -> Artifact:
        """Counts and probes a generation ("": the active one) as an activation does.

        Raises NotFound, and DataLoss for one that has changed, whose metadata says what a repair needs to know.
        """
        await self.refresh()
        named = generation_id or self.active_id(corpus) or ""
        known = {"generation": named} if named else {}
        known["active"] = str(self._is_active(corpus, named)).lower()
        try:
            stored = self._named(corpus, named)
            known["space_id"] = str(stored.artifact.meta["space_id"])
            await self._link.read(check, MilvusGeneration.of(stored, self._link), stored, LOAD_S)
        except errors.DataLoss as error:
            raise errors.DataLoss(error.message, metadata={**known, **error.metadata}) from error
        return stored.artifact

    async def check_known(self, corpus: str) -> None:
        """Raises NotFound for a corpus without any generation, also in Milvus."""
        if corpus not in (self._seen or CatalogueSnapshot()).generations:
            await self.refresh()
        self._known(corpus)

    def _read(self) -> CatalogueSnapshot:
        last = self._switches.last()  # before the records, so that a generation that came meanwhile is in them
        explained = self._explanations.last()
        generations: dict[str, dict[str, StoredGeneration]] = {}
        records = self._records.all()
        for stored in records.generations:  # oldest first
            ids, switch = generations.setdefault(stored.corpus, {}), last.get(stored.corpus)
            # of two with the same content the active one counts, or else the older
            if stored.artifact.id not in ids or (switch and switch.collection == stored.collection):
                ids[stored.artifact.id] = stored
        active = {
            corpus: one
            for corpus, switch in last.items()
            for one, stored in generations.get(corpus, {}).items()
            if stored.collection == switch.collection
        }
        numbers = {corpus: switch.number for corpus, switch in last.items()}
        unreadable: dict[tuple[str, str], errors.AeencError] = {
            key: one.error
            for one in records.unreadable
            for key in (
                (one.corpus, one.generation),
                *((corpus, "") for corpus, switch in last.items() if switch.collection == one.collection),
            )
        }
        return CatalogueSnapshot(generations, active, numbers, explained, unreadable)

    def _check_unheld(self, stored: StoredGeneration, despite: Collection[str]) -> None:
        generation_id = stored.artifact.id
        check_unheld(stored.corpus, generation_id, self._records.holders(stored.corpus).get(generation_id, ()), despite)

    def _drop(self, stored: StoredGeneration, despite: Collection[str]) -> None:
        """Drops a generation with all that have the same content, as two builds at the same time may have made."""
        corpus, generation_id = stored.corpus, stored.artifact.id
        records = self._records.all().generations
        equal = [one for one in records if (one.corpus, one.artifact.id) == (corpus, generation_id)]
        for one in equal:
            self._records.put_unfinished("dropping", one.collection, 0)  # from now on it does not exist
        last = self._switches.last().get(corpus)
        is_active = last is not None and last.collection in {one.collection for one in equal}
        try:  # another may just have activated it, or hold it
            check_inactive(corpus, generation_id, generation_id if is_active else None)
            self._check_unheld(stored, despite)
        except errors.FailedPrecondition:
            for one in equal:
                self._records.put_generation(one)
            raise
        for holder in self._records.holders(corpus).get(generation_id, ()):
            self._records.remove_hold(corpus, generation_id, holder)
        for one in equal:
            self.remove(one.collection)

    def remove(self, collection: str) -> None:
        """Removes a collection that is no generation, and its row; of explanations that count, the row alone.

        It blocks.
        """
        if any(switch.collection == collection for switch in self._explanations.last().values()):
            self._records.remove(collection)
            return
        self._switches.release(collection)
        GenerationCollection(self._link, collection, 0).drop()
        self._records.remove(collection)

    def _active(self, seen: CatalogueSnapshot, corpus: str) -> MilvusGeneration | None:
        active = seen.active.get(corpus)
        return None if active is None else MilvusGeneration.of(seen.generations[corpus][active], self._link)

    def _is_active(self, corpus: str, generation_id: str) -> bool:
        """Whether a generation ("": the active one) is active, also where its record cannot be read."""
        seen = self._seen or CatalogueSnapshot()
        lost = seen.unreadable.get((corpus, ""))
        is_lost = lost is not None and seen.unreadable.get((corpus, generation_id)) is lost
        return is_lost or generation_id == seen.active.get(corpus)

    def _known(self, corpus: str) -> Mapping[str, StoredGeneration]:
        seen = self._seen or CatalogueSnapshot()
        if corpus not in seen.generations:
            for (name, _), error in seen.unreadable.items():
                if name == corpus:
                    raise type(error)(error.message)
        check_known(corpus, seen.generations)
        return seen.generations[corpus]

    def _named(self, corpus: str, generation_id: str | None) -> StoredGeneration:
        """Finds a generation in what was seen last. Without an id it raises why none is active."""
        stored, wanted = self._known(corpus), generation_id or ""
        if wanted in stored:
            return stored[wanted]
        if error := (self._seen or CatalogueSnapshot()).unreadable.get((corpus, wanted)):
            raise type(error)(error.message)
        if not wanted:
            raise none_active(corpus)
        raise errors.NotFound(f"corpus {corpus!r} has no generation {wanted!r}; ListGenerations shows them")


class MilvusHolds:
    """The holds of all corpora as rows of the records. `resolve` raises NotFound for an unknown generation."""

    def __init__(
        self, link: MilvusLink, records: Records, resolve: Callable[[str, str], Awaitable[MilvusGeneration]]
    ) -> None:
        self._link, self._records, self._resolve = link, records, resolve

    async def put(self, corpus: str, generation_id: str, holder: str) -> None:
        """Holds a generation. Raises InvalidArgument for a bad name, NotFound for an unknown generation."""
        check_holder(holder)
        await self._resolve(corpus, generation_id)
        await self._link.write(self._records.put_hold, corpus, generation_id, holder)

    async def remove(self, corpus: str, generation_id: str, holder: str) -> None:
        """Ends a hold, which may have ended already. Raises InvalidArgument for a bad name."""
        check_holder(holder)
        await self._link.write(self._records.remove_hold, corpus, generation_id, holder)

    async def of(self, corpus: str) -> HoldersOf:
        """Returns the holders of each generation that is held."""
        return await self._link.read(self._records.holders, corpus)


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
                self._catalogue.remove(name)
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
