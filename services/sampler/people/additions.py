"""What a person adds to a task: premises of the corpus that the candidates lacked.

A premise becomes part of the answer once it was looked up in the run's generation and may stand in its trees.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from aeenc import errors
from aeenc.oracle import Candidate, Task
from aeenc.values import Judgement
from services.sampler.oracles.statements import MAX_ADDED
from services.sampler.people.decisions import SentAnswer
from services.sampler.records.runs import Run

LookUp = Callable[[Run, Sequence[str]], Awaitable[list[Candidate]]]


class Premises:
    """Looks up what people add. `look_up` gives the premises of a run by id, in the same order."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up

    async def looked_up(self, run: Run, task: Task, sent: SentAnswer) -> SentAnswer:
        """The answer with the premises of its additions. Raises InvalidArgument for what could not explain the query.

        Such are candidates of the task, the query, its ancestors, and refusals.
        """
        additions = sent.answer.additions
        if not additions:
            return sent
        if len(additions) > MAX_ADDED:
            problem = f"has {len(additions)} items; at most {MAX_ADDED} in one answer"
            raise errors.InvalidArgument.field("additions", problem)
        added = await self._look_up(run, [verdict.premise_id for verdict in additions])
        asked = {candidate.id for candidate in task.candidates}
        for position, (verdict, premise) in enumerate(zip(additions, added, strict=True)):
            field = "premise_id"
            if premise.id in asked:
                problem = f"{premise.id!r} is a candidate of the task; judge it among `verdicts`"
            elif premise.text in (task.query, *task.path):
                problem = (
                    f"{premise.id!r} says what is to be explained here or above; a tree may not lead back to itself"
                )
            elif verdict.judgement is not Judgement.EXPLAINS:
                field = "judgement"
                problem = f"is {int(verdict.judgement)}; only premises that explain (EXPLAINS) are added"
            else:
                continue
            raise errors.InvalidArgument.field(f"additions[{position}].{field}", problem)
        found = tuple(
            replace(verdict, premise_id=premise.id, text=premise.text)
            for verdict, premise in zip(additions, added, strict=True)
        )
        return replace(sent, answer=replace(sent.answer, additions=found))
