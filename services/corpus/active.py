"""Which generation of a corpus is active: the records of moves.py as files.

    generations/<corpus>/.moves/000000000042.json    made by `link`, so that a number is taken once and never half

Where the artifacts lie in a bucket, the records do so, too, and the files are copies of them.

The index moves and follows, the trainer reads. Everything here blocks on the disk.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from aeenc import errors
from services.corpus.generation import check_corpus_name, corpora_of, folder_of
from services.corpus.moves import ACTIVATION, Move, MoveRequest, Records, made_before, make_move, read_move
from services.kit.logs import get
from services.store.artifacts import ArtifactStore
from services.store.files import DISK_FULL, Documents, try_lock

log = get(__name__)

MOVES = ".moves"
LOCK = ".moving.lock"  # shared by moves; alone for a deletion, so that nobody activates what is being deleted
LOCK_S, RETRY_S = 10.0, 0.02
Check = Callable[[str | None], None]  # raises unless something may be done; takes the active id ("" or None: none)


def read_active(store: ArtifactStore, corpus: str) -> str | None:
    """Returns the id of the generation that searches see; None before the first activation.

    Raises DataLoss for a damaged record, NewerFormat for one of a newer release.
    """
    return latest_move(store, corpus).generation or None


def named_or_active(store: ArtifactStore, corpus: str, generation: str) -> str:
    """Returns the id of the generation that is named, or of the active one. Raises NotFound without one."""
    check_corpus_name(corpus)
    if found := generation or read_active(store, corpus):
        return found
    known = ", ".join(corpora_of(store)) or "none"
    problem = f"corpus {corpus!r} has no active generation in {store.root}, whose corpora are: {known}"
    raise errors.NotFound(f"{problem}; activate one, or name one (generation), another corpus or another store")


def latest_move(store: ArtifactStore, corpus: str) -> Move:
    """Returns the latest move of a corpus; number 0 when there is none.

    Raises what `read_active` raises, and Unavailable when the store is gone.
    """
    store.check_there()
    return read_move(records_of(store, corpus))


def write_active(
    store: ArtifactStore,
    corpus: str,
    generation_id: str,
    check: Callable[[str], None] = lambda _: None,
    request: MoveRequest = ACTIVATION,
) -> Move:
    """Makes a generation the active one, durably; one process at a time wins. A request that did so gets its move.

    `check` takes the id of the active generation ("": none) and may raise; what it has seen still holds when the move
    is made. Raises NewerFormat for records that are not to be replaced, AlreadyExists as `made_before` does.
    """

    def decide(last: Move) -> Move:
        check(last.generation)
        return replace(last, generation=generation_id)

    with moving(store, corpus):
        return make_move(records_of(store, corpus), decide, request)


@contextmanager
def moving(store: ArtifactStore, corpus: str, *, alone: bool = False) -> Iterator[None]:
    """Keeps deletions out of a block, or with `alone` everybody; the kernel lets go when a process dies.

    Raises Unavailable when another process does not let go.
    """
    with (store.make_folder(folder_of(corpus)) / LOCK).open("ab") as lock:
        end = time.monotonic() + LOCK_S
        while not try_lock(lock, shared=not alone):
            if time.monotonic() >= end:
                raise errors.Unavailable(
                    f"another index has held {lock.name} for {LOCK_S:g} s; resume or end it, then try again"
                )
            time.sleep(RETRY_S)
        yield


def note_change(
    store: ArtifactStore,
    corpus: str,
    request: MoveRequest,
    decide: Callable[[Move], Move] = lambda last: last,
) -> Move:
    """Records that something else has changed, for those who follow; the active generation stays.

    `decide` is as in `make_move`. Raises DataLoss when nobody can read which generation is active.
    """
    records = records_of(store, corpus)
    read_move(records)
    return make_move(records, decide, request)


def delete_inactive(store: ArtifactStore, corpus: str, generation_id: str, check: Check, request: MoveRequest) -> Move:
    """Deletes a generation and records that, while nobody moves. What `check` raises leaves it as it was.

    A request that has deleted it changes nothing. Returns a move from which on it is deleted.
    """

    def decide(last: Move) -> Move:
        check(last.generation)
        return last

    with moving(store, corpus, alone=True):
        if not deleted_before(store, corpus, generation_id, request):
            check(read_active(store, corpus))
            try:
                store.check_exists(folder_of(corpus), generation_id)
                if request.id:  # a kill from here on leaves a deletion that its retry knows
                    note_change(store, corpus, replace(request, kind="deleting"), decide)
                with store.deleting(folder_of(corpus), generation_id):
                    return note_change(store, corpus, request, decide)
            except errors.NotFound:  # of two hosts at a bucket, the other was faster
                if not deleted_before(store, corpus, generation_id, request):
                    raise
        return latest_move(store, corpus)


def deleted_before(store: ArtifactStore, corpus: str, generation_id: str, request: MoveRequest) -> bool:
    """Whether a request has deleted a generation, also one that was killed before it had recorded so.

    Raises AlreadyExists when it asked for something else.
    """
    records = records_of(store, corpus)
    if made_before(records, request) is not None:
        return True
    is_begun = made_before(records, replace(request, kind="deleting")) is not None
    return is_begun and generation_id not in store.list(folder_of(corpus))


def records_of(store: ArtifactStore, corpus: str) -> Records:
    """Returns the records of a corpus: in its folder, or where the store has a bucket, there."""
    records = Records(store.documents, f"{folder_of(corpus)}/{MOVES}")
    if not store.url:
        return records
    # The copies' name has the bucket: the directory may have been a store without one, or the cache of another one.
    copies = f"{records.prefix}-{hashlib.sha256(store.url.encode()).hexdigest()[:8]}"
    return CopiedRecords(records, Records(Documents(store.root), copies), store.without_copies)


class CopiedRecords(Records):
    """Records in a bucket. A record never changes, so a copy of each that was read stays on a disk with room."""

    def __init__(self, records: Records, copies: Records, without: set[str]) -> None:
        self._records, self._copies, self._without = records, copies, without  # the prefixes that are, as the log knows

    def numbers(self) -> list[int]:
        """The numbers that there are; while the bucket is away, those of the copies."""
        try:
            found = self._records.numbers()
        except errors.Unavailable:
            return self._copies.numbers()
        for old in set(self._copies.numbers()) - set(found):
            self._copies.remove(old)
        return found

    def read(self, number: int) -> bytes | None:
        """The record of a number; None when there is none."""
        if (copy := self._copies.read(number)) is not None:
            return copy
        if (data := self._records.read(number)) is not None:
            self._copy(number, data)
        return data

    def create(self, number: int, data: bytes) -> bool:
        """Creates a record as a whole. Returns False, and changes nothing, where one stands."""
        if created := self._records.create(number, data):
            self._copy(number, data)
        return created

    def _copy(self, number: int, data: bytes) -> None:
        try:
            self._copies.create(number, data)
            self._without.discard(self._copies.prefix)
        except OSError as error:  # a full disk keeps nobody from what the bucket has
            if error.errno not in DISK_FULL:
                raise
            if self._copies.prefix not in self._without:  # else each look would say so
                log.warning("a record of a bucket is not copied", record=number, reason=str(error))
            self._without.add(self._copies.prefix)

    def remove(self, number: int) -> None:
        """Removes a record that may be gone already, and its copy."""
        self._records.remove(number)
        self._copies.remove(number)
