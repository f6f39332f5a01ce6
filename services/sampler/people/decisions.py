"""Reads one person's verdicts on a task, and decides what several people's verdicts mean together.

Only seen-and-refused is a refusal: a candidate up to `seen_upto` that was left unticked. Everything beyond is unseen.
An abstention decides only where nobody says yes or no; the run then records the candidate as skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, UNSEEN, Candidate, Task, Verdict
from services.sampler.people.tasks import NodeVerdict, Policy, TaskAnswer, VerdictKind, VerdictKinds

SentVerdicts = Sequence[tuple[str, Verdict]]
_UNSTATED = 0  # the enum's zero counts as unseen


@dataclass(frozen=True)
class SentAnswer:
    """What a person sends for a task. `added` are the premises of `additions` once they were looked up."""

    verdicts: SentVerdicts = ()
    seen_upto: int = 0
    elapsed_s: float | None = None
    note: str = ""
    additions: SentVerdicts = ()
    written: tuple[str, ...] = ()
    inference: str = ""
    node_verdict: NodeVerdict = ""
    intermediates: tuple[str, ...] = ()
    added: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The verdict on each candidate, and the candidates on which people disagree; these have none."""

    verdicts: VerdictKinds
    conflicts: tuple[str, ...]


def read_verdicts(
    candidates: Iterable[Candidate], verdicts: SentVerdicts, name: str = "verdicts"
) -> tuple[VerdictKinds, dict[str, float]]:
    """Single verdicts and their grades. Raises InvalidArgument for unknown premises, doubles, unknown judgements."""
    asked = {candidate.id for candidate in candidates}
    kinds: VerdictKinds = {}
    grades: dict[str, float] = {}
    for position, (premise_id, verdict) in enumerate(verdicts):
        field = f"{name}[{position}]"
        if premise_id not in asked:
            raise errors.InvalidArgument.field(
                f"{field}.premise_id", f"{premise_id!r} is not among the candidates of the task"
            )
        if premise_id in kinds:
            raise errors.InvalidArgument.field(f"{field}.premise_id", f"{premise_id!r} is judged twice; judge it once")
        kinds[premise_id] = _kind(verdict, field)
        if verdict.grade is not None:
            if not math.isfinite(verdict.grade):
                raise errors.InvalidArgument.field(f"{field}.grade", f"is {verdict.grade}; give a finite number")
            grades[premise_id] = verdict.grade
    return kinds, grades


def complete(task: Task, chosen: VerdictKinds, added: VerdictKinds, sent: SentAnswer) -> VerdictKinds:
    """A verdict on every candidate and addition. Raises InvalidArgument when nothing was said and nothing seen."""
    kinds = {c.id: chosen.get(c.id, _unticked(c, sent.seen_upto)) for c in task.candidates} | added
    if not chosen and not sent.intermediates and all(kind is VerdictKind.UNSEEN for kind in kinds.values()):
        raise errors.InvalidArgument.field(
            "seen_upto", f"is {sent.seen_upto} and no verdict is given: that says nothing; release the lease instead"
        )
    return kinds


def decide(
    candidates: Iterable[Candidate], answers: Sequence[TaskAnswer], policy: Policy, adjudicated: VerdictKinds
) -> Decision:
    """Decides each candidate from several answers. An adjudicated verdict wins; the policy settles yes against no.

    `majority`: the greater number wins, a tie is a conflict. `adjudicate`: any difference is a conflict.
    """
    kinds: VerdictKinds = {}
    conflicts = []
    for candidate in candidates:
        # One person's addition is unseen by the others: they were not asked.
        given = [answer.verdicts.get(candidate.id, VerdictKind.UNSEEN) for answer in answers]
        kind = adjudicated.get(candidate.id) or _together(given, policy)
        if kind is None:
            conflicts.append(candidate.id)
        else:
            kinds[candidate.id] = kind
    return Decision(kinds, tuple(conflicts))


def _together(given: Sequence[VerdictKind], policy: Policy) -> VerdictKind | None:
    accepting = [kind for kind in given if kind.accepts]
    refusing = [kind for kind in given if kind is VerdictKind.REFUSED]
    if accepting and refusing and (policy == "adjudicate" or len(accepting) == len(refusing)):
        return None
    if len(accepting) > len(refusing):
        leaves = accepting.count(VerdictKind.LEAF)
        return VerdictKind.LEAF if 2 * leaves > len(accepting) else VerdictKind.EXPLAINS
    if refusing:
        return VerdictKind.REFUSED
    return VerdictKind.ABSTAINED if VerdictKind.ABSTAINED in given else VerdictKind.UNSEEN


def _unticked(candidate: Candidate, seen_upto: int) -> VerdictKind:
    return VerdictKind.REFUSED if candidate.rank <= seen_upto else VerdictKind.UNSEEN


def _kind(verdict: Verdict, field: str) -> VerdictKind:
    if verdict.judgement == EXPLAINS:
        return VerdictKind.LEAF if verdict.leaf else VerdictKind.EXPLAINS
    known = {
        REFUSES: VerdictKind.REFUSED,
        ABSTAINS: VerdictKind.ABSTAINED,
        UNSEEN: VerdictKind.UNSEEN,
        _UNSTATED: VerdictKind.UNSEEN,
    }
    kind = known.get(verdict.judgement)
    if kind is None:
        raise errors.InvalidArgument.field(f"{field}.judgement", f"{verdict.judgement} is unknown; update the sampler")
    return kind


def verdict_of(kind: VerdictKind, grade: float | None = None) -> Verdict:
    """A verdict as the oracle protocol has it."""
    judgement = {VerdictKind.REFUSED: REFUSES, VerdictKind.ABSTAINED: ABSTAINS, VerdictKind.UNSEEN: UNSEEN}.get(
        kind, EXPLAINS
    )
    return Verdict(judgement, leaf=kind is VerdictKind.LEAF, grade=grade)
