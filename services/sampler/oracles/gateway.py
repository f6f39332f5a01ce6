"""Asks one oracle: bounded calls in flight, deadlines, retries, metrics.

    judge ─▶ all tasks in one call ─▶ smaller calls after a failure ─▶ each task alone ─▶ NodeAnswer | UnansweredTask
                     │ places: at most max_concurrency calls
                     │ breaker: while the oracle fails, one call at a time tries and the others wait
                     ▼
             OracleClient (gRPC) ─▶ read_answers

`run_worker` decides what happens to an unanswered node.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aeenc import errors
from aeenc.oracle import Task, all_of
from aeenc.oracles.client import OracleClient
from aeenc.transport.channel import Channel
from services.kit.logs import get
from services.sampler.acs.algorithm import Amendment, NodeAnswer
from services.sampler.oracles.answers import UnansweredTask, WithdrawnTask, read_answers
from services.sampler.records.runs import Run
from services.sampler.settings import OracleSettings, QueueSettings

log = get(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0  # of an open breaker
MAX_BACKOFF_S = 5.0
MAX_ASKED_PAUSE_S = 60.0  # an oracle may ask for a longer pause, up to this
FIRST_PATIENCE_S = 10.0  # for an oracle that has never answered: it is probably not there, and a person waits
FEW = 3  # up to this many nodes may be bad themselves; if more get no answer, the oracle is
# Trying again cannot help: the operator has to change something first.
_HOPELESS = (errors.Unauthenticated, errors.PermissionDenied, errors.Unimplemented, errors.FailedPrecondition)
_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0)


@dataclass(frozen=True)
class _CallReport:
    """The result of some calls: the tasks answered, those that are not, why, and whether the last call came back.

    `pause_s` is how long the oracle asked to be left alone; `alone` says when each task, by id, was last asked alone.
    `connected` is false where no server was connected after a failed call, or before one that failed as UNAVAILABLE:
    the server may have come back.
    """

    answered: list[NodeAnswer]
    missing: list[Task]
    reason: str = ""
    replied: bool = True
    connected: bool = True
    pause_s: float = 0.0
    alone: dict[str, float] = field(default_factory=dict)


class BreakerDown(Exception):
    """The server has failed for as long as anybody was willing to wait."""

    def __init__(self, failures: int, seconds: float) -> None:
        super().__init__(f"{failures} calls in a row failed within {seconds:.0f} s")
        self.failures = failures


class Breaker:
    """After several failures in a row one call at a time tries, and all others wait for its result.

    Closed, calls pass. `failures` in a row open it; a success closes it. All calls to one server share one breaker.

    While it is open, calls wait. After a pause one of them passes as a probe: its failure doubles the pause, from
    `first_pause_s` up to 30 s. After `patience_s` of failures all waiting calls get BreakerDown; the next call probes
    at once, because a person has resumed or started something.
    """

    def __init__(self, failures: int, *, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._failures, self._first_pause_s = failures, first_pause_s
        self._in_a_row = 0
        self._failing_since: float | None = None
        self._pause_s = first_pause_s
        self._probe_at = 0.0
        self._probing = False
        self._given_up = 0  # the number of times that all waiting calls gave up
        self._changed = asyncio.Event()
        self.open = False

    @contextlib.asynccontextmanager
    async def call(self, patience_s: float) -> AsyncIterator[None]:
        """Waits for a turn and counts how the body ends; a cancelled body does not count. Raises BreakerDown."""
        probe = await self._turn(patience_s)
        try:
            yield
        except Exception:
            self._failed(probe)
            raise
        except BaseException:
            if probe:
                self._probing = False
                self._tell()
            raise
        self.open = self._probing = False
        self._in_a_row, self._failing_since = 0, None
        self._tell()

    def try_at_once(self) -> None:
        """Lets the next call pass as a probe although the breaker is open, and starts all patience anew.

        For a person who has started or resumed something: the failures before may be from yesterday.
        """
        self._failing_since, self._probe_at = None, 0.0
        self._tell()

    async def _turn(self, patience_s: float) -> bool:
        """Returns when a call may be made. True: it is the probe."""
        given_up = self._given_up
        while self.open:
            if self._given_up != given_up:
                raise BreakerDown(self._in_a_row, patience_s)
            now = time.monotonic()
            failing_s = now - self._failing_since if self._failing_since is not None else -1.0
            if failing_s >= patience_s and not self._probing:
                self._given_up += 1
                self.try_at_once()
                raise BreakerDown(self._in_a_row, failing_s)
            if not self._probing and now >= self._probe_at:
                self._probing = True
                return True
            wait_s = None if self._probing else max(min(self._probe_at - now, patience_s - failing_s), 0.0)
            with contextlib.suppress(TimeoutError):  # while a probe is out, it waits until that is back
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        return False

    def _failed(self, probe: bool) -> None:
        now = time.monotonic()
        self._in_a_row += 1
        is_straggler = self.open and not probe  # began before the breaker opened; must not restart the patience
        if self._failing_since is None and not is_straggler:
            self._failing_since = now
        if probe:
            self._probing = False
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        elif not self.open and self._in_a_row >= self._failures:
            self.open, self._pause_s = True, self._first_pause_s
        else:
            return
        self._probe_at = now + self._pause_s * random.uniform(0.8, 1.2)  # noqa: S311 -- spreads samplers out
        self._tell()

    def _tell(self) -> None:
        """Wakes all who wait now."""
        self._changed.set()
        self._changed = asyncio.Event()


class RunFailed(Exception):
    """A run cannot go on, as its oracle is down, or may not be asked; the message says why and what to do."""


class Gateway:
    """Asks whoever judges for a run: a remote oracle or people. Only people change their mind."""

    name: str
    settings: OracleSettings | QueueSettings  # workers read the budget, tasks of a call, and nodes in work
    asks_people: bool = False  # their runs wait for days and take little
    last_answer_at: float = 0.0  # never read of people, who leave no task unanswered for good

    def begin(self) -> None:
        """A run begins or goes on."""

    async def judge(self, run_id: str, tasks: Sequence[Task]) -> Sequence[NodeAnswer | UnansweredTask | WithdrawnTask]:
        """Puts tasks before the oracle and waits for its answers. Raises RunFailed."""
        raise NotImplementedError

    async def send_back(self, run: Run) -> None:
        """Withdraws the tasks that nobody has begun and that another than the run's version has retrieved."""

    async def amended(self, run_id: str) -> Sequence[Amendment]:  # noqa: ARG002 -- people alone amend
        """The judged nodes of a run of which people have changed what explains them, until `grown` says it is done."""
        return ()

    async def grown(self, run_id: str, amendment: Amendment) -> None:
        """Notes that the run's tree has what was amended."""

    async def asked(self, run_id: str, queries: Mapping[str, str]) -> Mapping[str, Task]:  # noqa: ARG002 -- as above
        """Returns by node id the tasks that the run has not recorded; `queries` maps node ids to their texts."""
        return {}

    async def withdraw(self, run_id: str, node_ids: Collection[str]) -> None:
        """Withdraws what these nodes ask, as far as nobody has begun it."""

    def describe(self, reason: str) -> str:
        """The message of a run that failed because of this oracle."""
        raise NotImplementedError

    def waiting(self, run_id: str) -> str:
        """The reason why a run waits; empty when it does not."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends its connections and tasks."""


class OracleMetrics:
    """Metrics of all oracles of a sampler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter("aeenc_sampler_oracle_calls", "Calls by outcome", ["oracle", "code"], registry=registry)
        self._seconds = Histogram(
            "aeenc_sampler_oracle_seconds", "Duration of calls", ["oracle"], registry=registry, buckets=_BUCKETS_S
        )
        self._verdicts = Counter(
            "aeenc_sampler_oracle_verdicts", "Verdicts by what was read", ["oracle", "ruling"], registry=registry
        )
        self._open = Gauge(
            "aeenc_sampler_oracle_open", "1 while calls wait because the oracle fails", ["oracle"], registry=registry
        )

    @contextlib.contextmanager
    def call(self, oracle: str) -> Iterator[None]:
        """Counts and times one call. A cancelled one is not counted."""
        begun = time.monotonic()
        try:
            yield
        except errors.AeencError as error:
            self._ended(oracle, error.code, begun)
            raise
        self._ended(oracle, "OK", begun)

    def _ended(self, oracle: str, code: str, begun: float) -> None:
        self._calls.labels(oracle, code).inc()
        self._seconds.labels(oracle).observe(time.monotonic() - begun)

    def read(self, oracle: str, answered: Sequence[NodeAnswer]) -> None:
        """Counts the verdicts of answers; a verdict on a premise that was not asked about counts as UNKNOWN."""
        tally = Tally(one.judgement.name for answer in answered for one in answer.verdicts.values())
        tally["UNKNOWN"] = sum(answer.unknown for answer in answered)
        for name, count in tally.items():
            self._verdicts.labels(oracle, name).inc(count)

    def watch(self, oracle: str, breaker: Breaker) -> None:
        """Tells from now on whether calls wait because the oracle fails."""
        self._open.labels(oracle).set_function(lambda: breaker.open)


class OracleGateway(Gateway):
    """One configured oracle, shared by all runs of this process."""

    settings: OracleSettings

    def __init__(self, name: str, settings: OracleSettings, metrics: OracleMetrics) -> None:
        self.name = name
        self.settings = settings
        peer = {name: getattr(settings, name) for name in ("token", "ca", "cert", "key", "plain_token", "timeout_s")}
        if settings.plain_token and settings.token and settings.ca is None:
            log.warning("the token of an oracle travels without TLS (plain_token)", oracle=name, target=settings.target)
        try:
            self._client = OracleClient(Channel(settings.target, **peer))
        except errors.InvalidArgument as error:
            raise errors.InvalidArgument(f"oracle {name!r}: {error.message}") from None
        self._places = asyncio.Semaphore(settings.max_concurrency)
        self._breaker, self._metrics = Breaker(settings.breaker_failures), metrics
        metrics.watch(name, self._breaker)
        self._last_reason = ""

    def begin(self) -> None:
        """A run begins or goes on: tries the oracle at once, however it was before."""
        self._breaker.try_at_once()

    async def judge(self, run_id: str, tasks: Sequence[Task]) -> list[NodeAnswer | UnansweredTask]:
        """Puts at most `batch_tasks` tasks before the oracle. Raises RunFailed when it is down or refuses us.

        Tasks that a whole call's attempts leave unanswered are asked one by one, so that one bad task does not take
        others along; when nobody gets an answer then either, it is the oracle that failed.
        """
        since = time.monotonic()
        together = await self._ask(run_id, tasks, self.settings.max_attempts, patient=len(tasks) > FEW)
        if not together.missing:
            return list(together.answered)
        if len(tasks) == 1:
            return [UnansweredTask(tasks[0].task_id, together.reason, together.alone.get(tasks[0].task_id, since))]
        alone_since = time.monotonic()
        patient = not together.answered and len(together.missing) > FEW
        probes = await all_of(self._ask(run_id, [task], 1, patient=patient) for task in together.missing)
        answered = [*together.answered, *(outcome for probe in probes for outcome in probe.answered)]
        missing = [task for probe in probes for task in probe.missing]
        if not answered and len(missing) > FEW:
            raise RunFailed(self.describe(together.reason))
        last = await all_of(self._ask(run_id, [task], self.settings.max_attempts) for task in missing)
        outcomes: list[NodeAnswer | UnansweredTask] = list(answered)
        for task, asked in zip(missing, last, strict=True):
            # Silence on this task in calls that answered others is the task's fault; an error may be the oracle's.
            is_fair = together.answered and asked.replied
            fair_since = since if is_fair else together.alone.get(task.task_id, alone_since)
            outcomes += asked.answered or [UnansweredTask(task.task_id, asked.reason, fair_since)]
        return outcomes

    async def _ask(self, run_id: str, tasks: Sequence[Task], attempts: int, *, patient: bool = False) -> _CallReport:
        """Asks until every task is answered or the attempts are used up; after a failed call in smaller calls.

        A failure counts as no attempt when nobody is there to answer, or when the oracle fails everybody and the caller
        is `patient`: the breaker then says how long to wait.
        """
        answered: list[NodeAnswer] = []
        alone: dict[str, float] = {}
        missing, size, attempt = list(tasks), len(tasks), 0
        while True:
            parts = [missing[start : start + size] for start in range(0, len(missing), size)]
            alone |= {part[0].task_id: time.monotonic() for part in parts if len(part) == 1}
            calls = await all_of(self._call(run_id, part) for part in parts)
            answered += [one for call in calls for one in call.answered]
            left = [call for call in calls if call.missing]
            if not left:
                return _CallReport(answered, [])
            missing = [task for call in left for task in call.missing]
            reason, replied = left[-1].reason, all(call.replied for call in left)
            away = not all(call.connected for call in left) or (patient and not answered and self._breaker.open)
            log.warning("oracle call failed", oracle=self.name, attempt=attempt + 1, tasks=len(missing), reason=reason)
            if replied or not away:
                attempt += 1
                size = size if replied else (size + 1) // 2
                if attempt >= attempts:
                    return _CallReport(answered, missing, reason, replied, alone=alone)
            await asyncio.sleep(self._pause_s(attempt, max(call.pause_s for call in left)))

    async def _call(self, run_id: str, tasks: Sequence[Task]) -> _CallReport:
        """One call, when its turn comes. Raises RunFailed when the oracle is down or refuses us."""
        settings = self.settings
        patience_s = settings.patience_s if self.last_answer_at else min(settings.patience_s, FIRST_PATIENCE_S)
        try:
            async with self._places, self._breaker.call(patience_s):
                was_connected = self._client.connected
                with self._metrics.call(self.name):
                    answers = await self._client.judge(run_id, tasks, timeout_s=settings.timeout_s)
        except BreakerDown as down:
            raise RunFailed(
                self.describe(f"{self._last_reason} ({down})", times=down.failures),
            ) from None
        except _HOPELESS as error:
            raise RunFailed(self.describe(error.message, times=1)) from None
        except errors.AeencError as error:
            self._last_reason = error.message
            pause_s = min(error.retry_after_s or 0.0, MAX_ASKED_PAUSE_S)
            connected = self._client.connected and (was_connected or not isinstance(error, errors.Unavailable))
            return _CallReport([], list(tasks), error.message, replied=False, connected=connected, pause_s=pause_s)
        read = read_answers(tasks, answers, self.name)
        if read:
            self.last_answer_at = time.monotonic()
        self._metrics.read(self.name, read)
        done = {one.task_id for one in read}
        missing = [task for task in tasks if task.task_id not in done]
        reason = f"no verdict on any candidate of {len(missing)} of {len(tasks)} tasks" if missing else ""
        return _CallReport(read, missing, reason)

    def _pause_s(self, attempt: int, asked_s: float) -> float:
        backoff_s: float = min(self.settings.backoff_s * 2.0 ** max(attempt - 1, 0), MAX_BACKOFF_S)
        return max(backoff_s, asked_s) * random.uniform(1.0, 1.2)  # noqa: S311 -- spreads callers out

    def describe(self, reason: str, *, times: int = 0) -> str:
        """The message of a run that failed because of this oracle."""
        return (
            f"oracle {self.name!r} at {self.settings.target} failed {times or self.settings.max_attempts} times: "
            f"{reason}; start or repair it, then resume the run (`aeenc resume RUN`): "
            "nothing that it answered is asked again"
        )

    def waiting(self, run_id: str) -> str:  # noqa: ARG002 -- all runs wait together
        """The reason why a run waits; empty when it does not."""
        return f"oracle {self.name!r} fails and is tried again: {self._last_reason}" if self._breaker.open else ""

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.channel.close()
