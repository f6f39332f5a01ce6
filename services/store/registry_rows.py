"""The registry's rows as Redis keeps them: what is read, kept, and refused (`formats.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

from aeenc import errors
from services.kit.logs import get
from services.store.formats import UNREADABLE, check_format, damage_is_data_loss, made_of, unknown_fields

log = get(__name__)
T = TypeVar("T")

FORMAT_VERSION = 1
REMEDY = "restore Redis or write it again"
TOGETHER = "+"  # between the versions of an ensemble
CROSS_ENCODERS = "cross-encoder"  # stands for a space in labels; cross-encoders have none


def versions_of(named: str) -> list[str]:
    """Returns the version that a row names, or those of its ensemble; none of an empty text."""
    return named.split(TOGETHER) if named else []


@dataclass(frozen=True)
class Row:
    """A row that Redis keeps as JSON. Errors call it `what`."""

    what: ClassVar[str]

    def to_json(self, last: str | None = None) -> str:
        """Writes the row as Redis keeps it, with what a later minor release has added to the `last` one.

        Raises NewerFormat when that is not to be replaced. Of a damaged one nothing is kept.
        """
        further = {}
        with suppress(errors.DataLoss):
            if last is not None:
                self.of_json(last)
                further = unknown_fields(type(self), json.loads(last))
        return json.dumps({**further, **asdict(self), "format_version": FORMAT_VERSION}, default=datetime.isoformat)

    @classmethod
    def of_json(cls, data: str) -> Self:
        """Reads what `to_json` wrote here or in a later minor release. Raises NewerFormat or DataLoss."""
        with damage_is_data_loss(f"{cls.what} in Redis", REMEDY):
            record = json.loads(data)
            check_format(record, FORMAT_VERSION, f"{cls.what} ({record.get('version') or record.get('instance')})")
            return made_of(cls, record)


@dataclass(frozen=True)
class CheckpointRow(Row):
    """A registered checkpoint. `manifest_sha256` ties it to the files in the store."""

    what: ClassVar[str] = "a checkpoint's row"
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
            return made_of(cls, row)

    def to_hash(self) -> dict[str, str]:
        """Writes what `of_hash` reads."""
        row = {"format_version": FORMAT_VERSION, **asdict(self), "moved_at": self.moved_at.isoformat()}
        return {name: str(value) for name, value in row.items()}


@dataclass(frozen=True)
class RolloutRow(Row):
    """Where one encoder process stands with one label's revision."""

    what: ClassVar[str] = "an encoder's answer"
    instance: str
    revision: int
    ok: bool
    reason: str
    at: datetime


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
