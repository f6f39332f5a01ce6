"""Reads one person's verdicts on a task, and decides what several people's verdicts mean together.

Only seen-and-refused is a refusal: a candidate up to `seen_upto` that was left unticked. Everything beyond is unseen.
An abstention decides only where nobody says yes or no; the run then records the candidate as skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from aeenc import errors
from aeenc.oracle import ABSTAINS, BAD_FACT, EXPLAINS, IRRELEVANT, REFUSES, UNSEEN, Candidate, Task, Verdict
from services.sampler.acs.algorithm import Statement
from services.sampler.people.tasks import Policy, Remark, TaskAnswer, VerdictKind, VerdictKinds
from services.store.life_cycles import digest

SentVerdicts = Sequence[tuple[str, Verdict]]
_REMARKS: dict[int, Remark] = {IRRELEVANT: "IRRELEVANT", BAD_FACT: "BAD_FACT"}
_UNSTATED = 0  # the enum's zero counts as unseen


@dataclass(frozen=True)
class SentAnswer(Statement):
    """What a person sends for a task. `added` are the premises of `additions` once they were looked up."""

    verdicts: SentVerdicts = ()
    seen_upto: int = 0
    elapsed_s: float | None = None
    additions: SentVerdicts = ()
    added: tuple[Candidate, ...] = ()

    @property
    def said(self) -> str:
        """Tells two calls under one request id or number apart. A retry may have taken another time."""
        judged = (*self.verdicts, *self.additions)
        given = [(key, one.judgement, one.leaf, one.grade, one.remark) for key, one in judged]
        words = [*replace(self, annotator="").parts().values()]
        return f"verdicts {digest(repr((given, self.seen_upto, words)))[:12]}"


@dataclass(frozen=True)
class Decision:
    """The verdict on each candidate, and the candidates on which people disagree; these have none."""

    verdicts: VerdictKinds
    conflicts: tuple[str, ...]


@dataclass(frozen=True)
class ReadVerdicts:
    """Single verdicts by premise, with their grades and remarks where there are any."""

    kinds: VerdictKinds = field(default_factory=dict)
    grades: dict[str, float] = field(default_factory=dict)
    remarks: dict[str, Remark] = field(default_factory=dict)

    def __or__(self, other: ReadVerdicts) -> ReadVerdicts:
        """These and others, which win."""
        return ReadVerdicts(self.kinds | other.kinds, self.grades | other.grades, self.remarks | other.remarks)


def read_verdicts(candidates: Iterable[Candidate], verdicts: SentVerdicts, name: str = "verdicts") -> ReadVerdicts:
    """Reads what was sent. Raises InvalidArgument for unknown premises, doubles, unknown judgements and remarks."""
    asked = {candidate.id for candidate in candidates}
    read = ReadVerdicts()
    kinds = read.kinds
    for position, (premise_id, verdict) in enumerate(verdicts):
        place = f"{name}[{position}]"
        if premise_id not in asked:
            raise errors.InvalidArgument.field(
                f"{place}.premise_id", f"{premise_id!r} is not among the candidates of the task"
            )
        if premise_id in kinds:
            raise errors.InvalidArgument.field(f"{place}.premise_id", f"{premise_id!r} is judged twice; judge it once")
        kinds[premise_id] = _kind(verdict, place)
        if verdict.grade is not None:
            if not math.isfinite(verdict.grade):
                raise errors.InvalidArgument.field(f"{place}.grade", f"is {verdict.grade}; give a finite number")
            read.grades[premise_id] = verdict.grade
        if verdict.remark:
            if verdict.remark not in _REMARKS:
                raise errors.InvalidArgument.field(
                    f"{place}.remark", f"{verdict.remark} is unknown; update the sampler"
                )
            read.remarks[premise_id] = _REMARKS[verdict.remark]
    return read


def accepted_in(kinds: VerdictKinds) -> set[str]:
    """The premises (ids) that verdicts accept."""
    return {premise_id for premise_id, kind in kinds.items() if kind.accepts}


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
