"""The index processes over one store: who is alive, and how far each has followed the moves of each corpus.

    look ──► own record: replicas/<name>.json {beat, corpora} ──► the others' ──► alive: the beat has changed lately

The records lie in the directory, or where the store has a bucket, there. Each replica replaces its own record, when it
has news and ten times a lease, and reads the others'. A replica is alive for whoever has seen its beat change within
`lease_s` on their own clock; clocks of two hosts are never compared. A process of this directory that has died is found
out at once: the kernel takes its lock away, replicas/<name>.lock. A record that cannot be read is passed over: the
moves say what is active, these records only who has followed.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from aeenc import errors
from services.index.values import ReplicaState
from services.kit import logs
from services.store.artifacts import ArtifactStore
from services.store.files import try_lock
from services.store.formats import check_format, made_of

log = logs.get(__name__)
FOLDER, RECORD, LOCK = "replicas", ".json", ".lock"
FORMAT_VERSION = 1
POLL_S, POLL_BUCKET_S = 0.05, 0.25
BEATS = 10  # in a lease
FORGET = 20  # leases of silence after which a record is removed


@dataclass(frozen=True)
class Followed:
    """How far a replica has followed a corpus: the number of its last move, and what it serves since.

    `reason` says why it has not come further.
    """

    move: int = 0
    generation: str = ""
    space_id: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Replica:
    """A replica that is alive."""

    instance: str
    corpora: Mapping[str, Followed] = field(default_factory=dict)

    def state(self, corpus: str, move: int) -> ReplicaState:
        """Returns the generation of a corpus that the replica serves, and whether the replica is behind a move."""
        known = self.corpora.get(corpus, Followed())
        reason = known.reason or (f"has followed to move {known.move} of {move}" if known.move < move else "")
        return ReplicaState(self.instance, known.generation, known.space_id, known.move < move, reason)


class Replicas:
    """This replica's own record, and the others as last seen. `look` blocks on the store."""

    def __init__(self, store: ArtifactStore, instance: str, *, lease_s: float, wait_s: float) -> None:
        self._store, self._locks = store, store.root / FOLDER
        self._name = uuid.uuid4().hex  # not the instance: two may bear the same name
        self._lease_s, self._wait_s = lease_s, wait_s
        self._poll_s = POLL_BUCKET_S if store.url else POLL_S
        self._me = Replica(instance)
        self._beat, self._written = 0, -math.inf
        self._said: Replica | None = None
        self._seen: dict[str, tuple[int, float, Replica]] = {}  # the beat, since when it is the same
        self._lock: BinaryIO | None = None
        self._looking, self._signed_off = threading.Lock(), False
        self._unreadable: dict[str, str] = {}  # logged once each

    @property
    def alive(self) -> list[Replica]:
        """This replica and the others that were alive at the last look."""
        now = time.monotonic()
        others = [one for _, since, one in self._seen.values() if now - since < self._lease_s]
        return [self._me, *sorted(others, key=lambda one: one.instance)]

    def serve(self, corpora: Mapping[str, Followed]) -> None:
        """Sets what this replica serves; the next look tells the others."""
        self._me = replace(self._me, corpora=dict(corpora))

    def look(self) -> None:
        """Writes the own record where it is due, and reads the others'. Raises OSError when the store is away."""
        with self._looking:  # a call and the follower may look at once
            if not self._signed_off:
                try:
                    self._look()
                except errors.Unavailable as error:
                    raise OSError(error.message) from error

    def _look(self) -> None:
        if self._lock is None:
            self._store.make_folder(FOLDER)
            self._lock = self._lock_of(self._name).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._write()
        now = time.monotonic()
        seen: dict[str, tuple[int, float, Replica]] = {}
        records = (name for name in self._store.documents.names(FOLDER) if name.endswith(RECORD))
        for name in {record.removesuffix(RECORD) for record in records} - {self._name}:
            if _is_dead(self._lock_of(name)):
                self._remove(name)
                continue
            known, found = self._seen.get(name), self._read(name)
            if found is not None:
                beat, replica = found
                seen[name] = (beat, known[1] if known is not None and known[0] == beat else now, replica)
            elif known is not None:  # it cannot be read this time, which does not mean that the replica is dead
                seen[name] = known
            else:
                continue
            if now - seen[name][1] >= FORGET * self._lease_s:
                self._remove(name)
        self._seen = seen  # at once: `alive` is read meanwhile

    def _write(self) -> None:
        """Replaces the own record if it says something new, or is to show again that this replica lives."""
        now = time.monotonic()
        if self._said == self._me and now - self._written < self._lease_s / BEATS:
            return
        self._beat += 1
        record = {"format_version": FORMAT_VERSION, "beat": self._beat, **asdict(self._me)}
        self._store.documents.write(_key(self._name), json.dumps(record).encode(), durable=False)
        self._said, self._written = self._me, now

    def _read(self, name: str) -> tuple[int, Replica] | None:
        """Reads another's record; None for one that is gone or that this release cannot read."""
        try:
            if (content := self._store.documents.read(_key(name))) is None:
                return None
            record = json.loads(content)
            check_format(record, FORMAT_VERSION, _key(name))
            return int(record["beat"]), made_of(Replica, record)
        except errors.Unavailable:
            raise
        except (errors.AeencError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            if self._unreadable.get(name) != (reason := str(error)):
                self._unreadable[name] = reason
                log.warning("the record of a replica cannot be read", record=_key(name), reason=reason)
            return None

    def _remove(self, name: str) -> None:
        self._store.documents.remove(_key(name))
        self._lock_of(name).unlink(missing_ok=True)

    def _lock_of(self, name: str) -> Path:
        return self._locks / f"{name}{LOCK}"

    async def reached(self, corpus: str, move: int) -> tuple[ReplicaState, ...]:
        """Waits until all that are alive have followed a corpus to a move, at most `wait_s`. Returns all of them."""
        end = time.monotonic() + self._wait_s
        while True:
            with suppress(OSError):
                await asyncio.to_thread(self.look)
            states = tuple(one.state(corpus, move) for one in self.alive)
            behind = [one.instance for one in states if one.behind]
            if not behind or time.monotonic() >= end:
                break
            await asyncio.sleep(self._poll_s)
        if behind:
            log.warning("replicas are behind", corpus=corpus, move=move, behind=behind)
        return states

    def states(self, corpus: str) -> tuple[ReplicaState, ...]:
        """Returns the generation of a corpus that each live replica serves; those overtaken by others are behind."""
        alive = self.alive
        newest = max(one.corpora.get(corpus, Followed()).move for one in alive)
        return tuple(one.state(corpus, newest) for one in alive)

    def sign_off(self) -> None:
        """Removes the own record: this replica is gone."""
        with self._looking:
            self._signed_off = True
            with suppress(OSError, errors.Unavailable):
                self._remove(self._name)
            if self._lock is not None:
                self._lock.close()


def _is_dead(lock: Path) -> bool:
    """Whether the kernel has taken a process's lock away; False where nobody can tell."""
    try:
        with lock.open("r+b") as file:
            return try_lock(file)
    except OSError:  # gone, or on a disk without locks
        return False


def _key(name: str) -> str:
    return f"{FOLDER}/{name}{RECORD}"
