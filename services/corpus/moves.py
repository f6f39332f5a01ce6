"""The moves of a corpus: numbered records, each created once and never changed. The last one says what is active.

    read the last record ──► decide ──► create the next number ──► created: the move is made, its request answered
             ▲                                  │
             └─────────── taken: somebody was faster

Creating a number that nobody has is the whole compare-and-set: a disk has it (`link`), an object store too
(`If-None-Match: *`). No clock is read. `active.py` says which records are a corpus's.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from aeenc import errors
from services.store.files import Documents
from services.store.formats import check_format, check_same, damage_is_data_loss, made_of

FORMAT_VERSION = 1
KEPT = 256  # records; older ones are removed
READERS = 16  # of the records in a bucket, each of which takes a while
Kind = Literal["activate", "deleting", "delete", "explain"]


@dataclass(frozen=True)
class MoveRequest:
    """What makes a move: the kind, and where the call has a request id (else ""), that and what it asks for.

    Its move is not among those up to number `after`: they were looked through before.
    """

    kind: Kind = "activate"
    id: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    after: int = 0


ACTIVATION = MoveRequest()


@dataclass(frozen=True)
class Move:
    """A change of a corpus. From it on, `generation` is active ("": none; before it `previous`).

    `explanations` names the file of those for the prior. `request_id` and `asked` are those of the request that made
    the move. `token` names whoever made the record. Number 0 is a corpus without a record.
    """

    number: int = 0
    generation: str = ""
    kind: Kind = "activate"
    token: str = ""
    explanations: str = ""
    previous: str = ""
    request_id: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: bytes, name: str) -> Move:
        """Reads a record. Raises DataLoss for a damaged one, NewerFormat for one of a newer release."""
        with damage_is_data_loss(name, "activate a generation again"):
            record: Mapping[str, Any] = json.loads(data)
            check_format(record, FORMAT_VERSION, name)
            return made_of(cls, {"generation": record["generation"], **record})

    def to_bytes(self) -> bytes:
        """Turns the move into a record."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}).encode()


class Records:
    """The records of one corpus below a prefix: files in its folder, or objects of a bucket."""

    def __init__(self, documents: Documents, prefix: str) -> None:
        self._documents, self.prefix = documents, prefix

    def numbers(self) -> list[int]:
        """The numbers that there are."""
        names = (name.removesuffix(".json") for name in self._documents.names(self.prefix))
        return [int(name) for name in names if name.isdigit()]

    def read(self, number: int) -> bytes | None:
        """The record of a number; None when there is none."""
        return self._documents.read(self._key(number))

    def create(self, number: int, data: bytes) -> bool:
        """Creates a record durably and as a whole. Returns False, and changes nothing, where one stands."""
        return self._documents.create(self._key(number), data)

    def remove(self, number: int) -> None:
        """Removes a record that may be gone already."""
        self._documents.remove(self._key(number))

    def _key(self, number: int) -> str:
        return f"{self.prefix}/{number:012}.json"


def read_move(records: Records) -> Move:
    """Returns the latest move; number 0 when there is none.

    Raises DataLoss when its record is damaged, NewerFormat when a newer release has written it.
    """
    while number := max(records.numbers(), default=0):
        if (data := records.read(number)) is not None:  # otherwise removed meanwhile: there are later ones
            return replace(Move.of(data, f"record {number} of the corpus's moves"), number=number)
    return Move()


def make_move(records: Records, decide: Callable[[Move], Move], request: MoveRequest = ACTIVATION) -> Move:
    """Makes the next move: of all who decide upon the same state exactly one makes it, the others decide again.

    `decide` takes the last move and returns it with another generation or other explanations. What it raises ends the
    call, and nothing has changed. A request that has made its move gets that one again. After a damaged last record
    nothing is active. Raises NewerFormat for one of a newer release.
    """
    while True:
        last = _last(records)
        if before := made_before(records, request):  # looked up behind the last one: a later one takes our number
            return before
        move = replace(
            decide(last),
            number=last.number + 1,
            kind=request.kind,
            token=uuid.uuid4().hex,
            previous=last.generation,
            request_id=request.id,
            asked=request.asked,
        )
        if _create(records, move):
            return move


def made_before(records: Records, request: MoveRequest) -> Move | None:
    """Returns the move that a request has made, if it is among those kept. What is damaged counts as none.

    Raises AlreadyExists when the request asked for something else.
    """
    if not request.id:
        return None
    numbers = sorted((number for number in records.numbers() if number > request.after), reverse=True)
    with ThreadPoolExecutor(READERS) as threads:
        for number, data in zip(numbers, threads.map(records.read, numbers), strict=True):
            with suppress(errors.DataLoss):
                move = Move.of(data or b"", f"record {number} of the corpus's moves")
                if (move.kind, move.request_id) == (request.kind, request.id):
                    check_same(request.id, move.asked, request.asked)
                    return replace(move, number=number)
    return None


def _last(records: Records) -> Move:
    """The last move. Of a damaged one only the number counts, and the explanations are those before it."""
    with suppress(errors.DataLoss):
        return read_move(records)
    damaged, *before = sorted(records.numbers(), reverse=True)
    for number in before:
        with suppress(errors.DataLoss):
            return Move(damaged, explanations=Move.of(records.read(number) or b"", f"record {number}").explanations)
    return Move(damaged)


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
