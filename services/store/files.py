"""Files that a crash leaves whole, and documents: small files that all who share a store read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from aeenc import errors

LEFT_S = 3600.0  # after which what a process has begun to create, and not created, may go
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Documents:
    """Small files that all who share a store read, each replaced as a whole; a key is a path below the store.

    They are files below a directory. `check` raises where nothing may be written to it now.
    """

    def __init__(self, root: Path, check: Callable[[], None] = lambda: None) -> None:
        self._directory, self._check = root, check

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Returns the content, or some bytes of it, fewer where it ends; None when there is none."""
        try:
            with (self._directory / key).open("rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        except FileNotFoundError:
            return None

    def write(self, key: str, content: bytes, *, durable: bool = True) -> None:
        """Replaces the content. What is not `durable` may be lost with the power."""
        self._check()
        atomic_write(self._directory / key, content, durable=durable)

    def create(self, key: str, content: bytes) -> bool:
        """Writes one as a whole, durably. Returns False, and changes nothing, where one stands."""
        self._check()
        with contextlib.suppress(FileExistsError):
            link_new(self._directory / key, content)
            return True
        return False

    def remove(self, key: str) -> None:
        """Removes one that may be gone already."""
        (self._directory / key).unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        """Lists the names directly below a prefix, sorted, but for hidden ones."""
        try:
            return sorted(path.name for path in (self._directory / prefix).iterdir() if not path.name.startswith("."))
        except FileNotFoundError:
            return []

    def sizes(self, prefix: str) -> dict[str, tuple[int, datetime]]:
        """Lists those directly below a prefix by key: size, and when they were written."""
        found = {}
        for name in self.names(prefix):
            with contextlib.suppress(FileNotFoundError):
                info = (self._directory / prefix / name).stat()
                found[f"{prefix}/{name}"] = (info.st_size, datetime.fromtimestamp(info.st_mtime, UTC))
        return found

    def has_passed(self, seconds: float, since: datetime) -> bool:
        """Whether so much time has passed since one that `sizes` gave, by this host's clock and by the store's.

        A host whose clock is ahead must not remove what another is writing. Raises Unavailable when a bucket is away.
        """
        age = timedelta(seconds=seconds)
        return datetime.now(UTC) - since >= age and self._now() - since >= age

    def _now(self) -> datetime:
        with tempfile.TemporaryFile(dir=self._directory) as file:
            return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)


@contextlib.contextmanager
def full_disk_is_unavailable(what: str, remedy: str) -> Iterator[None]:
    """Turns an OSError for want of room into Unavailable, which says what is full and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        problem = f"{what} is full or a file-size limit is reached ({error.strerror})"
        raise errors.Unavailable(f"{problem}; {remedy}") from error


def atomic_write(path: Path, data: bytes, *, mode: int | None = None, durable: bool = True) -> None:
    """Replaces a file as a whole, durably: a reader, or a crash, finds the old content or the new.

    What is not `durable` may be lost with the power. The file keeps its owner and permissions as far as this process
    may set them; `mode` sets others.
    """
    make_directory(path.parent)
    temporary, old = path.with_name(f".{path.name}.{uuid.uuid4().hex}"), None
    try:
        with contextlib.suppress(FileNotFoundError):
            old = path.stat()
        new_mode = 0o666 if mode is None else mode
        temporary.touch(new_mode if old is None else 0o600)  # at no time may more people read it than in the end
        write_and_sync(temporary, data) if durable else temporary.write_bytes(data)
        if old is not None:
            _keep_permissions(temporary, old, mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync_directory(path.parent)


def link_new(path: Path, content: bytes) -> None:
    """Creates a file as a whole, durably, and removes what killed processes have left beside it.

    Raises FileExistsError where one stands.
    """
    make_directory(path.parent)
    temporary = path.with_name(f".new-{uuid.uuid4().hex}")
    try:
        write_and_sync(temporary, content)
        now_s = temporary.stat().st_mtime  # by the clock of the disk, which this host's may be ahead of
        for left in path.parent.glob(".new-*"):
            with contextlib.suppress(FileNotFoundError):
                if now_s - left.stat().st_mtime > LEFT_S:
                    left.unlink()
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _keep_permissions(path: Path, old: os.stat_result, mode: int | None) -> None:
    with contextlib.suppress(OSError):  # no member of the group, or a file system without owners
        os.chown(path, -1, old.st_gid)
    with contextlib.suppress(OSError):
        path.chmod(stat.S_IMODE(old.st_mode) if mode is None else mode)
    with contextlib.suppress(OSError):  # not root
        os.chown(path, old.st_uid, -1)


def make_directory(path: Path) -> None:
    """Makes a directory and its parents, durably, where they do not exist."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def write_and_sync(path: Path, data: bytes) -> None:
    """Writes a file durably, but for its name in the folder."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Makes renames inside a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(file: IO[Any] | int, *, shared: bool = False) -> bool:
    """Locks an open file, alone or shared. False while others hold it; the kernel lets go when a process dies."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
