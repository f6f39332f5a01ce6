"""A fleet that stays between runs, so that what was trained once is found again: for the same data and settings alone.

The digest of the files that are read and of the settings AEENC_<SERVICE>_* is a part of its directory's name.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aeenc
from aeenc import values
from services.launcher.fleet import SERVICES, Fleet, Options
from services.store.files import sha256_of
from services.store.life_cycles import digest

SETTINGS = tuple(f"AEENC_{name.upper()}_" for name in SERVICES)
BASE_MODEL = "AEENC_TRAINER_BASE_MODEL"
ELSEWHERE = {"AEENC_TRAINER_DATA_SETS", "AEENC_TRAINER_CROSS_ENCODER"}  # paths of what is read; no job starts from it


def inputs_digest(*read: Path) -> str:
    """Eight hexadecimal digits for the content of files and directories, and for the services' settings.

    Settings are those of the environment. A base model that is a directory counts by its content.
    """
    settings: dict[str, object] = {
        name: _content(Path(value)) if name == BASE_MODEL and Path(value).exists() else value
        for name, value in os.environ.items()
        if name.startswith(SETTINGS) and name not in ELSEWHERE and value
    }
    return digest(json.dumps([settings, *map(_content, read)], sort_keys=True))[:8]


def _content(path: Path) -> dict[str, str]:
    """The SHA-256 of a file, or of each in a directory but hidden ones, by its name there."""
    names = [one.relative_to(path) for one in (path, *path.rglob("*")) if one.is_file()]
    return {one.as_posix(): sha256_of(path / one) for one in names if not any(p.startswith(".") for p in one.parts)}


def home_of(home: Path, *read: Path) -> Path:
    """The directory of the fleet that reads these files with today's settings."""
    return home.with_name(f"{home.name}-{inputs_digest(*read)}")


@contextmanager
def kept_fleet(home: Path, *read: Path, **options: Any) -> Iterator[aeenc.Client]:
    """A client of the fleet in `home_of` what is read; the fleet ends with the block. `options` are those of `up`.

    Ends the process where another one works in that home: `down` ends the services of whoever does.
    """
    fleet = Fleet(home_of(home, *read))
    fleet.home.mkdir(parents=True, exist_ok=True)
    path = fleet.home / "bench.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = "is held by another benchmark, whose services this one would end; run it once that has ended"
            raise SystemExit(f"{path} {told}") from None
        try:
            fleet.down()  # one that was left behind has other settings
            targets = fleet.up(Options(base_port=0, **options), lambda text: print(f"  {text}", flush=True))
            with aeenc.connect(**{name: targets[name] for name in SERVICES}, retry=aeenc.PATIENT) as client:
                yield client
        finally:
            fleet.down()


def ended_job(client: aeenc.Client, told: str, **fields: Any) -> values.Job:
    """The job of an idempotency key, started unless it was before, to its end. One that fails ends the process."""
    job = client.trainer.wait(client.trainer.start_job(**fields).id)
    if job.state != values.WorkState.SUCCEEDED:
        raise SystemExit(f"{told}: {job.error}")
    return job
