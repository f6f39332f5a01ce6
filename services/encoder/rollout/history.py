"""Records of what was served: the last attempts for GetInfo, and the served state on disk for a start without Redis."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from aeenc.errors import DataLoss
from services.encoder.metrics import EncoderMetrics
from services.encoder.rollout.versions import LabelKey, ServedLabel, Versions
from services.kit.logs import get
from services.store.files import atomic_write
from services.store.formats import NewerFormat, check_format
from services.store.registry import LabelRow
from services.store.registry_rows import TOGETHER

log = get(__name__)

KEPT_SWAPS = 20
PREMISES = "(premises)"  # stands for a label: the space's premise encoder
FORMAT_VERSION = 1
FILE = "labels.json"
_RUN = re.compile("run-[0-9a-f]{16}")  # the label of a run, of which there are ever more


@dataclass(frozen=True)
class Swap:
    """The outcome of one attempt to serve a version under a label; `reason` says why it failed."""

    space_id: str
    label: str
    version: str
    revision: int
    ok: bool
    reason: str
    finished_at: datetime
    duration_s: float


class SwapHistory:
    """The last attempts, newest first, and what failed last for each label."""

    def __init__(self, metrics: EncoderMetrics) -> None:
        self._metrics = metrics
        self._swaps: deque[Swap] = deque(maxlen=KEPT_SWAPS)
        self._failures: dict[LabelKey, Swap] = {}

    def __iter__(self) -> Iterator[Swap]:
        return iter(self._swaps)

    def record(self, row: LabelRow, duration_s: float, reason: str = "") -> None:
        """Records an attempt in GetInfo, metrics and log; without a reason it succeeded."""
        ok = not reason
        swap = Swap(row.space_id, row.name, row.version, row.revision, ok, reason, datetime.now(UTC), duration_s)
        self._swaps.appendleft(swap)
        name = "run" if _RUN.fullmatch(row.name) else row.name
        self._metrics.swaps.labels(row.space_id, name, "ok" if ok else "failed").inc()
        self.forget((row.space_id, row.name))
        if ok:
            seconds = round(duration_s, 3)
            log.info("label serves", label=row.name, version=row.version, revision=row.revision, seconds=seconds)
        else:
            self._failures[row.space_id, row.name] = swap
            log.error("label keeps its version", label=row.name, refused=row.version, reason=reason)

    def failure(self, space_id: str, label: str) -> str:
        """Returns why the last attempt for a label failed; empty when it did not."""
        failed = self._failures.get((space_id, label))
        return failed.reason if failed else ""

    def has_failed(self, row: LabelRow) -> bool:
        """Whether the last attempt for a label was this one, and failed."""
        failed = self._failures.get((row.space_id, row.name))
        return failed is not None and (failed.revision, failed.version) == (row.revision, row.version)

    def forget(self, key: LabelKey) -> None:
        """Forgets the failure of a label."""
        self._failures.pop(key, None)

    def forget_all_but(self, labels: Collection[LabelKey]) -> None:
        """Forgets the failures of all other labels; those of premise encoders stay."""
        for key in [key for key in self._failures if key not in labels and key[1] != PREMISES]:
            self.forget(key)


class SavedLabel(NamedTuple):
    """A label as it was served, with the digest that its checkpoint's manifest must have; an ensemble's joined by +."""

    space_id: str
    name: str
    version: str
    revision: int
    share: float
    manifest_sha256: str


class SavedSpace(NamedTuple):
    """A space as it was served: its premise encoder, with the digest that the checkpoint's manifest must have."""

    space_id: str
    premise_version: str
    premise_manifest_sha256: str


class SavedState(NamedTuple):
    """Everything needed to serve again: the spaces, the default one first, and the labels."""

    spaces: tuple[SavedSpace, ...]
    labels: tuple[SavedLabel, ...]

    @classmethod
    def of(cls, versions: Versions) -> SavedState:
        """Describes what is served."""
        digests = {version: model.description.manifest_sha256 for version, model in versions.models.items()}
        labels = tuple(
            SavedLabel(space_id, name, here.version, here.revision, here.share, _digests_of(here, digests))
            for (space_id, name), here in sorted(versions.labels.items())
        )
        default_first = sorted(versions.premise_versions.items(), key=lambda one: (one[0] != versions.space_id, one[0]))
        spaces = tuple(SavedSpace(space_id, version, digests[version]) for space_id, version in default_first)
        return cls(spaces, labels)

    def over(self, older: SavedState) -> SavedState:
        """Returns this state with the spaces and labels that only the older one has."""
        spaces, labels = {one.space_id for one in self.spaces}, {one[:2] for one in self.labels}
        return SavedState(
            (*self.spaces, *(one for one in older.spaces if one.space_id not in spaces)),
            (*self.labels, *(one for one in older.labels if one[:2] not in labels)),
        )


def _digests_of(label: ServedLabel, digests: Mapping[str, str]) -> str:
    return TOGETHER.join(digests[version] for version in label.versions)


class StateFile:
    """Keeps the served state in `labels.json`, off the event loop. A failure costs only a restart without Redis."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._saved: SavedState | None = None
        self._writing = asyncio.Lock()  # an older state never follows a newer one

    async def save(self, versions: Versions, *, complete: bool = True) -> None:
        """Saves the served state if it has changed; unless `complete`, beside what was saved and is not served yet."""
        async with self._writing:
            if not versions.complete:
                return
            state = SavedState.of(versions)
            if not complete and (older := self._saved or await self.load()):
                state = state.over(older)
            if state == self._saved:
                return
            try:
                await asyncio.to_thread(_write, self._path, state)
                self._saved = state
            except OSError as error:
                log.warning("the labels could not be saved; a restart will need Redis", reason=str(error))

    async def load(self) -> SavedState | None:
        """Reads the saved state; None when there is none that can be used."""
        try:
            return await asyncio.to_thread(_read, self._path)
        except (DataLoss, NewerFormat) as error:
            log.warning("the saved labels cannot be used", reason=error.message)
            return None


def _write(path: Path, state: SavedState) -> None:
    record = {
        "format_version": FORMAT_VERSION,
        "spaces": [space._asdict() for space in state.spaces],
        "labels": [label._asdict() for label in state.labels],
    }
    atomic_write(path, json.dumps(record, indent=1).encode())


def _read(path: Path) -> SavedState | None:
    try:
        record = json.loads(path.read_bytes())
        check_format(record, FORMAT_VERSION, str(path))
        return SavedState(
            tuple(SavedSpace(*(one[name] for name in SavedSpace._fields)) for one in record["spaces"]),
            tuple(SavedLabel(*(one[name] for name in SavedLabel._fields)) for one in record["labels"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataLoss(f"{path} cannot be read ({error}); remove it and start with Redis up") from error
