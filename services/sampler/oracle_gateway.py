"""The way to one oracle: bounded calls in flight, deadlines, retries, and a suspicious reading of what comes back.

Nothing but a clear, single refusal of a candidate becomes a refusal. Whatever is missing, unknown, given twice, late or
unclear is counted as skipped. What the sampler does with an unanswered node is decided in `run_worker`; when an oracle
counts as down, in `breaker`.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from aeenc import errors
from aeenc.oracle import EXPLAINS, REFUSES, Task
from aeenc.oracles.client import Answer, OracleClient
from aeenc.transport.channel import Channel
from services.kit.logs import get
from services.sampler.acs import Ruling
from services.sampler.breaker import Breaker, Down
from services.sampler.oracle_metrics import OracleMetrics
from services.sampler.runs import MAX_NOTE
from services.sampler.settings import OracleSettings

log = get(__name__)

MAX_BACKOFF_S = 5.0
MAX_ASKED_PAUSE_S = 60.0  # an oracle may ask for a longer pause, up to this
FIRST_PATIENCE_S = 10.0  # for an oracle that has never answered: probably it is not there, and a person waits
MAX_ANNOTATOR = 256  # characters; it stands in every pair
FEW = 3  # as many nodes may be bad by themselves; more without any answer means that the oracle is
# Trying again cannot help: the operator has to change something first.
_HOPELESS = (errors.Unauthenticated, errors.PermissionDenied, errors.Unimplemented)


@dataclass(frozen=True)
class Judged:
    """What the oracle said about one task: a ruling for each candidate, and the grades that it gave.

    `unknown` counts verdicts on premises that were not asked about. `annotators` holds who gave single verdicts, where
    that is not the answer's `annotator`.
    """

    task: Task
    rulings: dict[str, Ruling]
    grades: dict[str, float]
    annotator: str
    unknown: int
    annotators: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def annotator_of(self, premise_id: str) -> str:
        """Who gave the verdict on a candidate."""
        return self.annotators.get(premise_id, self.annotator)


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
    """What some calls gave: the tasks answered, those that are not, why, and whether the last call came back.

    `pause_s` is how long the oracle asked to be left alone; `alone` when tasks, by id, were last asked by themselves.
    """

    answered: list[Judged]
    missing: list[Task]
    reason: str = ""
    replied: bool = True
    pause_s: float = 0.0
    alone: dict[str, float] = field(default_factory=dict)


class OracleFailed(Exception):
    """The oracle as a whole is down or cannot be used; the message names it, its target and the remedy."""


class OracleGateway:
    """One configured oracle, shared by all runs of this process."""

    def __init__(self, name: str, settings: OracleSettings, metrics: OracleMetrics | None = None) -> None:
        self.name = name
        self.settings = settings
        self.last_answer_at = 0.0
        channel = Channel(
            settings.target,
            token=settings.token,
            ca=settings.ca,
            cert=settings.cert,
            key=settings.key,
            timeout_s=settings.timeout_s,
        )
        self._client = OracleClient(channel)
        self._places = asyncio.Semaphore(settings.max_concurrency)
        self._breaker = Breaker(settings.breaker_failures)
        self._metrics = metrics or OracleMetrics(CollectorRegistry())
        self._last_reason = ""

    def begin(self) -> None:
        """A run begins or goes on: tries the oracle at once, however it was before."""
        self._breaker.try_at_once()

    async def judge(self, run_id: str, tasks: Sequence[Task]) -> list[Judged | Unanswered]:
        """Puts at most `batch_tasks` tasks before the oracle. Raises OracleFailed when it is down or refuses us.

        Tasks that a whole call's attempts leave unanswered are asked one by one, so that one bad task does not take
        others along; when nobody gets an answer then either, it is the oracle that failed.
        """
        since = time.monotonic()
        together = await self._ask(run_id, tasks, self.settings.max_attempts, patient=len(tasks) > FEW)
        if not together.missing:
            return list(together.answered)
        if len(tasks) == 1:
            return [Unanswered(tasks[0], together.reason, together.alone.get(tasks[0].task_id, since))]
        alone_since = time.monotonic()
        patient = not together.answered and len(together.missing) > FEW
        probes = await asyncio.gather(*(self._ask(run_id, [task], 1, patient=patient) for task in together.missing))
        answered = [*together.answered, *(outcome for probe in probes for outcome in probe.answered)]
        missing = [task for probe in probes for task in probe.missing]
        if not answered and len(missing) > FEW:
            raise OracleFailed(self.describe(together.reason))
        last = await asyncio.gather(*(self._ask(run_id, [task], self.settings.max_attempts) for task in missing))
        outcomes: list[Judged | Unanswered] = list(answered)
        for task, asked in zip(missing, last, strict=True):
            # Silence on this task in calls that answered others is the task's fault; an error may be the oracle's.
            fair_since = together.alone.get(task.task_id, alone_since)
            if together.answered and asked.replied:
                fair_since = since
            outcomes += asked.answered or [Unanswered(task, asked.reason, fair_since)]
        return outcomes

    async def _ask(self, run_id: str, tasks: Sequence[Task], attempts: int, *, patient: bool = False) -> _Asked:
        """Asks until every task is answered or the attempts are used up; after a failed call in smaller calls.

        A failure counts as no attempt when nobody is there to answer, or when the oracle fails everybody and the caller
        is `patient`: the breaker then says how long to wait.
        """
        answered: list[Judged] = []
        alone: dict[str, float] = {}
        missing, size, attempt = list(tasks), len(tasks), 0
        while True:
            parts = [missing[start : start + size] for start in range(0, len(missing), size)]
            now = time.monotonic()
            alone |= {part[0].task_id: now for part in parts if len(part) == 1}
            calls = await asyncio.gather(*(self._call(run_id, part) for part in parts))
            answered += [one for call in calls for one in call.answered]
            left = [call for call in calls if call.missing]
            if not left:
                return _Asked(answered, [])
            missing = [task for call in left for task in call.missing]
            reason, replied = left[-1].reason, all(call.replied for call in left)
            away = not self._client.connected or (patient and not answered and self._breaker.open)
            log.warning("oracle call failed", oracle=self.name, attempt=attempt + 1, tasks=len(missing), reason=reason)
            if replied or not away:
                attempt += 1
                size = size if replied else (size + 1) // 2
                if attempt >= attempts:
                    return _Asked(answered, missing, reason, replied, alone=alone)
            await asyncio.sleep(self._pause_s(attempt, max(call.pause_s for call in left)))

    async def _call(self, run_id: str, tasks: Sequence[Task]) -> _Asked:
        """One call, when its turn comes. Raises OracleFailed when the oracle is down or refuses us."""
        settings = self.settings
        patience_s = settings.patience_s if self.last_answer_at else min(settings.patience_s, FIRST_PATIENCE_S)
        try:
            async with self._places, self._breaker.call(patience_s):
                with self._metrics.call(self.name):
                    answers = await self._client.judge(run_id, tasks, timeout_s=settings.timeout_s)
        except Down as down:
            raise OracleFailed(
                self.describe(f"{self._last_reason} ({down})", times=down.failures),
            ) from None
        except _HOPELESS as error:
            raise OracleFailed(self.describe(error.message, times=1)) from None
        except errors.AeencError as error:
            self._last_reason = error.message
            pause_s = min(error.retry_after_s or 0.0, MAX_ASKED_PAUSE_S)
            return _Asked([], list(tasks), error.message, replied=False, pause_s=pause_s)
        finally:
            self._metrics.open(self.name, self._breaker.open)
        read = read_answers(tasks, answers)
        if read:
            self.last_answer_at = time.monotonic()
        self._metrics.read(self.name, read)
        done = {one.task.task_id for one in read}
        missing = [task for task in tasks if task.task_id not in done]
        reason = f"no verdict on any candidate of {len(missing)} of {len(tasks)} tasks" if missing else ""
        return _Asked(read, missing, reason)

    def _pause_s(self, attempt: int, asked_s: float) -> float:
        backoff_s: float = min(self.settings.backoff_s * 2.0 ** max(attempt - 1, 0), MAX_BACKOFF_S)
        return max(backoff_s, asked_s) * random.uniform(1.0, 1.2)  # noqa: S311 -- spreads callers out

    def describe(self, reason: str, *, times: int = 0) -> str:
        """The message of a run that failed because of this oracle."""
        return (
            f"oracle {self.name!r} at {self.settings.target} failed {times or self.settings.max_attempts} times: "
            f"{reason}; start or repair it (aeenc oracle …), then resume the run: "
            "nothing that it answered is asked again"
        )

    def waiting(self, run_id: str) -> str:  # noqa: ARG002 -- all runs wait together
        """What a run waits for; empty when it does not."""
        return f"oracle {self.name!r} fails and is tried again: {self._last_reason}" if self._breaker.open else ""

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
    annotators: dict[str, str] = {}
    unknown = 0
    for premise_id, verdict in answer.verdicts:
        if premise_id not in asked:
            unknown += 1
        elif premise_id in rulings:
            rulings[premise_id] = Ruling.SKIPPED  # given twice: nobody knows which one is meant
            grades.pop(premise_id, None)
            annotators.pop(premise_id, None)
        else:
            rulings[premise_id] = _ruling(verdict.judgement, verdict.leaf)
            if verdict.grade is not None and math.isfinite(verdict.grade):
                grades[premise_id] = verdict.grade
            if verdict.annotator:
                annotators[premise_id] = verdict.annotator[:MAX_ANNOTATOR]
    if not rulings:
        return None
    missing = dict.fromkeys(asked - rulings.keys(), Ruling.SKIPPED)
    annotator, note = answer.annotator[:MAX_ANNOTATOR], answer.note[:MAX_NOTE]
    return Judged(task, {**rulings, **missing}, grades, annotator, unknown, annotators, note)


def _ruling(judgement: int, leaf: bool) -> Ruling:
    if judgement == EXPLAINS:
        return Ruling.LEAF if leaf else Ruling.EXPLAINS
    if judgement == REFUSES:
        return Ruling.REFUSED_UNKEPT
    # ABSTAIN, UNSEEN, UNSPECIFIED, and values that a later contract may add.
    return Ruling.SKIPPED
