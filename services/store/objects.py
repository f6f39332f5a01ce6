"""Artifacts in an object store (S3, GCS, Azure, … by fsspec); the directory in front of it is a cache.

    commit in the directory -> push: files, then manifest.json -> registry row        (whoever makes an artifact)
    open: here? -> otherwise manifest.json, files into a hidden directory -> hashes -> rename      (everybody else)

Without its manifest an artifact does not exist, here as there. Ids are hashes of the content, so nothing that lies in
the cache is ever out of date. While the object store is away, what lies in the cache is still opened. Everything here
blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from aeenc import errors
from services.kit.logs import get
from services.store.artifacts import (
    BLOCK_BYTES,
    MANIFEST,
    Artifact,
    ArtifactStore,
    FileEntry,
    Hold,
    copied,
    parse_manifest,
    remove_directory,
    same_content,
)
from services.store.files import (
    Documents,
    atomic_write,
    full_disk_is_unavailable,
    link_new,
    make_directory,
    try_lock,
)

log = get(__name__)
T = TypeVar("T")

TRIES, BACKOFF_S = 3, 0.2
JUDGED_S = 0.01  # somebody is just finding out whether a copy may go
COPIES = ".copies"  # below the directory: a link to the manifest of each copy of what the bucket has, or had
DELETING = f"{MANIFEST}.deleting"  # listed after the manifest: a listing that lacks the manifest has it
CLOCK = "clock"  # where an object is written to learn the time of the object store
UNFINISHED_AFTER = timedelta(days=1)  # files without a manifest that nobody has touched for so long belong to nobody


def open_store(directory: Path, url: str, cache_bytes: int = 0, *, is_known: bool = False) -> ArtifactStore:
    """Opens the directory alone, `is_known` as there, or as the cache of the object store at `url`.

    Raises InvalidArgument for an unknown kind of URL, or one whose package is missing.
    """
    return CachedStore(directory, Bucket(url), cache_bytes) if url else ArtifactStore(directory, is_known=is_known)


class Bucket(Documents):
    """The objects below one URL. Raises Unavailable, naming the object, when the object store does not do as asked."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            import fsspec

            options = {"auto_mkdir": True} if url.startswith("file:") else {}
            self._files, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **options)
        except (ImportError, ValueError) as error:
            raise errors.InvalidArgument(
                f"artifacts_url {url!r} cannot be used: {error}; install aeenc-services[objects] and the package of "
                "your store (s3fs, gcsfs, adlfs)"
            ) from error

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Returns a small object, or some bytes of it, fewer where it ends; None when there is none."""
        try:
            found = self._asked(key, lambda: self._files.cat_file(f"{self._root}/{key}", start or None, end))
        except FileNotFoundError:
            return None
        content: bytes = found
        return content

    def write(self, key: str, content: bytes, *, durable: bool = True) -> None:
        """Writes a small object as a whole. What is not `durable` may be lost with the power, where it is a file."""
        path = f"{self._root}/{key}"
        if self.url.startswith("file:"):  # fsspec would truncate and then write, and a reader might find it empty
            self._asked(key, lambda: atomic_write(Path(path), content, durable=durable))
        else:
            self._asked(key, lambda: self._files.pipe_file(path, content))

    def create(self, key: str, content: bytes) -> bool:
        """Writes a small object as a whole. Returns False, and changes nothing, where one stands."""
        path = f"{self._root}/{key}"
        try:
            if self.url.startswith("file:"):  # fsspec would look first and then write
                self._asked(key, lambda: link_new(Path(path), content))
            else:
                self._asked(key, lambda: self._files.pipe_file(path, content, mode="create"))
        except FileExistsError:
            return False
        return True

    def remove(self, key: str) -> None:
        """Removes an object that may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            self._asked(key, lambda: self._files.rm_file(f"{self._root}/{key}"))

    def remove_below(self, prefix: str) -> None:
        """Removes all objects below a prefix, many by one request."""
        with contextlib.suppress(FileNotFoundError):
            self._asked(prefix, lambda: self._files.rm(f"{self._root}/{prefix}", recursive=True))

    def names(self, prefix: str) -> list[str]:
        """Lists the names directly below a prefix, of objects and of further prefixes, sorted."""
        try:
            found = self._asked(prefix, lambda: self._files.ls(f"{self._root}/{prefix}", detail=False, refresh=True))
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def sizes(self, prefix: str, beginning: str = "") -> dict[str, tuple[int, datetime]]:
        """Lists the objects below a prefix, those whose names there begin so: size, and when they were written."""
        below = f"{self._root}/{prefix}"
        options = {"prefix": beginning} if beginning else {}  # what has no prefixes, such as a disk, takes no notice
        found = self._asked(prefix, lambda: self._files.find(below, detail=True, refresh=True, **options))
        return {
            path[len(self._root) + 1 :]: (int(info["size"]), _written_at(info))
            for path, info in found.items()
            if path.startswith(f"{below}/{beginning}")
        }

    def _now(self) -> datetime:
        key = f"{CLOCK}/{uuid.uuid4().hex}"
        self.write(key, b"", durable=False)
        try:
            return self.sizes(CLOCK)[key][1]
        finally:
            self.remove(key)

    def upload(self, source: Path, key: str, entry: FileEntry) -> None:
        """Copies a file, in parts where it is large. Raises DataLoss, and leaves no manifest, if it has changed."""

        def upload() -> None:
            with source.open("rb") as file, self._files.open(f"{self._root}/{key}", "wb") as target:
                if copied(file, target) != entry:
                    raise errors.DataLoss(f"{source} does not have the sha256 of its manifest; make it again")

        self._asked(key, upload)

    def download(self, key: str, target: Path, entry: FileEntry) -> None:
        """Copies an object into a file, durably.

        Raises DataLoss for one that is not what the manifest says, Unavailable also when the disk is full.
        """

        def download() -> None:
            opened = self._files.open(f"{self._root}/{key}", "rb", block_size=BLOCK_BYTES)
            remedy = "free space there, or lower ARTIFACTS_CACHE_BYTES"
            with full_disk_is_unavailable(f"the disk of {target}", remedy), opened as source, target.open("wb") as file:
                got = copied(source, file)
                file.flush()
                os.fsync(file.fileno())
            if got != entry:
                raise errors.DataLoss(
                    f"{self.url}/{key} has {got.size_bytes:,} bytes and sha256 {got.sha256[:12]}…, its manifest says "
                    f"{entry.size_bytes:,} and {entry.sha256[:12]}…; restore it"
                )

        try:
            self._asked(key, download)
        except FileNotFoundError:
            raise errors.DataLoss(f"{self.url}/{key} is missing; restore it") from None

    def _asked(self, key: str, ask: Callable[[], T]) -> T:
        """Asks, and asks again after a pause. What the store says is translated; FileNotFoundError passes."""
        for attempt in range(1, TRIES + 1):
            try:
                return ask()
            except (FileNotFoundError, FileExistsError, errors.AeencError):
                raise
            except Exception as error:  # each package has errors of its own, few of them an OSError
                if attempt == TRIES:
                    raise errors.Unavailable(
                        f"{self.url}/{key} cannot be reached ({type(error).__name__}: {error}); what is in the "
                        "artifacts directory keeps serving; check the object store and the credentials for it"
                    ) from error
                time.sleep(BACKOFF_S * 2 ** (attempt - 1) * random.uniform(1.0, 1.5))  # noqa: S311 -- spreads callers
        raise AssertionError("unreachable")


class CachedStore(ArtifactStore):
    """An artifact store whose artifacts lie in a bucket, and those in use also in a directory.

    The directory is kept below `cache_bytes` (0: without limit): the artifacts that were not opened for longest go, but
    for those that somebody holds, or that never were in the bucket. What is gone from there stays a day after its use.
    """

    def __init__(self, root: Path, bucket: Bucket, cache_bytes: int = 0) -> None:
        super().__init__(root)
        self.documents = self.bucket = bucket
        self.url, self._cache_bytes = bucket.url, cache_bytes
        self._fetching: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
        self._looking = threading.Lock()  # at `_fetching`

    def check_there(self) -> None:
        """Does nothing: the directory is a cache, which may be emptied at any time."""

    def push(self, folder: str, artifact_id: str) -> Artifact:
        """Copies an artifact to the bucket, its manifest last. Repeating it changes nothing."""
        artifact = super().open(folder, artifact_id, verify="size")
        key = f"{folder}/{artifact_id}"
        if not self._adopt(artifact, key):
            for name, entry in artifact.files.items():
                self.bucket.upload(artifact.path / name, f"{key}/{name}", entry)
            self.bucket.write(f"{key}/{MANIFEST}", (artifact.path / MANIFEST).read_bytes())
            log.info("uploaded", folder=folder, id=artifact_id, bytes=artifact.size_bytes)
        self._mark(artifact.path)
        self._evict(keep=artifact_id)
        return super().open(folder, artifact_id, verify="size")

    def _adopt(self, artifact: Artifact, key: str) -> bool:
        """Takes over the manifest of an equal artifact that somebody has pushed before: one id, one manifest."""
        manifest = artifact.path / MANIFEST
        if (content := self.bucket.read(f"{key}/{MANIFEST}")) is None:
            return False
        there = self.bucket.sizes(key)
        sizes = {name: there.get(f"{key}/{name}", (-1, None))[0] for name in artifact.files}
        if sizes != {name: entry.size_bytes for name, entry in artifact.files.items()}:
            return False
        if not same_content(content, manifest.read_bytes()):
            log.warning("a damaged artifact is replaced", url=self.bucket.url, key=key)
            return False
        if content != manifest.read_bytes():
            atomic_write(manifest, content)
        return True

    def open(
        self,
        folder: str,
        artifact_id: str,
        *,
        expected_manifest_sha256: str | None = None,
        verify: Literal["full", "size"] = "full",
    ) -> Artifact:
        """Opens an artifact as ArtifactStore does, fetched first if it is not here, or is here and damaged."""
        was_here = self._is_here(folder, artifact_id)
        self._provide(folder, artifact_id)
        try:
            return super().open(folder, artifact_id, expected_manifest_sha256=expected_manifest_sha256, verify=verify)
        except errors.NotFound:
            pass  # nowhere, or evicted at this moment
        except errors.DataLoss as error:
            if not was_here or self.bucket.read(f"{folder}/{artifact_id}/{MANIFEST}") is None:
                raise
            log.warning("a damaged copy is fetched again", folder=folder, id=artifact_id, reason=error.message)
            with contextlib.suppress(FileNotFoundError):
                remove_directory(self.path(folder, artifact_id))
        self._provide(folder, artifact_id)
        return super().open(folder, artifact_id, expected_manifest_sha256=expected_manifest_sha256, verify=verify)

    def awaits_push(self, folder: str, artifact_id: str) -> bool:
        """Whether an artifact stands here whose `push` has never succeeded, and which was not fetched either."""
        return self._is_here(folder, artifact_id) and not self._is_marked(self.path(folder, artifact_id))

    def described(self, folder: str, artifact_id: str) -> Artifact:
        """Describes an artifact as ArtifactStore does, by its manifest in the bucket where it is not here, or damaged.

        It fetches nothing.
        """
        with contextlib.suppress(errors.NotFound, errors.DataLoss):
            return super().open(folder, artifact_id, verify="size")
        content = self.bucket.read(f"{folder}/{artifact_id}/{MANIFEST}")
        if content is None:
            raise self._missing(folder, artifact_id)
        return parse_manifest(content, self.path(folder, artifact_id) / MANIFEST)

    def hold(self, folder: str, artifact_id: str) -> Hold:
        """Keeps the files of an artifact as ArtifactStore does, fetched first if it is not here."""
        for _ in range(TRIES):  # somebody may evict it before it is held
            self._provide(folder, artifact_id)
            with contextlib.suppress(errors.NotFound):
                if (hold := super().hold(folder, artifact_id)).is_locked and hold.stands():
                    return hold
            time.sleep(JUDGED_S)
        return super().hold(folder, artifact_id)

    def check_exists(self, folder: str, artifact_id: str) -> None:
        """Raises NotFound when there is no such artifact in the bucket, whatever lies here."""
        self.path(folder, artifact_id)  # refuses what is no id
        if self.bucket.read(f"{folder}/{artifact_id}/{MANIFEST}") is None:
            raise self._missing(folder, artifact_id)

    def list(self, folder: str) -> list[str]:
        """Lists the ids of all artifacts of a folder in the bucket, sorted; while that is away, of the copies here."""
        try:
            names = [key[len(folder) + 1 :].split("/") for key in self._objects(folder)]
        except errors.Unavailable:
            return super().list(folder)
        return sorted(name[0] for name in names if name[1:] == [MANIFEST])

    def folders(self, parent: str) -> Sequence[str]:
        """Lists the names of the folders below a parent, here and in the bucket, sorted."""
        here = super().folders(parent)
        with contextlib.suppress(errors.Unavailable):
            return sorted({*here, *self.bucket.names(parent)})
        return here

    def delete(self, folder: str, artifact_id: str) -> None:
        """Removes an artifact from the bucket, its manifest first, and hides it here. Raises NotFound."""
        self.path(folder, artifact_id)  # refuses what is no id
        key = f"{folder}/{artifact_id}"
        there = self.bucket.sizes(key)
        for one in sorted(there, key=lambda one: one != f"{key}/{MANIFEST}"):
            self.bucket.remove(one)
        with contextlib.suppress(errors.NotFound) if f"{key}/{MANIFEST}" in there else contextlib.nullcontext():
            super().delete(folder, artifact_id)
        self._mark_of(self.path(folder, artifact_id)).unlink(missing_ok=True)

    @contextmanager
    def deleting(self, folder: str, artifact_id: str) -> Iterator[None]:
        """Hides an artifact in the bucket, and deletes it at the end of the block; shows it again if that raises."""
        key, deleting = (f"{folder}/{artifact_id}/{name}" for name in (MANIFEST, DELETING))
        if (manifest := self.bucket.read(key)) is None:
            raise self._missing(folder, artifact_id)
        self.bucket.write(deleting, b"")  # something new, so that no sweep takes the files for an old upload meanwhile
        self.bucket.remove(key)
        try:
            yield
        except BaseException:
            self.bucket.write(key, manifest)
            self.bucket.remove(deleting)
            raise
        with contextlib.suppress(errors.NotFound):
            self.delete(folder, artifact_id)

    def sweep(self, folder: str) -> bool:
        """Removes what killed writers have left, here, and after a day in the bucket, unless that is away."""
        try:
            self._sweep_bucket(folder)
        except errors.Unavailable as error:
            log.warning("uploads that were never finished are not swept for now", folder=folder, reason=error.message)
        return super().sweep(folder)

    def _sweep_bucket(self, folder: str) -> None:
        finished: set[str] = set()
        left: dict[str, list[tuple[str, datetime]]] = {}
        for key, (_, written_at) in self._objects(folder).items():
            artifact = key.rpartition("/")[0]
            left.setdefault(artifact, []).append((key, written_at))
            if key.endswith(f"/{MANIFEST}"):
                finished.add(artifact)
        for artifact, objects in left.items():
            last = max(at for _, at in objects)
            if artifact not in finished and self.bucket.has_passed(UNFINISHED_AFTER.total_seconds(), last):
                log.info("swept an upload that was never finished", url=self.bucket.url, key=artifact)
                for key, _ in objects:
                    self.bucket.remove(key)

    def _objects(self, folder: str) -> dict[str, tuple[int, datetime]]:
        """Lists the objects of a folder's artifacts. It reads no hidden ones: a build under way may have very many."""
        letters = {name[0] for name in self.bucket.names(folder) if not name.startswith(".")}
        found: dict[str, tuple[int, datetime]] = {}
        for letter in sorted(letters):  # of generations one, "g"
            found |= self.bucket.sizes(folder, letter)
        return found

    def _is_here(self, folder: str, artifact_id: str) -> bool:
        return (self.path(folder, artifact_id) / MANIFEST).is_file()

    def _provide(self, folder: str, artifact_id: str) -> None:
        """Makes sure that an artifact lies in the directory, if there is one. One thread fetches it, others wait."""
        with self._looking:
            fetching = self._fetching.setdefault(self.path(folder, artifact_id), threading.Lock())
        with fetching:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path(folder, artifact_id) / MANIFEST)  # its last use
                return
            if (manifest := self.bucket.read(f"{folder}/{artifact_id}/{MANIFEST}")) is not None:
                self._fetch(folder, artifact_id, manifest)

    def _fetch(self, folder: str, artifact_id: str, manifest: bytes) -> None:
        begun, key = time.monotonic(), f"{folder}/{artifact_id}"
        with self.writer("", folder) as writer:
            target = self.path(folder, artifact_id)
            artifact = parse_manifest(manifest, target / MANIFEST)
            self._evict(room_bytes=artifact.size_bytes)
            for name, entry in artifact.files.items():
                self.bucket.download(f"{key}/{name}", writer.path / name, entry)
            if not writer.place(target, manifest) and not self._is_here(folder, artifact_id):
                raise errors.DataLoss(f"{target} has no {MANIFEST}; remove it")
        self._mark(target)
        elapsed_s = round(time.monotonic() - begun, 3)
        log.info("downloaded", folder=folder, id=artifact_id, bytes=artifact.size_bytes, elapsed_s=elapsed_s)

    def _evict(self, *, keep: str = "", room_bytes: int = 0) -> None:
        """Removes copies that were not used for longest until the directory is small enough, and has room for more."""
        if not self._cache_bytes:
            return
        copies = []
        for manifest in self.root.glob(f"**/[!.]*/{MANIFEST}"):
            with contextlib.suppress(OSError):
                size = sum(entry.stat().st_size for entry in manifest.parent.iterdir())
                copies.append((manifest.stat().st_mtime, size, manifest.parent))
        used = room_bytes + sum(size for _, size, _ in copies)
        for opened_at, size, path in sorted(copies):
            if used <= self._cache_bytes:
                return
            if path.name != keep and self._may_go(path, opened_at) and _unheld(path):
                with contextlib.suppress(FileNotFoundError):  # another process has just evicted it
                    remove_directory(path)
                    self._mark_of(path).unlink(missing_ok=True)
                    log.info("evicted from the cache", path=str(path), bytes=size)
                used -= size

    def _may_go(self, path: Path, opened_at: float) -> bool:
        """Whether the bucket has an artifact; or had it, and nobody has opened the copy for long."""
        if self.bucket.read(f"{path.relative_to(self.root).as_posix()}/{MANIFEST}") is not None:
            return True
        return opened_at < (datetime.now(UTC) - UNFINISHED_AFTER).timestamp() and self._is_marked(path)

    def _mark(self, path: Path) -> None:
        """Marks an artifact as a copy of one in the bucket; what has no mark may be the only one there is."""
        mark = self._mark_of(path)
        with contextlib.suppress(OSError):  # without a mark it only stays longer
            make_directory(mark.parent)
            mark.unlink(missing_ok=True)
            os.link(path / MANIFEST, mark)  # holds for this very copy, not for one made later

    def _is_marked(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            return self._mark_of(path).samefile(path / MANIFEST)
        return False

    def _mark_of(self, path: Path) -> Path:
        return self.root / COPIES / path.relative_to(self.root)


def _unheld(path: Path) -> bool:
    with contextlib.suppress(OSError), (path / MANIFEST).open("r+b") as manifest:
        return try_lock(manifest)
    return False


def _written_at(info: dict[str, Any]) -> datetime:
    """When an object was written, by what the listings of the stores call it; now where one does not say."""
    for name in ("LastModified", "last_modified", "updated", "mtime", "created"):
        match info.get(name):
            case datetime() as at:
                return at if at.tzinfo else at.replace(tzinfo=UTC)
            case float() | int() as seconds:
                return datetime.fromtimestamp(seconds, UTC)
            case str() as text:
                with contextlib.suppress(ValueError):
                    return datetime.fromisoformat(text)
    return datetime.now(UTC)
