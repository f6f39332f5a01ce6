"""What verdicts mean: one person's for every candidate, and several people's together.

Only seen-and-refused is a refusal: a candidate up to `seen_upto` that was left unticked. What lies beyond is unseen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, UNSEEN, Candidate, Task, Verdict
from services.sampler.tasks.record import Answer, Choice, Choices, Policy

Given = Sequence[tuple[str, Verdict]]
_UNSTATED = 0  # the enum's zero counts as unseen


@dataclass(frozen=True)
class Decision:
    """What holds for each candidate, and the candidates on which people disagree; these have no choice."""

    choices: Choices
    conflicts: tuple[str, ...]


def said(task: Task, verdicts: Given) -> tuple[Choices, dict[str, float]]:
    """The choices and grades of single verdicts. Raises InvalidArgument for unknown premises, doubles, enums."""
    asked = {candidate.id for candidate in task.candidates}
    choices: Choices = {}
    grades: dict[str, float] = {}
    for position, (premise_id, verdict) in enumerate(verdicts):
        field = f"verdicts[{position}]"
        if premise_id not in asked:
            raise errors.InvalidArgument.field(f"{field}.premise_id", f"{premise_id!r} is no candidate of the task")
        if premise_id in choices:
            raise errors.InvalidArgument.field(f"{field}.premise_id", f"{premise_id!r} is judged twice; judge it once")
        choices[premise_id] = _choice(verdict, field)
        if verdict.grade is not None:
            if not math.isfinite(verdict.grade):
                raise errors.InvalidArgument.field(f"{field}.grade", f"is {verdict.grade}; give a finite number")
            grades[premise_id] = verdict.grade
    return choices, grades


def complete(task: Task, chosen: Choices, seen_upto: int) -> Choices:
    """A choice for every candidate. Raises InvalidArgument when nothing was said and nothing seen."""
    choices = {c.id: chosen.get(c.id, _unticked(c, seen_upto)) for c in task.candidates}
    if not chosen and all(choice is Choice.UNSEEN for choice in choices.values()):
        raise errors.InvalidArgument.field(
            "seen_upto", f"is {seen_upto} and no verdict is given: that says nothing; release the lease instead"
        )
    return choices


def decide(
    candidates: Iterable[Candidate], answers: Sequence[Answer], policy: Policy, adjudicated: Choices
) -> Decision:
    """What several answers mean together. An adjudicated choice beats them; a yes against a no is put to the policy.

    `majority`: the greater number of yes and no wins, equal ones are a conflict. `adjudicate`: any difference is one.
    """
    choices: Choices = {}
    conflicts = []
    for candidate in candidates:
        given = [answer.choices[candidate.id] for answer in answers]
        choice = adjudicated.get(candidate.id) or _together(given, policy)
        if choice is None:
            conflicts.append(candidate.id)
        else:
            choices[candidate.id] = choice
    return Decision(choices, tuple(conflicts))


def _together(given: Sequence[Choice], policy: Policy) -> Choice | None:
    accepting = [choice for choice in given if choice.accepts]
    refusing = [choice for choice in given if choice is Choice.REFUSED]
    if accepting and refusing and (policy == "adjudicate" or len(accepting) == len(refusing)):
        return None
    if len(accepting) > len(refusing):
        leaves = accepting.count(Choice.LEAF)
        return Choice.LEAF if 2 * leaves > len(accepting) else Choice.EXPLAINS
    if refusing:
        return Choice.REFUSED
    return Choice.ABSTAINED if Choice.ABSTAINED in given else Choice.UNSEEN


def _unticked(candidate: Candidate, seen_upto: int) -> Choice:
    return Choice.REFUSED if candidate.rank <= seen_upto else Choice.UNSEEN


def _choice(verdict: Verdict, field: str) -> Choice:
    if verdict.judgement == EXPLAINS:
        return Choice.LEAF if verdict.leaf else Choice.EXPLAINS
    known = {REFUSES: Choice.REFUSED, ABSTAINS: Choice.ABSTAINED, UNSEEN: Choice.UNSEEN, _UNSTATED: Choice.UNSEEN}
    choice = known.get(verdict.judgement)
    if choice is None:
        raise errors.InvalidArgument.field(f"{field}.judgement", f"{verdict.judgement} is unknown; update the sampler")
    return choice


def verdict_of(choice: Choice, grade: float | None = None) -> Verdict:
    """A choice as the oracle protocol has it."""
    judgement = {Choice.REFUSED: REFUSES, Choice.ABSTAINED: ABSTAINS, Choice.UNSEEN: UNSEEN}.get(choice, EXPLAINS)
    return Verdict(judgement, leaf=choice is Choice.LEAF, grade=grade)
