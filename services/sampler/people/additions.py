"""What a person adds to a task: premises of the corpus that the candidates lacked, and facts in their own words.

A premise becomes part of the answer once it was looked up in the run's generation and may stand in its trees. A written
fact is a suggestion: it stays with the answer, and no tree, pair or corpus takes it in. An intermediate conclusion is
written, too, and becomes a node of the tree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from aeenc import errors
from aeenc.oracle import EXPLAINS, Candidate, Task
from services.sampler.people.decisions import SentAnswer, SentVerdicts
from services.sampler.people.tasks import TaskAnswer
from services.sampler.records.runs import Run

MAX_ALTERNATIVES = 16
MAX_ADDED = 64  # premises, written facts, and intermediates of one answer
MAX_WRITTEN = 1024  # characters of a written fact, and of an inference

LookUp = Callable[[Run, Sequence[str]], Awaitable[list[Candidate]]]


class Premises:
    """Looks up what people add. `look_up` gives the premises of a run by id, in the same order."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up

    async def looked_up(self, run: Run, task: Task, sent: SentAnswer) -> SentAnswer:
        """The answer with the premises of its additions. Raises InvalidArgument for what may not be added."""
        if not sent.additions:
            return sent
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


def check_intermediates(task: Task, intermediates: Sequence[str]) -> None:
    """Refuses conclusions that are the query, an ancestor or a candidate of the task. Raises InvalidArgument."""
    candidates = {candidate.text: candidate.id for candidate in task.candidates}
    for position, text in enumerate(intermediates):
        field = f"intermediates[{position}]"
        if text in (task.query, *task.path):
            told = f"{text!r} is to be explained here or above; a tree may not lead back to itself"
            raise errors.InvalidArgument.field(field, told)
        if text in candidates:
            told = f"{text!r} is the candidate {candidates[text]!r} of the task; judge it among `verdicts`"
            raise errors.InvalidArgument.field(field, told)


def check_words(answer: SentAnswer) -> None:
    """Refuses too many additions and written facts, and texts that are empty or too long. Raises InvalidArgument."""
    by_name = {"additions": answer.additions, "written": answer.written, "intermediates": answer.intermediates}
    for name, given in by_name.items():
        if len(given) > MAX_ADDED:
            raise errors.InvalidArgument.field(name, f"has {len(given)} items; at most {MAX_ADDED} in one answer")
    words = {"written": answer.written, "intermediates": answer.intermediates}
    said = {f"{name}[{position}]": text for name, texts in words.items() for position, text in enumerate(texts)}
    for name, text in said.items():
        if not text.strip():
            raise errors.InvalidArgument.field(name, "is empty; leave it out")
    for name, text in {**said, "inference": answer.inference}.items():
        if len(text) > MAX_WRITTEN:
            raise errors.InvalidArgument.field(name, f"has {len(text)} characters; at most {MAX_WRITTEN}")


def check_alternatives(answer: TaskAnswer) -> None:
    """Refuses too many alternatives, an empty one, and one with a premise that the answer does not accept."""
    if len(answer.alternatives) > MAX_ALTERNATIVES:
        problem = f"has {len(answer.alternatives)} sets; at most {MAX_ALTERNATIVES} in one answer"
        raise errors.InvalidArgument.field("alternatives", problem)
    for position, premise_ids in enumerate(answer.alternatives):
        field = f"alternatives[{position}].premise_ids"
        if not premise_ids:
            raise errors.InvalidArgument.field(field, "is empty; name the premises that explain the query together")
        for premise_id in premise_ids:
            kind = answer.verdicts.get(premise_id)
            if kind is None or not kind.accepts:
                raise errors.InvalidArgument.field(field, f"names {premise_id!r}, which this answer does not accept")
