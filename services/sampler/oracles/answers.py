"""Reads what an oracle or a person answers: verdicts suspiciously, and what stands beside them by its rules.

Only a clear, single refusal of a candidate becomes a refusal. Whatever is missing, unknown, given twice, late or
unclear counts as skipped, and so does an abstention. People hear of a broken rule; of an oracle's answer what breaks
one is left out and logged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aeenc import errors
from aeenc.oracle import Candidate, Task
from aeenc.values import Answer, Judgement, NodeVerdict, PremiseSet, Verdict
from services.kit.logs import get
from services.sampler.acs.algorithm import ADDED, JUDGEMENTS, MAX_ANNOTATOR, AcceptedPremise, NodeAnswer, explains
from services.sampler.records.runs import MAX_NOTE

log = get(__name__)

MAX_ALTERNATIVES = 16
MAX_ADDED = 64  # premises, written facts, and intermediates of one answer
MAX_WRITTEN = 1024  # characters of a written fact, and of an inference
UNSEEN = Verdict(judgement=Judgement.UNSEEN)
_LISTS = {"written": MAX_ADDED, "intermediates": MAX_ADDED, "alternatives": MAX_ALTERNATIVES}


@dataclass(frozen=True)
class UnansweredTask:
    """A task that stayed without an answer although it was asked alone.

    An answer to another task after `since` shows that the oracle works and this task is to blame.
    """

    task_id: str
    reason: str
    since: float


@dataclass(frozen=True)
class WithdrawnTask:
    """A task that was taken back before anybody answered it, so that its node is retrieved again."""

    task_id: str


@dataclass(frozen=True)
class Fault:
    """What may not be said: where it stands, why, and the item of a list that is wrong."""

    field: str
    problem: str
    item: tuple[str, int] | None = None


def read_answers(tasks: Sequence[Task], answers: Sequence[Answer], oracle: str = "") -> list[NodeAnswer]:
    """The tasks that were answered: by exactly one answer that says something. `oracle` is its name for want of one."""
    by_task, times = {answer.task_id: answer for answer in answers}, Counter(answer.task_id for answer in answers)
    read = (_read(task, by_task[task.task_id], oracle) for task in tasks if times[task.task_id] == 1)
    return [one for one in read if one is not None]


def _read(task: Task, answer: Answer, oracle: str) -> NodeAnswer | None:
    """A verdict on every candidate of a task, and what `admitted` has to look at. An unclear one is unseen.

    None when the answer has a verdict on none of the candidates, and adds and writes nothing that explains the query.
    """
    asked = {candidate.id for candidate in task.candidates}
    proposed = {one.premise_id: one for one in answer.additions if one.premise_id not in asked}
    verdicts: dict[str, Verdict] = {}
    unknown = 0
    for verdict in (*answer.verdicts, *proposed.values()):
        premise_id = verdict.premise_id
        if premise_id not in asked and premise_id not in proposed:
            unknown += 1
        elif premise_id in verdicts:
            verdicts[premise_id] = UNSEEN  # given twice: nobody knows which one is meant
        else:
            verdicts[premise_id] = _clear(verdict)
    said = cleaned(answer, oracle, task_id="", verdicts=(), additions=())
    if not verdicts and not said.intermediates:
        return None
    says_more = said != Answer(annotator=said.annotator)
    return NodeAnswer(
        task.task_id,
        dict.fromkeys(asked, UNSEEN) | verdicts,
        said.annotator,
        unknown,
        said.note,
        statement=said if says_more else None,
        proposed=tuple(proposed),
    )


def _clear(verdict: Verdict) -> Verdict:
    """The verdict as far as it can be read: an unknown judgement is unseen, a grade that is no number none."""
    is_known, grade = verdict.judgement in JUDGEMENTS, verdict.grade
    if is_known and (grade is None or math.isfinite(grade)) and len(verdict.annotator) <= MAX_ANNOTATOR:
        return verdict
    return replace(
        verdict,
        judgement=verdict.judgement if is_known else Judgement.UNSEEN,
        grade=grade if grade is not None and math.isfinite(grade) else None,
        annotator=verdict.annotator[:MAX_ANNOTATOR],
    )


def cleaned(answer: Answer, oracle: str = "", **changes: Any) -> Answer:
    """The answer with each thing that it says once, and other changes. Long names and notes are cut."""
    ways = dict.fromkeys(tuple(dict.fromkeys(one.premise_ids)) for one in answer.alternatives)
    return replace(
        answer,
        annotator=answer.annotator[:MAX_ANNOTATOR] or oracle,
        note=answer.note[:MAX_NOTE],
        intermediates=tuple(dict.fromkeys(text.strip() for text in answer.intermediates)),
        alternatives=tuple(PremiseSet(premise_ids=one) for one in ways),
        **changes,
    )


def admitted(task: Task, answer: NodeAnswer, found: Mapping[str, Candidate]) -> NodeAnswer:
    """The answer without what it may not add or say, which is logged.

    `found` are the premises that it proposes, as far as they may stand in the run's trees.
    """
    added: dict[str, Candidate] = {}
    verdicts = {name: verdict for name, verdict in answer.verdicts.items() if name not in answer.proposed}
    for name in answer.proposed:
        premise, verdict = found.get(name), answer.verdicts[name]
        if premise is None or premise.text == task.query or premise.id in verdicts or not explains(verdict):
            said_of_it = verdict.judgement.name
            log.warning("an added premise is left out", task=task.task_id, premise=name, judgement=said_of_it)
            continue
        added[premise.id] = replace(premise, rank=ADDED, score=0.0)
        verdicts[premise.id] = verdict  # `name` is an alias, perhaps
    answer = replace(answer, verdicts=verdicts, proposed=(), added=tuple(added.values()))
    if answer.statement is None:
        return answer
    said = without_faults(task, answer.statement, verdicts)
    written = tuple(AcceptedPremise("", text, ADDED, leaf=False, author=said.annotator) for text in said.intermediates)
    return replace(answer, written=written, statement=said)


def check(task: Task, said: Answer, verdicts: Mapping[str, Verdict]) -> None:
    """Refuses the first fault. `verdicts` are those that hold with it, by premise (id). Raises InvalidArgument."""
    for fault in _faults(task, said, verdicts):
        raise errors.InvalidArgument.field(fault.field, fault.problem)


def without_faults(task: Task, said: Answer, verdicts: Mapping[str, Verdict]) -> Answer:
    """The answer without what may not be said, which is logged; a long inference is cut."""
    known = said.node_verdict if said.node_verdict in tuple(NodeVerdict) else NodeVerdict.UNSPECIFIED
    said = replace(said, inference=said.inference[:MAX_WRITTEN], node_verdict=known)
    wrong = {fault.item: fault for fault in _faults(task, said, verdicts)}
    for fault in wrong.values():
        log.warning("an answer's part is left out", task=task.task_id, field=fault.field, reason=fault.problem)
    left: dict[str, Any] = {
        name: tuple(one for at, one in enumerate(getattr(said, name)) if (name, at) not in wrong) for name in _LISTS
    }
    return replace(said, **left)


def _faults(task: Task, said: Answer, verdicts: Mapping[str, Verdict]) -> Iterator[Fault]:
    for name, most in _LISTS.items():
        given = getattr(said, name)
        for at in range(most, len(given)):
            yield Fault(name, f"has {len(given)} items; at most {most} in one answer", (name, at))
    yield from _words(said)
    candidates = {candidate.text: candidate.id for candidate in task.candidates}
    for at, text in enumerate(said.intermediates):
        field, item = f"intermediates[{at}]", ("intermediates", at)
        if text in (task.query, *task.path):
            told = f"{text!r} is to be explained here or above; a tree may not lead back to itself"
            yield Fault(field, told, item)
        elif text in candidates:
            told = f"{text!r} is the candidate {candidates[text]!r} of the task; judge it among `verdicts`"
            yield Fault(field, told, item)
    accepted = {premise.id for premise in task.accepted}
    accepted |= {premise_id for premise_id, verdict in verdicts.items() if explains(verdict)}
    for at, way in enumerate(said.alternatives):
        field, item = f"alternatives[{at}].premise_ids", ("alternatives", at)
        if not way.premise_ids:
            yield Fault(field, "is empty; name the premises that explain the query together", item)
        for premise_id in way.premise_ids:
            if premise_id not in accepted:
                yield Fault(field, f"names {premise_id!r}, which this answer does not accept", item)


def _words(said: Answer) -> Iterator[Fault]:
    """The faults of texts that are empty or too long."""
    texts = {(name, at): text for name in ("written", "intermediates") for at, text in enumerate(getattr(said, name))}
    for item, text in texts.items():
        field = f"{item[0]}[{item[1]}]"
        if not text.strip():
            yield Fault(field, "is empty; leave it out", item)
        if len(text) > MAX_WRITTEN:
            yield Fault(field, f"has {len(text)} characters; at most {MAX_WRITTEN}", item)
    if len(said.inference) > MAX_WRITTEN:
        yield Fault("inference", f"has {len(said.inference)} characters; at most {MAX_WRITTEN}")
