"""Checks a backup, and brings it back into an empty place.

    check every file ─▶ is the place empty? ─▶ files under a hidden name ─▶ keys, in one transaction ─▶ files in place

What was RUNNING goes on as after a crash: leases expire, and whoever starts takes it over.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from redis.asyncio import Redis

from aeenc import errors
from services.corpus.generation import folder_of
from services.launcher.backups.archive import Backup
from services.launcher.backups.keys import Key, count, pattern, put
from services.launcher.backups.making import KEYS
from services.launcher.backups.store_files import ARTIFACTS, CHECKPOINTS, GENERATIONS
from services.launcher.fleet import RESTORING
from services.store.artifacts import MANIFEST, ArtifactStore
from services.store.files import make_directory, sync_directory
from services.store.formats import damage_is_data_loss

REPLACED = ".before-restore-"


@dataclass(frozen=True)
class Restored:
    """What was brought back, and where that which stood there before is now ("": nothing stood there)."""

    keys: int
    artifacts: int
    set_aside: str


def check(backup: Backup) -> None:
    """Reads every file, and looks whether all that the keys and corpora name is there.

    Raises DataLoss naming it, InvalidArgument for what is no backup.
    """
    if kind := backup.manifest.get("kind"):
        raise errors.InvalidArgument(f"{backup.source} holds one {kind} and no keys; use `aeenc corpus import`")
    for name in backup.files:
        backup.copy(name)
    named = {
        f"{ARTIFACTS}/{CHECKPOINTS}/{version}/{MANIFEST}": digest
        for version, digest in backup.manifest["checkpoints"].items()
    }
    active = [(corpus, one) for corpus, one in backup.manifest["corpora"].items() if one]
    named |= {f"{ARTIFACTS}/{folder_of(corpus)}/{generation}/{MANIFEST}": "" for corpus, generation in active}
    known = {said.partition(" ")[0].removesuffix(f"/{MANIFEST}") for said in backup.manifest["damaged"]}
    for name, digest in named.items():
        entry = backup.files.get(name)
        is_known = name.removeprefix(f"{ARTIFACTS}/").removesuffix(f"/{MANIFEST}") in known
        if not is_known and (entry is None or (digest and entry.sha256 != digest)):
            raise errors.DataLoss(f"{backup.source}/{name} is not what the keys name; take another backup")


async def restore(redis: Redis, store: ArtifactStore, backup: Backup, *, force: bool = False) -> Restored:
    """Brings a checked backup back. Raises FailedPrecondition, naming what is there, unless the place is empty.

    `force` replaces the keys, and moves the artifacts that are there aside.
    """
    keys = pattern(backup.manifest["namespace"])
    there = await _standing(redis, store, keys)
    if there and not force:
        raise errors.FailedPrecondition(
            f"the place is not empty: {', '.join(there)}; name an empty one, or give --force to replace the keys and "
            "move the artifacts aside"
        )
    staged = store.root / RESTORING
    artifacts = await asyncio.to_thread(_stage, backup, staged)
    stored = await put(redis, _keys(backup), keys)
    set_aside = await asyncio.to_thread(_place, store, staged)
    return Restored(stored, artifacts, set_aside)


async def _standing(redis: Redis, store: ArtifactStore, keys: str) -> list[str]:
    """Names what a restore would replace."""
    found = []
    if keys_there := await count(redis, keys):
        found.append(f"Redis has {keys_there:,} keys {keys}")
    for folder in (CHECKPOINTS, GENERATIONS):
        root = store.root / folder
        names = sorted(one.name for one in root.iterdir() if not one.name.startswith(".")) if root.is_dir() else []
        if names:
            found.append(f"{root} has {', '.join(names[:5])}{', …' if names[5:] else ''}")
    return found


def _stage(backup: Backup, staged: Path) -> int:
    """Writes the artifacts under a hidden name, and returns how many they are."""
    shutil.rmtree(staged, ignore_errors=True)
    for folder in (CHECKPOINTS, GENERATIONS):
        make_directory(staged / folder)
    for name in backup.files:
        if name.startswith(f"{ARTIFACTS}/"):
            path = staged / name.removeprefix(f"{ARTIFACTS}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                backup.copy(name, file)
                file.flush()
                os.fsync(file.fileno())
    for directory in [path for path in staged.rglob("*") if path.is_dir()]:
        sync_directory(directory)
    return sum(name.endswith(f"/{MANIFEST}") for name in backup.files)


def _place(store: ArtifactStore, staged: Path) -> str:
    """Moves what is staged to its place, and what stands there aside. Returns where that is now."""
    aside = store.root / f"{REPLACED}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    for folder in (CHECKPOINTS, GENERATIONS):
        place = store.root / folder
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
        if place.exists():
            make_directory(aside)
            place.rename(aside / folder)
            sync_directory(aside)  # before another takes its name
        (staged / folder).rename(place)
    sync_directory(store.root)
    staged.rmdir()  # only now may the fleet start
    sync_directory(store.root)
    return str(aside) if aside.exists() else ""


def _keys(backup: Backup) -> Iterator[Key]:
    with damage_is_data_loss(f"{backup.source}/{KEYS}", "take another backup"):
        yield from map(Key.of_line, backup.read(KEYS).splitlines())


def summary(backup: Backup) -> dict[str, object]:
    """What a backup says of itself, for people and programs."""
    names = ("made_at", "software", "redis_version", "namespace", "keys", "checkpoints", "corpora", "damaged")
    said = {name: backup.manifest.get(name) for name in names}
    return {**said, "size_bytes": sum(one.size_bytes for one in backup.files.values())}
