"""Which corpora and generations there are, which one is active, and the switch from one to another.

The active generations are open all the time; others that a caller pins are opened on demand and a few are kept. Files
are checked by size when opened and by hash when activated. It never encodes and never builds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aeenc import errors
from services.corpus.generation import folder_of, is_corpus_name, open_generation, read_active, write_active
from services.corpus.inner_products import norms_of
from services.index.corpus import ALL, ServedGeneration
from services.index.engine import SearchEngine
from services.kit import logs
from services.store.artifacts import Artifact, ArtifactStore

log = logs.get(__name__)

ROOT = "generations"
SELF_QUERIES = 32
NORM_TOLERANCE = 1e-3
MOST_LOST = 0.1  # share of its own vectors that an approximate engine may overlook


@dataclass(frozen=True)
class Activation:
    """What is active now, and what was before (None: nothing)."""

    active: Artifact
    previous: str | None


class Catalogue:
    """The generations of all corpora in one artifact store. Call `load` once before anything else."""

    def __init__(self, store: ArtifactStore, engine: SearchEngine, *, pinned_generations: int = 4) -> None:
        self._store = store
        self._engine = engine
        self._pinned_generations = pinned_generations
        self._active: dict[str, ServedGeneration] = {}
        self._damaged: dict[str, errors.AeencError] = {}
        self._corpora: set[str] = set()
        self._pinned: OrderedDict[tuple[str, str], ServedGeneration] = OrderedDict()
        self._opening = asyncio.Lock()
        self._switching = asyncio.Lock()
        self._listeners: list[Callable[[str], None]] = []

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with what is wrong (empty: nothing) after loading and after each activation."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Opens the active generation of every corpus. One that cannot be opened leaves the others serving."""
        for corpus in await asyncio.to_thread(self._find_corpora):
            self._corpora.add(corpus)
            try:
                active = await asyncio.to_thread(self._open_active, corpus)
                if active is not None:
                    self._active[corpus] = active
            except errors.AeencError as error:
                log.warning("active generation cannot be opened", corpus=corpus, reason=error.message)
                self._damaged[corpus] = error
        self._tell()

    def corpora(self) -> list[tuple[str, ServedGeneration | None]]:
        """All corpora by name, with their active generations."""
        return [(corpus, self._active.get(corpus)) for corpus in sorted(self._corpora)]

    def active_id(self, corpus: str) -> str | None:
        """The active generation's id, None when nothing is active."""
        served = self._active.get(corpus)
        return served.id if served else None

    async def resolve(self, corpus: str, generation_id: str = "") -> ServedGeneration:
        """The named generation, by default the active one.

        Raises NotFound for an unknown corpus or generation or without an active one, DataLoss for a damaged one.
        """
        active = self._active.get(corpus)
        if active is not None and generation_id in {"", active.id}:
            return active
        self.check_known(corpus)
        if not generation_id:
            if corpus in self._damaged:
                raise errors.DataLoss(self._damaged[corpus].message)
            raise errors.NotFound(f"corpus {corpus!r} has no active generation; activate one of ListGenerations")
        async with self._opening:
            key = (corpus, generation_id)
            if key not in self._pinned:
                self._pin(corpus, await asyncio.to_thread(self._open, corpus, generation_id, hashed=False))
            self._pinned.move_to_end(key)
            return self._pinned[key]

    async def activate(self, corpus: str, generation_id: str, *, expected: str | None = None) -> Activation:
        """Checks a generation by hash and by searching for its own vectors, then makes it the active one.

        `expected` is the id believed active ("" for none). Raises NotFound, Aborted when another is active, DataLoss
        when a file is not what the manifest says; then the active one keeps serving.
        """
        self.check_known(corpus)
        async with self._switching:
            previous = self.active_id(corpus)
            if expected is not None and expected != (previous or ""):
                raise errors.Aborted(
                    f"corpus {corpus!r} has {previous or 'no generation'} active, expected {expected or 'none'}; "
                    "look at it again before you activate"
                )
            candidate = await asyncio.to_thread(self._open, corpus, generation_id, hashed=True)
            await self._check_by_searching(candidate)
            await asyncio.to_thread(write_active, self._store, corpus, generation_id)
            if previous not in {None, generation_id}:
                self._pin(corpus, self._active[corpus])  # callers that pinned it go on
            self._active[corpus] = candidate
            self._damaged.pop(corpus, None)
        self._tell()
        log.info("activated", corpus=corpus, generation=generation_id, previous=previous or "")
        return Activation(candidate.generation.artifact, previous)

    async def generations(self, corpus: str) -> list[Artifact]:
        """The generations of a corpus, newest first. Raises NotFound for an unknown corpus."""
        self.check_known(corpus)
        return await asyncio.to_thread(self._list, corpus)

    async def delete(self, corpus: str, generation_id: str) -> None:
        """Deletes a generation. Raises FailedPrecondition for the active one, NotFound for an unknown one."""
        self.check_known(corpus)
        async with self._switching:
            if generation_id in {self.active_id(corpus), await asyncio.to_thread(read_active, self._store, corpus)}:
                raise errors.FailedPrecondition(
                    f"generation {generation_id} is the active one of corpus {corpus!r}; activate another one first"
                )
            await asyncio.to_thread(self._store.delete, folder_of(corpus), generation_id)
            self._pinned.pop((corpus, generation_id), None)
            if not await asyncio.to_thread(self._store.list, folder_of(corpus)):
                self._corpora.discard(corpus)

    def added(self, corpus: str) -> None:
        """Takes note of a corpus that has a finished generation now."""
        self._corpora.add(corpus)

    def check_known(self, corpus: str) -> None:
        """Raises NotFound for a corpus without any generation."""
        if corpus not in self._corpora:
            known = ", ".join(sorted(self._corpora)[:10]) or "none yet"
            raise errors.NotFound(f"corpus {corpus!r} is unknown (known: {known}); build it with BuildGeneration")

    def _find_corpora(self) -> list[str]:
        root = self._store.root / ROOT
        names = [entry.name for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
        names = sorted(name for name in names if is_corpus_name(name))
        for name in names:
            self._store.sweep(folder_of(name))
        return [name for name in names if self._store.list(folder_of(name))]

    def _open_active(self, corpus: str) -> ServedGeneration | None:
        generation_id = read_active(self._store, corpus)
        return None if generation_id is None else self._open(corpus, generation_id, hashed=False)

    def _open(self, corpus: str, generation_id: str, *, hashed: bool) -> ServedGeneration:
        opened = open_generation(self._store, corpus, generation_id, verify="full" if hashed else "size")
        return ServedGeneration.of(opened)

    def _pin(self, corpus: str, served: ServedGeneration) -> None:
        self._pinned[corpus, served.id] = served
        self._pinned.move_to_end((corpus, served.id))
        while len(self._pinned) > self._pinned_generations:
            self._pinned.popitem(last=False)

    def _list(self, corpus: str) -> list[Artifact]:
        found = []
        for generation_id in self._store.list(folder_of(corpus)):
            try:
                found.append(self._store.open(folder_of(corpus), generation_id, verify="size"))
            except errors.AeencError as error:  # damaged, or deleted in between: not one to activate
                log.warning("generation left out of the list", corpus=corpus, reason=error.message)
        return sorted(found, key=lambda artifact: (artifact.created_at, artifact.id), reverse=True)

    async def _check_by_searching(self, candidate: ServedGeneration) -> None:
        """Raises DataLoss unless vectors are unit and each of a sample of them finds its own row first.

        An approximate engine may overlook a few.
        """
        rows = candidate.index.rows
        sample = np.unique(np.linspace(0, rows - 1, num=min(rows, SELF_QUERIES), dtype=np.int64))
        vectors = candidate.index.vectors[sample].astype(np.float32)
        norms = norms_of(vectors)
        good = bool(np.all(np.abs(norms - 1.0) <= NORM_TOLERANCE))
        if good:
            outcome = await self._engine.search(candidate, vectors, 1, ALL)
            # an equal vector of a lower ordinal comes first, so the score is compared and not the ordinal
            lost = sum(abs(float(one.scores[0]) - 1.0) > 2 * NORM_TOLERANCE for one in outcome.found)
            good = lost <= (0 if candidate.index.exact else len(sample) * MOST_LOST)
        if not good:
            path = candidate.generation.artifact.path
            raise errors.DataLoss(f"{path}: vectors do not find themselves; build the generation again")

    def _tell(self) -> None:
        reasons = [f"corpus {corpus!r}: {error.message}" for corpus, error in sorted(self._damaged.items())]
        for listener in self._listeners:
            listener("; ".join(reasons))
