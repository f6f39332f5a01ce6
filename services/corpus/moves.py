"""The moves of a corpus: numbered records, each created once and never changed. The last one says what is active.

    read the last record ──► decide ──► create the next number ──► created: the move is made
             ▲                                  │
             └─────────── taken: somebody was faster

Creating a number that nobody has is the whole compare-and-set: a disk has it (`link`), an object store too
(`If-None-Match: *`). No clock is read. The core is pure; `active.py` keeps the records in files.

Earlier releases know one pointer file and nothing else. Every move is copied there, and a pointer that an earlier
release has moved since the last record counts as the latest move.
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

    `kind` and `what` say what has changed. `token` names whoever made the record, `pointer` the state of the pointer
    file that they had seen. Number 0 is a corpus without a record.
    """

    number: int = 0
    generation: str = ""
    kind: Kind = "activate"
    what: str = ""
    token: str = ""
    pointer: str = ""

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


@dataclass(frozen=True)
class Pointer:
    """The pointer file as it was read: `state` changes whenever somebody writes it.

    `recorded` is the generation of the move that this release has copied there; "" in the file of an earlier one.
    """

    state: str
    generation: str
    recorded: str = ""


class Records(Protocol):
    """Where the records and the pointer of one corpus are kept."""

    def numbers(self) -> Collection[int]:
        """The numbers that there are."""

    def read(self, number: int) -> bytes | None:
        """The record of a number; None when there is none."""

    def create(self, number: int, data: bytes) -> bool:
        """Creates a record durably and as a whole. Returns False, and changes nothing, where one stands."""

    def remove(self, number: int) -> None:
        """Removes a record that may be gone already."""

    def pointer(self) -> Pointer | None:
        """Reads the pointer file. Raises DataLoss for a damaged one, NewerFormat for one of a newer release."""

    def point(self, move: Move) -> None:
        """Copies a move to the pointer file."""


def read_move(records: Records) -> Move:
    """Returns the latest move; number 0 when there is none.

    Raises DataLoss when its record is damaged, NewerFormat when a newer release has written it.
    """
    last = _last(records)
    try:
        pointer = records.pointer()
    except errors.DataLoss:
        if last.number:  # the records decide; the next move writes the pointer again
            return last
        raise
    return _latest(last, pointer)


def make_move(
    records: Records, decide: Callable[[str], str], kind: Kind = "activate", what: str = ""
) -> tuple[str, Move]:
    """Makes the next move: of all who decide upon the same state exactly one makes it, the others decide again.

    `decide` takes the id of the active generation ("": none) and returns the one to be active. What it raises ends the
    call, and nothing has changed. Returns what was active before, and the move. A damaged last record or pointer counts
    as nothing active. Raises NewerFormat for those of a newer release.
    """
    while True:
        last, pointer = _seen(records)
        before = _latest(last, pointer).generation
        move = Move(last.number + 1, decide(before), kind, what, uuid.uuid4().hex, pointer.state if pointer else "")
        if _create(records, move):
            _point(records, move)
            return before, move


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


def _point(records: Records, move: Move) -> None:
    """Copies the move to the pointer, and those that others make meanwhile: the pointer never stays behind."""
    while True:
        records.point(move)
        last = _last(records)
        if last.number <= move.number:
            return
        move = last


def _latest(last: Move, pointer: Pointer | None) -> Move:
    """The last record, or the move of an earlier release after it."""
    if pointer is None or pointer.state == last.pointer:
        return last
    is_a_copy = pointer.generation == pointer.recorded
    if is_a_copy and last.number:
        return last
    return replace(last, generation=pointer.generation, kind="activate", what="")


def _seen(records: Records) -> tuple[Move, Pointer | None]:
    """The last record and the pointer, for whoever replaces them: damaged ones name no generation."""
    last, pointer = _last(records, is_read=False), None
    with suppress(errors.DataLoss):
        last = _last(records)
    with suppress(errors.DataLoss):
        pointer = records.pointer()
    return last, pointer


def _last(records: Records, *, is_read: bool = True) -> Move:
    while number := max(records.numbers(), default=0):
        if not is_read:
            return Move(number)
        if (data := records.read(number)) is not None:  # otherwise removed meanwhile: there are later ones
            return replace(Move.of(data, f"record {number} of the corpus's moves"), number=number)
    return Move()
