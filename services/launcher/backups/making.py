"""Makes a backup of a deployment that goes on working.

    hold every artifact ─▶ records of corpora ─▶ keys of Redis ─▶ hold what is new ─▶ the same records still?
                               ▲                                                          │ no: again
                               └──────────────────────────────────────────────────────────┘
    ─▶ journals of builds ─▶ hold what is new ─▶ copy all that is held ─▶ manifest

An artifact is there before a key or a record names it, and what is held stays: so whatever the keys and records of that
moment name can be copied afterwards.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

import aeenc
from aeenc import errors
from services.corpus.generation import folder_of
from services.launcher.backups.archive import BackupWriter, new_backup
from services.launcher.backups.keys import Captured, capture, pattern
from services.launcher.backups.store_files import (
    CHECKPOINTS,
    Records,
    copy_artifact,
    copy_builds,
    hold_all,
    read_records,
)
from services.store.artifacts import ArtifactStore, Hold

KEYS = "redis.jsonl"
ATTEMPTS = 10

Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """A backup that was made: what is in it, and what was missing or damaged in the deployment itself."""

    keys: int
    artifacts: int
    corpora: int
    size_bytes: int
    keys_read_s: float
    damaged: tuple[str, ...]


async def make_backup(redis: Redis, store: ArtifactStore, target: Path, namespace: str = "", say: Say = print) -> Made:
    """Makes a backup at `target`. Raises AlreadyExists when something stands there."""
    _allow_many_files()
    with new_backup(target) as backup:
        held: dict[str, Hold] = {}
        say("reading the keys of Redis")
        records, captured, took_s = await _one_moment(redis, store, held, pattern(namespace))
        unread = await _in_thread(backup, copy_builds, store, backup)
        await asyncio.to_thread(hold_all, store, held)
        say(f"copying {len(held):,} artifacts")
        damaged = [*records.damaged, *_missing(records, captured, held), *unread]
        registered = {f"{CHECKPOINTS}/{version}": sha256 for version, sha256 in captured.checkpoints.items()}
        for name in sorted(held):
            damaged += await _in_thread(backup, copy_artifact, name, held[name], backup, registered.get(name, ""))
        for name, data in records.files.items():
            backup.add_bytes(name, data)
        backup.add_bytes(KEYS, "".join(key.to_line() for key in captured.keys).encode())
        said = {
            "made_at": datetime.now(UTC).isoformat(),
            "software": aeenc.__version__,
            "redis_version": (await redis.info("server"))["redis_version"],
            "namespace": namespace,
            "keys": len(captured.keys),
            "checkpoints": captured.checkpoints,
            "corpora": records.active,
            "damaged": damaged,
        }
        size = sum(one.size_bytes for one in backup.files.values())
        backup.finish(said)
    return Made(len(captured.keys), len(held), len(records.active), size, round(took_s, 3), tuple(damaged))


async def _in_thread(backup: BackupWriter, work: Callable[..., list[str]], *arguments: Any) -> list[str]:
    """Runs what adds to a backup in a thread. When cancelled, it ends the thread first: nobody adds any more."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        backup.stop()
        await asyncio.gather(working, return_exceptions=True)
        raise


async def _one_moment(
    redis: Redis, store: ArtifactStore, held: dict[str, Hold], keys: str
) -> tuple[Records, Captured, float]:
    """Reads keys and records until no corpus has moved in between and all that they name is held.

    What is still not there after ATTEMPTS looks is missing. Raises Unavailable for corpora that move all the time.
    """
    await asyncio.to_thread(hold_all, store, held)
    records = await asyncio.to_thread(read_records, store)
    for _ in range(ATTEMPTS):
        begun = asyncio.get_running_loop().time()
        captured = await capture(redis, keys)
        took_s = asyncio.get_running_loop().time() - begun
        await asyncio.to_thread(hold_all, store, held)
        before, records_now = records, await asyncio.to_thread(read_records, store)
        if before.moves == records_now.moves and not _missing(before, captured, held):
            break
        records = records_now
    if before.moves != records_now.moves:
        raise errors.Unavailable(f"corpora have moved {ATTEMPTS} times while the backup began; make it again")
    return before, captured, took_s


def _missing(records: Records, captured: Captured, held: dict[str, Hold]) -> list[str]:
    """Names what keys and records name and what is not there."""
    named = {f"{CHECKPOINTS}/{version}": f"checkpoint {version} is registered" for version in captured.checkpoints}
    active = [f"{folder_of(corpus)}/{generation}" for corpus, generation in records.active.items() if generation]
    named |= dict.fromkeys(active, "its corpus serves it")
    return [f"{name} has no files, though {why}" for name, why in named.items() if name not in held]


def _allow_many_files() -> None:
    """Each artifact is held by two open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
