"""The moves of a corpus: numbered records, each created once and never changed. The last one says what is active.

    read the last record ──► decide ──► create the next number ──► created: the move is made
             ▲                                  │
             └─────────── taken: somebody was faster

Creating a number that nobody has is the whole compare-and-set: a disk has it (`link`), an object store too
(`If-None-Match: *`). No clock is read. The core is pure; `active.py` keeps the records in files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from aeenc import errors
from services.store.formats import check_format, known_fields

FORMAT_VERSION = 1
KEPT = 256  # records; older ones are removed
Kind = Literal["activate", "delete", "explain"]


@dataclass(frozen=True)
class Move:
    """A change of a corpus. From it on, `generation` is active ("": none).

    `kind` and `what` say what has changed. `token` names whoever made the record. Number 0 is a corpus
    without a record.
    """

    number: int = 0
    generation: str = ""
    kind: Kind = "activate"
    what: str = ""
    token: str = ""

    @classmethod
    def of(cls, data: bytes, name: str) -> Move:
        """Reads a record. Raises DataLoss for a damaged one, NewerFormat for one of a newer release."""
        try:
            record: Mapping[str, Any] = json.loads(data)
            check_format(record, FORMAT_VERSION, name)
            return cls(**{"generation": record["generation"], **known_fields(cls, record)})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise errors.DataLoss(f"{name} cannot be read ({error}); activate a generation again") from error

    def to_bytes(self) -> bytes:
        """Turns the move into a record."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}).encode()


class Records(Protocol):
    """Where the records of one corpus are kept."""

    def numbers(self) -> Collection[int]:
        """The numbers that there are."""

    def read(self, number: int) -> bytes | None:
        """The record of a number; None when there is none."""

    def create(self, number: int, data: bytes) -> bool:
        """Creates a record durably and as a whole. Returns False, and changes nothing, where one stands."""

    def remove(self, number: int) -> None:
        """Removes a record that may be gone already."""


def read_move(records: Records) -> Move:
    """Returns the latest move; number 0 when there is none.

    Raises DataLoss when its record is damaged, NewerFormat when a newer release has written it.
    """
    while number := max(records.numbers(), default=0):
        if (data := records.read(number)) is not None:  # otherwise removed meanwhile: there are later ones
            return replace(Move.of(data, f"record {number} of the corpus's moves"), number=number)
    return Move()


def make_move(
    records: Records, decide: Callable[[str], str], kind: Kind = "activate", what: str = ""
) -> tuple[str, Move]:
    """Makes the next move: of all who decide upon the same state exactly one makes it, the others decide again.

    `decide` takes the id of the active generation ("": none) and returns the one to be active. What it raises ends the
    call, and nothing has changed. Returns what was active before, and the move. A damaged last record counts as
    nothing active. Raises NewerFormat for one of a newer release.
    """
    while True:
        last = Move(max(records.numbers(), default=0))
        with suppress(errors.DataLoss):
            last = read_move(records)
        move = Move(last.number + 1, decide(last.generation), kind, what, uuid.uuid4().hex)
        if _create(records, move):
            return last.generation, move


def _create(records: Records, move: Move) -> bool:
    """Creates the record of a move; tells whether it is ours and counts. Removes records that are old."""
    if not records.create(move.number, move.to_bytes()) and records.read(move.number) != move.to_bytes():
        return False  # otherwise the record is ours: only the answer was lost
    newest = max(records.numbers(), default=0)
    if newest - move.number >= KEPT:
        return False  # the record of this number was removed before we created ours
    for old in records.numbers():
        if old <= newest - KEPT:
            records.remove(old)
    return True
