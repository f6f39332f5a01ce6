"""The registry's rows as values, and how each is written in Redis. What may be done with them is the registry's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime

FORMAT_VERSION = 1


@dataclass(frozen=True)
class CheckpointRow:
    """What the registry knows of a checkpoint. `manifest_sha256` ties it to the files in the store."""

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

    def to_json(self) -> str:
        """The row as it is kept."""
        return json.dumps({**asdict(self), "created_at": self.created_at.isoformat(), "format_version": FORMAT_VERSION})

    @classmethod
    def of_json(cls, data: str) -> CheckpointRow:
        """Reads what `to_json` wrote."""
        record = json.loads(data)
        del record["format_version"]
        return cls(**{**record, "created_at": datetime.fromisoformat(record["created_at"])})


@dataclass(frozen=True)
class LabelRow:
    """A movable name for a checkpoint in one space. `share`: of the calls that name no model, 0 to 1, for `canary`."""

    space_id: str
    name: str
    version: str
    revision: int
    previous: str
    moved_at: datetime
    share: float = 0.0

    @classmethod
    def of_hash(cls, row: dict[str, str]) -> LabelRow:
        """Reads the hash that the registry's scripts write; one of an earlier release has no share."""
        return cls(
            space_id=row["space_id"],
            name=row["name"],
            version=row["version"],
            revision=int(row["revision"]),
            previous=row["previous"],
            moved_at=datetime.fromisoformat(row["moved_at"]),
            share=float(row.get("share", 0.0)),
        )


@dataclass(frozen=True)
class RolloutRow:
    """Where one encoder process stands with one label's revision."""

    instance: str
    revision: int
    ok: bool
    reason: str
    at: datetime

    def to_json(self) -> str:
        """The row as it is kept."""
        return json.dumps({**asdict(self), "at": self.at.isoformat(), "format_version": FORMAT_VERSION})

    @classmethod
    def of_json(cls, data: str) -> RolloutRow:
        """Reads what `to_json` wrote."""
        record = json.loads(data)
        del record["format_version"]
        return cls(**{**record, "at": datetime.fromisoformat(record["at"])})
