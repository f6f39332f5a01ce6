"""Reads what an oracle answers, suspiciously: only a clear, single refusal of a candidate becomes a refusal.

Whatever is missing, unknown, given twice, late or unclear counts as skipped, and so does an abstention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aeenc.oracle import EXPLAINS, REFUSES, Task, Verdict
from aeenc.oracles.client import Answer
from services.sampler.acs.algorithm import PairState
from services.sampler.acs.nodes import NodeAnswer
from services.sampler.records.runs import MAX_NOTE

MAX_ANNOTATOR = 256  # characters; it stands in every pair


@dataclass(frozen=True)
class UnansweredTask:
    """A task that stayed without an answer although it was asked alone.

    An answer to another task after `since` shows that the oracle works and this task is to blame.
    """

    task_id: str
    reason: str
    since: float


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


def _state(verdict: Verdict) -> PairState:
    if verdict.judgement == EXPLAINS:
        return PairState.LEAF if verdict.leaf else PairState.EXPLAINS
    if verdict.judgement == REFUSES:
        return PairState.REFUSED_UNKEPT
    # ABSTAIN, UNSEEN, UNSPECIFIED, and values that a later contract may add.
    return PairState.SKIPPED
