"""The files of a store as a backup needs them: artifacts that nobody removes meanwhile, and the records of corpora.

Artifacts never change, so they are held and copied at leisure. Records of corpora are small and change: they are read
at once. Journals of unfinished builds only grow, and say themselves how much of them counts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aeenc import errors
from services.corpus.active import MOVES, read_active
from services.corpus.generation import corpora_of, folder_of
from services.launcher.backups.archive import BackupWriter
from services.store.artifacts import DAMAGED, DELETED, MANIFEST, TEMPORARY, ArtifactStore, Hold

ARTIFACTS = "artifacts"  # where they are in a backup
CHECKPOINTS, GENERATIONS = "checkpoints", "generations"
BUILDS = ".builds"  # journals of builds, as the index names them
LOOKS = 10
_EXPLAINS = b'"kind": "explain"'
_LEFT_OUT = (TEMPORARY, DELETED, DAMAGED, BUILDS, "..")  # "..": a record that is being written


def copy_artifact(name: str, hold: Hold, backup: BackupWriter, registered_sha256: str = "") -> list[str]:
    """Copies the manifest of `<folder>/<id>` and the files that it names, also when it is deleted meanwhile.

    Returns what cannot be read or does not have its hash.
    """
    files, damaged = _files_of(hold), []
    for part, sha256 in [*files.items(), (MANIFEST, registered_sha256)]:
        try:
            with hold.open(part) as file:
                copied = backup.add(f"{ARTIFACTS}/{name}/{part}", file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            damaged.append(f"{name}/{part} cannot be read ({error.strerror})")
        else:
            if sha256 and copied.sha256 != sha256:
                damaged.append(f"{name}/{part} does not have the sha256 recorded for it")
    return damaged if files or damaged else [f"{name}/{MANIFEST} cannot be read"]


def _files_of(hold: Hold) -> dict[str, str]:
    """The hash of each file, as the manifest says; of nothing when it cannot be read."""
    try:
        with hold.open(MANIFEST) as file:
            return {name: entry["sha256"] for name, entry in json.load(file)["files"].items() if "/" not in name}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def hold_all(store: ArtifactStore, held: dict[str, Hold]) -> None:
    """Holds all artifacts that there are and that are not held yet, by `<folder>/<id>`."""
    for folder in (CHECKPOINTS, *map(folder_of, corpora_of(store))):
        for artifact_id in store.list(folder):
            if f"{folder}/{artifact_id}" not in held:
                with contextlib.suppress(errors.NotFound):
                    if (hold := store.hold(folder, artifact_id)).stands():
                        held[f"{folder}/{artifact_id}"] = hold


@dataclass(frozen=True)
class Records:
    """The records of all corpora: their files by name, and which generation is active by corpus ("": none)."""

    files: dict[str, bytes]
    active: dict[str, str]
    damaged: tuple[str, ...]

    @property
    def moves(self) -> dict[str, bytes]:
        """Those that say what is active; of explanations Redis knows nothing."""
        return {name: data for name, data in self.files.items() if f"/{MOVES}/" in name and _EXPLAINS not in data}


def read_records(store: ArtifactStore) -> Records:
    """Reads the records of all corpora."""
    files: dict[str, bytes] = {}
    active, damaged = {}, list[str]()
    for corpus in corpora_of(store):
        of_corpus, unread = _read_small(store.root / folder_of(corpus), folder_of(corpus))
        files |= of_corpus
        damaged += unread
        try:
            active[corpus] = read_active(store, corpus) or ""
        except errors.AeencError as error:
            damaged.append(f"corpus {corpus}: {error.message}")
        except OSError as error:
            damaged.append(f"corpus {corpus}: its records cannot be read ({error.strerror})")
    return Records(files, active, tuple(damaged))


def _read_small(folder: Path, prefix: str) -> tuple[dict[str, bytes], list[str]]:
    """The small files of a corpus by their names in a backup, and what cannot be read.

    They are read again where the corpus has moved meanwhile: the explanations that a move named may be gone.
    """
    for _ in range(LOOKS):
        moves, files, unread = sorted(folder.glob(f"{MOVES}*/*")), dict[str, bytes](), list[str]()
        for path in _small_files(folder):
            name = f"{prefix}/{path.relative_to(folder)}"
            try:
                files[f"{ARTIFACTS}/{name}"] = path.read_bytes()
            except FileNotFoundError:
                continue  # replaced or swept meanwhile
            except OSError as error:
                unread.append(f"{name} cannot be read ({error.strerror})")
        if moves == sorted(folder.glob(f"{MOVES}*/*")):
            break
    return files, unread


def _small_files(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if not entry.name.startswith(".") or entry.name.startswith(_LEFT_OUT) or entry.name.endswith(".lock"):
            continue
        if entry.is_dir():
            yield from (path for path in entry.iterdir() if not path.name.startswith("."))
        else:
            yield entry


def copy_builds(store: ArtifactStore, backup: BackupWriter) -> list[str]:
    """Copies the journals of builds: first what says how much counts, then what only grows.

    Returns those that cannot be read.
    """
    damaged = []
    for corpus in corpora_of(store):
        folder = store.root / folder_of(corpus)
        for journal in sorted(folder.glob(f"{BUILDS}/*")):
            files = [path for path in journal.rglob("*") if path.is_file() and not path.name.startswith(".")]
            for path in sorted(files, key=lambda path: path.name != "progress.json"):
                name = f"{folder_of(corpus)}/{path.relative_to(folder)}"
                try:
                    with path.open("rb") as file:
                        backup.add(f"{ARTIFACTS}/{name}", file, os.fstat(file.fileno()).st_size)
                except FileNotFoundError:
                    continue  # the build has just finished
                except OSError as error:
                    damaged.append(f"{name} cannot be read ({error.strerror})")
    return damaged
