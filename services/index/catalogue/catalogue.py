"""The corpora and their generations, which generation is active, and the switch from one to another.

    activate ──► hash every file ──► search for its own vectors ──► move the pointer on disk ──► serve it
                      │                         │                                                  │
                      └────── DataLoss: the active generation keeps serving          the old one stays pinned

Active generations are always open; others that a caller pins are opened on demand, and a few stay open. Opening checks
the size of files, activation their hashes. The catalogue never encodes and never builds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from aeenc import errors
from services.corpus.active import (
    Check,
    delete_inactive,
    deleted_before,
    latest_move,
    read_active,
    records_of,
    write_active,
)
from services.corpus.generation import corpora_of, folder_of, is_corpus_name, open_generation
from services.corpus.moves import Move, MoveRequest, made_before
from services.index.catalogue.following import CorpusState, FailedOpening, StoreWatch, problem_of
from services.index.catalogue.holds import HoldersOf, Holds, check_unheld
from services.index.catalogue.replicas import Followed, Replicas
from services.index.catalogue.served import (
    Explanations,
    OpenGenerations,
    ServedGeneration,
    check_by_searching,
)
from services.index.dense.approximate import OpenIndex, open_index
from services.index.dense.batcher import SearchBatcher
from services.index.values import Explanation, ReplicaState
from services.kit import logs
from services.kit.concurrency import Turns, cancel_all, finish
from services.store.artifacts import Artifact, ArtifactStore

log = logs.get(__name__)
FOLLOW_S = 0.5  # that the opening of one corpus may hold up the next look at all
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # before a move that could not be followed is tried again


@dataclass(frozen=True)
class Activation:
    """The active generation, the id of the one before it (None: there is or was none), and the live replicas."""

    active: Artifact | None
    previous: str | None
    replicas: tuple[ReplicaState, ...] = ()


class Catalogue:
    """The generations of all corpora in one artifact store. Call `load` once before anything else.

    `on_change` receives the problems ("": none) after loading and after each activation.
    """

    def __init__(
        self,
        store: ArtifactStore,
        batcher: SearchBatcher,
        replicas: Replicas,
        opened: OpenGenerations,
        *,
        open_index: OpenIndex = open_index,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._batcher, self._replicas, self._open_index = store, batcher, replicas, open_index
        self.open, self.holds = opened, Holds(store)
        self.explanations, self._watch = Explanations(store), StoreWatch(store)
        self._followed: dict[str, int] = {}  # the number of the last move of each corpus that holds here
        self._damaged: dict[str, errors.AeencError] = {}
        self._failed: dict[str, FailedOpening] = {}
        self._corpora: set[str] = set()
        self._opening = Turns()
        self._following: dict[str, asyncio.Task[float]] = {}  # at most one of each corpus
        self._switching = Turns()  # a corpus that takes long to open holds up no other
        self._on_change = on_change

    async def load(self) -> None:
        """Opens the active generation of every corpus. If one fails to open, the others still serve."""
        with suppress(OSError):
            await asyncio.to_thread(self._replicas.look)  # before the moves are read: who moves from now on, waits
        for corpus in await asyncio.to_thread(corpora_of, self._store):
            try:
                await asyncio.to_thread(self._watch.sweep, corpus)
            except OSError as error:  # serving does not need it
                log.warning("what ended work has left is not removed", corpus=corpus, reason=str(error))
            await self._follow(corpus, is_new=True)
        with suppress(OSError):
            await self.report()
        self._tell()

    async def follow(self, patience_s: float = FOLLOW_S) -> None:
        """Looks once at what other processes have done. Raises OSError or Unavailable when the store is away.

        Each corpus is followed by itself: one that takes longer than `patience_s` goes on, and holds up no other.
        """
        unsettled = {*self._damaged, *self._failed, *self._following}
        seen = await asyncio.to_thread(self._watch.changed, self.open.active, unsettled)
        tasks = [self._start_to_follow(corpus, look) for corpus, look in seen.items() if corpus not in self._following]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        await self.report()

    async def close(self) -> None:
        """Lets go of every generation."""
        await cancel_all(list(self._following.values()))
        self.open = OpenGenerations()

    def corpora(self) -> list[tuple[str, ServedGeneration | None]]:
        """Lists all corpora by name, with their active generations."""
        return [(corpus, self.open.find(corpus)) for corpus in sorted(self._corpora)]

    def replicas(self, corpus: str) -> tuple[ReplicaState, ...]:
        """Returns the generation of a corpus that each live replica serves, this replica first."""
        return self._replicas.states(corpus)

    def active_id(self, corpus: str) -> str | None:
        """The id of the active generation; None when there is none."""
        served = self.open.active.get(corpus)
        return served.id if served else None

    async def resolve(self, corpus: str, generation_id: str = "") -> ServedGeneration:
        """Finds the named generation, by default the active one.

        Raises NotFound for an unknown corpus or generation, or if none is active; DataLoss for a damaged one.
        """
        if (active := self.open.find(corpus, generation_id)) is not None:
            return active
        await self.check_known(corpus)
        if not generation_id and corpus not in self._damaged:  # another replica may just have activated one
            await self._follow_now(corpus, lambda: corpus in self.open.active)
            if (active := self.open.find(corpus)) is not None:
                return active
        if not generation_id:
            if corpus in self._damaged:
                damage = self._damaged[corpus]
                raise type(damage)(damage.message)
            raise none_active(corpus)
        served = await self._opened(corpus, generation_id)
        self.open.pin(corpus, served)
        return served

    async def activate(
        self, corpus: str, generation_id: str, *, expected: str | None = None, request_id: str = ""
    ) -> Activation:
        """Checks a generation by hash and by searching for its own vectors, then makes it the active one; "": none.

        `expected` is the id that the caller believes active ("" for none). Raises NotFound, Aborted when another one is
        active, DataLoss when a file differs from its manifest; then the active one keeps serving. The same `request_id`
        gets the same answer again and moves nothing; AlreadyExists when it asked for something else before.
        """
        await self.check_known(corpus)
        asked = {"generation": generation_id, "expected_generation": expected}
        request = MoveRequest("activate", request_id, asked)
        folder, artifact, candidate = folder_of(corpus), None, None
        async with self._switching.of(corpus):
            last = Move()  # also when nobody can read it
            with suppress(errors.DataLoss):
                last = await asyncio.to_thread(latest_move, self._store, corpus)
            made = await asyncio.to_thread(lambda: made_before(records_of(self._store, corpus), request))
            if made is not None:
                if generation_id:
                    artifact = await asyncio.to_thread(self._store.described, folder, generation_id)
                return Activation(artifact, made.previous or None, self.replicas(corpus))
            check_expected(corpus, last.generation, expected)
            request = replace(request, after=last.number)
            if generation_id:
                candidate = await self._opened(corpus, generation_id, hashed=True)
                await check_by_searching(self._batcher, candidate)
                artifact = candidate.generation.artifact
            move = await finish(self._move(corpus, candidate, expected, request))  # a cancelled call moves both or none
        return Activation(artifact, move.previous or None, await self.reached(corpus, move))

    async def reached(self, corpus: str, move: Move) -> tuple[ReplicaState, ...]:
        """Waits, for a while, until all live replicas have followed to a move. Returns them, this one first."""
        with suppress(OSError):  # the move is made
            await self.report()
        return await self._replicas.reached(corpus, move.number)

    async def generations(self, corpus: str) -> tuple[list[Artifact], HoldersOf]:
        """Lists the generations of a corpus, in no order, and who holds them. Raises NotFound for an unknown corpus."""
        await self.check_known(corpus)
        return await asyncio.to_thread(lambda: (self._list(corpus), self.holds.read(corpus)))

    async def delete(
        self, corpus: str, generation_id: str, *, despite: Collection[str] = (), request_id: str = ""
    ) -> tuple[ReplicaState, ...]:
        """Deletes a generation, whoever of `despite` holds it. Returns the live replicas.

        Raises NotFound for an unknown one, FailedPrecondition for the active one and one that somebody else holds.
        Whoever reads it keeps it; its files go when the last one has let go. A `request_id` that has deleted it does
        nothing again; AlreadyExists when it deleted another one.
        """
        request = MoveRequest("delete", request_id, {"generation": generation_id})
        async with self._switching.of(corpus):
            if await asyncio.to_thread(deleted_before, self._store, corpus, generation_id, request):
                return self.replicas(corpus)
            await self.check_known(corpus)
            await self._follow_now(corpus)
            check = partial(self._check_unused, corpus, generation_id, despite)
            move = await finish(self._remove(corpus, generation_id, check, request))
        return await self.reached(corpus, move)

    async def explain(
        self, corpus: str, explanations: Iterable[Explanation], *, replace: bool
    ) -> tuple[int, tuple[ReplicaState, ...]]:
        """Adds explanations, or replaces all of them. Returns how many there are, and the live replicas."""
        await self.check_known(corpus)
        total, move = await self.explanations.put(corpus, explanations, replace=replace)
        return total, await self.reached(corpus, move)

    async def verify(self, corpus: str, generation_id: str) -> Artifact:
        """Hashes every file of a generation ("": the active one) and searches for its own vectors.

        Raises NotFound, and DataLoss whose metadata says what is damaged. It changes nothing: to repair a damaged
        generation, build it again and activate it.
        """
        await self.check_known(corpus)
        active = await asyncio.to_thread(read_active, self._store, corpus)
        wanted = generation_id or active
        if not wanted:
            raise none_active(corpus)
        try:
            candidate = await self._opened(corpus, wanted, hashed=True)
            await check_by_searching(self._batcher, candidate)
        except (errors.DataLoss, OSError) as error:
            damage = await asyncio.to_thread(damage_of, self._store, corpus, wanted, active=wanted == active)
            raise errors.DataLoss(problem_of(corpus, error).message, metadata=damage) from error
        return candidate.generation.artifact

    async def prepare(self, corpus: str, generation_id: str) -> None:
        """Searches a generation as an activation does, so that this has less to do: a Milvus is sent the vectors."""
        await check_by_searching(self._batcher, await self.resolve(corpus, generation_id))

    def added(self, corpus: str, generation_id: str) -> None:
        """Registers a finished generation. It may have taken the place of a damaged one, which is closed."""
        self._corpora.add(corpus)
        self.open.pinned.pop((corpus, generation_id), None)

    async def check_known(self, corpus: str) -> None:
        """Raises NotFound for a corpus without any generation, also in the store."""
        if corpus not in self._corpora and is_corpus_name(corpus):
            await self._follow_now(corpus, lambda: corpus in self._corpora)
        if corpus not in self._corpora:
            names = ", ".join(sorted(self._corpora)[:10]) or "none yet"
            remedy = "build it (BuildGeneration, `aeenc corpus build`)"
            raise errors.NotFound(f"corpus {corpus!r} is unknown (known: {names}); {remedy}")

    async def _move(
        self, corpus: str, candidate: ServedGeneration | None, expected: str | None, request: MoveRequest
    ) -> Move:
        """Moves on disk, then in memory, which must agree.

        Raises Aborted if another process has moved since, so that another than the expected one is active.
        """
        wanted = candidate.id if candidate else ""

        def check(active: str) -> None:
            check_expected(corpus, active, expected)
            if wanted:
                self._store.check_exists(folder_of(corpus), wanted)

        move = await asyncio.to_thread(write_active, self._store, corpus, wanted, check, request)
        self._swap(corpus, candidate, move)
        log.info("activated", corpus=corpus, generation=wanted, previous=move.previous)
        return move

    def _swap(self, corpus: str, served: ServedGeneration | None, move: Move) -> None:
        """Serves a generation, or none, instead of the one before, unless that comes from a later move."""
        if move.number < self._followed.get(corpus, 0):
            return
        before = self.open.active.pop(corpus, None)
        if before is not None and (served is None or before.id != served.id):
            self.open.pin(corpus, before)  # callers that pinned it can go on
        if served is not None:
            self.open.active[corpus] = served
        self._advance(corpus, move.number)
        self._damaged.pop(corpus, None)
        self._tell()

    def _advance(self, corpus: str, number: int) -> None:
        """Takes note of a move. Moves of others may lie between it and the last one, and have changed explanations."""
        if number > self._followed.get(corpus, -1):
            self._followed[corpus] = number
            self.explanations.forget(corpus)

    def _check_unused(self, corpus: str, generation_id: str, despite: Collection[str], active: str | None) -> None:
        if generation_id == active:
            raise errors.FailedPrecondition(
                f"generation {generation_id} is the active one of corpus {corpus!r}; activate another one first"
            )
        check_unheld(corpus, generation_id, self.holds.read(corpus).get(generation_id, ()), despite)

    async def _remove(self, corpus: str, generation_id: str, check: Check, request: MoveRequest) -> Move:
        self.open.pinned.pop((corpus, generation_id), None)
        move = await asyncio.to_thread(delete_inactive, self._store, corpus, generation_id, check, request)
        await asyncio.to_thread(self.holds.drop, corpus, generation_id)
        left = await asyncio.to_thread(self._store.list, folder_of(corpus))
        self.open.pinned.pop((corpus, generation_id), None)
        if not left:
            self._corpora.discard(corpus)
        if corpus in self._followed or not left:
            self._advance(corpus, move.number)
        return move

    def _start_to_follow(self, corpus: str, seen: CorpusState | None = None) -> asyncio.Task[float]:
        task = self._following[corpus] = asyncio.create_task(self._follow(corpus, seen))
        task.add_done_callback(lambda _: self._following.pop(corpus, None))
        return task

    async def _follow_now(self, corpus: str, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Follows a corpus to what the store has from now on, unless what others wait for already `is_enough`.

        Callers share one opening, and a look that began after they came; it goes on when they have left.
        """
        asked_at = time.monotonic()
        while (running := self._following.get(corpus)) is not None:
            await asyncio.wait([running])
            if is_enough() or running.result() >= asked_at:
                return
        await asyncio.shield(self._start_to_follow(corpus))

    async def _follow(self, corpus: str, seen: CorpusState | None = None, *, is_new: bool = False) -> float:
        """Does here what other processes have done to a corpus: serves what is active, drops what is deleted.

        A generation that cannot be opened or does not find its own vectors is reported; the one before keeps serving.
        `seen` is a look of just now; `is_new` is for the start, where nothing serves yet. Returns when
        its own look began, by time.monotonic(); 0 without one.
        """
        looked_at = 0.0 if seen else time.monotonic()
        try:
            if seen is None:
                seen = await asyncio.to_thread(self._watch.at, corpus, self.open.active.get(corpus))
            self._keep_known(corpus, seen.ids)
            if not seen.ids and not seen.move.number:
                return looked_at  # nobody knows it
            await self._serve(corpus, seen, is_checked=not is_new)
            self._keep_known(corpus, seen.ids)  # again: it may serve no more
            self._advance(corpus, seen.move.number)
            if seen.has_deleted:
                await asyncio.to_thread(self._watch.sweep, corpus)
        except Exception as error:  # whatever it is, other corpora go on
            problem = problem_of(corpus, error)
            if corpus not in self._damaged or self._damaged[corpus].message != problem.message:
                if not isinstance(error, (errors.AeencError, OSError)):
                    log.exception("a corpus cannot be followed", corpus=corpus)
                self._set_damaged(corpus, problem)
                self._tell()
        return looked_at

    def _keep_known(self, corpus: str, ids: Collection[str]) -> None:
        """Takes note of the generations that there are, and lets go of pinned ones that are not."""
        if ids:
            self._corpora.add(corpus)
            self.open.keep(corpus, ids)
        elif corpus not in self.open.active:
            self._corpora.discard(corpus)

    async def _serve(self, corpus: str, look: CorpusState, *, is_checked: bool) -> None:
        """Opens and warms what is active beside what serves, then swaps, also if what serves was replaced."""
        move, serving = look.move, self.open.active.get(corpus)
        is_same = serving is not None and serving.id == move.generation and not look.is_replaced
        if not move.generation and serving is not None:
            self._swap(corpus, None, move)
        elif not move.generation or is_same:
            if self._damaged.pop(corpus, None) is not None:
                self._tell()
        elif move.number >= self._followed.get(corpus, 0):  # else this process has moved on since the look
            served = await self._opened_again(corpus, move, is_checked=is_checked)
            self._swap(corpus, served, move)
            log.info("follows", corpus=corpus, generation=served.id, previous=serving.id if serving else "")

    async def _opened(self, corpus: str, generation_id: str, *, hashed: bool = False) -> ServedGeneration:
        """Opens a generation, one at a time of each, unless it is open and stands; `hashed` hashes its files anyway."""
        async with self._opening.of((corpus, generation_id)):
            served = self.open.known.get((corpus, generation_id))
            if served is None or not served.stands or (hashed and served.index.is_unsure):
                served = await asyncio.to_thread(self._open, corpus, generation_id, hashed=hashed)
                self.open.known[corpus, generation_id] = served
            elif hashed:
                await asyncio.to_thread(self._store.open, folder_of(corpus), generation_id)
            return served

    async def _opened_again(self, corpus: str, move: Move, *, is_checked: bool) -> ServedGeneration:
        """Opens and warms the generation of a move. Where that has failed, the next try waits, longer each time."""
        failed = self._failed.get(corpus)
        pause_s = PAUSE_S
        if failed is not None and failed.move == move.number:
            if time.monotonic() < failed.again_at:
                raise failed.error.with_traceback(None)
            pause_s = min(2 * failed.pause_s, LONGEST_PAUSE_S)
        try:
            served = await self._opened(corpus, move.generation)
            if is_checked:
                await check_by_searching(self._batcher, served)
        except Exception as error:
            self._failed[corpus] = FailedOpening(move.number, error, pause_s, time.monotonic() + pause_s)
            raise
        self._failed.pop(corpus, None)
        return served

    async def report(self) -> None:
        """Tells the others what holds here, and that this replica lives. Raises OSError when the store is away."""
        now = {}
        for corpus in {*self._corpora, *self._followed}:
            served, damage = self.open.active.get(corpus), self._damaged.get(corpus)
            known = (served.id, served.generation.space_id) if served else ("", "")
            now[corpus] = Followed(self._followed.get(corpus, 0), *known, reason=damage.message if damage else "")
        self._replicas.serve(now)
        await asyncio.to_thread(self._replicas.look)

    def _set_damaged(self, corpus: str, error: errors.AeencError) -> None:
        log.warning("active generation cannot be opened", corpus=corpus, reason=error.message)
        self._corpora.add(corpus)
        self._damaged[corpus] = error

    def _open(self, corpus: str, generation_id: str, *, hashed: bool) -> ServedGeneration:
        opened = open_generation(self._store, corpus, generation_id, verify="full" if hashed else "size")
        return ServedGeneration.of(opened, self._open_index)

    def _list(self, corpus: str) -> list[Artifact]:
        found = []
        for generation_id in self._store.list(folder_of(corpus)):
            try:
                found.append(self._store.described(folder_of(corpus), generation_id))
            except (errors.AeencError, OSError) as error:  # damaged, or deleted meanwhile: nobody can activate it
                log.warning("generation left out of the list", corpus=corpus, reason=str(error))
        return found

    def _tell(self) -> None:
        reasons = [f"corpus {corpus!r}: {error.message}" for corpus, error in sorted(self._damaged.items())]
        self._on_change("; ".join(reasons))


def check_expected(corpus: str, active: str, expected: str | None) -> None:
    """Raises Aborted when a generation other than the expected one is active ("": none; None: any may be)."""
    if expected is not None and expected != active:
        raise errors.Aborted(
            f"corpus {corpus!r} has {active or 'no generation'} active, expected {expected or 'none'}; "
            "call ListGenerations again before you activate"
        )


def none_active(corpus: str) -> errors.NotFound:
    """The error for a corpus without an active generation."""
    return errors.NotFound(f"corpus {corpus!r} has no active generation; activate one that ListGenerations shows")


def damage_of(store: ArtifactStore, corpus: str, generation_id: str, *, active: bool) -> dict[str, str]:
    """Says of a damaged generation what a repair needs to know."""
    known = {"generation": generation_id, "active": str(active).lower()}
    try:
        artifact, damaged = store.damaged_files(folder_of(corpus), generation_id)
    except (errors.AeencError, OSError):  # its manifest is damaged: nothing else is known
        return known
    return {**known, "space_id": str(artifact.meta.get("space_id", "")), "damaged": ",".join(damaged)}
