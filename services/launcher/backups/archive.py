"""A backup as one `.tar`, whose last file is its manifest.

    hidden unfinished name -> files, hashed -> manifest.json -> sync, rename

Without its manifest a backup does not exist. The manifest names every file with size and SHA-256, and has a SHA-256 of
itself. What the files mean is up to `making.py` and `restoring.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from aeenc import errors
from services.store.artifacts import BLOCK_BYTES, FileEntry, copied
from services.store.files import make_directory, sync_directory, try_lock
from services.store.formats import check_format, damage_is_data_loss

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


class BackupWriter:
    """A backup in the making, `files` of which are added one by one."""

    def __init__(self, target: Path, tar: tarfile.TarFile) -> None:
        self._target, self._tar = target, tar
        self._stopped = threading.Event()
        self.files: dict[str, FileEntry] = {}

    def add(self, name: str, source: IO[bytes], size_bytes: int) -> FileEntry:
        """Copies so many bytes under a name; zeros stand for those that a shrinking source no longer has.

        Raises the source's OSError when it cannot be read to its end: its file does not belong to the backup, which
        takes others all the same. Raises FailedPrecondition when the backup cannot be written, Cancelled after `stop`.
        """
        measured = _Measured(source, size_bytes, self._stopped)
        info = tarfile.TarInfo(name)
        info.size = size_bytes
        with _writing(self._target):
            self._tar.addfile(info, measured)
        if measured.error is not None:
            raise measured.error
        entry = FileEntry(measured.digest.hexdigest(), size_bytes)
        self.files[name] = entry
        return entry

    def stop(self) -> None:
        """Ends an `add` that works in another thread, and all later ones."""
        self._stopped.set()

    def add_bytes(self, name: str, data: bytes) -> None:
        """Adds a small file."""
        self.add(name, io.BytesIO(data), len(data))

    def finish(self, said: Mapping[str, Any]) -> None:
        """Writes the manifest."""
        files = {name: {"sha256": one.sha256, "size_bytes": one.size_bytes} for name, one in self.files.items()}
        record = {"format_version": FORMAT_VERSION, **said, "files": files}
        self.add_bytes(MANIFEST, json.dumps({**record, "sha256": _digest_of(record)}, indent=1).encode())


@contextmanager
def new_backup(target: Path) -> Iterator[BackupWriter]:
    """Makes a backup, which is there under its name when the block ends, and not before.

    What a killed one has left is written over. Raises AlreadyExists when something stands there, FailedPrecondition
    while another process makes the same one, and when it cannot be written.
    """
    target = target.absolute()
    place = target.with_name(f".{target.name}.unfinished")
    with _writing(target):
        make_directory(target.parent)
        file = place.open("ab")
    try:
        _check_alone(file, place, target)
        try:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                yield BackupWriter(target, tar)
                with _writing(target):
                    tar.close()
                    file.flush()
                    os.fsync(file.fileno())
                    place.rename(target)
        except BaseException:
            place.unlink(missing_ok=True)
            raise
    finally:
        with contextlib.suppress(OSError):  # it tries once more to write what has failed already
            file.close()
    sync_directory(target.parent)


def _check_alone(file: IO[bytes], place: Path, target: Path) -> None:
    """Empties the file at `place`, unless another process has it, or just had it, or something stands at `target`."""
    is_ours = False
    with contextlib.suppress(FileNotFoundError):
        is_ours = try_lock(file) and os.path.samestat(os.fstat(file.fileno()), place.stat())
    if not is_ours:
        raise errors.FailedPrecondition(f"another backup to {target} is being made; wait for it")
    if os.path.lexists(target):
        place.unlink()
        raise errors.AlreadyExists(f"{target} exists; name a new file for the backup")
    file.seek(0)
    file.truncate()


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.FailedPrecondition(
            f"{target} cannot be written ({error.strerror}); make room, or name another place"
        ) from error


class Backup:
    """A backup that is there. `manifest` is what it says of itself, `files` what belongs to it."""

    def __init__(self, source: Path) -> None:
        """Opens it. Raises NotFound without a manifest, DataLoss for a damaged one, NewerFormat for a newer one."""
        self.source = source
        try:
            self._tar = tarfile.open(source, "r:")  # noqa: SIM115 -- closed by `close`
        except FileNotFoundError:
            raise errors.NotFound(f"there is no {source}; name a backup") from None
        except (tarfile.TarError, OSError, EOFError) as error:
            raise errors.DataLoss(f"{source} is not a whole .tar ({error}); take another backup") from error
        self.manifest = _parsed(self._read_manifest(), f"{source}/{MANIFEST}")
        self.files = {name: FileEntry(one["sha256"], one["size_bytes"]) for name, one in self.manifest["files"].items()}
        for name in self.files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise errors.DataLoss(f"{source}/{MANIFEST} names {name!r}, which leads out of it; it is forged")

    def close(self) -> None:
        """Closes the `.tar`."""
        self._tar.close()

    def copy(self, name: str, target: IO[bytes] | None = None) -> None:
        """Reads a file, into `target` if there is one. Raises DataLoss, naming it, unless it is as it was written."""
        try:
            with self._open(name) as file:
                found = copied(file, target)
        except (OSError, KeyError, tarfile.TarError) as error:
            raise errors.DataLoss(f"{self.source}/{name} cannot be read ({error}); take another backup") from error
        if found != self.files[name]:
            raise errors.DataLoss(f"{self.source}/{name} does not have the sha256 of the manifest; take another backup")

    def read(self, name: str) -> bytes:
        """Returns the content of a file; raises as `copy` does."""
        content = io.BytesIO()
        self.copy(name, content)
        return content.getvalue()

    def _open(self, name: str) -> IO[bytes]:
        file = self._tar.extractfile(name)
        if file is None:
            raise OSError("it is no regular file")
        return file

    def _read_manifest(self) -> bytes:
        try:
            with self._open(MANIFEST) as file:
                return file.read()
        except (OSError, KeyError, tarfile.TarError):
            why = f"it has no {MANIFEST}, which is written last; name a finished and whole one"
            raise errors.NotFound(f"{self.source} is not a backup, or only the beginning of one: {why}") from None


class _Measured:
    """Reads exactly so many bytes of a file and hashes them: zeros after an `error`, and where the file has shrunk."""

    def __init__(self, source: IO[bytes], size_bytes: int, stopped: threading.Event) -> None:
        self._source, self._left, self._stopped = source, size_bytes, stopped
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def read(self, size: int = BLOCK_BYTES, /) -> bytes:
        if self._stopped.is_set():
            raise errors.Cancelled("the backup was stopped; make it again")
        wanted, data = min(self._left, size), b""
        if self.error is None:
            try:
                data = self._source.read(wanted)
            except OSError as error:
                self.error = error
        data = data.ljust(wanted, b"\0")
        self._left -= wanted
        self.digest.update(data)
        return data


def _digest_of(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    with damage_is_data_loss(name, "take another backup"):
        record: dict[str, Any] = json.loads(data)
        check_format(record, FORMAT_VERSION, name)
        said = record.pop("sha256")
        record["files"], record["corpora"], record["checkpoints"]
    if said != _digest_of(record):
        raise errors.DataLoss(f"{name} does not have its own sha256; take another backup")
    return record
