"""Removes what killed builds left on the disk, and never what another process is building there at this moment."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from services.kit.artifacts import ArtifactStore

LOCK = ".building.lock"  # held shared by every build; the kernel releases it when a process dies


@contextmanager
def building(store: ArtifactStore, folder: str) -> Iterator[None]:
    """Keeps sweepers of all processes away from a folder while something is built in it."""
    (store.root / folder).mkdir(parents=True, exist_ok=True)
    with (store.root / folder / LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def sweep(store: ArtifactStore, folder: str) -> bool:
    """Removes left-overs of a folder; False when something is being built in it, and nothing was done."""
    if not (store.root / folder).is_dir():
        return True
    with (store.root / folder / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        store.sweep(folder)
        return True
