"""A task with its leases, answers and decision: values, their JSON, and what answers decide. `steps` has the rules.

Only seen-and-refused is a refusal: a candidate up to `seen_upto` that was left unticked. Everything beyond is unseen.
Among several people an abstention decides only where nobody says yes or no; the run then records it as skipped.

Times are seconds of Redis's clock. A task is named after its query and candidates, so nodes of several trees that ask
the same question share it. A lease id is `<run>.<task>.<random>`, an answer id `<run>.<task>.<number>`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter

from aeenc import errors
from aeenc.oracle import Candidate, Task
from aeenc.values import Answer, Judgement, Remark, TaskEvent, TaskState, Verdict
from services.sampler.acs.algorithm import ADDED, JUDGEMENTS, AcceptedPremise, accepted, explains
from services.sampler.oracles.answers import UNSEEN
from services.store.formats import RESTORE, check_format, damage_is_data_loss, made_of, unknown_fields
from services.store.life_cycles import digest

FORMAT_VERSION = 1
CANDIDATE_BYTES = 128  # of one in a lease, beside its id and its text

TASKS_READ = 8  # at once by who reads all of a run or a tree: one may fill an answer
Verdicts = dict[str, Verdict]


def by_premise(verdicts: Iterable[Verdict]) -> Verdicts:
    """Verdicts by the premise (id) that they are on."""
    return {verdict.premise_id: verdict for verdict in verdicts}


def addition(verdict: Verdict) -> Candidate:
    """The premise that somebody has added with a verdict."""
    return Candidate(verdict.premise_id, verdict.text, ADDED, 0.0)


@dataclass(frozen=True)
class SentAnswer:
    """What a person sends for a task: the answer, the lowest rank they looked at, and how long they took, if said."""

    answer: Answer = field(default_factory=Answer)
    seen_upto: int = 0
    elapsed_s: float | None = None

    @property
    def said(self) -> str:
        """Tells two calls under one request id or number apart. A retry may have taken another time."""
        verdicts = tuple(replace(verdict, in_sight_ms=0) for verdict in self.answer.verdicts)
        return f"verdicts {digest(repr((replace(self.answer, annotator='', verdicts=verdicts), self.seen_upto)))[:12]}"


@dataclass(frozen=True)
class Lease:
    """A task held by one person. `ended` stays empty while at most the clock has ended it; MOOT: others answered.

    `client_seq` numbers the answer under it, and `said` tells that from another one.
    """

    id: str
    annotator: str
    taken_at: float
    expires_at: float
    ended: Literal["", "ANSWERED", "RELEASED", "EXPIRED", "MOOT"] = ""
    answer_id: str = ""
    client_seq: int = 0
    said: str = ""

    def live(self, at: float) -> bool:
        """Whether it holds the task."""
        return not self.ended and at < self.expires_at


@dataclass(frozen=True)
class TaskAnswer:
    """One person's answer, with a verdict on every candidate; additions have their premise's text.

    `by` names who amended it last, if anyone; `own` are its author's verdicts, once somebody else has amended it.
    Agreement and control items use these.
    """

    answer: Answer
    elapsed_s: float
    by: str = ""
    own: tuple[Verdict, ...] = ()

    @property
    def annotator(self) -> str:
        """Its author."""
        return self.answer.annotator

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts that count, on candidates and additions."""
        return by_premise((*self.answer.verdicts, *self.answer.additions))

    @property
    def own_verdicts(self) -> Verdicts:
        """Those of its author, whoever has amended it."""
        return by_premise(self.own) or self.verdicts


@dataclass(frozen=True)
class TaskRecord:
    """A task with everything that has happened to it so far.

    `answers` are those that hold, `made` counts all that were ever given. `gold` (premise id to whether it explains)
    makes it a control item. `decided_at` is 0 while answers are missing or in conflict. `node_id` is the node that asks
    first, and `settled` the decision that the run went on with there; `corrected` are the candidates whose verdict has
    changed since. The decision of a `final` task goes to the run at once. A closed one has no more answers; if one is
    taken back, it `reopens` for so many, and what was `disputed` is open, too. A `withdrawn` one is not before people:
    its node is retrieved again. `further` is what a later minor release has added.
    """

    run_id: str
    task: Task
    overlap: int
    policy: Literal["majority", "adjudicate"]
    gold: dict[str, bool] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    answers: tuple[TaskAnswer, ...] = ()
    made: int = 0
    returned: int = 0
    undone: bool = False
    adjudicated: Verdicts = field(default_factory=dict)
    adjudicator: str = ""
    decision: Verdicts = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    decided_at: float = 0.0
    settled: Verdicts = field(default_factory=dict)
    node_id: str = ""
    corrected: tuple[str, ...] = ()
    final: bool = False
    reopens: int = 0
    disputed: tuple[str, ...] = ()
    withdrawn: bool = False
    place: int = 0
    revision: int = 0
    further: dict[str, Any] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Those of the task, then those that people have added."""
        added = by_premise(verdict for one in self.answers for verdict in one.answer.additions)
        return (*self.task.candidates, *map(addition, added.values()))

    @property
    def intermediates(self) -> tuple[AcceptedPremise, ...]:
        """The conclusions that people wrote, each with its authors."""
        authors: dict[str, list[str]] = {}
        for one in self.answers:
            for text in one.answer.intermediates:
                authors.setdefault(text, []).append(one.annotator)
        return tuple(
            AcceptedPremise("", text, ADDED, leaf=False, author=", ".join(sorted(names)))
            for text, names in authors.items()
        )

    @property
    def note(self) -> str:
        """The remarks of all who answered, with their names where there are several."""
        if len(self.answers) == 1:
            return self.answers[0].answer.note
        return "; ".join(f"{one.annotator}: {one.answer.note}" for one in self.answers if one.answer.note)

    @property
    def control(self) -> bool:
        """Whether it measures annotators. A control item does not belong to a node of the run."""
        return bool(self.gold)

    @property
    def state(self) -> TaskState:
        """Its state."""
        if self.conflicts:
            return TaskState.CONFLICT
        if self.settled:
            return TaskState.SETTLED
        if self.withdrawn:
            return TaskState.WITHDRAWN
        return TaskState.DECIDED if self.decided_at else TaskState.WAITING

    @property
    def size_bytes(self) -> int:
        """A lease of it takes less in an answer."""
        task = self.task
        shown = (*task.accepted, *task.candidates)
        texts = (task.query, *task.path, *(text for one in shown for text in (one.id, one.text)))
        return sum(len(text.encode()) for text in texts) + CANDIDATE_BYTES * (len(shown) + 8)

    def held(self, at: float) -> list[Lease]:
        """The leases that hold it, oldest first."""
        return [lease for lease in self.leases if lease.live(at)]

    def free(self, at: float) -> int:
        """The number of people who may still take it."""
        return self.overlap - len(self.answers) - len(self.held(at))

    def answer_of(self, annotator: str) -> TaskAnswer | None:
        """A person's answer, if they have given one that holds."""
        return next((one for one in self.answers if one.annotator == annotator), None)

    def hidden_from(self, viewer: str) -> str:
        """The one person whose answer the viewer may see, which is the viewer; empty: they may see all.

        Those who may still judge the task see nobody's answer before they have given their own.
        """
        return viewer if self.state is TaskState.WAITING and self.answer_of(viewer) is None else ""

    def open_to(self, annotator: str, at: float) -> bool:
        """Whether this person may take it: there is room, and it is not theirs already."""
        mine = self.answer_of(annotator) or any(lease.annotator == annotator for lease in self.held(at))
        return not mine and self.free(at) > 0 and self.state is TaskState.WAITING

    def to_json(self) -> str:
        """The part that changes, as stored; `task_json` has the rest, which is stored once."""
        stored = _RECORD.dump_python(self, mode="json", exclude=_ELSEWHERE, exclude_defaults=True)
        return json.dumps({**self.further, "format_version": FORMAT_VERSION, **stored})


_ELSEWHERE = {"run_id", "task", "place", "revision", "further"}
_RECORD, _TASK, EVENT = TypeAdapter(TaskRecord), TypeAdapter(Task), TypeAdapter(TaskEvent)


def from_row(run_id: str, task_id: str, row: Mapping[str, str]) -> TaskRecord:
    """Reads what is stored of a task, here or by a later minor release. Raises NewerFormat, DataLoss for damage."""
    what = f"task {task_id} of run {run_id}"
    with damage_is_data_loss(what, RESTORE):
        check_format(row, FORMAT_VERSION, what)  # first: a newer release may have other fields
        asked, stored = json.loads(row["task"]), json.loads(row["record"])
        for one in (asked, stored):
            check_format(one, FORMAT_VERSION, what)
        kept = {"place": int(row["place"]), "revision": int(row["revision"])}
        further = unknown_fields(TaskRecord, stored)
        return made_of(TaskRecord, {**stored, **kept, "run_id": run_id, "task": asked, "further": further})


def task_json(task: Task) -> str:
    """The part of a task that never changes, as stored."""
    return json.dumps({"format_version": FORMAT_VERSION, **_TASK.dump_python(task, mode="json")})


def decided(record: TaskRecord) -> tuple[AcceptedPremise, ...]:
    """What explains a task's query by the decision as it is now."""
    holding = [
        accepted(one, verdict.leaf)
        for one in record.candidates
        if (verdict := record.decision.get(one.id)) is not None and explains(verdict)
    ]
    said = {premise.text for premise in holding}
    return (*holding, *(one for one in record.intermediates if one.text not in said))


def read_verdicts(candidates: Iterable[Candidate], verdicts: Iterable[Verdict], name: str = "verdicts") -> Verdicts:
    """The verdicts by premise. Raises InvalidArgument for unknown premises, judgements and remarks, and for doubles."""
    asked = {candidate.id: candidate for candidate in candidates}
    read: Verdicts = {}
    for position, verdict in enumerate(verdicts):
        premise_id, grade = verdict.premise_id, verdict.grade
        for wrong, where, problem in (
            (premise_id not in asked, "premise_id", f"{premise_id!r} is not among the candidates of the task"),
            (premise_id in read, "premise_id", f"{premise_id!r} is judged twice; judge it once"),
            (
                verdict.judgement not in tuple(Judgement),
                "judgement",
                f"{int(verdict.judgement)} is unknown; update the sampler",
            ),
            (grade is not None and not math.isfinite(grade), "grade", f"is {grade}; give a finite number"),
            (verdict.remark not in tuple(Remark), "remark", f"{int(verdict.remark)} is unknown; update the sampler"),
        ):
            if wrong:
                raise errors.InvalidArgument.field(f"{name}[{position}].{where}", problem)
        judgement, premise = verdict.judgement or Judgement.UNSEEN, asked[premise_id]
        leaf = verdict.leaf and judgement is Judgement.EXPLAINS
        text = premise.text if premise.rank == ADDED else ""
        read[premise_id] = replace(verdict, judgement=judgement, leaf=leaf, annotator="", text=text)
    return read


def complete(candidates: Sequence[Candidate], chosen: Verdicts, added: Verdicts, sent: SentAnswer) -> Answer:
    """The answer with a verdict on every candidate. Raises InvalidArgument when nothing was said and nothing seen."""
    kinds = {True: Judgement.DOES_NOT_EXPLAIN, False: Judgement.UNSEEN}
    verdicts = [
        chosen.get(one.id) or Verdict(premise_id=one.id, judgement=kinds[one.rank <= sent.seen_upto])
        for one in candidates
    ]
    said = chosen or added or sent.answer.intermediates
    if not said and all(verdict.judgement is Judgement.UNSEEN for verdict in verdicts):
        raise errors.InvalidArgument.field(
            "seen_upto", f"is {sent.seen_upto} and no verdict is given: that says nothing; release the lease instead"
        )
    return replace(sent.answer, verdicts=tuple(verdicts), additions=tuple(added.values()))


def decide(record: TaskRecord) -> tuple[Verdicts, tuple[str, ...]]:
    """The verdict on each candidate, and the candidates on which people disagree; these have none.

    An adjudicated verdict wins. `majority`: the greater number wins, a tie is a conflict. `adjudicate`: a yes
    beside a no is one. A grade is the adjudicator's, else the mean of those given with the verdict that was decided.
    """
    decided: Verdicts = {}
    conflicts = []
    answers = [one.verdicts for one in record.answers]
    for candidate in record.candidates:
        # One person's addition is unseen by the others: they were not asked.
        given = [one.get(candidate.id, UNSEEN) for one in answers]
        found = record.adjudicated.get(candidate.id)
        verdict = found or _together(candidate.id, given, all_alike=record.policy == "adjudicate")
        if verdict is None:
            conflicts.append(candidate.id)
            continue
        if verdict.grade is None:
            grades = [one.grade for one in given if one.grade is not None and one.judgement is verdict.judgement]
            verdict = replace(verdict, grade=math.fsum(grades) / len(grades) if grades else None)
        decided[candidate.id] = verdict
    return decided, tuple(conflicts)


def _together(premise_id: str, given: Sequence[Verdict], *, all_alike: bool) -> Verdict | None:
    yes = [one for one in given if explains(one)]
    no = [one for one in given if explains(one) is False]
    if yes and no and (all_alike or len(yes) == len(no)):
        return None
    holding = yes if len(yes) > len(no) else no or given or [UNSEEN]
    kinds = {one.judgement for one in holding}
    if unknown := kinds - JUDGEMENTS.keys():
        message = f"premise {premise_id!r} has verdicts of {unknown}, which nothing here decides by; update the sampler"
        raise errors.FailedPrecondition(message)
    leaf = 2 * sum(one.leaf for one in holding) > len(holding)
    return Verdict(premise_id=premise_id, judgement=min(kinds, key=[*JUDGEMENTS].index), leaf=leaf)


def corrections(record: TaskRecord) -> Verdicts:
    """The current verdicts that differ from those the run went on with, in kind or grade, now or at any time.

    In conflict: abstained.
    """
    if not record.settled:
        return {}
    disputed = (Verdict(premise_id=one, judgement=Judgement.ABSTAIN) for one in record.conflicts)
    return {
        premise_id: verdict
        for premise_id, verdict in {**by_premise(disputed), **record.decision}.items()
        if premise_id in record.corrected or _said(verdict) != _said(record.settled.get(premise_id))
    }


def _said(verdict: Verdict | None) -> tuple[Judgement, bool, float | None]:
    return (verdict.judgement, verdict.leaf, verdict.grade) if verdict else (Judgement.UNSEEN, False, None)


def task_name(query: str, candidates: Sequence[Candidate]) -> str:
    """The id of a task."""
    asked = json.dumps([query, [candidate.id for candidate in candidates]])
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def moment_of(at: float) -> datetime:
    """A time of Redis's clock."""
    return datetime.fromtimestamp(at, UTC)


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
