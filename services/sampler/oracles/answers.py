"""Reads what an oracle answers, suspiciously: only a clear, single refusal of a candidate becomes a refusal.

Whatever is missing, unknown, given twice, late or unclear counts as skipped, and so does an abstention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aeenc.oracle import EXPLAINS, REFUSES, Candidate, Task, Verdict
from aeenc.oracles.client import Answer
from services.sampler.acs.algorithm import ADDED, PairState, RetrievedPremise
from services.sampler.acs.nodes import NodeAnswer
from services.sampler.records.runs import MAX_NOTE

MAX_ANNOTATOR = 256  # characters; it stands in every pair

Addition = tuple[Candidate, Verdict]  # a premise that explains the query and was not asked about


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


def read_answers(tasks: Sequence[Task], answers: Iterable[Answer]) -> list[NodeAnswer]:
    """The tasks that were answered: by exactly one answer, with a verdict on at least one candidate."""
    by_task: dict[str, list[Answer]] = {}
    for answer in answers:
        by_task.setdefault(answer.task_id, []).append(answer)
    read = []
    for task in tasks:
        given = by_task.get(task.task_id, [])
        if len(given) == 1 and (one := read_answer(task, given[0])) is not None:
            read.append(one)
    return read


def read_answer(task: Task, answer: Answer) -> NodeAnswer | None:
    """A state for every candidate of a task, or None when the answer mentions none of them."""
    asked = {candidate.id for candidate in task.candidates}
    states: dict[str, PairState] = {}
    grades: dict[str, float] = {}
    annotators: dict[str, str] = {}
    unknown = 0
    for premise_id, verdict in answer.verdicts:
        if premise_id not in asked:
            unknown += 1
        elif premise_id in states:
            states[premise_id] = PairState.SKIPPED  # given twice: nobody knows which one is meant
            grades.pop(premise_id, None)
            annotators.pop(premise_id, None)
        else:
            states[premise_id] = _state(verdict)
            if verdict.grade is not None and math.isfinite(verdict.grade):
                grades[premise_id] = verdict.grade
            if verdict.annotator:
                annotators[premise_id] = verdict.annotator[:MAX_ANNOTATOR]
    if not states:
        return None
    missing = dict.fromkeys(asked - states.keys(), PairState.SKIPPED)
    annotator, note = answer.annotator[:MAX_ANNOTATOR], answer.note[:MAX_NOTE]
    return NodeAnswer(task.task_id, {**states, **missing}, grades, annotator, unknown, annotators, note)


def with_additions(answer: NodeAnswer, additions: Sequence[Addition]) -> NodeAnswer:
    """The answer with premises that nobody had asked about."""
    if not additions:
        return answer
    verdicts = [(premise.id, verdict) for premise, verdict in additions]
    return replace(
        answer,
        states={**answer.states, **{premise_id: _state(verdict) for premise_id, verdict in verdicts}},
        grades={**answer.grades, **{one: verdict.grade for one, verdict in verdicts if verdict.grade is not None}},
        annotators={**answer.annotators, **{one: verdict.annotator[:MAX_ANNOTATOR] for one, verdict in verdicts}},
        added=tuple(RetrievedPremise(premise.id, premise.text, ADDED, 0.0) for premise, _ in additions),
    )


def _state(verdict: Verdict) -> PairState:
    if verdict.judgement == EXPLAINS:
        return PairState.LEAF if verdict.leaf else PairState.EXPLAINS
    if verdict.judgement == REFUSES:
        return PairState.REFUSED_UNKEPT
    # ABSTAIN, UNSEEN, UNSPECIFIED, and values that a later contract may add.
    return PairState.SKIPPED
