"""Control items: tasks whose answer is known, mixed in among the others to measure annotators. They never become pairs.

One JSON object a line: `{"query": "…", "explains": ["…"], "refuses": ["…"], "path": ["…"]}`; `path` may be missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc import errors
from aeenc.oracle import Candidate, Task
from services.sampler.people.tasks import TaskRecord, VerdictKinds, task_name
from services.sampler.records.runs import Run

STEP = 0.01  # between scores that are made up
ATTEMPTS = 20
_HEX = re.compile("(?=.*[0-9])(?=.*[a-f])[0-9a-f-]+")
EVERYBODY = 1_000_000  # a control item never has all its answers


@dataclass(frozen=True)
class Control:
    """A query with premises that explain it and others that do not."""

    query: str
    explains: tuple[str, ...]
    refuses: tuple[str, ...]
    path: tuple[str, ...] = ()


def read_controls(path: Path) -> tuple[Control, ...]:
    """The control items of a file. Raises InvalidArgument with file and line for a malformed one."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                stored = json.loads(line)
                control = Control(stored["query"], *(_texts(stored, name) for name in ("explains", "refuses", "path")))
            except (KeyError, TypeError, ValueError) as error:
                raise errors.InvalidArgument(
                    f"{path}:{number}: not a control item ({error!r}); give query, explains and refuses"
                ) from None
            if not control.explains and not control.refuses:
                raise errors.InvalidArgument(f"{path}:{number}: neither explains nor refuses names a premise")
            found.append(control)
    if not found:
        raise errors.InvalidArgument(f"{path}: holds no control items; give one a line, or leave `controls` out")
    return tuple(found)


def control_record(run: Run, control: Control, model: Task) -> TaskRecord:
    """A control item as a task of a run, with a name like any other's and its candidates in an order of its own.

    Its premises have ids and scores like those of `model`, a task of the run, or people would tell it by them.
    """
    gold = {**dict.fromkeys(control.refuses, False), **dict.fromkeys(control.explains, True)}
    texts = sorted(gold, key=lambda text: hashlib.sha256(f"{control.query}\n{text}".encode()).digest())
    ids: dict[str, str] = {}
    for text in texts:
        ids[text] = _like_ids(model, control.query, text, taken=ids.values())
    scores = _like_scores(model, control.query, len(texts))
    candidates = tuple(
        Candidate(ids[text], text, rank, score) for rank, (text, score) in enumerate(zip(texts, scores, strict=True), 1)
    )
    task = Task(task_name(control.query, candidates), run.id, control.query, control.path, (), candidates)
    return TaskRecord(run.id, task, EVERYBODY, "majority", gold={ids[text]: gold[text] for text in texts})


def _like_ids(model: Task, query: str, text: str, taken: Collection[str]) -> str:
    """An id of the form of the model's: other digits, and other letters where ids are hexadecimal."""
    taken = {*taken, *(candidate.id for candidate in model.candidates)}
    form = model.candidates[int(_draw(query, text) * len(model.candidates))].id
    letters = "abcdef" if _HEX.fullmatch(form) else ""
    attempt = 0
    while True:
        made = "" if attempt < ATTEMPTS else str(attempt)  # a form with too few digits gets more
        for place, char in reversed(list(enumerate(form))):
            choice = "0123456789" if char in "0123456789" else letters if char in letters else char
            made = choice[int(_draw(query, text, attempt, place) * len(choice))] + made
        if made not in taken:
            return made
        attempt += 1


def _like_scores(model: Task, query: str, count: int) -> list[float]:
    """Falling scores near the model's; beyond its candidates they go on falling."""
    known = sorted((candidate.score for candidate in model.candidates), reverse=True)
    known += [known[-1] - STEP * more for more in range(1, count - len(known) + 1)]
    return sorted((score - STEP * _draw(query, place) for place, score in enumerate(known[:count])), reverse=True)


def _draw(*parts: object) -> float:
    """A number in [0, 1) that depends on its arguments alone."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") / 2**32


def right_and_judged(record: TaskRecord, verdicts: VerdictKinds) -> tuple[int, int]:
    """Counts how many of a person's verdicts on a control item are right, and how many are a yes or a no."""
    decided = {premise_id: verdict for premise_id, verdict in verdicts.items() if verdict.decides}
    right = sum(verdict.accepts is record.gold[premise_id] for premise_id, verdict in decided.items())
    return right, len(decided)


def _texts(stored: dict[str, Any], name: str) -> tuple[str, ...]:
    texts = stored.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise TypeError(f"{name} must be a list of texts")
    return tuple(texts)
