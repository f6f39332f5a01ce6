"""Who needs which generation: holds, by name, which keep a generation from deletion.

    generations/<corpus>/.holds/<generation>.<holder>    an empty document; whoever shares the store sees it

A hold has no end of its own: a run may wait for people for weeks. Its holder releases it, or a deletion names the
holder and goes on despite it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable

from aeenc import errors
from services.corpus.active import moving
from services.corpus.generation import folder_of
from services.store.artifacts import ArtifactStore

FOLDER = ".holds"
_HOLDER = re.compile(r"[A-Za-z0-9._-]{1,64}")
HoldersOf = dict[str, list[str]]  # generation -> its holders, sorted


def check_unheld(corpus: str, generation_id: str, holders: Iterable[str], despite: Collection[str]) -> None:
    """Raises FailedPrecondition naming the holders that a deletion does not name."""
    if left := [one for one in holders if one not in despite]:
        raise errors.FailedPrecondition(
            f"generation {generation_id} of corpus {corpus!r} is held by {', '.join(left)}; wait for their end, cancel "
            "them (`run-<id>`, `job-<id>`), or name them in `despite` (`--despite`): they cannot go on without it",
            reason="IN_USE",
        )


class Holds:
    """The holds of all corpora in one artifact store."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    async def put(self, corpus: str, generation_id: str, holder: str) -> None:
        """Holds a generation, durably. Raises InvalidArgument for a bad name, NotFound for an unknown generation."""
        await asyncio.to_thread(self._put, corpus, generation_id, self._key(corpus, generation_id, holder))

    def _put(self, corpus: str, generation_id: str, key: str) -> None:
        with moving(self._store, corpus):
            self._store.check_exists(folder_of(corpus), generation_id)
            self._store.documents.write(key, b"")
            try:  # a bucket knows no lock: a deletion that came between has not seen the hold, or finds it and gives up
                self._store.check_exists(folder_of(corpus), generation_id)
            except errors.NotFound:
                self._store.documents.remove(key)
                raise

    async def remove(self, corpus: str, generation_id: str, holder: str) -> None:
        """Ends a hold, which may have ended already. Raises InvalidArgument for a bad name."""
        self._store.path(folder_of(corpus), generation_id)  # refuses what is no id
        await asyncio.to_thread(self._store.documents.remove, self._key(corpus, generation_id, holder))

    def read(self, corpus: str) -> HoldersOf:
        """Returns the holders of each generation that is held. It blocks."""
        found: HoldersOf = {}
        for name in self._store.documents.names(f"{folder_of(corpus)}/{FOLDER}"):
            generation_id, _, holder = name.partition(".")
            found.setdefault(generation_id, []).append(holder)
        return found

    def drop(self, corpus: str, generation_id: str) -> None:
        """Ends all holds of a generation that is deleted. It blocks."""
        for holder in self.read(corpus).get(generation_id, ()):
            self._store.documents.remove(f"{folder_of(corpus)}/{FOLDER}/{generation_id}.{holder}")

    def _key(self, corpus: str, generation_id: str, holder: str) -> str:
        if not _HOLDER.fullmatch(holder):
            raise errors.InvalidArgument.field("holder", f"{holder!r} is not 1 to 64 letters, digits, '.', '_' and '-'")
        return f"{folder_of(corpus)}/{FOLDER}/{generation_id}.{holder}"
