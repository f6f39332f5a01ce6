"""An oracle made unreliable on purpose: it flips, abstains, fails, hangs and talks nonsense, at given rates.

It wraps another oracle, to see what a run makes of bad answers. All draws depend on the seed and the question alone, so
that a run can be repeated: a verdict is the same at each attempt, while failures are drawn anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from aeenc.errors import InvalidArgument, Unavailable
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Answer, Oracle, Task, Verdict, answer_of
from aeenc.v1 import oracle_pb2

UNKNOWN_JUDGEMENT = 99
Sent = oracle_pb2.Answer


@dataclass(frozen=True)
class Noise:
    """Rates from 0 to 1, latencies in seconds.

    `flip` and `abstain` are drawn for each verdict; `failure` (UNAVAILABLE), `hang` (no answer for `hang_s`) and
    `garbage` for each task and attempt. An answer takes `latency_s` on average, exponentially distributed.
    """

    flip: float = 0.0
    abstain: float = 0.0
    failure: float = 0.0
    hang: float = 0.0
    garbage: float = 0.0
    latency_s: float = 0.0
    hang_s: float = 3600.0

    def __post_init__(self) -> None:
        for rate in fields(self):
            value = getattr(self, rate.name)
            if value < 0 or (value > 1 and not rate.name.endswith("_s")):
                raise InvalidArgument.field(rate.name, f"is {value}; give a rate from 0 to 1, or seconds")


class NoisyOracle(Oracle):
    """Wraps an oracle. `happened` counts the noise in its answers: flip, abstain, failure, hang, garbage."""

    def __init__(self, oracle: Oracle, noise: Noise, *, seed: int = 0) -> None:
        self.name = f"noisy-{oracle.name}"
        self.happened: Counter[str] = Counter()
        self._oracle, self._noise, self._seed = oracle, noise, seed
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._spoilt: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    async def judge(self, task: Task) -> Answer[dict[str, Verdict]]:
        """Returns the wrapped oracle's answer with noisy verdicts. Raises Unavailable, or hangs, at the given rates."""
        noise, key = self._noise, (task.run_id, task.task_id)
        with self._lock:
            self._attempts[key] += 1
            attempt = str(self._attempts[key])
        if noise.latency_s:
            await asyncio.sleep(noise.latency_s * _exponential(self._chance("latency", task.query, attempt)))
        if self._happens("hang", noise.hang, task.query, attempt):
            await asyncio.sleep(noise.hang_s)
        if self._happens("failure", noise.failure, task.query, attempt):
            raise Unavailable("this oracle fails at times, on purpose; ask again")
        given = await answer_of(self._oracle, task)
        if self._happens("garbage", noise.garbage, task.query, attempt):
            self._spoilt.add(key)
        noisy = {name: self._disturbed(task.query, name, verdict) for name, verdict in given.verdicts.items()}
        return replace(given, verdicts=noisy)

    def sent(self, task: Task, answer: Sent) -> Sent:
        """Returns the answer, or nonsense in its place."""
        key = (task.run_id, task.task_id)
        if key not in self._spoilt:
            return answer
        self._spoilt.discard(key)
        kinds = sorted(GARBAGE)
        kind = kinds[int(self._chance("kind", task.query, str(self._attempts[key])) * len(kinds))]
        return GARBAGE[kind](answer)

    def _disturbed(self, query: str, premise_id: str, verdict: Verdict) -> Verdict:
        if self._happens("abstain", self._noise.abstain, query, premise_id):
            return Verdict(ABSTAINS)
        if verdict.judgement in {EXPLAINS, REFUSES} and self._happens("flip", self._noise.flip, query, premise_id):
            other = REFUSES if verdict.judgement == EXPLAINS else EXPLAINS
            return replace(verdict, judgement=other, leaf=False)
        return verdict

    def _happens(self, kind: str, rate: float, *parts: str) -> bool:
        if rate <= 0 or self._chance(kind, *parts) >= rate:
            return False
        with self._lock:
            self.happened[kind] += 1
        return True

    def _chance(self, *parts: str) -> float:
        """Draws a number in [0, 1) that depends on the seed and the parts alone."""
        digest = hashlib.sha256("\0".join([str(self._seed), *parts]).encode()).digest()
        return int.from_bytes(digest[:7], "big") / 2.0**56


def _exponential(chance: float) -> float:
    """Maps a uniform number in [0, 1) to an exponentially distributed one of mean 1, at most 5."""
    return min(-math.log1p(-chance), 5.0)


def _contradicts_itself(answer: Sent) -> Sent:
    """Refuses and accepts every candidate."""
    spoilt = Sent(task_id=answer.task_id, annotator=answer.annotator)
    for verdict in answer.verdicts:
        for judgement in (REFUSES, EXPLAINS):
            spoilt.verdicts.add(premise_id=verdict.premise_id, judgement=judgement)
    return spoilt


def _says_nothing(answer: Sent) -> Sent:
    """Gives no verdicts."""
    return Sent(task_id=answer.task_id, annotator=answer.annotator)


def _speaks_of_others(answer: Sent) -> Sent:
    """Refuses premises of another corpus."""
    spoilt = Sent(task_id=answer.task_id, annotator=answer.annotator)
    for verdict in answer.verdicts:
        spoilt.verdicts.add(premise_id=f"{verdict.premise_id}-of-another-corpus", judgement=REFUSES)
    return spoilt


def _speaks_of_another_task(answer: Sent) -> Sent:
    """Refuses everything, in the name of another task."""
    spoilt = Sent(task_id=f"{answer.task_id}-of-another-run", annotator=answer.annotator)
    for verdict in answer.verdicts:
        spoilt.verdicts.add(premise_id=verdict.premise_id, judgement=REFUSES)
    return spoilt


def _uses_unknown_words(answer: Sent) -> Sent:
    """Gives judgements that are unknown or UNSPECIFIED."""
    spoilt = Sent(task_id=answer.task_id, annotator=answer.annotator)
    for number, verdict in enumerate(answer.verdicts):
        judgement = (UNKNOWN_JUDGEMENT, oracle_pb2.JUDGEMENT_UNSPECIFIED)[number % 2]
        spoilt.verdicts.add(premise_id=verdict.premise_id, judgement=judgement)
    return spoilt


GARBAGE: dict[str, Callable[[Sent], Sent]] = {
    "contradicts itself": _contradicts_itself,
    "says nothing": _says_nothing,
    "speaks of another task": _speaks_of_another_task,
    "speaks of others": _speaks_of_others,
    "uses unknown words": _uses_unknown_words,
}
