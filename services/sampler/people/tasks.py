"""A task with its leases, answers and decision. Values and JSON; `steps` has the rules.

Times are seconds of Redis's clock. A task is named after its query and candidates, so nodes of several trees that ask
the same question share it. A lease id is `<run>.<task>.<random>`, an answer id `<run>.<task>.<number>`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from aeenc import errors
from aeenc.oracle import Candidate, Task
from services.sampler.acs.algorithm import ADDED, AcceptedPremise, Intermediate, Statement
from services.store.formats import check_format, known_fields, unknown_fields

FORMAT_VERSION = 1

Policy = Literal["majority", "adjudicate"]
Ending = Literal["", "ANSWERED", "RELEASED", "EXPIRED", "MOOT"]
Remark = Literal["IRRELEVANT", "BAD_FACT"]
TaskState = Literal["WAITING", "DECIDED", "CONFLICT", "SETTLED", "WITHDRAWN"]
Withdrawn = Literal["", "ASKED", "DONE"]
EventName = Literal[
    "QUEUED",
    "LEASED",
    "ANSWERED",
    "EXPIRED",
    "CONFLICT",
    "ADJUDICATED",
    "RELEASED",
    "UNDONE",
    "AMENDED",
    "SETTLED",
    "LOWERED",
    "WITHDRAWN",
    "CLOSED",
    "HASTENED",
]


class VerdictKind(Enum):
    """One person's verdict on one candidate. LEAF explains, too, and needs no explanation itself."""

    EXPLAINS = "E"
    LEAF = "L"
    REFUSED = "R"
    ABSTAINED = "A"
    UNSEEN = "U"

    @property
    def accepts(self) -> bool:
        """Whether the candidate explains the query."""
        return self in {VerdictKind.EXPLAINS, VerdictKind.LEAF}

    @property
    def decides(self) -> bool:
        """Whether it is a yes or a no."""
        return self.accepts or self is VerdictKind.REFUSED


VerdictKinds = dict[str, VerdictKind]


@dataclass(frozen=True)
class Lease:
    """A task held by one person. `ended` stays empty while at most the clock has ended it; MOOT: others answered.

    `client_seq` numbers the answer under it, and `said` tells that from another one.
    """

    id: str
    annotator: str
    taken_at: float
    expires_at: float
    ended: Ending = ""
    answer_id: str = ""
    client_seq: int = 0
    said: str = ""

    def live(self, at: float) -> bool:
        """Whether it holds the task."""
        return not self.ended and at < self.expires_at


@dataclass(frozen=True, kw_only=True)
class TaskAnswer(Statement):
    """One person's verdicts on every candidate, and what else they say of the query.

    `by` names who amended it last, if anyone; `own` are its author's verdicts, once somebody else has amended it.
    `added` are premises that they found by a search, with verdicts like candidates. `remarks` are on candidates
    themselves.
    """

    id: str
    lease_id: str
    verdicts: VerdictKinds
    grades: dict[str, float]
    seen_upto: int
    elapsed_s: float
    late: bool
    at: float
    by: str = ""
    own: VerdictKinds = field(default_factory=dict)
    added: tuple[Candidate, ...] = ()
    remarks: dict[str, Remark] = field(default_factory=dict)

    @property
    def said(self) -> VerdictKinds:
        """The person's own verdicts, whoever has amended the answer. Agreement and control items use these."""
        return self.own or self.verdicts


@dataclass(frozen=True)
class TaskRecord:
    """A task with everything that has happened to it so far.

    `answers` are those that hold, `made` counts all that were ever given. `gold` (premise id to whether it explains)
    makes it a control item. `decided_at` is 0 while answers are missing or in conflict. `node_id` is the node that asks
    first, and `settled` the decision that the run went on with there; `corrected` are the candidates whose verdict or
    grade has changed since. The decision of a `final` task goes to the run at once. A closed one has no more answers;
    if one is taken back, it `reopens` for so many, and what was `disputed` is open, too. A `withdrawn` one is retrieved
    again: somebody has ASKED for it, or its worker knows (DONE). `further` is what a later minor release has added.
    """

    run_id: str
    task: Task
    overlap: int
    policy: Policy
    gold: dict[str, bool] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    answers: tuple[TaskAnswer, ...] = ()
    made: int = 0
    returned: int = 0
    undone: bool = False
    adjudicated: VerdictKinds = field(default_factory=dict)
    adjudicated_grades: dict[str, float] = field(default_factory=dict)
    adjudicator: str = ""
    decision: VerdictKinds = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    decided_at: float = 0.0
    settled: VerdictKinds = field(default_factory=dict)
    node_id: str = ""
    corrected: tuple[str, ...] = ()
    final: bool = False
    reopens: int = 0
    disputed: tuple[str, ...] = ()
    withdrawn: Withdrawn = ""
    place: int = 0
    revision: int = 0
    further: dict[str, Any] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Those of the task, then those that people have added."""
        added = (one for answer in self.answers for one in answer.added)
        return (*self.task.candidates, *{one.id: one for one in added}.values())

    @property
    def intermediates(self) -> tuple[Intermediate, ...]:
        """The conclusions that people wrote, each with its authors."""
        authors: dict[str, list[str]] = {}
        for answer in self.answers:
            for text in answer.intermediates:
                authors.setdefault(text, []).append(answer.annotator)
        return tuple(Intermediate(text, ", ".join(sorted(names))) for text, names in authors.items())

    @property
    def note(self) -> str:
        """The remarks of all who answered, with their names where there are several."""
        if len(self.answers) == 1:
            return self.answers[0].note
        return "; ".join(f"{answer.annotator}: {answer.note}" for answer in self.answers if answer.note)

    def grade(self, premise_id: str) -> float | None:
        """The adjudicator's grade of a candidate, else the mean of those given with the decided verdict; None: none."""
        if premise_id in self.adjudicated_grades:
            return self.adjudicated_grades[premise_id]
        if (decided := self.decision.get(premise_id)) is None:
            return None
        graded = [answer for answer in self.answers if premise_id in answer.grades]
        given = [one.grades[premise_id] for one in graded if one.verdicts[premise_id].accepts == decided.accepts]
        return math.fsum(given) / len(given) if given else None

    @property
    def control(self) -> bool:
        """Whether it measures annotators. A control item does not belong to a node of the run."""
        return bool(self.gold)

    @property
    def state(self) -> TaskState:
        """Its state, as TaskState in sampler.proto."""
        if self.conflicts:
            return "CONFLICT"
        if self.settled:
            return "SETTLED"
        if self.withdrawn:
            return "WITHDRAWN"
        return "DECIDED" if self.decided_at else "WAITING"

    def held(self, at: float) -> list[Lease]:
        """The leases that hold it, oldest first."""
        return [lease for lease in self.leases if lease.live(at)]

    def free(self, at: float) -> int:
        """The number of people who may still take it."""
        return self.overlap - len(self.answers) - len(self.held(at))

    def hidden_from(self, viewer: str) -> str:
        """The one person whose answer the viewer may see, which is the viewer; empty: they may see all.

        Those who may still judge the task see nobody's answer before they have given their own.
        """
        blind = viewer and self.state == "WAITING" and all(answer.annotator != viewer for answer in self.answers)
        return viewer if blind else ""

    def open_to(self, annotator: str, at: float) -> bool:
        """Whether this person may take it: there is room, and it is not theirs already."""
        mine = any(a.annotator == annotator for a in self.answers) or any(
            lease.annotator == annotator for lease in self.held(at)
        )
        return not mine and self.free(at) > 0 and self.state == "WAITING"

    def to_json(self) -> str:
        """The part that changes, as stored; `task_json` has the rest, which is stored once."""
        stored = asdict(replace(self, task=_NO_TASK))
        for fixed in ("run_id", "task", "place", "revision", "further"):
            stored.pop(fixed)
        for name in ("adjudicated", "decision", "settled"):
            stored[name] = codes(getattr(self, name))
        stored["answers"] = [answer_dict(answer) for answer in self.answers]
        return json.dumps({**self.further, "format_version": FORMAT_VERSION, **stored})


def from_json(task: Task, text: str, place: int, revision: int) -> TaskRecord:
    """Reads what `to_json` wrote here or in a later minor release. Raises NewerFormat."""
    record: dict[str, Any] = json.loads(text)
    check_format(record, FORMAT_VERSION, f"task {task.task_id} of run {task.run_id}")
    stored, further = known_fields(TaskRecord, record), unknown_fields(TaskRecord, record)
    for name in ("adjudicated", "decision", "settled"):
        stored[name] = kinds_of(stored[name])
    stored["leases"] = tuple(Lease(**known_fields(Lease, lease)) for lease in stored["leases"])
    stored["answers"] = tuple(answer_from(answer) for answer in stored["answers"])
    for name in ("conflicts", "corrected", "disputed"):
        stored[name] = tuple(stored[name])
    return TaskRecord(task.run_id, task, **stored, place=place, revision=revision, further=further)


def explaining(record: TaskRecord, before: Sequence[AcceptedPremise] = ()) -> tuple[AcceptedPremise, ...]:
    """What explains a task's query by the decision as it is now, after what explained it before."""
    holding = {premise.id or premise.text: premise for premise in before}
    for candidate in record.candidates:
        kind = record.decision.get(candidate.id)
        if kind is not None and kind.accepts:
            leaf = kind is VerdictKind.LEAF
            holding[candidate.id] = AcceptedPremise(candidate.id, candidate.text, candidate.rank, leaf)
        elif kind is not None:
            holding.pop(candidate.id, None)
    said = {premise.text for premise in holding.values()}
    new = [one for one in record.intermediates if one.text not in said]
    return (*holding.values(), *(AcceptedPremise("", one.text, ADDED, leaf=False, author=one.author) for one in new))


def task_name(query: str, candidates: Sequence[Candidate]) -> str:
    """The id of a task."""
    asked = json.dumps([query, [candidate.id for candidate in candidates]])
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def task_json(task: Task) -> str:
    """The part of a task that never changes, as stored."""
    return json.dumps({"format_version": FORMAT_VERSION, **asdict(task)})


def task_from_json(text: str) -> Task:
    """Reads what `task_json` wrote here or in a later minor release. Raises NewerFormat."""
    record: dict[str, Any] = json.loads(text)
    check_format(record, FORMAT_VERSION, f"task {record.get('task_id')} of run {record.get('run_id')}")
    stored = known_fields(Task, record)
    stored["path"] = tuple(stored["path"])
    for name in ("accepted", "candidates"):
        stored[name] = tuple(Candidate(**known_fields(Candidate, candidate)) for candidate in stored[name])
    return Task(**stored)


def answer_dict(answer: TaskAnswer) -> dict[str, Any]:
    """An answer as stored. Its verdicts are the field `choices` there."""
    stored = asdict(answer)
    del stored["verdicts"]
    return {**stored, "choices": codes(answer.verdicts), "own": codes(answer.own)}


def answer_from(stored: Mapping[str, Any]) -> TaskAnswer:
    """Reads what `answer_dict` made here or in a later minor release."""
    known = known_fields(TaskAnswer, stored)
    known["added"] = tuple(Candidate(**known_fields(Candidate, one)) for one in known["added"])
    known["alternatives"] = tuple(tuple(one) for one in known["alternatives"])
    for name in ("written", "intermediates"):
        known[name] = tuple(known[name])
    known["own"] = kinds_of(known["own"])
    return TaskAnswer(**known, verdicts=kinds_of(stored["choices"]))


def codes(verdicts: VerdictKinds) -> dict[str, str]:
    """Verdicts as stored."""
    return {premise_id: verdict.value for premise_id, verdict in verdicts.items()}


def kinds_of(stored: Mapping[str, str]) -> VerdictKinds:
    """Reads what `codes` made."""
    return {premise_id: VerdictKind(code) for premise_id, code in stored.items()}


def parts_of(made_id: str, what: str) -> tuple[str, str]:
    """Run and task of a lease or answer id. Raises NotFound if the id has another form."""
    parts = made_id.split(".")
    if len(parts) != 3 or not all(parts):
        raise errors.NotFound(f"no {what} {made_id!r}")
    return parts[0], parts[1]


def check_annotator(annotator: str, field: str = "annotator") -> None:
    """Refuses an empty name and one over 200 characters."""
    if not annotator.strip() or len(annotator) > 200:
        raise errors.InvalidArgument.field(field, "is empty or over 200 characters; say who judges")


_NO_TASK = Task("", "", "", (), (), ())
