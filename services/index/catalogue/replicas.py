"""The index processes over one store: who is alive, and how far each has followed the moves of each corpus.

    look ──► own record: replicas/<name>.json {beat, corpora} ──► the others' ──► alive: the beat has changed lately

Each replica replaces its own record and reads the others'. A replica is alive for whoever has seen its beat change
within `lease_s` on their own clock; clocks of two hosts are never compared. A process that has died is found out at
once where the kernel takes its lock away, replicas/<name>.lock. What cannot be read does no harm: what is active is
the moves' to say, this only tells who has followed.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
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
from services.store.artifacts import ArtifactStore, make_directory
from services.store.formats import check_format, known_fields

log = logs.get(__name__)
FOLDER, LOCK = "replicas", ".lock"
FORMAT_VERSION = 1
POLL_S = 0.05
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
    """This replica's own record, and the others as last seen. `look` blocks on the disk."""

    def __init__(self, store: ArtifactStore, instance: str, *, lease_s: float, wait_s: float) -> None:
        self._folder = store.root / FOLDER
        self._own = self._folder / f"{uuid.uuid4().hex}.json"  # not the instance: two may bear the same name
        self._lease_s, self._wait_s = lease_s, wait_s
        self._me = Replica(instance)
        self._beat = 0
        self._seen: dict[Path, tuple[int, float, Replica]] = {}  # the beat, since when it is the same
        self._lock: BinaryIO | None = None
        self._looking, self._signed_off = threading.Lock(), False
        self._unreadable: dict[Path, str] = {}  # logged once each

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
        """Writes the own record and reads the others'. Raises OSError when the store is away."""
        with self._looking:  # a call and the follower may look at once
            if not self._signed_off:
                self._look()

    def _look(self) -> None:
        self._beat += 1
        record = {"format_version": FORMAT_VERSION, "beat": self._beat, **asdict(self._me)}
        make_directory(self._folder)
        if self._lock is None:
            self._lock = self._own.with_suffix(LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        temporary = self._folder / f".{self._own.name}"
        temporary.write_text(json.dumps(record))  # not synced: after a power cut nobody lives
        temporary.replace(self._own)
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for path in self._folder.glob("[!.]*.json"):
            if path == self._own or (found := self._read(path)) is None:
                continue
            if _is_dead(path.with_suffix(LOCK)):
                _remove(path)
                continue
            beat, since, _ = before.get(path, (None, 0.0, None))
            self._seen[path] = (found[0], since if beat == found[0] else now, found[1])
            if now - self._seen[path][1] >= FORGET * self._lease_s:
                _remove(path)

    def _read(self, path: Path) -> tuple[int, Replica] | None:
        """Reads another's record; None for one that is gone or that this release cannot read."""
        try:
            record = json.loads(path.read_bytes())
            check_format(record, FORMAT_VERSION, str(path))
            corpora = {name: Followed(**known_fields(Followed, one)) for name, one in record["corpora"].items()}
            return int(record["beat"]), Replica(str(record["instance"]), corpora)
        except FileNotFoundError:
            return None
        except (errors.AeencError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            if self._unreadable.get(path) != (reason := str(error)):
                self._unreadable[path] = reason
                log.warning("the record of a replica cannot be read", path=str(path), reason=reason)
            return None

    async def reached(self, corpus: str, move: int) -> tuple[ReplicaState, ...]:
        """Waits until all that are alive have followed a corpus to a move, at most `wait_s`. Returns all of them."""
        end = time.monotonic() + self._wait_s
        while True:
            with suppress(OSError):
                await asyncio.to_thread(self.look)
            states = tuple(one.state(corpus, move) for one in self.alive)
            behind = [one.instance for one in states if one.is_behind]
            if not behind or time.monotonic() >= end:
                break
            await asyncio.sleep(POLL_S)
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
        with self._looking, suppress(OSError):
            self._signed_off = True
            _remove(self._own)
            if self._lock is not None:
                self._lock.close()


def _is_dead(lock: Path) -> bool:
    """Whether the kernel has taken a process's lock away; False where nobody can tell."""
    try:
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # held, gone, or on a disk without locks
        return False


def _remove(record: Path) -> None:
    record.unlink(missing_ok=True)
    record.with_suffix(LOCK).unlink(missing_ok=True)
