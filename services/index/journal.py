"""What an unfinished build has on disk, so that a call with the same request id goes on where the last one ended.

A hidden directory in the corpus's folder, named after the request id:

    premises.jsonl   the premises as they were streamed
    progress.json    what was asked, and how much is on disk for sure: counts, sizes, CRC-32s; replaced as a whole
    generation/      the generation in the making, with its vectors
    lock             held by whoever builds

What lies beyond `progress.json` was promised to nobody and is cut off. Everything here blocks on the disk: call it in a
thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from aeenc import errors
from services.corpus.generation import PREMISES, VECTORS, PremiseRecord, Storage, folder_of
from services.index.vectors import VectorFile, crc32_of
from services.kit import logs
from services.store.artifacts import ArtifactStore, atomic_write, make_directory, remove_directory, sync_directory

log = logs.get(__name__)

PREFIX = ".build-"
PROGRESS = "progress.json"
LOCK = "lock"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Kept:
    """How much of a build is on disk: streamed premises, and rows of vectors with what encoded them.

    A build keeps the storage it began with, whatever the settings say meanwhile.
    """

    premises: int = 0
    premises_bytes: int = 0
    premises_crc32: int = 0
    rows: int = 0
    dim: int = 0
    rows_crc32: int = 0
    space_id: str = ""
    premise_version: str = ""
    storage: Storage = "float32"
    largest_norm: float = 0.0


class Journal:
    """The disk's part of one build. `open` it, `append` premises, `sync` now and then, `close` it.

    `asked` is what the request asks for besides its premises; a request id stands for one request.
    """

    def __init__(self, store: ArtifactStore, corpus: str, request_id: str, asked: dict[str, Any]) -> None:
        self.kept = Kept()
        self.premises: list[PremiseRecord] = []
        self._request = {"request_id": request_id, **asked}
        name = hashlib.sha256(request_id.encode()).hexdigest()[:32]  # a request id may hold any character
        self._directory = store.root / folder_of(corpus) / f"{PREFIX}{name}"
        self.generation = self._directory / "generation"
        self._position = 0  # of the next streamed premise
        self._streamed = 0  # in earlier calls
        self._count = self._bytes = self._crc32 = 0
        self._log: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        self._is_ours = False

    def open(self, resume_from: int) -> None:
        """Takes over what is there: `kept`, and `premises` as they were streamed.

        Raises Unavailable while another process builds it, AlreadyExists when the request asked for something else,
        FailedPrecondition when fewer than `resume_from` premises are kept.
        """
        self._lock = _locked(self._directory, make=True)
        if self._lock is None:
            raise errors.Unavailable(f"another index builds request_id {self._name} at the moment; try again later")
        self._take_over()
        self._is_ours = True
        if resume_from > self.kept.premises:
            raise errors.FailedPrecondition(
                f"header.resume_from is {resume_from:,}, but {self.kept.premises:,} premises of request_id "
                f"{self._name} are kept; stream them from the first"
            )
        self._position, self._streamed = resume_from, self.kept.premises
        self._count, self._bytes = self.kept.premises, self.kept.premises_bytes
        self._crc32 = self.kept.premises_crc32
        self._log = (self._directory / PREMISES).open("ab")
        self._log.truncate(self._bytes)
        self.generation.mkdir(exist_ok=True)
        for left in self.generation.iterdir():
            if left.name != VECTORS or not self.kept.rows:
                left.unlink()  # of a commit that was cut short

    def vectors(self) -> VectorFile | None:
        """The kept rows of vectors, to go on behind them; None without any."""
        if not self.kept.rows:
            return None
        try:
            return VectorFile(
                self.generation / VECTORS,
                self.kept.dim,
                self.kept.storage,
                rows=self.kept.rows,
                crc32=self.kept.rows_crc32,
                largest_norm=self.kept.largest_norm,
            )
        except (errors.DataLoss, FileNotFoundError) as error:
            log.warning("kept vectors are damaged and encoded again", path=str(self._directory), reason=str(error))
            self.kept = Kept(self.kept.premises, self.kept.premises_bytes, self.kept.premises_crc32)
            return None

    def unseen(self, chunk: Sequence[PremiseRecord]) -> Sequence[PremiseRecord]:
        """Those of a streamed chunk that are not kept. Raises AlreadyExists for one that was another before."""
        known = self.premises[self._position : self._position + len(chunk)]
        for number, (before, now) in enumerate(zip(known, chunk, strict=False), start=self._position):
            if before != now:
                raise errors.AlreadyExists(
                    f"premises[{number}] is {now.id!r} with other content than the {before.id!r} that request_id "
                    f"{self._name} streamed there before; use another request_id for other premises"
                )
        self._position += len(known)
        if self._position >= self._streamed:
            self.premises = []  # compared; the folding has its own
        return chunk[len(known) :]

    def check_all_seen(self) -> None:
        """Raises AlreadyExists when the stream ended before what it streamed an earlier time."""
        if self._position < self._streamed:
            raise errors.AlreadyExists(
                f"the stream ended after {self._position:,} premises, request_id {self._name} streamed "
                f"{self._streamed:,} before; use another request_id for other premises"
            )

    def append(self, premises: Iterable[PremiseRecord]) -> None:
        """Writes premises; they are promised with the next `sync`."""
        assert self._log is not None
        lines = [premise.to_line() for premise in premises]
        data = "".join(lines).encode()
        self._log.write(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        self._count += len(lines)
        self._bytes += len(data)

    def sync(self, file: VectorFile | None, space_id: str, premise_version: str) -> None:
        """Puts everything on the disk, then says so: `kept` tells how much. Without `file` no vectors are kept."""
        assert self._log is not None
        self._log.flush()
        os.fsync(self._log.fileno())
        kept = Kept(self._count, self._bytes, self._crc32)
        if file is not None:
            file.sync()
            sync_directory(self.generation)
            kept = replace(
                kept,
                rows=file.rows,
                dim=file.dim,
                rows_crc32=file.crc32,
                space_id=space_id,
                premise_version=premise_version,
                storage=file.storage,
                largest_norm=file.largest_norm,
            )
        said = {"request": self._request, "kept": asdict(kept)}
        record = {"format_version": FORMAT_VERSION, **said, "crc32": _crc32_of(said)}
        atomic_write(self._directory / PROGRESS, json.dumps(record).encode())
        self.kept = kept

    def has_news(self, rows: int) -> bool:
        """Whether a `sync` would promise more than the last one."""
        return (self._count, rows) != (self.kept.premises, self.kept.rows)

    def close(self, *, keep: bool) -> None:
        """Ends the work; without `keep`, or when nothing was ever synced, nothing of it is left."""
        if self._log is not None:
            with suppress(OSError):  # a full disk no longer matters: what is beyond `kept` is cut off
                self._log.close()
        if self._lock is not None:
            if self._is_ours and (not keep or self.kept == Kept()):
                with suppress(FileNotFoundError):
                    remove_directory(self._directory)
            self._lock.close()

    @property
    def _name(self) -> str:
        return repr(self._request["request_id"][:80])

    def _take_over(self) -> None:
        """Reads what is kept; what cannot be read is as good as not there, and whoever skips it is refused."""
        try:
            request, kept = _read_progress(self._directory / PROGRESS)
            premises = _read_premises(self._directory / PREMISES, kept)
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            log.warning("an unfinished build is damaged and begins anew", path=str(self._directory), reason=str(error))
            return
        if request != self._request:
            raise errors.AlreadyExists(
                f"request_id {self._name} began another build (of base generation {request['base_generation']!r}); "
                "use another request_id for another build"
            )
        self.kept, self.premises = kept, premises


def sweep_abandoned(store: ArtifactStore, older_than_s: float) -> None:
    """Removes what builds left that nobody has gone on with for so long. Those under way stay, in any process."""
    for directory in (store.root / "generations").glob(f"*/{PREFIX}*"):
        with suppress(FileNotFoundError):  # swept by another process
            if time.time() - directory.stat().st_mtime < older_than_s:
                continue
            lock = _locked(directory, make=False)
            if lock is not None:
                with lock:
                    remove_directory(directory)
                log.info("swept an abandoned build", path=str(directory))


def _crc32_of(said: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


def _read_progress(path: Path) -> tuple[dict[str, Any], Kept]:
    record = json.loads(path.read_bytes())
    if record["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"{path.name} has format_version {record['format_version']}, this build reads {FORMAT_VERSION}"
        )
    if record["crc32"] != _crc32_of({"request": record["request"], "kept": record["kept"]}):
        raise ValueError(f"{path.name} has another CRC-32 than it says")
    return record["request"], Kept(**record["kept"])


def _read_premises(path: Path, kept: Kept) -> list[PremiseRecord]:
    with path.open("rb") as file:
        if crc32_of(file, kept.premises_bytes) != kept.premises_crc32:
            raise ValueError(f"{path.name} does not hold the {kept.premises:,} premises that it held")
        file.seek(0)
        lines = file.read(kept.premises_bytes).splitlines()
    if len(lines) != kept.premises:
        raise ValueError(f"{path.name} has {len(lines):,} premises, {PROGRESS} says {kept.premises:,}")
    return [PremiseRecord.of_line(line) for line in lines]


def _locked(directory: Path, *, make: bool) -> BinaryIO | None:
    """Locks a directory, made if so asked; None while another has it. The kernel lets go when the process dies."""
    while True:
        if make:
            make_directory(directory)
        elif not directory.is_dir():
            return None
        with suppress(FileNotFoundError), ExitStack() as closing:  # swept between two steps
            lock = closing.enter_context((directory / LOCK).open("ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if os.path.samestat(os.fstat(lock.fileno()), (directory / LOCK).stat()):
                closing.pop_all()
                return lock
