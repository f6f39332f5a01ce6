"""What an iterative loop is to do, and its journal: what it has done so far, in a JSON file."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aeenc import errors

FORMAT_VERSION = 1
STABLE = "stable"

Gold = tuple[str, Sequence[str]]


@dataclass(frozen=True)
class LoopPlan:
    """What a loop does. `run` and `job` are further fields of RunConfig and JobConfig.

    Each round learns from the pairs of all rounds so far. With `restart` it starts from the pre-trained encoder, else
    from the round before. It ends early after `patience` rounds in a row that do not lift the strict MAP on
    `validation` (0: never); the label then names the best version.
    """

    corpus: str
    hypotheses: Sequence[tuple[str, str]] = field(repr=False)
    validation: Sequence[Gold] = field(repr=False)
    oracle: str = "gold"
    rounds: int = 4
    restart: bool = True
    patience: int = 1
    label: str = STABLE
    run: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """A hash over everything but when the loop ends, `rounds` and `patience`, which one that goes on may change."""
        values = {**vars(self), "rounds": 0, "patience": 0, "run": dict(self.run), "job": dict(self.job)}
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class Round:
    """What one round has done so far; empty: not yet. Round 0 is the encoder that the loop began with.

    `report` is of what was trained. `published`: the label has named it; that of a last round without a gain is not.
    """

    number: int
    run: str = ""
    positives: int = 0
    negatives: int = 0
    job: str = ""
    version: str = ""
    validation_map: float = 0.0
    published: bool = False
    report: dict[str, Any] = field(default_factory=dict)


class Journal:
    """What a loop has done, in a file that is replaced as a whole after every step."""

    def __init__(self, path: Path, identity: str, fingerprint: str, rounds: list[Round], ended: str = "") -> None:
        self.path, self.identity, self.fingerprint = path, identity, fingerprint
        self.rounds, self.ended = rounds, ended

    @classmethod
    def open(cls, path: Path, plan: LoopPlan) -> Journal:
        """The journal of a plan, begun if there is none. Raises AlreadyExists for another plan's."""
        if not path.exists():
            journal = cls(path, uuid.uuid4().hex[:12], plan.fingerprint(), [])
            journal.save()
            return journal
        try:
            record = json.loads(path.read_bytes())
            found = cls(path, record["id"], record["plan"], [Round(**one) for one in record["rounds"]], record["ended"])
            version = record["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise errors.InvalidArgument(f"{path} is no journal of a loop ({error}); name another file") from None
        if version != FORMAT_VERSION or found.fingerprint != plan.fingerprint():
            raise errors.AlreadyExists(
                f"{path} is the journal of a loop with other settings or data; name another file, or remove it"
            )
        return found

    def save(self) -> None:
        """Writes the journal; on disk when it returns."""
        record = {
            "format_version": FORMAT_VERSION,
            "id": self.identity,
            "plan": self.fingerprint,
            "ended": self.ended,
            "rounds": [vars(one) for one in self.rounds],
        }
        folder = self.path.parent
        unknown = [folder, *(one.parent for one in (folder, *folder.parents) if not one.exists())]
        folder.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        for one in unknown:  # a journal whose name is lost would begin run and job a second time
            _sync(one)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
