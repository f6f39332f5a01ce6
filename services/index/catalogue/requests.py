"""Which request did what: a note for each request id, so that a retry gets the answer of the first call.

A note is written before its request is carried out and again after: a kill between leaves one that is not `done`, and
the retry looks at what is there. Notes belong to a corpus and a kind of call. Everything here blocks on the store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from aeenc import errors
from services.corpus.generation import folder_of
from services.store.artifacts import ArtifactStore
from services.store.formats import check_format

FOLDER = ".requests"
FORMAT_VERSION = 1
RequestKind = Literal["activate", "delete"]


@dataclass(frozen=True)
class RequestNote:
    """What a request asked for, and which generation was active before it ("": none)."""

    asked: Mapping[str, Any]
    previous: str = ""
    done: bool = False

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RequestNote:
        """Reads what `to_record` made. Raises KeyError or TypeError for anything else."""
        return cls(dict(record["asked"]), str(record["previous"]), bool(record["done"]))

    def to_record(self) -> dict[str, Any]:
        """Turns the note into JSON."""
        return asdict(self)


def check_same(request_id: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises AlreadyExists naming what a request asks for now and did not ask for before."""
    differing = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if differing:
        said = ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in differing)
        raise errors.AlreadyExists(
            f"request_id {request_id[:80]!r} asked for something else before: {said}; use another request_id"
        )


def name_of(request_id: str) -> str:
    """Turns a request id, which may contain any character, into a file name."""
    return hashlib.sha256(request_id.encode()).hexdigest()[:32]


class RequestNotes:
    """The notes of activations and deletions: one small document each in the corpus's folder."""

    def __init__(self, store: ArtifactStore) -> None:
        self._documents = store.documents

    def get(self, corpus: str, kind: RequestKind, request_id: str) -> RequestNote | None:
        """Finds the note of a request; None when there is none.

        Raises DataLoss for one that cannot be read, NewerFormat for one of a newer release.
        """
        key = self._key(corpus, kind, request_id)
        if (content := self._documents.read(key)) is None:
            return None
        try:
            record = json.loads(content)
            check_format(record, FORMAT_VERSION, key)
            return RequestNote.of(record)
        except (ValueError, KeyError, TypeError) as error:
            raise errors.DataLoss(f"{key} cannot be read ({error}); remove it and ask again") from error

    def put(self, corpus: str, kind: RequestKind, request_id: str, note: RequestNote) -> None:
        """Writes a note durably. Without a request id it does nothing."""
        if request_id:
            record = {"format_version": FORMAT_VERSION, "request_id": request_id, **note.to_record()}
            self._documents.write(self._key(corpus, kind, request_id), json.dumps(record).encode())

    def _key(self, corpus: str, kind: RequestKind, request_id: str) -> str:
        return f"{folder_of(corpus)}/{FOLDER}/{kind}-{name_of(request_id)}.json"


def sweep_notes(store: ArtifactStore, corpora: Iterable[str], older_than_s: float) -> None:
    """Removes the notes of corpora's requests, builds included, that nobody has repeated for so long."""
    oldest = datetime.now(UTC) - timedelta(seconds=older_than_s)
    for corpus in corpora:
        with suppress(OSError, errors.Unavailable):  # swept by another process, or not readable: its own corpus alone
            for key, (_, written_at) in store.documents.sizes(f"{folder_of(corpus)}/{FOLDER}").items():
                if written_at <= oldest:
                    store.documents.remove(key)
