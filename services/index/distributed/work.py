"""The files of a distributed build under way, in a directory that all its processes see or in an object store.

Each is written as a whole, and its record (`<name>.json`) last: what has a record is finished, and no kill undoes it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from aeenc.errors import DataLoss, Unavailable
from services.index.building.journal import locked
from services.kit import logs
from services.store.files import Documents, full_disk_is_unavailable
from services.store.objects import Bucket

log = logs.get(__name__)
LOCK = ".lock"  # the kernel releases it when the process dies
FULL_DISK_REMEDY = "free space and build again: what is finished is kept"
Range = tuple[int, int, int]  # the bytes from the first to the second number, and their CRC-32


class Work:
    """The files below a directory or URL. Keys are `<stage>/<number>`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._directory = None if "://" in url else Path(url)
        self._files = _documents(url)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other commands away, but from an object store. Raises Unavailable while another one builds here."""
        lock = None
        if self._directory is not None:
            lock = locked(self._directory, make=True, name=LOCK)
            if lock is None:
                raise Unavailable(f"another command builds in {self.url}; wait for its end and build again")
        with lock or nullcontext():
            yield

    def record(self, stage: str, number: int) -> dict[str, Any] | None:
        """Returns the record of a finished task; None if the task is not finished or its record is damaged."""
        with suppress(ValueError, TypeError, KeyError):
            found: dict[str, Any] = json.loads(self._files.read(_key(stage, number, "json")) or b"null")
            return {**found, "sha256": {**found["sha256"]}}
        return None

    def finish(
        self, stage: str, number: int, contents: Mapping[str, bytes], record: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Writes a task's files by suffix, then its record, with the files' hashes. Returns the record.

        Raises Unavailable when the disk is full.
        """
        hashes = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in contents.items()}
        written = {**record, "sha256": hashes}
        with full_disk_is_unavailable(f"the disk of {self.url}", FULL_DISK_REMEDY):
            for suffix, content in contents.items():
                self._files.write(_key(stage, number, suffix), content)
            self._files.write(_key(stage, number, "json"), json.dumps(written).encode())
        return written

    def slices(self, stage: str, suffix: str, ranges: Sequence[Range]) -> list[bytes]:
        """Reads a range of each file of a stage, in order.

        Raises DataLoss for a damaged one, and forgets the task that made it, so that the next build makes it again.
        """
        found = []
        for number, (start, end, crc32) in enumerate(ranges):
            content = self._files.read(_key(stage, number, suffix), start, end) if end > start else b""
            if content is None or len(content) != end - start or zlib.crc32(content) != crc32:
                raise self._damaged(stage, number, suffix)
            found.append(content)
        return found

    def whole(self, stage: str, number: int, suffix: str, record: Mapping[str, Any]) -> bytes:
        """Reads a file. Raises DataLoss for one that differs from its record, and forgets the task, as `slices`."""
        content = self._files.read(_key(stage, number, suffix))
        if content is None or hashlib.sha256(content).hexdigest() != record["sha256"][suffix]:
            raise self._damaged(stage, number, suffix)
        return content

    def forget(self, stage: str, number: int) -> None:
        """Makes a task unfinished."""
        self._files.remove(_key(stage, number, "json"))

    def written(self) -> dict[str, datetime]:
        """All files by key, and when they were written."""
        return {key: at for stage in self._files.names("") for key, (_, at) in self._files.sizes(stage).items()}

    def remove(self) -> None:
        """Removes all files, records first, and the directory."""
        for key in sorted(self.written(), key=lambda key: not key.endswith(".json")):
            self._files.remove(key)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _damaged(self, stage: str, number: int, suffix: str) -> DataLoss:
        self.forget(stage, number)
        return DataLoss(f"{self.url}/{_key(stage, number, suffix)} is damaged; build again, or with another --work")


def ranges_of(contents: Sequence[bytes]) -> list[Range]:
    """The ranges of some contents when they stand one behind the other."""
    ranges, start = list[Range](), 0
    for content in contents:
        ranges.append((start, start + len(content), zlib.crc32(content)))
        start += len(content)
    return ranges


def sweep(folder: str, corpus: str, own: str, older_than_s: float) -> None:
    """Removes the work of a corpus's builds below a folder that nobody has continued for so long, but for one's own."""
    name_of_work = re.compile(rf"{re.escape(corpus)}-[0-9a-f]{{16}}")
    documents = _documents(folder)
    for name in documents.names(""):
        if name == own or not name_of_work.fullmatch(name):
            continue
        work = Work(f"{folder}/{name}")
        with suppress(Unavailable, OSError), work.alone():  # not one that is built, or of somebody else
            written = work.written().values()
            if not written or documents.has_passed(older_than_s, max(written)):
                work.remove()
                log.info("swept an abandoned build", url=work.url)


def _documents(url: str) -> Documents:
    return Bucket(url) if "://" in url else Documents(Path(url))


def _key(stage: str, number: int, suffix: str) -> str:
    return f"{stage}/{number:06}.{suffix}"
