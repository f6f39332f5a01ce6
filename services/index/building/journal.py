"""The journal of a build: what it keeps on disk for its retries, and of a finished one, which generation it built.

It is a directory in a hidden one of the corpus, named after the request id:

    premises.jsonl   the premises as streamed
    progress.json    the request, and how much is durable: counts, sizes, CRC-32s; always replaced as a whole; at the
                     end, what was built: the rest then goes, and a retry gets it and not a second build
    generation/      the generation in the making, with its vectors
    lock             held by whoever builds

Whatever lies beyond `progress.json` was never acknowledged and is cut off. Where the store has a bucket, a copy of all
of it follows there, so that the build goes on at another host. Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from aeenc import errors
from services.corpus.generation import PREMISES, VECTORS, PremiseRecord, folder_of
from services.index.building.vectors import VectorFile, WrittenVectors, crc32_of
from services.kit import logs
from services.store.artifacts import ArtifactStore, remove_directory
from services.store.files import Documents, atomic_write, make_directory, sync_directory, try_lock
from services.store.formats import check_format, made_of
from services.store.objects import Bucket, CachedStore

log = logs.get(__name__)
BUILDS = ".builds"  # a folder of their own: a look at a corpus lists only what stands beside
PROGRESS = "progress.json"
GENERATION, LOCK = "generation", "lock"
PARTS = "parts"  # of a copy
PART_BYTES = 16 * 1024 * 1024  # at most, of an object of a copy
_GROWING = (PREMISES, f"{GENERATION}/{VECTORS}")
SAID = ("request", "kept", "built", "activation", "streamed")  # by the record of progress
FORMAT_VERSION = 1


@dataclass(frozen=True)
class FinishedBuild:
    """The generation that a request has built, and what it asked for, its premises included.

    `activation` is the request id of its activation, which a retry repeats and a later build does not.
    """

    generation: str
    activation: str
    asked: Mapping[str, Any]


@dataclass
class StreamedPremises:
    """How many premises a build streamed, and the size and CRC-32 of their lines: what a retry of it must repeat."""

    count: int = 0
    size_bytes: int = 0
    crc32: int = 0

    def add(self, premises: Iterable[PremiseRecord]) -> bytes:
        """Counts premises, and returns their lines."""
        lines = [premise.to_line().encode() for premise in premises]
        self.count += len(lines) - 1
        return self.take(b"".join(lines))

    def take(self, line: bytes) -> bytes:
        """Counts one premise by its line."""
        self.count, self.size_bytes = self.count + 1, self.size_bytes + len(line)
        self.crc32 = zlib.crc32(line, self.crc32)
        return line

    def to_record(self) -> dict[str, int]:
        """Turns it into JSON."""
        return {"premises": self.count, "premises_crc32": self.crc32}


@dataclass(frozen=True)
class DurableState:
    """How much of a build is durable: streamed premises, and vectors with the space and the version that made them.

    A build keeps the storage that it began with, even if the settings change.
    """

    streamed: StreamedPremises = field(default_factory=StreamedPremises)
    vectors: WrittenVectors = field(default_factory=WrittenVectors)
    space_id: str = ""
    premise_version: str = ""


class JournalCopy:
    """The copy of a journal in a bucket: what each sync has added, as objects named by where it starts; then progress.

    Two hosts that build for one request overwrite each other's copy; checksums find that out, and then it is absent.
    """

    def __init__(self, bucket: Bucket, key: str, directory: Path) -> None:
        self._bucket, self._key, self._directory = bucket, key, directory
        self._copied = dict.fromkeys(_GROWING, 0)  # bytes of each file

    def push(self) -> None:
        """Copies what is new, then the progress. While the bucket is away it waits for the next time."""
        try:
            for name in _GROWING:
                path = self._directory / name
                size = path.stat().st_size if path.exists() else 0
                if size < self._copied[name]:
                    self._copied[name] = 0  # begun again
                with path.open("rb") if size else nullcontext() as file:
                    while file and self._copied[name] < size:
                        file.seek(self._copied[name])
                        data = file.read(min(PART_BYTES, size - self._copied[name]))
                        self._bucket.write(self._part(name, self._copied[name]), data)
                        self._copied[name] += len(data)
            self._bucket.write(f"{self._key}/{PROGRESS}", (self._directory / PROGRESS).read_bytes())
        except errors.Unavailable as error:
            log.warning("the journal of a build has no copy for now", key=self._key, reason=error.message)

    def fetch(self) -> None:
        """Takes over the copy if it is ahead of what lies here. Raises Unavailable when the bucket is away."""
        content = self._bucket.read(f"{self._key}/{PROGRESS}")
        if content is None or _ahead(content) <= _ahead(Documents(self._directory).read(PROGRESS) or b""):
            return  # the next push copies all of it again
        sizes = self._bucket.sizes(self._key)
        for name in _GROWING:
            path, start = self._directory / name, 0
            make_directory(path.parent)
            with path.open("wb") as file:
                while (part := self._part(name, start)) in sizes and (data := self._bucket.read(part)):
                    file.write(data)
                    start += len(data)
            self._copied[name] = start
        atomic_write(self._directory / PROGRESS, content)
        log.info("a build goes on from its copy", key=self._key)

    def _part(self, name: str, start: int) -> str:
        return f"{self._key}/{PARTS}/{Path(name).name}-{start:015}"


def _ahead(progress: bytes) -> tuple[int, int]:
    """How far a journal is: premises and rows; behind all others if nobody can tell."""
    try:
        kept = json.loads(progress)["kept"]
        return int(kept["streamed"]["count"]), int(kept["vectors"]["rows"])
    except (ValueError, KeyError, TypeError):
        return -1, -1


class Journal:
    """The journal of one build: `open` it, `append` premises, `sync` now and then, `close` it.

    `fingerprint` is what the request asks for besides its premises; a request id stands for one request.
    """

    def __init__(self, store: ArtifactStore, corpus: str, request_id: str, fingerprint: dict[str, Any]) -> None:
        self.kept = DurableState()
        self.premises: list[PremiseRecord] = []
        self._request = {"request_id": request_id, **fingerprint}
        self._store, self._key = store, key_of(corpus, request_id)
        self._directory = store.root / self._key
        self.generation = self._directory / GENERATION
        self._copy = JournalCopy(store.bucket, self._key, self._directory) if isinstance(store, CachedStore) else None
        self._position = 0  # of the next streamed premise
        self._streamed = 0  # in earlier calls
        self._all = StreamedPremises()
        self._log: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        self._is_ours = False

    def open(self, resume_from: int) -> None:
        """Takes over what is there: `kept`, and `premises` as streamed.

        Raises Unavailable while another process builds it, AlreadyExists when the request asked for something else
        before, FailedPrecondition when fewer than `resume_from` premises are kept, NewerFormat for the journal of a
        newer release.
        """
        self._store.check_there()
        self._lock = locked(self._directory, make=True)
        if self._lock is None:
            raise errors.Unavailable(f"another index is building request_id {self._name}; try again later")
        if self._copy is not None:
            self._copy.fetch()
        self._take_over()
        self._is_ours = True
        self._all = replace(self.kept.streamed)
        if resume_from > self._all.count:
            raise errors.FailedPrecondition(
                f"header.resume_from is {resume_from:,}, but {self._all.count:,} premises of request_id "
                f"{self._name} are kept; stream them from the first"
            )
        self._position, self._streamed = resume_from, self._all.count
        self._log = (self._directory / PREMISES).open("ab")
        self._log.truncate(self._all.size_bytes)
        self.generation.mkdir(exist_ok=True)
        for left in self.generation.iterdir():
            if left.name != VECTORS or not self.kept.vectors.rows:
                left.unlink()  # from an interrupted commit

    def vectors(self) -> VectorFile | None:
        """Opens the kept rows of vectors to append to them; None when there are none."""
        if not self.kept.vectors.rows:
            return None
        try:
            return VectorFile(self.generation / VECTORS, self.kept.vectors)
        except (errors.DataLoss, FileNotFoundError) as error:
            log.warning("kept vectors are damaged; encoding them again", path=str(self._directory), reason=str(error))
            self.kept = DurableState(self.kept.streamed)
            return None

    def unseen(self, chunk: Sequence[PremiseRecord]) -> Sequence[PremiseRecord]:
        """Returns the premises of a chunk that are not kept. Raises AlreadyExists for one unlike the kept one."""
        known = self.premises[self._position : self._position + len(chunk)]
        for number, (before, now) in enumerate(zip(known, chunk, strict=False), start=self._position):
            if before != now:
                raise errors.AlreadyExists(
                    f"premises[{number}] is {now.id!r} with other content than the {before.id!r} that request_id "
                    f"{self._name} streamed there before; use another request_id for other premises"
                )
        self._position += len(known)
        if self._position >= self._streamed:
            self.premises = []  # compared with the stream; the folding has its own copy
        return chunk[len(known) :]

    def check_all_seen(self) -> None:
        """Raises AlreadyExists when the stream is shorter than the one before."""
        if self._position < self._streamed:
            raise errors.AlreadyExists(
                f"the stream ended after {self._position:,} premises, request_id {self._name} streamed "
                f"{self._streamed:,} before; use another request_id for other premises"
            )

    def append(self, premises: Iterable[PremiseRecord]) -> None:
        """Writes premises; the next `sync` makes them durable."""
        assert self._log is not None
        self._log.write(self._all.add(premises))

    def sync(self, file: VectorFile | None, space_id: str, premise_version: str) -> None:
        """Syncs everything to disk, then updates `kept`. Without `file` no vectors are kept."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        kept = DurableState(replace(self._all))
        if file is not None:
            file.sync()
            sync_directory(self.generation)
            kept = replace(kept, vectors=file.written, space_id=space_id, premise_version=premise_version)
        self.kept = kept
        atomic_write(self._directory / PROGRESS, self._progress())
        if self._copy is not None:
            self._copy.push()

    def finish(self, generation_id: str) -> None:
        """Records durably which generation is built, for all hosts. Raises Unavailable when the bucket is away."""
        self._store.documents.write(f"{self._key}/{PROGRESS}", self._progress(built=generation_id))

    def _progress(self, built: str = "") -> bytes:
        said = {
            "request": self._request,
            "kept": asdict(self.kept),
            "built": built,
            "activation": uuid.uuid4().hex,
            "streamed": self._all.to_record(),
        }
        return json.dumps({"format_version": FORMAT_VERSION, **said, "crc32": _crc32_of(said)}).encode()

    def cut_before(self, premise_id: str) -> None:
        """Takes back the premise of this id and all behind it; the next `sync` makes that durable."""
        assert self._log is not None
        self._log.flush()
        self._all = StreamedPremises()
        with (self._directory / PREMISES).open("rb") as lines:
            for line in lines:
                if PremiseRecord.of_line(line).id == premise_id:
                    break
                self._all.take(line)
        self._log.truncate(self._all.size_bytes)

    def has_news(self, rows: int) -> bool:
        """Whether a `sync` would make more durable than the last one."""
        return (self._all.count, rows) != (self.kept.streamed.count, self.kept.vectors.rows)

    def close(self, *, keep: bool) -> None:
        """Ends the build. Without `keep`, it is finished. Where nothing was ever synced, everything goes."""
        if self._log is not None:
            with suppress(OSError):  # a full disk no longer matters: a retry cuts off what is beyond `kept`
                self._log.close()
        if self._lock is not None:
            if self._is_ours and not keep:
                _tidy(self._store, self._key)
            elif self._is_ours and self.kept == DurableState():
                with suppress(FileNotFoundError):
                    remove_directory(self._directory)
                _remove_copy(self._store, self._key)
            self._lock.close()

    @property
    def _name(self) -> str:
        return repr(self._request["request_id"][:80])

    def _take_over(self) -> None:
        """Reads what is kept. A damaged journal counts as absent; `open` refuses a caller who relies on it."""
        try:
            record = _progress_of((self._directory / PROGRESS).read_bytes(), str(self._directory / PROGRESS))
            request, kept = record["request"], made_of(DurableState, record["kept"])
            premises = _read_premises(self._directory / PREMISES, kept.streamed)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            log.warning("an unfinished build is damaged; starting over", path=str(self._directory), reason=str(error))
            return
        if request != self._request:
            raise errors.AlreadyExists(
                f"request_id {self._name} began another build (of base generation {request['base_generation']!r}); "
                "use another request_id for another build"
            )
        self.kept, self.premises = kept, premises


def finished_build(store: ArtifactStore, corpus: str, request_id: str) -> FinishedBuild | None:
    """Finds what a request has built; None when it has not finished, or when its generation was deleted since.

    A generation whose upload has not ended counts where it is: `push` it. A damaged record counts as none: building it
    again gives the same. Raises NewerFormat for one of a newer release.
    """
    key = f"{key_of(corpus, request_id)}/{PROGRESS}"
    try:
        record = _progress_of(store.documents.read(key) or b"", key)
        finished = FinishedBuild(
            str(record["built"]), str(record["activation"]), {**record["request"], **record["streamed"]}
        )
    except (ValueError, KeyError, TypeError):
        return None
    try:
        store.check_exists(folder_of(corpus), finished.generation)
    except (errors.NotFound, errors.InvalidArgument):  # the latter: of an unfinished one
        is_here = finished.generation and store.awaits_push(folder_of(corpus), finished.generation)
        return finished if is_here else None
    return finished


def sweep_journals(store: ArtifactStore, corpora: Iterable[str], older_than_s: float, finished_s: float) -> None:
    """Removes corpora's journals that nobody has continued for so long, and the rest of finished ones of that age.

    Builds under way, in any process, stay.
    """
    for corpus in corpora:
        for directory in (store.root / folder_of(corpus)).glob(f"{BUILDS}/*"):
            with suppress(OSError):  # swept by another process, or not readable: that concerns its own corpus
                most_s = older_than_s if (directory / PREMISES).exists() else finished_s
                since = datetime.fromtimestamp(directory.stat().st_mtime, UTC)
                if Documents(store.root).has_passed(most_s, since) and (lock := locked(directory, make=False)):
                    with lock:
                        remove_directory(directory)
                        log.info("swept the journal of a build", path=str(directory))
        if isinstance(store, CachedStore):
            _sweep_copies(store, corpus, older_than_s, finished_s)


def tidy_journal(store: ArtifactStore, corpus: str, request_id: str) -> None:
    """Removes what a finished build still keeps but for its record, unless somebody holds it."""
    key = key_of(corpus, request_id)
    if (lock := locked(store.root / key, make=False)) is not None:
        with lock:
            _tidy(store, key)


def _tidy(store: ArtifactStore, key: str) -> None:
    """Removes premises and vectors, also of the copy: the record stays."""
    (store.root / key / PREMISES).unlink(missing_ok=True)
    shutil.rmtree(store.root / key / GENERATION, ignore_errors=True)
    if isinstance(store, CachedStore):
        with suppress(errors.Unavailable):  # swept later
            store.bucket.remove_below(f"{key}/{PARTS}")


def _remove_copy(store: ArtifactStore, key: str) -> None:
    """Removes the copy of a journal, if there is one, its progress first."""
    if isinstance(store, CachedStore):
        with suppress(errors.Unavailable):  # swept later
            store.bucket.remove(f"{key}/{PROGRESS}")
            store.bucket.remove_below(key)


def key_of(corpus: str, request_id: str) -> str:
    """Names the journal of a request, whose id may contain any character."""
    return f"{folder_of(corpus)}/{BUILDS}/{hashlib.sha256(request_id.encode()).hexdigest()[:32]}"


def _sweep_copies(store: CachedStore, corpus: str, older_than_s: float, finished_s: float) -> None:
    """Removes a corpus's copies that nobody has written to since; those of builds under way are written to."""
    with suppress(errors.Unavailable):
        for name in store.bucket.names(f"{folder_of(corpus)}/{BUILDS}"):
            key = f"{folder_of(corpus)}/{BUILDS}/{name}"
            sizes = store.bucket.sizes(key)
            most_s = finished_s if all(one.endswith(PROGRESS) for one in sizes) else older_than_s
            if sizes and store.bucket.has_passed(most_s, max(at for _, at in sizes.values())):
                _remove_copy(store, key)
                log.info("swept the copy of a build", key=key)


def _crc32_of(said: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


def _progress_of(content: bytes, name: str) -> dict[str, Any]:
    """Reads a record of progress. Raises ValueError, KeyError or TypeError for a damaged one, NewerFormat."""
    record: dict[str, Any] = json.loads(content)
    check_format(record, FORMAT_VERSION, name)
    if record["crc32"] != _crc32_of({name: record[name] for name in SAID}):
        raise ValueError(f"{name} does not match its CRC-32")
    return record


def _read_premises(path: Path, streamed: StreamedPremises) -> list[PremiseRecord]:
    with path.open("rb") as file:
        if crc32_of(file, streamed.size_bytes) != streamed.crc32:
            raise ValueError(f"{path.name} has lost some of its {streamed.count:,} premises")
        file.seek(0)
        lines = file.read(streamed.size_bytes).splitlines()
    if len(lines) != streamed.count:
        raise ValueError(f"{path.name} has {len(lines):,} premises, {PROGRESS} says {streamed.count:,}")
    return [PremiseRecord.of_line(line) for line in lines]


def locked(directory: Path, *, make: bool, name: str = LOCK) -> BinaryIO | None:
    """Locks a directory, made if asked; None while another holds it. The kernel unlocks it when the process dies."""
    while True:
        if make:
            make_directory(directory)
        elif not directory.is_dir():
            return None
        with suppress(FileNotFoundError), ExitStack() as closing:  # swept between two steps
            lock = closing.enter_context((directory / name).open("ab"))
            if not try_lock(lock):
                return None
            if os.path.samestat(os.fstat(lock.fileno()), (directory / name).stat()):
                closing.pop_all()
                return lock
