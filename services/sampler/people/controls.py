"""Control items: tasks whose answer is known, which measure annotators. They never become pairs.

    a person's first `qualify` tasks of a queue ─▶ control items ─▶ enough verdicts right? ─▶ other tasks
                                                                     and `control_share` of control items among them

One JSON object a line: `{"query": "…", "explains": ["…"], "refuses": ["…"], "path": ["…"]}`; `path` may be missing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from aeenc import errors
from aeenc.files.lines import json_lines
from aeenc.oracle import Candidate, Task
from aeenc.oracles.controls import ControlItem
from aeenc.values import ControlMistake, ControlReport, Judgement, Qualification, Verdict
from services.sampler.acs.algorithm import explains
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord, Verdicts, task_name
from services.sampler.records.runs import Run
from services.sampler.settings import QueueSettings

STEP = 0.01  # between scores that are made up
ATTEMPTS = 20
_ITEM = TypeAdapter(ControlItem)
BESIDE = 64  # waiting tasks, one of which lends a control item its node
_HEX = re.compile("(?=.*[0-9])(?=.*[a-f])[0-9a-f-]+")


class NotQualified(errors.FailedPrecondition):
    """A person gets no task of a queue before they have passed its qualification round."""

    default_reason = "NOT_QUALIFIED"


class ControlItems:
    """The control items of the queues of one namespace, as tasks of their runs.

    Reads the files of all queues. Raises InvalidArgument for one that is malformed or too short.
    """

    def __init__(self, tasks: TaskStore, queues: Mapping[str, QueueSettings]) -> None:
        self._tasks, self._queues = tasks, queues
        self._controls = {name: read_controls(one.controls) for name, one in queues.items() if one.controls}
        for name, one in queues.items():
            if one.qualify > (there := len(self._controls.get(name, ()))):
                raise errors.InvalidArgument(
                    f"queue {name!r}: qualify is {one.qualify}, and its `controls` hold {there} items; add more"
                )

    async def next_item(self, run: Run, annotator: str, *, qualifying: bool = False) -> list[str]:
        """The next control item for a person, a task of their own that is put there if it is missing; none: empty."""
        queue = run.config.oracle
        of_round = self._controls.get(queue, ())[: self._queues[queue].qualify if qualifying else None]
        answered = await self._tasks.answered_by(run.id, annotator, controls=True)
        # People who answer the same item change no common record.
        items = {task_name(json.dumps([annotator, *vars(one).values()]), ()): one for one in of_round}
        left = [task_id for task_id in items if task_id not in answered]
        there, at = await self._tasks.read_many(run.id, left)
        taken = {one.task.task_id for one in there if not one.open_to(annotator, at)}
        wanted = [task_id for task_id in left if task_id not in taken][:1]
        if any(one.task.task_id in wanted for one in there):
            return wanted
        first = await self._tasks.task_ids(run.id, 0, 1)  # none of its control items: they come once others wait
        found, _ = await self._tasks.read_many(run.id, [*first, *await self._tasks.waiting(run.id, 0, BESIDE)])
        if len(found) < 2:  # the last task was taken meanwhile, or the run deleted
            return []
        model, *beside = found
        new = [control_record(run, items[one], one, model, beside[int(draw(one) * len(beside))]) for one in wanted]
        await self._tasks.put(new)
        return wanted

    async def qualifies(self, run: Run, annotator: str, *, is_named: bool) -> bool:
        """Whether a person is in the qualification round.

        Raises NotQualified if they have failed it, and within it where they name the hypothesis or task they want.
        """
        found = await self.qualification(run, annotator)
        if found is None or found.passed:
            return False
        queue = run.config.oracle
        if found.answered >= found.items:
            raise NotQualified(
                f"{annotator} has not passed the qualification round of queue {queue!r}: fewer than "
                f"{self._queues[queue].qualify_share:.0%} of the verdicts were right; ask who leads the queue"
            )
        if is_named:
            raise NotQualified(
                f"{annotator} has answered {found.answered} of the {found.items} tasks that qualify for queue "
                f"{queue!r}; lease without naming a hypothesis or task first"
            )
        return True

    async def qualification(self, run: Run, annotator: str) -> Qualification | None:
        """A person's qualification for the run's queue; None where it has no such round.

        They pass it once, in one of the queue's runs. Who has failed, and been told so, may try again in the next run,
        whatever they take back or amend in this one.
        """
        queue = run.config.oracle
        settings = self._queues[queue]
        if not settings.qualify or annotator in settings.qualified:
            return None
        passed = await self._tasks.qualification(run.id, queue, annotator)
        if passed is None:
            ids = await self._tasks.answered_by(run.id, annotator, controls=True)
            found, _ = await self._tasks.read_many(run.id, ids)
            counted = [right_and_judged(one, given.own_verdicts) for one in found for given in one.answers]
            if len(counted) < settings.qualify:
                return Qualification(items=settings.qualify, answered=len(counted))
            right, judged = (sum(numbers) for numbers in zip(*counted, strict=True))
            passed = judged > 0 and right >= settings.qualify_share * judged
            await self._tasks.qualify(run.id, queue, annotator, passed=passed)
        return Qualification(items=settings.qualify, answered=settings.qualify, passed=passed)


def read_controls(path: Path) -> tuple[ControlItem, ...]:
    """The control items of a file. Raises InvalidArgument with file and line for a malformed one."""
    found = []
    for place, content in json_lines(path):
        try:
            control = _ITEM.validate_python(content)
        except ValidationError as error:
            [first, *_] = error.errors()
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
            problem = f"not a control item ({what}); give query, explains and refuses"
            raise errors.InvalidArgument(f"{place}: {problem}") from None
        premises = (*control.explains, *control.refuses)
        if not premises:
            raise errors.InvalidArgument(f"{place}: neither explains nor refuses names a premise")
        if "" in (control.query, *premises, *control.path):
            raise errors.InvalidArgument(f"{place}: a text is empty; leave it out or write it")
        found.append(control)
    if not found:
        raise errors.InvalidArgument(f"{path}: holds no control items; give one a line, or leave `controls` out")
    return tuple(found)


def control_record(run: Run, control: ControlItem, task_id: str, model: TaskRecord, beside: TaskRecord) -> TaskRecord:
    """A control item as a task of a run, with its candidates in an order of its own.

    Its premises have ids and scores like those of `model`, a task of the run, and it names the node and the version of
    one `beside` it, or people would tell it by them.
    """
    gold = {**dict.fromkeys(control.refuses, False), **dict.fromkeys(control.explains, True)}
    texts = sorted(gold, key=lambda text: hashlib.sha256(f"{control.query}\n{text}".encode()).digest())
    ids: dict[str, str] = {}
    for text in texts:
        ids[text] = _like_ids(model.task, control.query, text, taken=ids.values())
    scores = _like_scores(model.task, control.query, len(texts))
    candidates = tuple(
        Candidate(ids[text], text, rank, score) for rank, (text, score) in enumerate(zip(texts, scores, strict=True), 1)
    )
    task = Task(task_id, run.id, control.query, control.path, (), candidates, beside.task.model_version)
    gold_ids = {ids[text]: gold[text] for text in texts}
    return TaskRecord(run.id, task, 1, "majority", gold=gold_ids, node_id=beside.node_id)


def _like_ids(model: Task, query: str, text: str, taken: Collection[str]) -> str:
    """An id of the form of the model's: other digits, and other letters where ids are hexadecimal."""
    taken = {*taken, *(candidate.id for candidate in model.candidates)}
    form = model.candidates[int(draw(query, text) * len(model.candidates))].id
    letters = "abcdef" if _HEX.fullmatch(form) else ""
    for attempt in itertools.count():
        made = "" if attempt < ATTEMPTS else str(attempt)  # a form with too few digits gets more
        for place, char in reversed(list(enumerate(form))):
            choice = "0123456789" if char in "0123456789" else letters if char in letters else char
            made = choice[int(draw(query, text, attempt, place) * len(choice))] + made
        if made not in taken:
            break
    return made


def _like_scores(model: Task, query: str, count: int) -> list[float]:
    """Falling scores near the model's; beyond its candidates they go on falling."""
    known = sorted((candidate.score for candidate in model.candidates), reverse=True)
    known += [known[-1] - STEP * more for more in range(1, count - len(known) + 1)]
    return sorted((score - STEP * draw(query, place) for place, score in enumerate(known[:count])), reverse=True)


def draw(*parts: object) -> float:
    """A number in [0, 1) that depends on its arguments alone, so that a retry draws the same one."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") / 2**32


def right_and_judged(record: TaskRecord, verdicts: Verdicts) -> tuple[int, int]:
    """Counts how many of a person's verdicts on a control item are right, and how many are a yes or a no.

    What they have added to it is neither right nor wrong.
    """
    decided = [premise_id for premise_id in record.gold if explains(verdicts[premise_id]) is not None]
    return sum(explains(verdicts[one]) is record.gold[one] for one in decided), len(decided)


def control_report(records: Sequence[TaskRecord]) -> ControlReport:
    """The report on the tasks of one control item, one of each person, with the most frequent mistake first."""
    task, gold = records[0].task, records[0].gold
    said = [given.own_verdicts for record in records for given in record.answers]
    counted = [right_and_judged(records[0], one) for one in said]
    mistakes = []
    for candidate in task.candidates:
        right = gold[candidate.id]
        wrong = [one for one in said if explains(one[candidate.id]) is (not right)]
        if wrong:
            judgement = Judgement.EXPLAINS if right else Judgement.DOES_NOT_EXPLAIN
            mistakes.append(ControlMistake(right=Verdict(text=candidate.text, judgement=judgement), people=len(wrong)))
    return ControlReport(
        query=task.query,
        answers=len(said),
        verdicts=sum(judged for _, judged in counted),
        correct=sum(right for right, _ in counted),
        mistakes=tuple(sorted(mistakes, key=lambda one: -one.people)),
    )
