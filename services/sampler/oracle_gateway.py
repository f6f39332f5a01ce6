"""The way to one oracle: bounded calls in flight, deadlines, retries, and a suspicious reading of what comes back.

Nothing but a clear, single refusal of a candidate becomes a refusal. Whatever is missing, unknown, given twice, late or
unclear is counted as skipped. What the sampler does with an unanswered node is decided in `run_worker`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aeenc import errors
from aeenc.channel import Channel
from aeenc.oracle import EXPLAINS, REFUSES, Task
from aeenc.oracles.client import Answer, OracleClient
from services.kit.logs import get
from services.sampler.acs import Ruling
from services.sampler.settings import OracleSettings

log = get(__name__)

MAX_BACKOFF_S = 5.0
FEW = 3  # as many nodes may be bad by themselves; more without any answer means that the oracle is
# Trying again cannot help: the operator has to change something first.
_HOPELESS = (errors.Unauthenticated, errors.PermissionDenied, errors.Unimplemented)


@dataclass(frozen=True)
class Judged:
    """What the oracle said about one task: a ruling for each candidate, and the grades that it gave.

    `unknown` counts verdicts on premises that were not asked about.
    """

    task: Task
    rulings: dict[str, Ruling]
    grades: dict[str, float]
    annotator: str
    unknown: int


@dataclass(frozen=True)
class Unanswered:
    """A task that stayed without an answer although it was asked alone.

    An answer to another task after `since` shows that the oracle works and this task is to blame.
    """

    task: Task
    reason: str
    since: float


@dataclass(frozen=True)
class _Asked:
    """What some attempts gave: the tasks answered, those that are not, why, and whether the last call came back."""

    answered: list[Judged]
    missing: list[Task]
    reason: str
    replied: bool


class OracleFailed(Exception):
    """The oracle as a whole is down or cannot be used; the message names it, its target and the remedy."""


class OracleGateway:
    """One configured oracle, shared by all runs of this process."""

    def __init__(self, name: str, settings: OracleSettings) -> None:
        self.name = name
        self.settings = settings
        self.last_answer_at = 0.0
        channel = Channel(settings.target, token=settings.token, ca=settings.ca, timeout_s=settings.timeout_s)
        self._client = OracleClient(channel)
        self._places = asyncio.Semaphore(settings.max_concurrency)

    async def judge(self, run_id: str, tasks: Sequence[Task]) -> list[Judged | Unanswered]:
        """Puts at most `batch_tasks` tasks before the oracle. Raises OracleFailed when it is down or refuses us.

        Tasks that a whole call's attempts leave unanswered are asked one by one, so that one bad task does not take
        others along; when nobody gets an answer then either, it is the oracle that failed.
        """
        since = time.monotonic()
        together = await self._ask(run_id, tasks, self.settings.max_attempts)
        if not together.missing:
            return list(together.answered)
        if len(tasks) == 1:
            return [Unanswered(tasks[0], together.reason, since)]
        alone_since = time.monotonic()
        probes = await asyncio.gather(*(self._ask(run_id, [task], 1) for task in together.missing))
        answered = [*together.answered, *(outcome for probe in probes for outcome in probe.answered)]
        missing = [task for probe in probes for task in probe.missing]
        if not answered and len(missing) > FEW:
            raise OracleFailed(self.describe(together.reason))
        last = await asyncio.gather(*(self._ask(run_id, [task], self.settings.max_attempts) for task in missing))
        outcomes: list[Judged | Unanswered] = list(answered)
        for task, asked in zip(missing, last, strict=True):
            # Silence on this task in calls that answered others is the task's fault; an error may be the oracle's.
            fair_since = since if together.answered and asked.replied else alone_since
            outcomes += asked.answered or [Unanswered(task, asked.reason, fair_since)]
        return outcomes

    async def _ask(self, run_id: str, tasks: Sequence[Task], attempts: int) -> _Asked:
        """Asks until every task is answered or the attempts are used up."""
        answered: list[Judged] = []
        missing, reason, replied = list(tasks), "", False
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(self.settings.backoff_s * 2.0 ** (attempt - 1), MAX_BACKOFF_S))
            try:
                async with self._places:
                    answers = await self._client.judge(run_id, missing, timeout_s=self.settings.timeout_s)
            except _HOPELESS as error:
                raise OracleFailed(self.describe(error.message)) from None
            except errors.AeencError as error:
                reason, replied = error.message, False
                log.warning("oracle call failed", oracle=self.name, attempt=attempt + 1, reason=reason)
                continue
            if read := read_answers(missing, answers):
                self.last_answer_at = time.monotonic()
            answered += read
            done = {outcome.task.task_id for outcome in read}
            missing = [task for task in missing if task.task_id not in done]
            if not missing:
                return _Asked(answered, [], "", replied=True)
            reason, replied = f"no verdict on any candidate of {len(missing)} of {len(tasks)} tasks", True
            log.warning("oracle left tasks unanswered", oracle=self.name, attempt=attempt + 1, reason=reason)
        if not self._client.connected:
            raise OracleFailed(self.describe(reason))
        return _Asked(answered, missing, reason, replied)

    def describe(self, reason: str) -> str:
        """The message of a run that failed because of this oracle."""
        return (
            f"oracle {self.name!r} at {self.settings.target} failed {self.settings.max_attempts} times: {reason}; "
            "start or repair it (aeenc oracle …), then resume the run: nothing that it answered is asked again"
        )

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.channel.close()


def read_answers(tasks: Sequence[Task], answers: Iterable[Answer]) -> list[Judged]:
    """The tasks that were answered. Not answered: none, two answers, or no verdict on any candidate of the task."""
    by_task: dict[str, list[Answer]] = {}
    for answer in answers:
        by_task.setdefault(answer.task_id, []).append(answer)
    judged = []
    for task in tasks:
        given = by_task.get(task.task_id, [])
        if len(given) == 1 and (one := read_answer(task, given[0])) is not None:
            judged.append(one)
    return judged


def read_answer(task: Task, answer: Answer) -> Judged | None:
    """A ruling for every candidate of a task, or None when the answer speaks of none of them."""
    asked = {candidate.id for candidate in task.candidates}
    rulings: dict[str, Ruling] = {}
    grades: dict[str, float] = {}
    unknown = 0
    for premise_id, verdict in answer.verdicts:
        if premise_id not in asked:
            unknown += 1
        elif premise_id in rulings:
            rulings[premise_id] = Ruling.SKIPPED  # given twice: nobody knows which one is meant
            grades.pop(premise_id, None)
        else:
            rulings[premise_id] = _ruling(verdict.judgement, verdict.leaf)
            if verdict.grade is not None:
                grades[premise_id] = verdict.grade
    if not rulings:
        return None
    missing = dict.fromkeys(asked - rulings.keys(), Ruling.SKIPPED)
    return Judged(task, {**rulings, **missing}, grades, answer.annotator, unknown)


def _ruling(judgement: int, leaf: bool) -> Ruling:
    if judgement == EXPLAINS:
        return Ruling.LEAF if leaf else Ruling.EXPLAINS
    if judgement == REFUSES:
        return Ruling.REFUSED_UNKEPT
    # ABSTAIN, UNSEEN, UNSPECIFIED, and values that a later contract may add.
    return Ruling.SKIPPED
