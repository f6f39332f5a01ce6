"""The registry's rows as Redis keeps them: what is read, kept, and refused (`formats.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

from aeenc import errors
from services.kit.logs import get
from services.store.formats import UNREADABLE, check_format, damage_is_data_loss, known_fields, unknown_fields

log = get(__name__)
T = TypeVar("T")
R = TypeVar("R", "CheckpointRow", "RolloutRow")

FORMAT_VERSION = 1
REMEDY = "restore Redis or write it again"
TOGETHER = "+"  # between the versions of an ensemble
CROSS_ENCODERS = "cross-encoder"  # stands for a space in labels; cross-encoders have none


def versions_of(named: str) -> list[str]:
    """Returns the version that a row names, or those of its ensemble; none of an empty text."""
    return named.split(TOGETHER) if named else []


@dataclass(frozen=True)
class CheckpointRow:
    """A registered checkpoint. `manifest_sha256` ties it to the files in the store."""

    version: str
    space_id: str
    pretrained: bool
    base_version: str
    job_id: str
    validation_map: float
    manifest_sha256: str
    created_at: datetime
    size_bytes: int
    dim: int
    traceparent: str = ""  # of the job that made it

    def to_json(self, last: str | None = None) -> str:
        """Writes the row as Redis keeps it, with what a later minor release has added to the `last` one.

        Raises NewerFormat when that is not to be replaced.
        """
        return _to_json(self, _further_fields(last))

    @classmethod
    def of_json(cls, data: str) -> CheckpointRow:
        """Reads what `to_json` wrote here or in a later minor release. Raises NewerFormat or DataLoss."""
        return _of_json(cls, data, "created_at", "a checkpoint's row")


@dataclass(frozen=True)
class LabelRow:
    """A movable name for a checkpoint in one space, or for an ensemble of cross-encoders: versions joined by +.

    `share`, 0 to 1: of the calls that name no model, for `canary`; 0 for a cross-encoder, as all pairs of a ranking
    must go to one. `precision`: what queries, or pairs, are computed in.
    """

    space_id: str
    name: str
    version: str
    revision: int
    previous: str
    moved_at: datetime
    share: float = 0.0
    traceparent: str = ""  # of the call that moved it
    precision: str = "float32"

    @property
    def versions(self) -> list[str]:
        """The version, or those of the ensemble."""
        return versions_of(self.version)

    @classmethod
    def of_hash(cls, row: dict[str, str]) -> LabelRow:
        """Reads the hash that the registry's scripts write. Raises NewerFormat or DataLoss."""
        what = f"label {row.get('name', '')!r} of space {row.get('space_id', '')}"
        with damage_is_data_loss(f"{what} in Redis", REMEDY):
            check_format(row, FORMAT_VERSION, what)
            moved_at = datetime.fromisoformat(row["moved_at"])
            numbers = {"revision": int(row["revision"]), "share": float(row["share"]), "moved_at": moved_at}
            return cls(**{**known_fields(cls, row), **numbers})

    def to_hash(self) -> dict[str, str]:
        """Writes what `of_hash` reads."""
        row = {"format_version": FORMAT_VERSION, **asdict(self), "moved_at": self.moved_at.isoformat()}
        return {name: str(value) for name, value in row.items()}


@dataclass(frozen=True)
class RolloutRow:
    """Where one encoder process stands with one label's revision."""

    instance: str
    revision: int
    ok: bool
    reason: str
    at: datetime

    def to_json(self) -> str:
        """Writes the row as Redis keeps it."""
        return _to_json(self, {})

    @classmethod
    def of_json(cls, data: str) -> RolloutRow:
        """Reads what `to_json` wrote here or in a later minor release. Raises NewerFormat or DataLoss."""
        return _of_json(cls, data, "at", "an encoder's answer")


def read_all(read: Callable[[Any], T], rows: Iterable[Any], *, readable: bool) -> list[T]:
    """Reads the rows that there are; `readable`: without those that cannot be read, which the log names."""
    found = []
    for row in filter(None, rows):
        try:
            found.append(read(row))
        except UNREADABLE as error:
            if not readable:
                raise
            log.warning("left out of a list", reason=error.message)
    return found


def rollout_of(now: datetime, instance: str, data: str) -> RolloutRow:
    """Reads an encoder's answer. One that cannot be read is none, and says why."""
    reason = "has not answered yet"
    if data:
        try:
            return RolloutRow.of_json(data)
        except UNREADABLE as error:
            reason = error.message
    return RolloutRow(instance, 0, ok=False, reason=reason, at=now)


def _to_json(row: CheckpointRow | RolloutRow, further: Mapping[str, Any]) -> str:
    record = {**further, **asdict(row), "format_version": FORMAT_VERSION}
    return json.dumps(record, default=datetime.isoformat)


def _of_json(cls: type[R], data: str, time_field: str, what: str) -> R:
    with damage_is_data_loss(f"{what} in Redis", REMEDY):
        record = json.loads(data)
        named = f"{what} ({record.get('version') or record.get('instance')})"
        check_format(record, FORMAT_VERSION, named)
        return cls(**{**known_fields(cls, record), time_field: datetime.fromisoformat(record[time_field])})


def _further_fields(data: str | None) -> dict[str, Any]:
    """Returns what a stored checkpoint's row has beside the known fields; nothing for one that cannot be read."""
    if data is None:
        return {}
    try:
        CheckpointRow.of_json(data)
    except errors.DataLoss:
        return {}
    return unknown_fields(CheckpointRow, json.loads(data))
