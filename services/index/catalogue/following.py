"""Follows what other processes do to the store, every `look_s` seconds: corpora, activations, deletions, explanations.

look at the store ──► open and warm beside what serves ──► swap ──► tell the others how far we are
beside it, all the time: tell the others that we live, however long an opening takes
└── the store is away: what is open keeps serving, and readiness says so

A corpus whose folders have the times of the last looks has not changed: of hundreds of corpora most cost a few calls of
the system. A bucket has no such times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from aeenc import errors
from services.corpus.active import MOVES, latest_move
from services.corpus.generation import corpora_of, folder_of
from services.corpus.moves import Move
from services.index.catalogue.served import ServedGeneration
from services.store.artifacts import ArtifactStore

SWEEP_S = 5.0  # between two tries to remove what readers have kept
SETTLE_S = 2.0  # of looks at unchanged times, until they tell: two changes at once may have one time
Stamp = tuple[int, ...]


@dataclass(frozen=True)
class CorpusState:
    """The state of a corpus in the store: its latest move, and the ids of its generations, read after the move.

    `has_deleted`: deleted generations still lie there (looked up only now and then). `is_replaced`: the generation that
    serves was replaced by the same content.
    """

    move: Move
    ids: Sequence[str]
    has_deleted: bool
    is_replaced: bool


@dataclass(frozen=True)
class FailedOpening:
    """A move whose generation could not be opened, and until when it is not tried again: a try may fetch gigabytes."""

    move: int
    error: Exception
    pause_s: float
    again_at: float  # by time.monotonic()


class StoreWatch:
    """Looks at the corpora of a store, and knows which have not changed. It blocks."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._swept_at: dict[str, float] = {}
        self._unchanged: dict[str, tuple[Stamp, float]] = {}  # since when, by time.monotonic()
        self._settled: dict[str, Stamp] = {}

    def at(self, corpus: str, serving: ServedGeneration | None) -> CorpusState:
        """Looks at one corpus. Raises DataLoss, NewerFormat, Unavailable or OSError where nobody can."""
        folder = folder_of(corpus)
        move = latest_move(self._store, corpus)
        ids = self._store.list(folder)  # after the move: without what it has deleted
        is_replaced = serving is not None and serving.id in ids and not serving.stands
        return CorpusState(move, ids, self._is_due(corpus) and self._store.has_deleted(folder), is_replaced)

    def changed(
        self, active: Mapping[str, ServedGeneration], unsettled: Collection[str]
    ) -> dict[str, CorpusState | None]:
        """Looks at all corpora that may have changed since they were followed, those `unsettled` among them.

        None stands for one that nobody can look at now; another look says why. Raises Unavailable without the store.
        """
        found = dict[str, CorpusState | None]()
        for corpus in corpora_of(self._store):
            stamp, serving = self._stamp(corpus), active.get(corpus)
            if stamp is not None and self._settled.get(corpus) == stamp and corpus not in unsettled:
                continue
            is_due = self._is_due(corpus)
            look = None
            with suppress(errors.AeencError, OSError):
                look = self.at(corpus, serving)
            found[corpus] = look
            before, since = self._unchanged.get(corpus, (None, 0.0))
            if stamp is None or stamp != before or corpus in unsettled:
                self._unchanged[corpus] = stamp or (), time.monotonic()
            elif look is not None and is_due and not look.has_deleted and time.monotonic() - since >= SETTLE_S:
                self._settled[corpus] = stamp
        return found

    def sweep(self, corpus: str) -> None:
        """Removes what killed processes and deletions have left and nobody reads."""
        self._swept_at[corpus] = time.monotonic()
        self._store.sweep(folder_of(corpus))

    def _is_due(self, corpus: str) -> bool:
        return time.monotonic() - self._swept_at.get(corpus, 0.0) >= SWEEP_S

    def _stamp(self, corpus: str) -> Stamp | None:
        """The times of a corpus's folders; None where they tell nothing."""
        folder = f"{self._store.root}/{folder_of(corpus)}"
        with suppress(OSError):
            if not self._store.url:
                return *_times(folder), *_times(f"{folder}/{MOVES}")
        return None


def _times(folder: str) -> Stamp:
    """When a folder changed. It is opened, so that NFS asks its server: what a mere stat says may be a minute old."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.fstat(opened)
    finally:
        os.close(opened)
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns  # the last one nobody can set back


def problem_of(corpus: str, error: Exception) -> errors.AeencError:
    """The error that callers get for a corpus whose active generation could not be opened."""
    if isinstance(error, errors.AeencError):
        return error
    if isinstance(error, OSError):
        return errors.DataLoss(
            f"{error.filename or 'a file'} cannot be read ({error.strerror or error}); mend the disk or the "
            "permissions and start again, or activate another generation"
        )
    return errors.Unavailable(
        f"the active generation of corpus {corpus!r} cannot be opened ({type(error).__name__}: {error}); it is tried "
        "again, or activate another generation"
    )
