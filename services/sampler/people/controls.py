"""Control items: tasks whose answer is known, which measure annotators. They never become pairs.

    a person's first `qualify` tasks of a queue ─▶ control items ─▶ enough verdicts right? ─▶ other tasks
                                                                     and `control_share` of control items among them

One JSON object a line: `{"query": "…", "explains": ["…"], "refuses": ["…"], "path": ["…"]}`; `path` may be missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from aeenc import errors
from aeenc.oracle import Candidate, Task
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord, VerdictKinds, parts_of, task_name
from services.sampler.records.runs import Run
from services.sampler.settings import QueueSettings

STEP = 0.01  # between scores that are made up
ATTEMPTS = 20
RUNS_KEPT = 16  # whose control items are kept; some kilobytes each
_HEX = re.compile("(?=.*[0-9])(?=.*[a-f])[0-9a-f-]+")

QualificationState = Literal["OPEN", "PASSED", "FAILED"]


class NotQualified(errors.FailedPrecondition):
    """A person gets no task of a queue before they have passed its qualification round."""

    default_reason = "NOT_QUALIFIED"


@dataclass(frozen=True)
class Control:
    """A query with premises that explain it and others that do not."""

    query: str
    explains: tuple[str, ...]
    refuses: tuple[str, ...]
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Qualification:
    """How far a person is in the qualification round of a queue: control items answered, of so many."""

    items: int
    answered: int
    state: QualificationState


class ControlItems:
    """The control items of the queues of one namespace, as tasks of their runs."""

    def __init__(
        self, tasks: TaskStore, queues: Mapping[str, QueueSettings], controls: Mapping[str, Sequence[Control]]
    ) -> None:
        self._tasks, self._queues, self._controls = tasks, queues, controls
        self._made_up: OrderedDict[str, list[TaskRecord]] = OrderedDict()  # by run; each takes about a millisecond

    @classmethod
    def of(cls, tasks: TaskStore, queues: Mapping[str, QueueSettings]) -> Self:
        """Reads the files of all queues. Raises InvalidArgument for one that is malformed or too short."""
        controls = {name: read_controls(one.controls) for name, one in queues.items() if one.controls}
        for name, one in queues.items():
            if one.qualify > (there := len(controls.get(name, ()))):
                raise errors.InvalidArgument(
                    f"queue {name!r}: qualify is {one.qualify}, and its `controls` hold {there} items; add more"
                )
        return cls(tasks, queues, controls)

    async def left(
        self, run: Run, annotator: str, answered: Collection[str], waiting: Sequence[str], *, qualifying: bool = False
    ) -> list[str]:
        """The control items that a person may take now, each a task of their own that is put there if it is missing.

        `answered` are the tasks that they have answered, `waiting` some that are no control items. To mix one in, the
        first is enough; for the qualification round there are all of it.
        """
        controls = self._controls.get(run.config.oracle, ())
        first, _ = await self._tasks.read_many(run.id, await self._tasks.task_ids(run.id, 0, 1))
        if not first or not controls:
            return []
        model = first[0].task  # a run's first task is none of its control items: they come once others wait
        of_round = controls[: self._queues[run.config.oracle].qualify] if qualifying else controls
        items = {own_id(record, annotator): record for record in self._records(run, of_round, model)}
        left = [task_id for task_id in items if task_id not in answered]
        there, at = await self._tasks.read_many(run.id, left)
        taken = {one.task.task_id for one in there if not one.open_to(annotator, at)}
        wanted = [task_id for task_id in left if task_id not in taken][: None if qualifying else 1]
        beside = {task_id: waiting[int(draw(annotator, task_id) * len(waiting))] for task_id in wanted}
        found, _ = await self._tasks.read_many(run.id, sorted(set(beside.values())))
        by_id = {one.task.task_id: one for one in found}
        await self._tasks.put(
            [own_record(items[one], one, by_id[beside[one]]) for one in wanted if beside[one] in by_id]
        )
        return wanted

    def _records(self, run: Run, controls: Sequence[Control], model: Task) -> Iterator[TaskRecord]:
        """The control items as tasks of a run, each made up when it is first needed."""
        made_up = self._made_up.setdefault(run.id, [])
        self._made_up.move_to_end(run.id)
        if len(self._made_up) > RUNS_KEPT:
            self._made_up.popitem(last=False)
        for place, control in enumerate(controls):
            if place == len(made_up):
                made_up.append(control_record(run, control, model))
            yield made_up[place]

    async def qualification(self, run: Run, annotator: str) -> Qualification | None:
        """A person's qualification for the run's queue; None where it has no such round.

        They pass it once, in one of the queue's runs. Who has failed, and been told so, may try again in the next run,
        whatever they take back or amend in this one.
        """
        queue = run.config.oracle
        settings = self._queues[queue]
        if not settings.qualify or annotator in settings.qualified:
            return None
        if noted := await self._tasks.qualification(run.id, queue, annotator):
            return Qualification(settings.qualify, settings.qualify, noted)
        ids = {parts_of(one, "answer")[1] for one in await self._tasks.answered_by(run.id, annotator)}
        found = [one for one in (await self._tasks.read_many(run.id, sorted(ids)))[0] if one.control]
        counted = [right_and_judged(one, a.said) for one in found for a in one.answers if a.annotator == annotator]
        if len(found) < settings.qualify:
            return Qualification(settings.qualify, len(found), "OPEN")
        right, judged = (sum(numbers) for numbers in zip(*counted, strict=True))
        if not judged or right < settings.qualify_share * judged:
            await self._tasks.fail(run.id, annotator)
            return Qualification(settings.qualify, len(found), "FAILED")
        await self._tasks.qualify(queue, annotator)
        return Qualification(settings.qualify, len(found), "PASSED")


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
    return TaskRecord(run.id, task, 1, "majority", gold={ids[text]: gold[text] for text in texts})


def own_id(item: TaskRecord, annotator: str) -> str:
    """The id of one person's task of a control item: people who answer the same item change no common record."""
    return task_name(f"{item.task.query}\n{annotator}", item.task.candidates)


def own_record(item: TaskRecord, task_id: str, beside: TaskRecord) -> TaskRecord:
    """One person's task of a control item. What names its node is that of a task beside it, or people would tell it."""
    task = replace(item.task, task_id=task_id, model_version=beside.task.model_version)
    return replace(item, task=task, node_id=beside.node_id)


def _like_ids(model: Task, query: str, text: str, taken: Collection[str]) -> str:
    """An id of the form of the model's: other digits, and other letters where ids are hexadecimal."""
    taken = {*taken, *(candidate.id for candidate in model.candidates)}
    form = model.candidates[int(draw(query, text) * len(model.candidates))].id
    letters = "abcdef" if _HEX.fullmatch(form) else ""
    attempt = 0
    while True:
        made = "" if attempt < ATTEMPTS else str(attempt)  # a form with too few digits gets more
        for place, char in reversed(list(enumerate(form))):
            choice = "0123456789" if char in "0123456789" else letters if char in letters else char
            made = choice[int(draw(query, text, attempt, place) * len(choice))] + made
        if made not in taken:
            return made
        attempt += 1


def _like_scores(model: Task, query: str, count: int) -> list[float]:
    """Falling scores near the model's; beyond its candidates they go on falling."""
    known = sorted((candidate.score for candidate in model.candidates), reverse=True)
    known += [known[-1] - STEP * more for more in range(1, count - len(known) + 1)]
    return sorted((score - STEP * draw(query, place) for place, score in enumerate(known[:count])), reverse=True)


def draw(*parts: object) -> float:
    """A number in [0, 1) that depends on its arguments alone, so that a retry draws the same one."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") / 2**32


def right_and_judged(record: TaskRecord, verdicts: VerdictKinds) -> tuple[int, int]:
    """Counts how many of a person's verdicts on a control item are right, and how many are a yes or a no.

    What they have added to it is neither right nor wrong.
    """
    decided = [premise_id for premise_id in record.gold if verdicts[premise_id].decides]
    return sum(verdicts[one].accepts is record.gold[one] for one in decided), len(decided)


@dataclass(frozen=True)
class Mistake:
    """A candidate of a control item, whether it explains the query, and how many people said otherwise."""

    text: str
    explains: bool
    people: int


@dataclass(frozen=True)
class ControlReport:
    """How people have answered a control item. Verdicts are those that are a yes or a no."""

    query: str
    answers: int
    verdicts: int
    correct: int
    mistakes: tuple[Mistake, ...]


def control_report(records: Sequence[TaskRecord]) -> ControlReport:
    """The report on the tasks of one control item, one of each person, with the most frequent mistake first."""
    task, gold = records[0].task, records[0].gold
    said = [answer.said for record in records for answer in record.answers]
    counted = [right_and_judged(records[0], one) for one in said]
    mistakes = []
    for candidate in task.candidates:
        explains = gold[candidate.id]
        kinds = [one[candidate.id] for one in said]
        if people := sum(kind.decides and kind.accepts is not explains for kind in kinds):
            mistakes.append(Mistake(candidate.text, explains, people))
    return ControlReport(
        task.query,
        len(said),
        sum(judged for _, judged in counted),
        sum(right for right, _ in counted),
        tuple(sorted(mistakes, key=lambda one: -one.people)),
    )


def _texts(stored: dict[str, Any], name: str) -> tuple[str, ...]:
    texts = stored.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise TypeError(f"{name} must be a list of texts")
    return tuple(texts)
