"""Removes job directories that nobody can need again, with their copies of the weights."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from services.kit.concurrency import run_in_thread
from services.kit.logs import get
from services.trainer.job_store import JobStore

log = get(__name__)

UNKNOWN_KEPT_S = 86_400.0  # of jobs without a record: another deployment's may lie beside ours by mistake


async def remove_left(jobs_dir: Path, store: JobStore) -> None:
    """Removes the directories of jobs that have succeeded, and of unknown ones in which nothing changed for a day.

    A job that failed or was cancelled can be resumed, so its directory stays. Raises Unavailable when Redis is away.
    """
    for directory in await run_in_thread(_directories, jobs_dir):
        state = await store.state(directory.name)
        if state == "SUCCEEDED" or (state is None and await run_in_thread(_is_old, directory)):
            log.info("job directory removed", job=directory.name, state=state)
            await run_in_thread(shutil.rmtree, directory, ignore_errors=True)


def _directories(jobs_dir: Path) -> list[Path]:
    return sorted(path for path in jobs_dir.iterdir() if path.is_dir()) if jobs_dir.is_dir() else []


def _is_old(directory: Path) -> bool:
    try:
        changed = max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
    except OSError:  # gone, as where somebody works, or not ours to look into
        return False
    return time.time() - changed > UNKNOWN_KEPT_S
