"""What this encoder served last, on its own disk, so that a restart without Redis serves the same again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from aeenc.errors import DataLoss
from services.encoder.versions import Versions
from services.kit.logs import get
from services.store.artifacts import atomic_write

log = get(__name__)

FORMAT_VERSION = 3
_READABLE = {1, 2, 3}  # 1 had labels of one space only, 2 one space of queries and premises
FILE = "labels.json"
_OF_A_SPACE = ("space_id", "premise_version", "premise_manifest_sha256")


@dataclass(frozen=True)
class SavedLabel:
    """A label as it was served, with the digest that its checkpoint's manifest must have."""

    space_id: str
    name: str
    version: str
    revision: int
    share: float
    manifest_sha256: str


@dataclass(frozen=True)
class SavedSpace:
    """A space as it was served: its premise encoder, with the digest that the checkpoint's manifest must have."""

    space_id: str
    premise_version: str
    premise_manifest_sha256: str


@dataclass(frozen=True)
class SavedState:
    """Everything needed to serve again: the spaces, the default one first, and the labels."""

    spaces: tuple[SavedSpace, ...]
    labels: tuple[SavedLabel, ...]


def save(directory: Path, state: SavedState) -> None:
    """Writes the state, as a whole and durably."""
    record = {
        "format_version": FORMAT_VERSION,
        "spaces": [vars(space) for space in state.spaces],
        "labels": [vars(label) for label in state.labels],
    }
    atomic_write(directory / FILE, json.dumps(record, indent=1).encode())


def load(directory: Path) -> SavedState | None:
    """Reads the state; None when there is none. Raises DataLoss for a file that is not ours."""
    path = directory / FILE
    try:
        record = json.loads(path.read_bytes())
        if record["format_version"] not in _READABLE:
            raise DataLoss(f"{path} has format_version {record['format_version']}, this build reads {FORMAT_VERSION}")
        listed = record["spaces"] if "spaces" in record else [{name: record[name] for name in _OF_A_SPACE}]
        spaces = tuple(SavedSpace(**space) for space in listed)
        unsaid = {"space_id": spaces[0].space_id, "share": 0.0}
        return SavedState(spaces, tuple(SavedLabel(**{**unsaid, **label}) for label in record["labels"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataLoss(f"{path} cannot be read ({error}); remove it and start with Redis up") from error


def state_of(versions: Versions) -> SavedState:
    """What is served, as it is saved."""
    digests = {version: model.description.manifest_sha256 for version, model in versions.models.items()}
    labels = tuple(
        SavedLabel(space_id, name, here.version, here.revision, here.share, digests[here.version])
        for (space_id, name), here in sorted(versions.labels.items())
    )
    default_first = sorted(versions.premise_versions.items(), key=lambda one: (one[0] != versions.space_id, one[0]))
    spaces = tuple(SavedSpace(space_id, version, digests[version]) for space_id, version in default_first)
    return SavedState(spaces, labels)


class Memory:
    """Keeps what is served, off the event loop. What cannot be saved or read costs only a restart without Redis."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._saved: SavedState | None = None

    async def save(self, versions: Versions) -> None:
        """Saves what is served if it is not what was saved last."""
        if not versions.complete or (state := state_of(versions)) == self._saved:
            return
        try:
            await asyncio.to_thread(save, self._directory, state)
            self._saved = state
        except OSError as error:
            log.warning("the labels could not be saved; a restart will need Redis", reason=str(error))

    async def load(self) -> SavedState | None:
        """What was saved; None for nothing, or nothing of use."""
        try:
            return await asyncio.to_thread(load, self._directory)
        except DataLoss as error:
            log.warning("the saved labels are of no use", reason=error.message)
            return None
