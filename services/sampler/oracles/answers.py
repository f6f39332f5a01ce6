"""Reads what an oracle answers, suspiciously: only a clear, single refusal of a candidate becomes a refusal.

Whatever is missing, unknown, given twice, late or unclear counts as skipped, and so does an abstention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from aeenc.oracle import Candidate, Task
from aeenc.values import Answer, Judgement, NodeVerdict, Verdict
from services.kit.logs import get
from services.sampler.acs.algorithm import ADDED, Intermediate, PairState, Statement
from services.sampler.acs.algorithm import NodeVerdict as NodeVerdictName
from services.sampler.acs.nodes import NodeAnswer
from services.sampler.oracles.statements import without_faults
from services.sampler.records.runs import MAX_NOTE

log = get(__name__)

MAX_ANNOTATOR = 256  # characters; it stands in every pair


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


def read_answers(tasks: Sequence[Task], answers: Iterable[Answer], oracle: str = "") -> list[NodeAnswer]:
    """The tasks that were answered: by exactly one answer that says something. `oracle` is its name for want of one."""
    by_task: dict[str, list[Answer]] = {}
    for answer in answers:
        by_task.setdefault(answer.task_id, []).append(answer)
    read = []
    for task in tasks:
        given = by_task.get(task.task_id, [])
        if len(given) == 1 and (one := read_answer(task, given[0], oracle)) is not None:
            read.append(one)
    return read


def read_answer(task: Task, answer: Answer, oracle: str = "") -> NodeAnswer | None:
    """A state for every candidate of a task, and what `admitted` has to look at.

    None when the answer has a verdict on none of the candidates, and adds and writes nothing that explains the query.
    """
    asked = {candidate.id for candidate in task.candidates}
    states: dict[str, PairState] = {}
    grades: dict[str, float] = {}
    annotators: dict[str, str] = {}
    unknown = 0
    proposed = {one.premise_id: one for one in answer.additions if one.premise_id not in asked}
    for verdict in (*answer.verdicts, *proposed.values()):
        premise_id = verdict.premise_id
        if premise_id not in asked and premise_id not in proposed:
            unknown += 1
        elif premise_id in states:
            states[premise_id] = PairState.SKIPPED  # given twice: nobody knows which one is meant
            grades.pop(premise_id, None)
            annotators.pop(premise_id, None)
        else:
            states[premise_id] = state_of(verdict)
            if verdict.grade is not None and math.isfinite(verdict.grade):
                grades[premise_id] = verdict.grade
            if verdict.annotator:
                annotators[premise_id] = verdict.annotator[:MAX_ANNOTATOR]
    said = statement_of(answer, oracle)
    if not states and not said.intermediates:
        return None
    missing = dict.fromkeys(asked - states.keys(), PairState.SKIPPED)
    return NodeAnswer(
        task.task_id,
        {**states, **missing},
        grades,
        said.annotator,
        unknown,
        annotators,
        said.note,
        statement=said,
        proposed=tuple(proposed),
    )


def statement_of(answer: Answer, oracle: str = "") -> Statement:
    """What an answer says beside its verdicts, each thing once. Long names and notes are cut."""
    return Statement(
        annotator=answer.annotator[:MAX_ANNOTATOR] or oracle,
        note=answer.note[:MAX_NOTE],
        written=answer.written,
        inference=answer.inference,
        node_verdict=_NODE_VERDICTS.get(answer.node_verdict, ""),
        intermediates=tuple(dict.fromkeys(text.strip() for text in answer.intermediates)),
        alternatives=tuple(dict.fromkeys(tuple(dict.fromkeys(one.premise_ids)) for one in answer.alternatives)),
    )


def admitted(task: Task, answer: NodeAnswer, found: Mapping[str, Candidate]) -> NodeAnswer:
    """The answer without what it may not add or say, which is logged.

    `found` are the premises that it proposes, as far as they may stand in the run's trees.
    """
    added: dict[str, Candidate] = {}
    states = {name: state for name, state in answer.states.items() if name not in answer.proposed}
    grades, annotators = dict(answer.grades), dict(answer.annotators)
    for name in answer.proposed:
        premise, state = found.get(name), answer.states[name]
        if premise is None or premise.text == task.query or premise.id in states or not state.accepted:
            log.warning("an added premise is left out", task=task.task_id, premise=name, state=state.name)
            continue
        added[premise.id] = replace(premise, rank=ADDED, score=0.0)
        states[premise.id] = state
        if name in grades:  # by an alias, perhaps
            grades[premise.id] = grades[name]
        annotators[premise.id] = annotators.get(name, answer.annotator)
    answer = replace(
        answer, states=states, grades=grades, annotators=annotators, proposed=(), added=tuple(added.values())
    )
    if answer.statement is None:
        return answer
    said = without_faults(task, answer.statement, {name for name, state in states.items() if state.accepted})
    written = tuple(Intermediate(text, said.annotator) for text in said.intermediates)
    return replace(answer, written=written, statement=None if said.empty else said)


_NODE_VERDICTS: dict[int, NodeVerdictName] = {
    NodeVerdict.COMPLETE: "COMPLETE",
    NodeVerdict.PREMISE_MISSING: "PREMISE_MISSING",
    NodeVerdict.NOT_EXPLAINABLE: "NOT_EXPLAINABLE",
}


def state_of(verdict: Verdict) -> PairState:
    """What a run knows by a verdict. A value that a later contract has added is skipped."""
    judgement = verdict.judgement
    if judgement not in tuple(Judgement):
        return PairState.SKIPPED
    match judgement:
        case Judgement.EXPLAINS:
            return PairState.LEAF if verdict.leaf else PairState.EXPLAINS
        case Judgement.DOES_NOT_EXPLAIN:
            return PairState.REFUSED
        case Judgement.ABSTAIN | Judgement.UNSEEN | Judgement.UNSPECIFIED:
            return PairState.SKIPPED
        case _:
            assert_never(judgement)
