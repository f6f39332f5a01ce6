"""Which request built which generation: a note for each request id, so that a retry gets it and not a second build.

Everything here blocks on the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aeenc import errors
from services.corpus.generation import folder_of
from services.index.building.journal import key_of
from services.index.catalogue.requests import FOLDER, name_of
from services.store.artifacts import ArtifactStore
from services.store.formats import check_format

FORMAT_VERSION = 1


@dataclass(frozen=True)
class FinishedBuild:
    """The generation that a request built, whether the request has activated it, and what it asked for."""

    generation: str
    activated: bool
    asked: Mapping[str, Any]


class FinishedBuilds:
    """The notes in one store: one small document per request id in the corpus's folder."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    def get(self, corpus: str, request_id: str) -> FinishedBuild | None:
        """Finds what a request built; None when it has not finished, or when its generation was deleted since.

        A generation whose upload has not ended counts while the journal is kept: `push` it.

        Raises DataLoss for a note that cannot be read, NewerFormat for one of a newer release.
        """
        if (record := self._read(corpus, request_id)) is None:
            return None
        try:
            finished = FinishedBuild(str(record["generation"]), bool(record["activated"]), dict(record["asked"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(corpus, request_id, error) from error
        folder = folder_of(corpus)
        try:
            self._store.check_exists(folder, finished.generation)
        except errors.NotFound:
            awaits_push = self._store.awaits_push(folder, finished.generation)
            return finished if awaits_push and (self._store.root / key_of(corpus, request_id)).is_dir() else None
        return finished

    def put(self, corpus: str, request_id: str, finished: FinishedBuild) -> None:
        """Records durably what a request built. Without a request id it does nothing."""
        if request_id:
            record = {
                "format_version": FORMAT_VERSION,
                "request_id": request_id,
                "generation": finished.generation,
                "activated": finished.activated,
                "asked": finished.asked,
            }
            self._store.documents.write(_note_key(corpus, request_id), json.dumps(record).encode())

    def mark_activated(self, corpus: str, request_id: str) -> None:
        """Records durably that a request has activated what it built. What a later release has added stays."""
        if self.get(corpus, request_id) is not None and (record := self._read(corpus, request_id)) is not None:
            content = json.dumps({**record, "activated": True}).encode()
            self._store.documents.write(_note_key(corpus, request_id), content)

    def _read(self, corpus: str, request_id: str) -> dict[str, Any] | None:
        key = _note_key(corpus, request_id)
        if (content := self._store.documents.read(key)) is None:
            return None
        try:
            record: dict[str, Any] = json.loads(content)
            check_format(record, FORMAT_VERSION, key)
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(corpus, request_id, error) from error
        return record

    def _unreadable(self, corpus: str, request_id: str, error: Exception) -> errors.DataLoss:
        key = _note_key(corpus, request_id)
        return errors.DataLoss(f"{key} cannot be read ({error}); remove it and build again")


def _note_key(corpus: str, request_id: str) -> str:
    return f"{folder_of(corpus)}/{FOLDER}/{name_of(request_id)}.json"
