"""A task and all that holds of it: its leases, its answers, its decision. Values and JSON, no rules (see `steps`).

Times are seconds of Redis's clock. A task is named after its query and candidates, so that nodes of several trees that
ask the same share it. A lease is `<run>.<task>.<random>`, an answer `<run>.<task>.<number>`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from aeenc.oracle import Candidate, Task

FORMAT_VERSION = 1

Policy = Literal["majority", "adjudicate"]
Ending = Literal["", "ANSWERED", "RELEASED", "EXPIRED", "MOOT"]
State = Literal["WAITING", "DECIDED", "CONFLICT", "SETTLED"]
Event = Literal[
    "QUEUED", "LEASED", "ANSWERED", "EXPIRED", "CONFLICT", "ADJUDICATED", "RELEASED", "UNDONE", "AMENDED", "SETTLED"
]


class Choice(Enum):
    """What one person says of one candidate. LEAF explains, too, and needs no explanation itself."""

    EXPLAINS = "E"
    LEAF = "L"
    REFUSED = "R"
    ABSTAINED = "A"
    UNSEEN = "U"

    @property
    def accepts(self) -> bool:
        """Whether the candidate explains the query."""
        return self in {Choice.EXPLAINS, Choice.LEAF}

    @property
    def decides(self) -> bool:
        """Whether it is a yes or a no."""
        return self.accepts or self is Choice.REFUSED


Choices = dict[str, Choice]


@dataclass(frozen=True)
class Lease:
    """A task held by one person. `ended` is empty while nothing but the clock has ended it; MOOT: others answered."""

    id: str
    annotator: str
    taken_at: float
    expires_at: float
    ended: Ending = ""
    answer_id: str = ""
    client_seq: int = 0

    def live(self, at: float) -> bool:
        """Whether it holds the task."""
        return not self.ended and at < self.expires_at


@dataclass(frozen=True)
class Answer:
    """What one person has said of every candidate. `by` names who amended it, empty for the person.

    `note` is their remark on the task.
    """

    id: str
    annotator: str
    lease_id: str
    choices: Choices
    grades: dict[str, float]
    seen_upto: int
    elapsed_s: float
    late: bool
    at: float
    by: str = ""
    note: str = ""


@dataclass(frozen=True)
class TaskRecord:
    """A task with what has happened to it so far.

    `answers` are those that hold, `made` counts all there ever were. `gold` (premise id to whether it explains) makes
    it a control item. `decided_at` is 0 while answers are missing or in conflict; `settled` is what node
    `node_id` of the run has gone on with, `corrected` the candidates of which it was told otherwise since.
    """

    run_id: str
    task: Task
    overlap: int
    policy: Policy
    gold: dict[str, bool] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    answers: tuple[Answer, ...] = ()
    made: int = 0
    returned: int = 0
    undone: bool = False
    adjudicated: Choices = field(default_factory=dict)
    adjudicator: str = ""
    decision: Choices = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    decided_at: float = 0.0
    settled: Choices = field(default_factory=dict)
    node_id: str = ""
    corrected: tuple[str, ...] = ()
    place: int = 0
    revision: int = 0

    @property
    def control(self) -> bool:
        """Whether it is there to measure annotators; it is no node of the run."""
        return bool(self.gold)

    @property
    def state(self) -> State:
        """Where it stands."""
        if self.conflicts:
            return "CONFLICT"
        if self.settled:
            return "SETTLED"
        return "DECIDED" if self.decided_at else "WAITING"

    def held(self, at: float) -> list[Lease]:
        """The leases that hold it, oldest first."""
        return [lease for lease in self.leases if lease.live(at)]

    def free(self, at: float) -> int:
        """How many more people may take it."""
        return self.overlap - len(self.answers) - len(self.held(at))

    def open_to(self, annotator: str, at: float) -> bool:
        """Whether this person may take it: there is room, and it is not theirs already."""
        mine = any(a.annotator == annotator for a in self.answers) or any(
            lease.annotator == annotator for lease in self.held(at)
        )
        return not mine and self.free(at) > 0 and self.state == "WAITING"

    def to_json(self) -> str:
        """What changes of it, as stored; the task itself is stored once (`task_json`)."""
        stored = asdict(replace(self, task=_NO_TASK))
        for fixed in ("run_id", "task", "place", "revision"):
            stored.pop(fixed)
        for name in ("adjudicated", "decision", "settled"):
            stored[name] = codes(getattr(self, name))
        for answer, written in zip(self.answers, stored["answers"], strict=True):
            written["choices"] = codes(answer.choices)
        return json.dumps({"format_version": FORMAT_VERSION, **stored})


def from_json(task: Task, text: str, place: int, revision: int) -> TaskRecord:
    """Reads what `to_json` wrote."""
    stored: dict[str, Any] = json.loads(text)
    stored.pop("format_version")
    for name in ("adjudicated", "decision", "settled"):
        stored[name] = _choices(stored[name])
    stored["leases"] = tuple(Lease(**lease) for lease in stored["leases"])
    stored["answers"] = tuple(Answer(**{**a, "choices": _choices(a["choices"])}) for a in stored["answers"])
    for name in ("conflicts", "corrected"):
        stored[name] = tuple(stored[name])
    return TaskRecord(task.run_id, task, **stored, place=place, revision=revision)


def task_name(query: str, candidates: Sequence[Candidate]) -> str:
    """The id of a task."""
    asked = json.dumps([query, [candidate.id for candidate in candidates]])
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def task_json(task: Task) -> str:
    """The part of a task that never changes, as stored."""
    return json.dumps({"format_version": FORMAT_VERSION, **asdict(task)})


def task_from_json(text: str) -> Task:
    """Reads what `task_json` wrote."""
    stored: dict[str, Any] = json.loads(text)
    stored.pop("format_version")
    stored["path"] = tuple(stored["path"])
    for name in ("accepted", "candidates"):
        stored[name] = tuple(Candidate(**candidate) for candidate in stored[name])
    return Task(**stored)


def answer_dict(answer: Answer) -> dict[str, Any]:
    """An answer as it stands in the verdict log."""
    return {**asdict(answer), "choices": codes(answer.choices)}


def codes(choices: Choices) -> dict[str, str]:
    """Choices as they are stored."""
    return {premise_id: choice.value for premise_id, choice in choices.items()}


def _choices(stored: dict[str, str]) -> Choices:
    return {premise_id: Choice(code) for premise_id, code in stored.items()}


_NO_TASK = Task("", "", "", (), (), ())
