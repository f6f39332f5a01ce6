"""Artifacts: immutable directories with a manifest, which hold checkpoints and generations.

    files in a hidden directory -> hash and sync -> manifest.json -> rename to the id, a hash of the content

Without its manifest an artifact does not exist. The same content written twice is the same artifact. The store is not
a database: what an artifact means is up to who names it (a label, an active pointer).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from aeenc import errors
from services.kit.logs import get
from services.store.files import (
    Documents,
    make_directory,
    sha256_of,
    sync_directory,
    try_lock,
    write_and_sync,
)
from services.store.formats import check_format, damage_is_data_loss, made_of

log = get(__name__)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LOCK = ".writing.lock"  # held shared by every writer; the kernel releases it when a process dies
REPLACING_LOCK = ".replacing.lock"  # held by the one writer that judges an artifact of the same id
TEMPORARY, DELETED, DAMAGED = ".tmp-", ".deleted-", ".damaged-"  # directories that the next sweep removes
NAME_BYTES = 255  # of a file's name, in every file system
MANIFEST_BYTES_MAX = BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class FileEntry:
    """One file of an artifact, as its manifest names it."""

    sha256: str
    size_bytes: int


def copied(source: IO[bytes], target: IO[bytes] | None) -> FileEntry:
    """Reads a file to its end, into `target` if there is one. Returns what was read."""
    digest, size = hashlib.sha256(), 0
    while block := source.read(BLOCK_BYTES):
        digest.update(block)
        size += len(block)
        if target is not None:
            target.write(block)
    return FileEntry(digest.hexdigest(), size)


@dataclass(frozen=True)
class Artifact:
    """An artifact on disk. `manifest_sha256` identifies all of it: the manifest holds the hash of every file."""

    path: Path
    kind: str
    id: str
    meta: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    manifest_sha256: str
    created_at: datetime

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(entry.size_bytes for entry in self.files.values())

    def file(self, name: str) -> Path:
        """The path of a file that the manifest names. Raises DataLoss for another."""
        if name not in self.files:
            raise errors.DataLoss(f"{self.path / MANIFEST} names no file {name!r}; the artifact is incomplete")
        return self.path / name


class Hold:
    """Keeps the files of an artifact, also from deletions by other processes, as long as the object lives.

    It is a shared lock of the manifest; the kernel lets go when the process dies.
    """

    def __init__(self, path: Path) -> None:
        self._manifest, self._descriptors = path / MANIFEST, list[int]()
        self._descriptors.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        self._descriptors.append(os.open(MANIFEST, os.O_RDONLY, dir_fd=self._descriptors[0]))
        # False while it is being removed: what is opened next is not there.
        self.is_locked = try_lock(self._descriptors[1], shared=True)

    def stands(self) -> bool:
        """Whether the artifact still stands at its place: not deleted, nor replaced because it was damaged."""
        try:
            return os.path.samestat(os.fstat(self._descriptors[1]), self._manifest.stat())
        except FileNotFoundError:
            return False

    def open(self, name: str) -> IO[bytes]:
        """Opens a file of the artifact for reading, whatever stands at its place now."""
        return os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._descriptors[0]), "rb")

    def __del__(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


class ArtifactWriter:
    """A directory that becomes an artifact. Write files into `path`, then `commit`."""

    def __init__(self, store: ArtifactStore, kind: str, folder: str, path: Path) -> None:
        self._store, self._kind, self._folder = store, kind, folder
        self.path = path
        self.has_placed = False  # whether `commit` has made an artifact visible, and found no equal one

    def commit(
        self, meta: Mapping[str, Any], *, id_prefix: str = "", announce: Callable[[str], None] | None = None
    ) -> Artifact:
        """Hashes and syncs the files, writes the manifest and makes the directory visible under its content's id.

        `announce` is called with the id before anybody can see the artifact. An artifact that stands there already is
        verified in full and returned. A damaged one is set aside under a hidden name, where its readers keep it until
        the next sweep. Raises NewerFormat, and leaves it alone, when a newer release has written it.
        """
        files = {entry.name: _hash_and_sync(entry) for entry in sorted(self.path.iterdir())}
        identity = {"kind": self._kind, "meta": meta, "files": {name: entry.sha256 for name, entry in files.items()}}
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        artifact_id = f"{id_prefix}{digest[:16]}"
        target = self._store.root / self._folder / artifact_id
        if announce is not None:
            announce(artifact_id)
        manifest = {
            "format_version": FORMAT_VERSION,
            "kind": self._kind,
            "id": artifact_id,
            "created_at": datetime.now(UTC).isoformat(),
            "meta": dict(meta),
            "files": {name: {"sha256": e.sha256, "size_bytes": e.size_bytes} for name, e in files.items()},
        }
        content = json.dumps(manifest, indent=1, sort_keys=True).encode()
        while not self.place(target, content):
            if standing := self._store.keep_or_set_aside(self._folder, artifact_id, content):
                return standing
        return self._store.open(self._folder, artifact_id, verify="size")

    def place(self, target: Path, manifest: bytes) -> bool:
        """Makes the directory visible. Returns False when something stands there, maybe since a moment ago."""
        if os.path.lexists(target):
            return False
        write_and_sync(self.path / MANIFEST, manifest)
        sync_directory(self.path)
        try:
            self.path.rename(target)
        except OSError:
            if not os.path.lexists(target):  # otherwise another writer of the same content was faster
                raise
            (self.path / MANIFEST).unlink()  # a caller's directory may be committed again
            return False
        self.has_placed = True
        sync_directory(target.parent)
        return True


class ArtifactStore:
    """Artifacts under one root, in folders such as `checkpoints` and `generations/<corpus>`.

    `is_known`: it has held something before, so that an empty root is that of a lost volume from the beginning.
    """

    url = ""  # of the object store that it is a cache of; none

    def __init__(self, root: Path, *, is_known: bool = False) -> None:
        self.root = root
        self.documents = Documents(root, self.check_there)
        self.without_copies: set[str] = set()  # prefixes of records whose copies lack room, which is logged
        self._was_there = is_known or self._is_there()

    def check_there(self) -> None:
        """Raises Unavailable when the root is gone or empty and was not before, as that of a lost volume is."""
        if self._is_there():
            self._was_there = True
        elif self._was_there:
            raise errors.Unavailable(f"the artifacts directory {self.root} is not there any more; mount it again")

    def _is_there(self) -> bool:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root) as entries:
            return next(entries, None) is not None
        return False

    def make_folder(self, folder: str) -> Path:
        """Makes a folder, durably, where there is none, and returns it. Raises what `check_there` raises.

        So nothing is written, and acknowledged, where a lost volume was, to be hidden once that is back.
        """
        self.check_there()
        make_directory(path := self.root / folder)
        self._was_there = True
        return path

    def path(self, folder: str, artifact_id: str) -> Path:
        """Returns an artifact's path. Raises InvalidArgument unless the id is a plain name that a folder can bear."""
        is_plain = artifact_id and not artifact_id.startswith(".") and not {"/", "\x00"}.intersection(artifact_id)
        if not is_plain or len(artifact_id.encode(errors="replace")) > NAME_BYTES:
            raise errors.InvalidArgument(f"{artifact_id!r:.80} is not an artifact id; use one that a listing shows")
        return self.root / folder / artifact_id

    @contextmanager
    def writer(self, kind: str, folder: str, *, directory: Path | None = None) -> Iterator[ArtifactWriter]:
        """Opens a directory to write to, and removes at the end what was not committed.

        A `directory` of the caller, on the same file system, stays when it is not committed.
        """
        with (self.make_folder(folder) / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # keeps the sweepers of all processes away
            if directory is not None:
                yield ArtifactWriter(self, kind, folder, directory)
                return
            path = self.root / folder / f"{TEMPORARY}{uuid.uuid4().hex}"
            path.mkdir()
            try:
                yield ArtifactWriter(self, kind, folder, path)
            finally:
                shutil.rmtree(path, ignore_errors=True)

    def open(
        self,
        folder: str,
        artifact_id: str,
        *,
        expected_manifest_sha256: str | None = None,
        verify: Literal["full", "size"] = "full",
    ) -> Artifact:
        """Opens an artifact, checking names, sizes and (with `full`) hashes against its manifest.

        Raises NotFound when there is none, or no longer, DataLoss with the name of the file that differs from the
        manifest, NewerFormat when a newer release has written it.
        """
        try:
            artifact = self._described(folder, artifact_id, expected_manifest_sha256)
            for name, entry in artifact.files.items():
                _check_file(artifact.path / name, entry, hashed=verify == "full")
            extra = {entry.name for entry in artifact.path.iterdir()} - set(artifact.files) - {MANIFEST}
        except (errors.DataLoss, FileNotFoundError):
            if not self.path(folder, artifact_id).is_dir():  # deleted meanwhile
                raise self._missing(folder, artifact_id) from None
            raise
        if extra:
            raise errors.DataLoss(f"{artifact.path / min(extra)} is not in the manifest; remove it")
        return artifact

    def described(self, folder: str, artifact_id: str) -> Artifact:
        """Opens an artifact to know what it is, not to read its files. Raises what `open` raises."""
        return self.open(folder, artifact_id, verify="size")

    def push(self, folder: str, artifact_id: str) -> Artifact:
        """Makes a committed artifact durable for all who share the store: one in a shared directory is so already."""
        return self.open(folder, artifact_id, verify="size")

    def awaits_push(self, folder: str, artifact_id: str) -> bool:  # noqa: ARG002 -- it is durable once committed
        """Whether an artifact stands here whose `push` has never succeeded."""
        return False

    def hold(self, folder: str, artifact_id: str) -> Hold:
        """Keeps the files of an artifact as long as what it returns lives. Raises NotFound when there is none."""
        try:
            return Hold(self.path(folder, artifact_id))
        except FileNotFoundError:
            raise self._missing(folder, artifact_id) from None

    def damaged_files(self, folder: str, artifact_id: str) -> tuple[Artifact, list[str]]:
        """Lists the files that differ from the manifest, hash by hash. Raises what `open` raises for the manifest."""
        artifact = self._described(folder, artifact_id)
        damaged = []
        for name, entry in artifact.files.items():
            try:
                _check_file(artifact.path / name, entry, hashed=True)
            except (errors.DataLoss, OSError):
                damaged.append(name)
        return artifact, damaged

    def _described(self, folder: str, artifact_id: str, expected_manifest_sha256: str | None = None) -> Artifact:
        """The artifact as its manifest describes it, which names plain files."""
        directory = self.path(folder, artifact_id)
        manifest_path = directory / MANIFEST
        if not manifest_path.is_file() or directory.is_symlink():
            raise self._missing(folder, artifact_id)
        artifact = read_manifest(manifest_path, expected_manifest_sha256)
        if artifact.id != artifact_id:
            raise errors.DataLoss(f"{manifest_path} is the manifest of {artifact.id!r}; restore the directory")
        return artifact

    def keep_or_set_aside(self, folder: str, artifact_id: str, manifest: bytes) -> Artifact | None:
        """Returns what stands under an id if it is what a manifest describes, by its hashes; otherwise hides it: None.

        Raises NewerFormat for what this release cannot judge. One process at a time does this in a folder, so that
        nobody hides what another has just put there.
        """
        path = self.path(folder, artifact_id)
        with (self.root / folder / REPLACING_LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                standing = self.open(folder, artifact_id, verify="full")
                _check_content(path / MANIFEST, manifest)
            except (errors.DataLoss, errors.NotFound, OSError) as error:  # an unreadable file is a damaged one
                if isinstance(error, errors.NotFound) and (not os.path.lexists(path) or (path / MANIFEST).exists()):
                    return None  # another has set it aside, and a third may have put a sound one there since
                with contextlib.suppress(FileNotFoundError):
                    path.rename(path.parent / f"{DAMAGED}{artifact_id}-{uuid.uuid4().hex}")
                    log.warning("a damaged artifact is set aside", folder=folder, id=artifact_id, reason=str(error))
                return None
        sync_directory(path.parent)  # its writer may have died before this
        return standing

    def list(self, folder: str) -> list[str]:
        """Lists the ids of all committed artifacts of a folder, sorted."""
        return [path.name for path in self._entries(folder) if (path / MANIFEST).is_file()]

    def folders(self, parent: str) -> Sequence[str]:
        """Lists the names of the folders below a parent, sorted."""
        return [path.name for path in self._entries(parent) if path.is_dir()]

    def _entries(self, folder: str) -> Sequence[Path]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(path for path in (self.root / folder).iterdir() if not path.name.startswith("."))
        self.check_there()
        return []

    def check_exists(self, folder: str, artifact_id: str) -> None:
        """Raises NotFound when there is no such artifact, or no longer."""
        if not (self.path(folder, artifact_id) / MANIFEST).is_file():
            raise self._missing(folder, artifact_id)

    def delete(self, folder: str, artifact_id: str) -> None:
        """Hides an artifact, then removes it. Raises NotFound when there is none."""
        try:
            remove_directory(self.path(folder, artifact_id))
        except FileNotFoundError:
            raise self._missing(folder, artifact_id) from None

    def _missing(self, folder: str, artifact_id: str) -> errors.NotFound:
        """Describes that there is no such artifact. Raises Unavailable when the whole root is gone."""
        self.check_there()
        return errors.NotFound(f"{folder} has no {artifact_id!r}; a listing shows what there is")

    @contextmanager
    def deleting(self, folder: str, artifact_id: str) -> Iterator[None]:
        """Deletes an artifact; the block records that. Whoever decides upon it keeps others away meanwhile."""
        self.delete(folder, artifact_id)
        yield

    def sweep(self, folder: str) -> bool:
        """Removes the rest of killed writers and deletions. Returns False, and does nothing, while somebody writes."""
        with self._nobody_writes(folder) as alone:
            found = self._left(folder) if alone else ()
            if found:  # whoever hides one of them may not have made that durable yet
                sync_directory(self.root / folder)
            for left in found:
                left.unlink() if left.is_symlink() else _remove_unread(left)
        return alone

    def has_deleted(self, folder: str) -> bool:
        """Whether deleted or replaced artifacts still lie in a folder, maybe because somebody reads them."""
        return any(not path.name.startswith(TEMPORARY) for path in self._left(folder))

    def left(self, folder: str) -> tuple[Path, ...]:
        """Lists what `sweep` would remove now."""
        with self._nobody_writes(folder) as alone:
            return self._left(folder) if alone else ()

    def _left(self, folder: str) -> tuple[Path, ...]:
        return tuple(path for kind in (TEMPORARY, DELETED, DAMAGED) for path in (self.root / folder).glob(f"{kind}*"))

    @contextmanager
    def _nobody_writes(self, folder: str) -> Iterator[bool]:
        """Keeps writers out of the block, and tells whether there were none. There are none where no folder is."""
        parent = self.root / folder
        if not parent.is_dir():
            yield True
            return
        with (parent / LOCK).open("ab") as lock:
            yield try_lock(lock)


def remove_directory(path: Path) -> None:
    """Hides a directory in one step, durably, then removes it. Raises FileNotFoundError when there is none.

    An artifact that somebody holds stays hidden until a sweep finds that nobody does.
    """
    tombstone = path.parent / f"{DELETED}{uuid.uuid4().hex}"
    path.rename(tombstone)
    sync_directory(path.parent)
    _remove_unread(tombstone)


def _remove_unread(path: Path) -> None:
    """Removes a hidden directory unless it is an artifact that somebody holds."""
    with contextlib.ExitStack() as closing:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if not try_lock(closing.enter_context((path / MANIFEST).open("r+b"))):
                return
        shutil.rmtree(path, ignore_errors=True)


def _hash_and_sync(path: Path) -> FileEntry:
    if path.is_symlink() or not path.is_file():
        raise errors.InvalidArgument(f"{path} is not a regular file; an artifact holds plain files only")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return copied(file, None)


def same_content(one: bytes, other: bytes) -> bool:
    """Whether two manifests describe the same content, whenever it was written. What is no manifest describes none."""

    def content(of: bytes) -> str:
        said = json.loads(of)
        return json.dumps({name: said[name] for name in ("kind", "id", "meta", "files")}, sort_keys=True)

    with contextlib.suppress(ValueError, KeyError, TypeError):
        return content(one) == content(other)
    return False


def _check_content(path: Path, manifest: bytes) -> None:
    if not same_content(path.read_bytes(), manifest):
        raise errors.DataLoss(f"{path} describes other content than its id; restore it")


def read_manifest(path: Path, expected_sha256: str | None) -> Artifact:
    """Reads a manifest, which names plain files. Raises DataLoss, NewerFormat."""
    if path.is_symlink() or path.stat().st_size > MANIFEST_BYTES_MAX:
        raise errors.DataLoss(f"{path} is a link or over {MANIFEST_BYTES_MAX:,} bytes; restore it")
    return parse_manifest(path.read_bytes(), path, expected_sha256)


def parse_manifest(data: bytes, path: Path, expected_sha256: str | None = None) -> Artifact:
    """Turns the content of a manifest at `path` into the artifact that it describes. Raises as `read_manifest` does."""
    digest = hashlib.sha256(data).hexdigest()
    if expected_sha256 and digest != expected_sha256:
        raise errors.DataLoss(f"{path} has sha256 {digest[:12]}…, expected {expected_sha256[:12]}…; restore it")
    with damage_is_data_loss(path, "restore it"):
        manifest = json.loads(data)
        check_format(manifest, FORMAT_VERSION, str(path))
        artifact = made_of(Artifact, {**manifest, "path": path.parent, "manifest_sha256": digest})
    for name in artifact.files:
        if "/" in name or name in {"", ".", ".."}:
            raise errors.DataLoss(f"{path} names {name!r}, which is not a plain file name; it is forged")
    return artifact


def _check_file(path: Path, entry: FileEntry, *, hashed: bool) -> None:
    try:
        info = path.lstat()
    except FileNotFoundError:
        raise errors.DataLoss(f"{path} is missing; restore it") from None
    if not stat.S_ISREG(info.st_mode):
        raise errors.DataLoss(f"{path} is not a regular file; restore it")
    if info.st_size != entry.size_bytes:
        raise errors.DataLoss(f"{path} has {info.st_size:,} bytes, its manifest says {entry.size_bytes:,}; restore it")
    if hashed and sha256_of(path) != entry.sha256:
        raise errors.DataLoss(f"{path} does not have the sha256 of its manifest; restore it")
