"""A fleet that stays between runs, so that what was trained once is found again: for the same data and settings alone.

The digest of the files that are read and of the settings AEENC_<SERVICE>_* is a part of its directory's name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import aeenc
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


@contextmanager
def kept_fleet(home: Path, *read: Path, oracles: Mapping[str, str] = MappingProxyType({})) -> Iterator[aeenc.Client]:
    """A client of the fleet in `home`, whose name gets the digest of what is read; the fleet ends with the block."""
    fleet = Fleet(home.with_name(f"{home.name}-{inputs_digest(*read)}"))
    fleet.down()  # one that was left behind has other settings
    try:
        targets = fleet.up(Options(base_port=0, oracles=dict(oracles)), lambda text: print(f"  {text}", flush=True))
        services = {name: targets[name] for name in SERVICES}
        with aeenc.connect(**services, retry=aeenc.PATIENT) as client:
            yield client
    finally:
        fleet.down()
