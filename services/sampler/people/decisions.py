"""Reads one person's verdicts on a task, and decides what several people's verdicts mean together.

Only seen-and-refused is a refusal: a candidate up to `seen_upto` that was left unticked. Everything beyond is unseen.
An abstention decides only where nobody says yes or no; the run then records the candidate as skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from aeenc import errors
from aeenc.oracle import Candidate
from aeenc.values import Answer, Judgement, Remark, Verdict
from services.sampler.acs.algorithm import ADDED
from services.sampler.people.tasks import TaskRecord, Verdicts, accepts, by_premise, decides
from services.store.life_cycles import digest


@dataclass(frozen=True)
class SentAnswer:
    """What a person sends for a task: the answer, the lowest rank they looked at, and how long they took, if said."""

    answer: Answer = field(default_factory=Answer)
    seen_upto: int = 0
    elapsed_s: float | None = None

    @property
    def said(self) -> str:
        """Tells two calls under one request id or number apart. A retry may have taken another time."""
        return f"verdicts {digest(repr((replace(self.answer, annotator=''), self.seen_upto)))[:12]}"


def read_verdicts(candidates: Iterable[Candidate], verdicts: Iterable[Verdict], name: str = "verdicts") -> Verdicts:
    """The verdicts by premise. Raises InvalidArgument for unknown premises, judgements and remarks, and for doubles."""
    asked = {candidate.id: candidate for candidate in candidates}
    read: Verdicts = {}
    for position, verdict in enumerate(verdicts):
        if verdict.premise_id not in asked:
            where, problem = "premise_id", f"{verdict.premise_id!r} is not among the candidates of the task"
        elif verdict.premise_id in read:
            where, problem = "premise_id", f"{verdict.premise_id!r} is judged twice; judge it once"
        elif verdict.judgement not in tuple(Judgement):
            where, problem = "judgement", f"{int(verdict.judgement)} is unknown; update the sampler"
        elif verdict.grade is not None and not math.isfinite(verdict.grade):
            where, problem = "grade", f"is {verdict.grade}; give a finite number"
        elif verdict.remark not in tuple(Remark):
            where, problem = "remark", f"{int(verdict.remark)} is unknown; update the sampler"
        else:
            judgement = verdict.judgement or Judgement.UNSEEN
            leaf = verdict.leaf and judgement is Judgement.EXPLAINS
            premise = asked[verdict.premise_id]
            text = premise.text if premise.rank == ADDED else ""
            read[premise.id] = replace(verdict, judgement=judgement, leaf=leaf, annotator="", text=text)
            continue
        raise errors.InvalidArgument.field(f"{name}[{position}].{where}", problem)
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

    An adjudicated verdict wins. `majority`: the greater number wins, a tie is a conflict. `adjudicate`: any difference
    is one. A grade is the adjudicator's, else the mean of those given with the verdict that was decided.
    """
    decided: Verdicts = {}
    conflicts = []
    answers = [one.verdicts for one in record.answers]
    for candidate in record.candidates:
        # One person's addition is unseen by the others: they were not asked.
        given = [one.get(candidate.id, Verdict(judgement=Judgement.UNSEEN)) for one in answers]
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
    yes = [one for one in given if accepts(one)]
    no = sum(decides(one) for one in given) - len(yes)
    if yes and no and (all_alike or len(yes) == no):
        return None
    if len(yes) > no:
        leaf = 2 * sum(one.leaf for one in yes) > len(yes)
        return Verdict(premise_id=premise_id, judgement=Judgement.EXPLAINS, leaf=leaf)
    abstained = any(one.judgement is Judgement.ABSTAIN for one in given)
    undecided = Judgement.ABSTAIN if abstained else Judgement.UNSEEN
    return Verdict(premise_id=premise_id, judgement=Judgement.DOES_NOT_EXPLAIN if no else undecided)


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
