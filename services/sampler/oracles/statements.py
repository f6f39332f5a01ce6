"""The rules of what is said of a node beside verdicts. People hear of a breach; an oracle's is left out and logged."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from aeenc import errors
from aeenc.oracle import Task
from services.kit.logs import get
from services.sampler.acs.algorithm import Statement

log = get(__name__)

MAX_ALTERNATIVES = 16
MAX_ADDED = 64  # premises, written facts, and intermediates of one answer
MAX_WRITTEN = 1024  # characters of a written fact, and of an inference
_LISTS = {"written": MAX_ADDED, "intermediates": MAX_ADDED, "alternatives": MAX_ALTERNATIVES}


@dataclass(frozen=True)
class Fault:
    """What may not be said: where it stands, why, and the item of a list that is wrong."""

    field: str
    problem: str
    item: tuple[str, int] | None = None


def check(task: Task, said: Statement, accepted: Collection[str]) -> None:
    """Refuses the first fault. `accepted` are the premises (ids) accepted with it. Raises InvalidArgument."""
    for fault in _faults(task, said, accepted):
        raise errors.InvalidArgument.field(fault.field, fault.problem)


def without_faults(task: Task, said: Statement, accepted: Collection[str]) -> Statement:
    """The statement without what may not be said, which is logged; a long inference is cut."""
    said = replace(said, inference=said.inference[:MAX_WRITTEN])
    wrong = {fault.item: fault for fault in _faults(task, said, accepted)}
    for fault in wrong.values():
        log.warning("an answer's part is left out", task=task.task_id, field=fault.field, reason=fault.problem)
    left: dict[str, Any] = {
        name: tuple(one for at, one in enumerate(getattr(said, name)) if (name, at) not in wrong) for name in _LISTS
    }
    return replace(said, **left)


def _faults(task: Task, said: Statement, accepted: Collection[str]) -> Iterator[Fault]:
    for name, most in _LISTS.items():
        given = getattr(said, name)
        for at in range(most, len(given)):
            yield Fault(name, f"has {len(given)} items; at most {most} in one answer", (name, at))
    yield from _words(said)
    candidates = {candidate.text: candidate.id for candidate in task.candidates}
    for at, text in enumerate(said.intermediates):
        field, item = f"intermediates[{at}]", ("intermediates", at)
        if text in (task.query, *task.path):
            told = f"{text!r} is to be explained here or above; a tree may not lead back to itself"
            yield Fault(field, told, item)
        elif text in candidates:
            told = f"{text!r} is the candidate {candidates[text]!r} of the task; judge it among `verdicts`"
            yield Fault(field, told, item)
    yield from _ways(said, {*accepted, *(premise.id for premise in task.accepted)})


def _words(said: Statement) -> Iterator[Fault]:
    """The faults of texts that are empty or too long."""
    texts = {(name, at): text for name in ("written", "intermediates") for at, text in enumerate(getattr(said, name))}
    for item, text in texts.items():
        field = f"{item[0]}[{item[1]}]"
        if not text.strip():
            yield Fault(field, "is empty; leave it out", item)
        if len(text) > MAX_WRITTEN:
            yield Fault(field, f"has {len(text)} characters; at most {MAX_WRITTEN}", item)
    if len(said.inference) > MAX_WRITTEN:
        yield Fault("inference", f"has {len(said.inference)} characters; at most {MAX_WRITTEN}")


def _ways(said: Statement, accepted: Collection[str]) -> Iterator[Fault]:
    """The faults of alternatives."""
    for at, premise_ids in enumerate(said.alternatives):
        field, item = f"alternatives[{at}].premise_ids", ("alternatives", at)
        if not premise_ids:
            yield Fault(field, "is empty; name the premises that explain the query together", item)
        for premise_id in premise_ids:
            if premise_id not in accepted:
                yield Fault(field, f"names {premise_id!r}, which this answer does not accept", item)
