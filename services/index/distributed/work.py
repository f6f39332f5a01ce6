"""The files of a distributed build under way, in a directory that all its processes see or in an object store.

Each is written as a whole, and its record (`<name>.json`) last: what has a record is finished, and no kill undoes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aeenc.errors import DataLoss
from services.store.files import DocumentFiles, Documents
from services.store.objects import Bucket

Range = tuple[int, int]  # of bytes


class Work:
    """The files below a directory or URL. Keys are `<stage>/<number>`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._files: Documents = Bucket(url) if "://" in url else DocumentFiles(Path(url))

    def record(self, stage: str, number: int) -> dict[str, Any] | None:
        """What a finished task has noted; None while it is not finished."""
        content = self._files.read(_key(stage, number, "json"))
        if content is None:
            return None
        found: dict[str, Any] = json.loads(content)
        return found

    def finish(
        self, stage: str, number: int, contents: Mapping[str, bytes], record: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Writes a task's files by suffix, then its record, with the files' hashes. Returns the record."""
        for suffix, content in contents.items():
            self._files.write(_key(stage, number, suffix), content)
        hashes = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in contents.items()}
        written = {**record, "sha256": hashes}
        self._files.write(_key(stage, number, "json"), json.dumps(written).encode())
        return written

    def slices(self, stage: str, suffix: str, ranges: Sequence[Range]) -> list[bytes]:
        """Reads a range of each file of a stage, in order. Raises DataLoss for a file that is too short."""
        found = []
        for number, (start, end) in enumerate(ranges):
            content = self._files.read_part(_key(stage, number, suffix), start, end) if end > start else b""
            if content is None or len(content) != end - start:
                raise self._damaged(stage, number, suffix)
            found.append(content)
        return found

    def whole(self, stage: str, number: int, suffix: str, record: Mapping[str, Any]) -> bytes:
        """Reads a file. Raises DataLoss for one that differs from its record, which it removes: it is made again."""
        content = self._files.read(_key(stage, number, suffix))
        if content is None or hashlib.sha256(content).hexdigest() != record["sha256"][suffix]:
            self.forget(stage, number)
            raise self._damaged(stage, number, suffix)
        return content

    def forget(self, stage: str, number: int) -> None:
        """Makes a task unfinished."""
        self._files.remove(_key(stage, number, "json"))

    def remove(self, stages: Sequence[str]) -> None:
        """Removes the files of stages, records first."""
        for stage in stages:
            for key in sorted(self._files.sizes(stage), key=lambda key: not key.endswith(".json")):
                self._files.remove(key)

    def _damaged(self, stage: str, number: int, suffix: str) -> DataLoss:
        return DataLoss(f"{self.url}/{_key(stage, number, suffix)} is damaged; build again, or with another --work")


def _key(stage: str, number: int, suffix: str) -> str:
    return f"{stage}/{number:06}.{suffix}"
