"""The pairs that replace what a run was told, after an amendment or a late adjudication. Pure: it stores nothing."""

from __future__ import annotations

from services.sampler.jobs import UNDECIDED
from services.sampler.negatives import Sieve
from services.sampler.runs import Pair, Run, Sign, now
from services.sampler.tasks import steps
from services.sampler.tasks.record import Choice, TaskRecord

REFUSED = "refused"


def corrected_pairs(run: Run, record: TaskRecord, who: str) -> list[Pair]:
    """A pair for each candidate of which the run was told otherwise, best rank first.

    A refusal passes the run's negative filter as any other, beside what is accepted now of the same task.
    """
    changed = steps.corrections(record)
    holding = {**record.settled, **changed}
    candidates = record.task.candidates
    accepted = [(candidate.text, candidate.score) for candidate in candidates if holding[candidate.id].accepts]
    sieve = Sieve(run.config.rules.negatives, record.task.query, accepted, [])
    pairs = []
    for candidate in candidates:
        choice = changed.get(candidate.id)
        if choice is None:
            continue
        filtered, _ = sieve.reason(candidate.text, candidate.rank, candidate.score)
        sign, reason = _sign(choice, filtered or "", positives_only=run.config.rules.positives_only)
        pairs.append(
            Pair(
                query=record.task.query,
                premise_id=candidate.id,
                premise=candidate.text,
                sign=sign,
                reason=reason,
                run_id=run.id,
                node_id=record.node_id,
                rank=candidate.rank,
                score=candidate.score,
                model_version=run.model_version,
                generation=run.generation,
                oracle=run.config.oracle,
                annotator=who,
                judged_at=now(),
                amended=True,
            )
        )
    return pairs


def _sign(choice: Choice, filtered: str, *, positives_only: bool) -> tuple[Sign, str]:
    if choice.accepts:
        return "POSITIVE", ""
    if choice is not Choice.REFUSED:
        return "SKIPPED", UNDECIDED
    if positives_only:
        return "SKIPPED", REFUSED
    return ("SKIPPED", filtered) if filtered else ("NEGATIVE", "")
