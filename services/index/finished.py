"""Which request id finished which generation, on disk, so that a retry gets the generation and not a second build."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from aeenc import errors
from services.corpus.generation import folder_of
from services.store.artifacts import ArtifactStore, atomic_write

FOLDER = ".requests"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class FinishedBuild:
    """The generation that a request built, and whether the request has activated it."""

    generation: str
    activated: bool


class FinishedBuilds:
    """One small file a request id, in the corpus's folder. Blocks on the disk: call it in a thread."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    def get(self, corpus: str, request_id: str) -> FinishedBuild | None:
        """What the request built; None when it has not finished, or when its generation has been deleted since."""
        path = self._path(corpus, request_id)
        try:
            record = json.loads(path.read_bytes())
            finished = FinishedBuild(str(record["generation"]), bool(record["activated"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise errors.DataLoss(f"{path} cannot be read ({error}); remove it and build again") from error
        return finished if finished.generation in self._store.list(folder_of(corpus)) else None

    def put(self, corpus: str, request_id: str, finished: FinishedBuild) -> None:
        """Remembers it durably. Without a request id there is nothing to remember."""
        if request_id:
            record = {
                "format_version": FORMAT_VERSION,
                "request_id": request_id,
                "generation": finished.generation,
                "activated": finished.activated,
            }
            atomic_write(self._path(corpus, request_id), json.dumps(record).encode())

    def _path(self, corpus: str, request_id: str) -> Path:
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]  # a request id may hold any character
        return self._store.root / folder_of(corpus) / FOLDER / f"{name}.json"
