"""Control items: tasks whose answer is known, mixed in among the others to measure annotators. They never become pairs.

One JSON object a line: `{"query": "…", "explains": ["…"], "refuses": ["…"], "path": ["…"]}`; `path` may be missing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc import errors
from aeenc.oracle import Candidate, Task
from services.sampler.people.tasks import TaskRecord, VerdictKinds, task_name
from services.sampler.records.runs import Run

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


def control_record(run: Run, control: Control) -> TaskRecord:
    """A control item as a task of a run, with a name like any other's and its candidates in an order of its own."""
    gold = {**dict.fromkeys(control.refuses, False), **dict.fromkeys(control.explains, True)}
    texts = sorted(gold, key=lambda text: hashlib.sha256(f"{control.query}\n{text}".encode()).digest())
    ids = {text: hashlib.sha256(text.encode()).hexdigest()[:12] for text in texts}
    candidates = tuple(Candidate(ids[text], text, rank, 0.0) for rank, text in enumerate(texts, start=1))
    task = Task(task_name(control.query, candidates), run.id, control.query, control.path, (), candidates)
    return TaskRecord(run.id, task, EVERYBODY, "majority", gold={ids[text]: gold[text] for text in texts})


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
