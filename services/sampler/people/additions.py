"""What a person adds to a task: premises of the corpus that the candidates lacked.

A premise becomes part of the answer once it was looked up in the run's generation and may stand in its trees.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from aeenc import errors
from aeenc.oracle import EXPLAINS, Candidate, Task
from services.sampler.oracles.statements import MAX_ADDED
from services.sampler.people.decisions import SentAnswer, SentVerdicts
from services.sampler.records.runs import Run

LookUp = Callable[[Run, Sequence[str]], Awaitable[list[Candidate]]]


class Premises:
    """Looks up what people add. `look_up` gives the premises of a run by id, in the same order."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up

    async def looked_up(self, run: Run, task: Task, sent: SentAnswer) -> SentAnswer:
        """The answer with the premises of its additions. Raises InvalidArgument for what may not be added."""
        if not sent.additions:
            return sent
        if len(sent.additions) > MAX_ADDED:
            problem = f"has {len(sent.additions)} items; at most {MAX_ADDED} in one answer"
            raise errors.InvalidArgument.field("additions", problem)
        added = await self._look_up(run, [premise_id for premise_id, _ in sent.additions])
        check_additions(task, sent.additions, added)
        return replace(
            sent,
            additions=[(premise.id, verdict) for premise, (_, verdict) in zip(added, sent.additions, strict=True)],
            added=tuple(added),
        )


def check_additions(task: Task, additions: SentVerdicts, candidates: Sequence[Candidate]) -> None:
    """Refuses additions that could not explain the query: candidates of the task, the query, its ancestors, refusals.

    `candidates` are their premises, in the same order. Raises InvalidArgument.
    """
    asked = {candidate.id for candidate in task.candidates}
    for position, ((_, verdict), premise) in enumerate(zip(additions, candidates, strict=True)):
        field = f"additions[{position}]"
        if premise.id in asked:
            raise errors.InvalidArgument.field(
                f"{field}.premise_id", f"{premise.id!r} is a candidate of the task; judge it among `verdicts`"
            )
        if premise.text in (task.query, *task.path):
            raise errors.InvalidArgument.field(
                f"{field}.premise_id",
                f"{premise.id!r} says what is to be explained here or above; a tree may not lead back to itself",
            )
        if verdict.judgement != EXPLAINS:
            raise errors.InvalidArgument.field(
                f"{field}.judgement", f"is {verdict.judgement}; only premises that explain (EXPLAINS) are added"
            )
