"""Records of what was served: the last attempts for GetInfo, and the served state on disk for a start without Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aeenc.errors import DataLoss
from services.encoder.metrics import EncoderMetrics
from services.encoder.rollout.versions import LabelKey, Versions
from services.kit.logs import get
from services.store.files import atomic_write
from services.store.formats import NewerFormat, check_format, damage_is_data_loss
from services.store.registry_rows import LabelRow

log = get(__name__)

KEPT_SWAPS = 20
PREMISES = "(premises)"  # stands for a label: the premise encoder of a space
FORMAT_VERSION = 1
FILE = "labels.json"
_RUN = re.compile("run-[0-9a-f]{16}")  # the label of a run, of which there are ever more


@dataclass(frozen=True)
class Swap:
    """The outcome of one attempt to serve what a label's row names; `reason` says why it failed, empty: it did not."""

    row: LabelRow
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
        swap = Swap(row, reason, datetime.now(UTC), duration_s)
        self._swaps.appendleft(swap)
        name = "run" if _RUN.fullmatch(row.name) else row.name
        self._metrics.swaps.labels(row.space_id, name, "failed" if reason else "ok").inc()
        self.forget((row.space_id, row.name))
        if reason:
            self._failures[row.space_id, row.name] = swap
            log.error("label keeps its version", label=row.name, refused=row.version, reason=reason)
            return
        log.info(
            "label serves",
            label=row.name,
            version=row.version,
            precision=row.precision,
            revision=row.revision,
            seconds=round(duration_s, 3),
        )

    def failure(self, space_id: str, label: str, version: str = "") -> str:
        """Returns why the last attempt for a label, or for this version of it, failed; empty when it did not."""
        failed = self._failures.get((space_id, label))
        return failed.reason if failed and version in {"", failed.row.version} else ""

    def forget(self, key: LabelKey) -> None:
        """Forgets the failure of a label."""
        self._failures.pop(key, None)

    def forget_all_but(self, labels: Collection[LabelKey]) -> None:
        """Forgets the failures of all other labels; those of premise encoders stay."""
        self._failures = {key: swap for key, swap in self._failures.items() if key in labels or key[1] == PREMISES}


@dataclass(frozen=True)
class SavedState:
    """Everything needed to serve again without the registry.

    The premise encoder of each space, the default one first, the labels, and the digest that the manifest of each
    version must have.
    """

    spaces: dict[str, str]
    labels: list[LabelRow]
    manifests: dict[str, str]

    @classmethod
    def of(cls, versions: Versions) -> SavedState:
        """Describes what is served."""
        spaces = dict(sorted(versions.premise_versions.items(), key=lambda one: (one[0] != versions.space_id, one[0])))
        labels = [row for _, row in sorted(versions.labels.items())]
        models = sorted(versions.models.items())
        return cls(spaces, labels, {version: model.description.manifest_sha256 for version, model in models})

    def over(self, older: SavedState) -> SavedState:
        """Returns this state with the spaces and labels that only the older one has."""
        labels = {(row.space_id, row.name): row for row in (*older.labels, *self.labels)}
        spaces = {**self.spaces, **older.spaces, **self.spaces}
        return SavedState(spaces, list(labels.values()), {**older.manifests, **self.manifests})


class StateFile:
    """Keeps the served state in `labels.json`, off the event loop. A failure costs only a restart without Redis."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._saved: SavedState | None = None
        self._failing: int | None = None  # the system's number of what keeps it from being saved
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
                self._saved, self._failing = state, None
            except OSError as error:
                if error.errno != self._failing:  # else each round would say so
                    log.warning("the labels could not be saved; a restart will need Redis", reason=str(error))
                self._failing = error.errno

    async def load(self) -> SavedState | None:
        """Reads the saved state; None when there is none that can be used."""
        try:
            return await asyncio.to_thread(read_state, self._path)
        except (DataLoss, NewerFormat) as error:
            log.warning("the saved labels cannot be used", reason=error.message)
            return None


def _write(path: Path, state: SavedState) -> None:
    record = {"format_version": FORMAT_VERSION, **vars(state), "labels": [row.to_hash() for row in state.labels]}
    atomic_write(path, json.dumps(record, indent=1).encode())


def read_state(path: Path) -> SavedState | None:
    """Reads a saved state; None when there is none. Raises DataLoss for a damaged one, NewerFormat."""
    with damage_is_data_loss(path, "remove it and start with Redis up"), contextlib.suppress(FileNotFoundError):
        record = json.loads(path.read_bytes())
        check_format(record, FORMAT_VERSION, str(path))
        labels = [LabelRow.of_hash(row) for row in record["labels"]]
        return SavedState(dict(record["spaces"]), labels, dict(record["manifests"]))
    return None
