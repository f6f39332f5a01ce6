"""Tandems: a query encoder, the premise encoder trained with it, and the generation built in their space.

The record does not say which tandem serves: it is the one whose generation the index has active, so that the two never
disagree. One is published atomically: encoders load it beside what serves, then one pointer in the index moves.

    set_label("stable", new space) ──► await_all encoders ──► Index.activate(expected) ──► all indexes follow
           └── on any failure: the label is put back, the old generation stays active            │
                                                                              retire unused spaces ◄┘

Retrieve asks the encoder for `stable` in the space of the generation that it searches. So the active generation alone
decides which pair of encoders callers get.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from redis.asyncio import Redis

from aeenc import errors
from aeenc.index import IndexClient
from aeenc.values import CorpusInfo, Generation
from services.corpus.active import read_active
from services.corpus.generation import PREMISES, folder_of
from services.kit.concurrency import finish
from services.kit.logs import get
from services.store.artifacts import ArtifactStore
from services.store.redis import key_prefix, raising_unavailable, turn
from services.store.registry import LabelRow, Registry
from services.store.registry_rows import Row, read_all
from services.store.requests import Request
from services.trainer.registry.operator_models import STABLE, OperatorModels
from services.trainer.registry.rollout import Publication, await_all

log = get(__name__)

LEAST_WAIT_S = 5.0  # even if the caller does not wait: a tandem is activated only once the encoders serve it
OURS = {STABLE, "previous"}
TURN_S = 15.0  # how long a trainer that died keeps the others from moving tandems


@dataclass(frozen=True)
class Tandem(Row):
    """A tandem. `version` encodes queries, `premise_version` premises; in mode SIAMESE they are the same.

    `replaces` is the generation that was active before this one was activated, `replaces_space` its space; empty if
    there was none, or if this one was never activated.
    """

    version: str
    premise_version: str
    space_id: str
    corpus: str
    generation: str
    replaces: str = ""
    replaces_space: str = ""
    what: ClassVar[str] = "a tandem"


@raising_unavailable("tandems")
class Tandems:
    """The tandems of one namespace, in Redis.

    Raises Unavailable if it is away, NewerFormat for a newer record, DataLoss for a damaged one.
    """

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._prefix = key_prefix(namespace)

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Waits until no trainer of the namespace moves tandems or closes spaces, and keeps others out of the block.

        What is loaded but not yet active is known to its own publication alone; nobody else may take it for unused.
        """
        return turn(self._redis, f"{self._prefix}tandem-turn", TURN_S)

    async def put(self, tandem: Tandem) -> None:
        """Stores a tandem under its version. What a later minor release has added to its record stays."""
        last = await self._redis.hget(self._key, tandem.version)
        await self._redis.hset(self._key, tandem.version, tandem.to_json(last))

    async def get(self, version: str) -> Tandem | None:
        """Reads the tandem of a query encoder; None for one that was trained alone."""
        record = await self._redis.hget(self._key, version)
        return Tandem.of_json(record) if record else None

    async def all(self, *, readable: bool = False) -> list[Tandem]:
        """Reads all tandems; `readable` as in `CheckpointRegistry.all`."""
        return read_all(Tandem.of_json, await self._redis.hvals(self._key), readable=readable)

    async def remove(self, version: str) -> None:
        """Forgets the tandem of a query encoder, if it has one."""
        await self._redis.hdel(self._key, version)

    @property
    def _key(self) -> str:
        return f"{self._prefix}tandems"


class TandemPublisher:
    """Activates tandems and rolls them back, one at a time among all trainers of a namespace."""

    def __init__(
        self, registry: Registry, index: IndexClient, tandems: Tandems, store: ArtifactStore, models: OperatorModels
    ) -> None:
        self._registry, self._index, self.tandems = registry, index, tandems
        self._store, self._models = store, models

    async def active(self, corpus: str) -> Generation:
        """Asks the index for the active generation of a corpus; empty for none."""
        return (await self._corpus(corpus)).active

    async def _corpus(self, corpus: str) -> CorpusInfo:
        async for found in self._index.list_corpora():
            if found.corpus == corpus:
                return found
        return CorpusInfo()

    async def publish(
        self,
        tandem: Tandem,
        before: Generation,
        *,
        compared: int | None,
        expected_revision: int | None,
        force: bool,
        wait_s: float,
        request: Request,
        answer: str,
        precision: str,
    ) -> Publication:
        """Has the encoders load the tandem, then activates its generation if `before` is still active.

        `compared` is the revision of `stable` in `before`'s space that the tandem was compared with; None for none.
        Before the activation it notes the `request` with its `answer`, so that a retry finds what was begun. On
        a failure the label is put back, and the active generation stays. Raises FailedPrecondition naming encoders that
        do not serve it, or if the corpus has other premises by now, Aborted if another revision serves by now, and what
        the index raises.
        """
        async with self.tandems.turn():
            if not force:
                await asyncio.to_thread(self._check_same_premises, tandem, before.id)
            named = await self._registry.label(tandem.space_id, STABLE)
            if expected_revision is None:
                expected_revision = named.revision if named else 0
            moving = asyncio.create_task(
                self._registry.set_label(
                    tandem.space_id,
                    STABLE,
                    tandem.version,
                    expected_revision=expected_revision,
                    precision=precision,
                )
            )
            try:
                row = await finish(moving)
                done = await await_all(self._registry, row, max(wait_s, LEAST_WAIT_S))
                await self.tandems.put(replace(tandem, replaces=before.id, replaces_space=before.space_id))
                if compared is not None:
                    await self._check_unmoved(before.space_id, compared)
                await self._registry.requests.record(request, {"to": tandem.generation, "answer": answer})
                await finish(self._activate(tandem.corpus, tandem.generation, before.id))
                if compared is not None:
                    await self._check_still_unmoved(tandem, before, compared)
            except BaseException:
                if moving.exception() is None:
                    await finish(self._undo(tandem, named, moving.result()))
                raise
            log.info("tandem published", version=tandem.version, corpus=tandem.corpus, generation=tandem.generation)
            await self._retire()
            return replace(done, generation=tandem.generation)

    async def rollback(self, corpus: str, *, wait_s: float, request: Request) -> Publication:
        """Activates the generation that the active tandem has replaced. A repeated request goes back once.

        Raises FailedPrecondition if no publication has activated the active generation; then nothing changes.
        """
        async with self.tandems.turn():
            active = await self.active(corpus)
            known = await self.tandems.all(readable=True)
            tandem = next((one for one in known if (one.corpus, one.generation) == (corpus, active.id)), None)
            begun = await self._registry.requests.answer(request, lambda record: (record["from"], record["to"]))
            if begun and begun[1] == active.id:
                return await self._as_it_is(active)
            if begun and begun[0] != active.id:
                raise errors.Aborted(
                    f"corpus {corpus!r} serves generation {active.id} by now, no longer {begun[0]}, from "
                    "which the request was to go back; ask again with another request id"
                )
            if tandem is None or not tandem.replaces:
                await self.tandems.all()  # raises for one that cannot be read: it may be this one
                raise errors.FailedPrecondition(
                    f"corpus {corpus!r} serves generation {active.id or '(none)'}, which no publication has "
                    "activated; activate another one yourself"
                )
            await self._registry.requests.record(request, {"from": active.id, "to": tandem.replaces})
            row = await self._stable_of(tandem.replaces_space)
            done = await await_all(self._registry, row, max(wait_s, LEAST_WAIT_S))
            await finish(self._activate(corpus, tandem.replaces, active.id))
            log.info("tandem taken back", version=tandem.version, corpus=corpus, generation=tandem.replaces)
            return replace(done, generation=tandem.replaces)

    async def begun(self, tandem: Tandem, generation: str) -> Publication | None:
        """Finds what a publication has activated whose trainer died before it could say so; None for nothing."""
        if not generation:
            return None
        active = await self.active(tandem.corpus)
        return await self._as_it_is(active) if active.id == generation else None

    async def _as_it_is(self, active: Generation) -> Publication:
        row = await self._stable_of(active.space_id)
        rollouts = await self._registry.rollouts(row.space_id, STABLE)
        return Publication(row, rollouts, complete=True, generation=active.id)

    async def close(self, space_id: str, label: str, request: Request) -> None:
        """Removes `stable` or `previous` of a space. Raises FailedPrecondition if a corpus serves the space."""
        async with self.tandems.turn():
            if space_id in await self.served_spaces():
                raise errors.FailedPrecondition(f"label {label!r} cannot be deleted; point 'stable' elsewhere instead")
            await self._registry.delete_label(space_id, label, request=request)

    async def served_spaces(self) -> set[str]:
        """The spaces that index processes serve, those included that have not followed the last activation yet.

        Raises what the index raises.
        """
        spaces: set[str] = set()
        async for found in self._index.list_corpora():
            spaces |= {found.active.space_id, *(each.space_id for each in found.replicas)}
        return spaces

    async def _check_unmoved(self, space_id: str, revision: int) -> None:
        """Raises Aborted unless `stable` of a space is at a revision; 0 for no label."""
        row = await self._registry.label(space_id, STABLE)
        now, version = (row.revision, row.version) if row else (0, "unset")
        if now != revision:
            raise errors.Aborted(
                f"label 'stable' of space {space_id} is at revision {now} ({version}), no longer at {revision}, with "
                "which the tandem was compared; publish it again"
            )

    async def _check_still_unmoved(self, tandem: Tandem, before: Generation, revision: int) -> None:
        """As `_check_unmoved` after the activation, which it takes back: a label may have moved at the same time."""
        try:
            await self._check_unmoved(before.space_id, revision)
        except errors.Aborted:
            if before.id:
                await finish(self._activate(tandem.corpus, before.id, tandem.generation))
            raise

    async def _activate(self, corpus: str, generation: str, expected: str) -> None:
        """Moves the pointer. If the answer is lost, the active generation decides whether that failed."""
        try:
            replicas = (await self._index.activate(corpus, generation, expected=expected)).replicas
            if behind := [f"{each.instance} ({each.reason})" for each in replicas if each.behind]:
                log.warning("index processes are behind", corpus=corpus, behind="; ".join(behind))
        except errors.AeencError:
            if not await self._is_served(corpus, generation):
                raise

    async def _is_served(self, corpus: str, generation: str) -> bool:
        """Whether a generation is active, at whichever index process."""
        with suppress(errors.AeencError, OSError):  # the store knows before they do
            if await asyncio.to_thread(read_active, self._store, corpus) == generation:
                return True
        found = await self._corpus(corpus)
        return generation in {found.active.id, *(each.generation for each in found.replicas)}

    async def _undo(self, tandem: Tandem, named: LabelRow | None, ours: LabelRow) -> None:
        """Puts the label back unless the tandem serves, or may: while the index is silent both pairs stay loaded.

        Only from the revision that is `ours`: a label that somebody has moved since stays where they want it.
        """
        try:
            if await self._is_served(tandem.corpus, tandem.generation):
                return
            if named is None:
                await self._registry.delete_label(tandem.space_id, STABLE, expected_revision=ours.revision)
            elif named.revision != ours.revision:
                await self._registry.set_label(
                    tandem.space_id,
                    STABLE,
                    named.version,
                    expected_revision=ours.revision,
                    precision=named.precision,
                )
        except (errors.Aborted, errors.NotFound) as error:
            log.info("the label has moved since; it stays", version=tandem.version, reason=error.message)
        except errors.AeencError as error:
            log.warning("a tandem that was not activated stays loaded", version=tandem.version, reason=error.message)

    async def _retire(self) -> None:
        """Removes our labels from spaces that neither serve nor are the way back, so that encoders unload them."""
        try:
            tandems = await self.tandems.all()
            spaces = {tandem.space_id for tandem in tandems}
            rows = [row for row in await self._registry.labels() if row.space_id in spaces]
            served = await self.served_spaces()
            ways_back = {tandem.replaces_space for tandem in tandems if tandem.space_id in served}
            kept = {self._models.space_id, *served, *ways_back}
            used = {row.space_id for row in rows if row.name not in OURS}
            for row in rows:
                if row.space_id not in kept | used:
                    await self._registry.delete_label(row.space_id, row.name, expected_revision=row.revision)
        except errors.AeencError as error:  # the next publication retires them
            log.warning("unused spaces stay loaded", reason=error.message)

    async def _stable_of(self, space_id: str) -> LabelRow:
        row = await self._registry.label(space_id, STABLE)
        if row is None:
            raise errors.FailedPrecondition(f"no label `stable` stands in space {space_id}; publish a version of it")
        return row

    def _check_same_premises(self, tandem: Tandem, active: str) -> None:
        """Raises FailedPrecondition if the tandem's generation has other premises than the active one."""
        if not active:
            return
        ours, theirs = (
            self._store.described(folder_of(tandem.corpus), one).files[PREMISES].sha256
            for one in (tandem.generation, active)
        )
        if ours != theirs:
            raise errors.FailedPrecondition(
                f"corpus {tandem.corpus!r} serves other premises since generation {active} than those that "
                f"{tandem.version} was built with; train again, or publish with force to serve generation "
                f"{tandem.generation}",
                reason="OTHER_PREMISES",
            )
