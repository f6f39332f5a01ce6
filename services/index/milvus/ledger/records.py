"""The records of all generations: one small collection, whose rows decide what exists.

A generation is a row of kind `generation`; one upsert of that row is its commit. Before, a row of kind `building` names
its collection, and one of kind `dropping` once it is being deleted, so that the leavings of a killed process can be
found; a row of kind `explaining` does so for a table of explanations. Aliases of Milvus, not rows, say which generation
is active and which explanations count (switches.py). Every method blocks.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from aeenc import errors
from services.index.building.finished import FinishedBuild
from services.index.catalogue.holds import HoldersOf
from services.index.catalogue.requests import RequestKind, RequestNote
from services.index.milvus.ledger.tables import Table
from services.index.milvus.link import MilvusLink, MilvusNotFound, MilvusNotLoaded
from services.index.milvus.schema import TEXT_BYTES
from services.kit import logs
from services.store.artifacts import Artifact, FileEntry
from services.store.formats import NewerFormat, check_format

log = logs.get(__name__)
FORMAT_VERSION = 1
Kind = Literal["building", "generation", "dropping", "explaining"]
T = TypeVar("T")
_KEY_BYTES = 255


@dataclass(frozen=True)
class StoredGeneration:
    """A finished generation: the collection that holds it, and its manifest as an artifact.

    The artifact's files lie in the artifact store. `probes` has the digests of some rows by ordinal.
    """

    collection: str
    corpus: str
    artifact: Artifact
    probes: Mapping[int, str]


@dataclass(frozen=True)
class UnfinishedCollection:
    """A half-built or half-dropped collection. Whoever works on it changes `beat` now and then."""

    collection: str
    beat: int


@dataclass(frozen=True)
class UnreadableRecord:
    """A row that this release cannot read, why, and the corpus and generation of which it is ("": it does not tell)."""

    collection: str
    error: errors.DataLoss | NewerFormat
    corpus: str
    generation: str


@dataclass(frozen=True)
class RecordSnapshot:
    """All rows at one moment."""

    generations: Sequence[StoredGeneration]
    unfinished: Sequence[UnfinishedCollection]
    unreadable: Sequence[UnreadableRecord]


class Records:
    """Reads and writes the rows; the collection's name starts with `prefix`."""

    def __init__(self, link: MilvusLink, prefix: str) -> None:
        self.prefix = prefix
        self.name = f"{prefix}_records"
        self._table = Table(link, self.name, {"key": _KEY_BYTES, "kind": 16, "body": TEXT_BYTES})
        self._writing = threading.Lock()  # milvus-lite allows one writer per collection
        self._reported: set[str] = set()

    def all(self) -> RecordSnapshot:
        """Reads the rows of all collections. It reports those that cannot be read, once each, and leaves them alone."""
        generations, unfinished, unreadable = [], [], []
        for row in self._query('kind in ["building", "generation", "dropping", "explaining"]'):
            try:
                if row["kind"] == "generation":
                    generations.append(_stored(row["key"], _body(row)))
                else:
                    unfinished.append(UnfinishedCollection(row["key"], _beat(row)))
            except (errors.DataLoss, NewerFormat) as error:
                unreadable.append(UnreadableRecord(row["key"], error, *_told(row)))
                if row["key"] not in self._reported:
                    self._reported.add(row["key"])
                    log.warning("a record is left out", collection=row["key"], reason=error.message)
        return RecordSnapshot(sorted(generations, key=_age), unfinished, unreadable)

    def is_building(self, collection: str) -> bool:
        """Whether the row of a build is still there; a sweeper removes that of a silent build."""
        return any(row["kind"] == "building" for row in self._by_key(collection))

    def beat_of(self, collection: str) -> int | None:
        """The beat of an unfinished collection as it is now; None when it is finished or gone."""
        return next((_beat(row) for row in self._by_key(collection) if row["kind"] != "generation"), None)

    def put_unfinished(self, kind: Kind, collection: str, beat: int) -> None:
        """Records that a collection is being built or dropped."""
        self._put(collection, kind, {"beat": beat})

    def put_generation(self, stored: StoredGeneration) -> None:
        """Commits a generation: from now on it exists."""
        artifact = stored.artifact
        body = {
            "corpus": stored.corpus,
            "id": artifact.id,
            "created_at": artifact.created_at.isoformat(),
            "meta": dict(artifact.meta),
            "files": {name: [entry.sha256, entry.size_bytes] for name, entry in artifact.files.items()},
            "probes": {str(ordinal): digest for ordinal, digest in stored.probes.items()},
        }
        self._put(stored.collection, "generation", body)

    def remove(self, collection: str) -> None:
        """Removes the row of a collection."""
        with self._writing:
            self._opened(lambda: self._table.delete([collection]))

    def finished(self, corpus: str, request_id: str) -> FinishedBuild | None:
        """Finds what a request built; None when it has not finished."""
        for row in self._by_key(_request_key(corpus, request_id)):
            body = _body(row)
            return FinishedBuild(str(body["generation"]), bool(body["activated"]), body["asked"])
        return None

    def put_finished(self, corpus: str, request_id: str, built: FinishedBuild) -> None:
        """Records what a request built. Without a request id it does nothing."""
        if request_id:
            body = {
                "request_id": request_id,
                "generation": built.generation,
                "activated": built.activated,
                "asked": built.asked,
            }
            self._put(_request_key(corpus, request_id), "request", body)

    def mark_activated(self, corpus: str, request_id: str) -> None:
        """Records that a request has activated what it built."""
        built = self.finished(corpus, request_id)
        if built is not None:
            self.put_finished(corpus, request_id, replace(built, activated=True))

    def note(self, corpus: str, kind: RequestKind, request_id: str) -> RequestNote | None:
        """Finds the note of an activation or a deletion; None when there is none."""
        rows = self._by_key(_request_key(corpus, f"{kind}\0{request_id}"))
        return RequestNote.of(_body(rows[0])) if rows else None

    def put_note(self, corpus: str, kind: RequestKind, request_id: str, note: RequestNote) -> None:
        """Writes a note. Without a request id it does nothing."""
        if request_id:
            body = {"request_id": request_id, **note.to_record()}
            self._put(_request_key(corpus, f"{kind}\0{request_id}"), "request", body)

    def holders(self, corpus: str) -> HoldersOf:
        """Returns the holders of each generation of a corpus that is held."""
        found: HoldersOf = {}
        for held in (_body(row) for row in self._query('kind in ["held"]')):
            if held["corpus"] == corpus:
                found.setdefault(held["generation"], []).append(held["holder"])
        return {generation_id: sorted(holders) for generation_id, holders in found.items()}

    def put_hold(self, corpus: str, generation_id: str, holder: str) -> None:
        """Records that a generation is held."""
        body = {"corpus": corpus, "generation": generation_id, "holder": holder}
        self._put(_request_key(corpus, f"held\0{generation_id}\0{holder}"), "held", body)

    def remove_hold(self, corpus: str, generation_id: str, holder: str) -> None:
        """Ends a hold, which may have ended already."""
        self.remove(_request_key(corpus, f"held\0{generation_id}\0{holder}"))

    def _put(self, key: str, kind: str, body: Mapping[str, Any]) -> None:
        text = json.dumps({"format_version": FORMAT_VERSION, **body}, sort_keys=True)
        with self._writing:
            self._opened(lambda: self._table.put([{"key": key, "kind": kind, "body": text}]))

    def _by_key(self, key: str) -> list[Mapping[str, Any]]:
        return self._query(f'key in ["{key}"]')

    def _query(self, expression: str) -> list[Mapping[str, Any]]:
        return self._opened(lambda: self._table.find(expression))

    def _opened(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (MilvusNotFound, MilvusNotLoaded):  # the very first call, or Milvus was emptied or restarted
            self._table.open()
            return work()


def artifact_of(
    collection: str, meta: Mapping[str, Any], files: Mapping[str, FileEntry], created_at: datetime
) -> Artifact:
    """Makes the manifest of a generation. Its id comes from the content: the same premises give the same id."""
    content = {"kind": "generation", "meta": dict(meta), "files": {name: one.sha256 for name, one in files.items()}}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return Artifact(Path(collection), "generation", f"g{digest[:16]}", dict(meta), dict(files), digest, created_at)


def _stored(collection: str, body: Mapping[str, Any]) -> StoredGeneration:
    try:
        files = {name: FileEntry(str(sha256), int(size)) for name, (sha256, size) in body["files"].items()}
        artifact = artifact_of(collection, body["meta"], files, datetime.fromisoformat(body["created_at"]))
        probes = {int(ordinal): str(digest) for ordinal, digest in body["probes"].items()}
        stored = StoredGeneration(collection, str(body["corpus"]), artifact, probes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.DataLoss(f"the record of collection {collection} cannot be read ({error}); build again") from error
    if artifact.id != body.get("id"):
        raise errors.DataLoss(f"the record of collection {collection} was changed; remove it, and build again")
    return stored


def _body(row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(row["body"])
        check_format(body, FORMAT_VERSION, f"record {row['key']!r} in Milvus")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(row, error) from error
    return body


def _beat(row: Mapping[str, Any]) -> int:
    body = _body(row)
    try:
        return int(body["beat"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(row, error) from error


def _damaged(row: Mapping[str, Any], error: Exception) -> errors.DataLoss:
    return errors.DataLoss(f"record {row.get('key')!r} cannot be read ({error}); remove it from Milvus")


def _told(row: Mapping[str, Any]) -> tuple[str, str]:
    """The corpus and the generation that a row names, even if no more of it can be read."""
    try:
        body = json.loads(row["body"])
        return str(body["corpus"]), str(body["id"])
    except (KeyError, TypeError, ValueError):
        return "", ""


def _age(stored: StoredGeneration) -> tuple[datetime, str]:
    return stored.artifact.created_at, stored.collection


def _request_key(corpus: str, request_id: str) -> str:
    name = hashlib.sha256(f"{corpus}\0{request_id}".encode()).hexdigest()[:48]
    return f"request_{name}"
