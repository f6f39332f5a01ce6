"""Thirty-odd people at one queue: they think, renew, give back, die, answer late, answer twice, change their minds.

A ledger keeps what each was acknowledged; `check` reads the run again and says what does not fit. What people say is a
function of names and numbers (see `sampler_world`), so an independent reading says what the run must record.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import aeenc
from aeenc import errors, values
from aeenc.oracle import EXPLAINS, REFUSES, Verdict
from aeenc.v1 import people_pb2
from services.sampler.people.agreement import agreement_of
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import SentAnswer
from support.worlds.sampler_world import brute_force, chance, explains, is_leaf, pair_set

T = TypeVar("T")
Kind = values.TaskEventKind
# What people do with a task besides thinking, in 25 tasks; the cards are dealt round by round to whoever has one.
DECK = ["die", "release", "come late", "renew"] * 2 + ["think"] * 17
UNDO_EVERY, TWICE_EVERY = 7, 9  # answers
PASSING = (errors.Unavailable, errors.DeadlineExceeded, errors.Aborted, errors.Overloaded)


@dataclass
class AcknowledgedAnswer:
    """An answer that was acknowledged: on which query, and yes or no by premise."""

    annotator: str
    query: str
    premises: dict[str, bool]
    late: bool


@dataclass
class Ledger:
    """Everything that was acknowledged to the people."""

    said: dict[str, AcknowledgedAnswer] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def holding(self) -> dict[str, AcknowledgedAnswer]:
        """The answers that were not taken back."""
        return {answer_id: said for answer_id, said in self.said.items() if answer_id not in self.undone}


def says_yes(annotator: str, query: str, premise: str, flip: float) -> bool:
    """A person's verdict: the truth, and now and then its opposite."""
    return explains(query, premise) ^ (chance("errs", annotator, query, premise) < flip)


@dataclass
class People:
    """People at the queue of one run. `connect` gives a client, a new one after a sampler has died."""

    client: aeenc.PeopleClient
    run_id: str
    flip: float = 0.0
    think_s: float = 0.02
    wait_s: float = 0.05  # between two looks for a task
    seed: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    _deck: list[str] = field(default_factory=list)
    _submitted: int = 0

    async def person(self, name: str) -> None:
        """One person's day, until `done`."""
        rng = random.Random(f"{self.seed} {name}")
        while not self.done.is_set():
            wanted = rng.choice([1, 1, 1, 2])
            leases = await self._insist(lambda: self.client.lease(name, run_id=self.run_id, max_tasks=wanted))  # noqa: B023
            for lease in leases:
                await self._judge(rng, name, lease)
            if not leases:
                await asyncio.sleep(self.wait_s * rng.random())

    async def adjudicator(self, name: str = "judge") -> None:
        """Decides conflicts by the truth, until `done`."""
        while not self.done.is_set():
            tasks = await self._insist(self._conflicts)
            for task in tasks:
                texts = {c.premise.id: c.premise.text for c in task.task.candidates}
                verdicts = {i: _truth(task.task.query, texts[i]) for i in task.conflicts}
                # Somebody may have undone their answer, and another have answered since.
                with contextlib.suppress(errors.NotFound, errors.InvalidArgument):
                    decide = partial(self.client.adjudicate, self.run_id, task.task.task_id, verdicts, name)
                    await self._insist(partial(decide, request_id=uuid.uuid4().hex))
                    self.ledger.counts["adjudicated"] += 1
            await asyncio.sleep(self.wait_s)

    async def _conflicts(self) -> list[people_pb2.JudgedTask]:
        return [t async for t in self.client.list_tasks(self.run_id, state=people_pb2.TASK_STATE_CONFLICT)]

    async def _judge(self, rng: random.Random, name: str, lease: people_pb2.Lease) -> None:
        await asyncio.sleep(rng.expovariate(1 / self.think_s))
        mood = self._mood(rng)
        self.ledger.counts[mood] += 1
        if mood == "die":
            return
        if mood == "release":
            await self._insist(lambda: self.client.release(lease.lease_id, "not mine"))
            return
        if mood == "come late":
            left_s = lease.expires_at.timestamp() - datetime.now(UTC).timestamp()
            await asyncio.sleep(max(left_s, 0) + rng.random() * self.think_s)
        elif mood == "renew":
            with contextlib.suppress(errors.FailedPrecondition):  # on a slow machine the lease may be over
                await self._insist(lambda: self.client.renew(lease.lease_id))
            await asyncio.sleep(rng.expovariate(1 / self.think_s))
        self._submitted += 1
        undoes, twice = self._submitted % UNDO_EVERY == 0, self._submitted % TWICE_EVERY == 0
        answer_id = await self._submit(rng, name, lease, twice=twice)
        if answer_id and undoes:
            self.ledger.counts["undo"] += 1
            with contextlib.suppress(errors.FailedPrecondition):
                undone = await self._insist(lambda: self.client.undo(name, self.run_id, request_id=f"u{answer_id}"))
                self.ledger.undone.update(undone)
                if undone != [answer_id]:
                    self.ledger.wrong.append(f"{name} took {undone} back, not {answer_id}")

    def _mood(self, rng: random.Random) -> str:
        if not self._deck:
            self._deck = rng.sample(DECK, len(DECK))
        return self._deck.pop()

    async def _submit(self, rng: random.Random, name: str, lease: people_pb2.Lease, *, twice: bool) -> str:
        query = lease.task.query
        premises = {c.premise.text: says_yes(name, query, c.premise.text, self.flip) for c in lease.task.candidates}
        ticked = {
            c.premise.id: Verdict(EXPLAINS, leaf=is_leaf(c.premise.text))
            for c in lease.task.candidates
            if premises[c.premise.text]
        }
        seq = rng.getrandbits(40)
        try:
            for _ in range(2 if twice else 1):  # some press Enter twice
                answer = await self._insist(lambda: self.client.submit(lease, ticked, client_seq=seq))
        except errors.FailedPrecondition as error:
            self.ledger.counts[error.reason] += 1
            return ""
        if answer.answer_id in self.ledger.said:
            self.ledger.wrong.append(f"{answer.answer_id} was acknowledged twice")
        self.ledger.said[answer.answer_id] = AcknowledgedAnswer(name, query, premises, answer.late)
        self.ledger.counts["late" if answer.late else "in time"] += 1
        return answer.answer_id

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Calls until the sampler is there."""
        while True:
            try:
                return await call()
            except PASSING:
                self.ledger.counts["insisted"] += 1
                await asyncio.sleep(self.wait_s)


def _truth(query: str, premise: str) -> Verdict:
    return Verdict(EXPLAINS, leaf=is_leaf(premise)) if explains(query, premise) else Verdict(REFUSES)


@dataclass
class Problems:
    """Contradictions in a finished run; all empty when there are none."""

    lost: list[str]
    unanswered: list[str]
    held_twice: list[str]
    pairs: list[str]

    def all(self) -> list[str]:
        """Every problem."""
        return [*self.lost, *self.unanswered, *self.held_twice, *self.pairs]


async def check(
    people: People, sampler: aeenc.SamplerClient, store: TaskStore, overlap: int, hypotheses: list[tuple[str, str]]
) -> Problems:
    """Reads a finished run of k = 6 again: its tasks, its verdict log, its events, its pairs."""
    tasks = [task async for task in people.client.list_tasks(people.run_id)]
    lost = [
        *people.ledger.wrong,
        *_lost(people.ledger, tasks, await store.verdict_log(people.run_id)),
    ]
    settled = [task for task in tasks if task.state == people_pb2.TASK_STATE_SETTLED]
    decided = {(task.task.query, c.premise.id) for task in settled for c in task.task.candidates}
    unanswered = []
    for task in tasks:
        names = [answer.annotator for answer in task.answers]
        # A run that was taken over may have asked the same query for another node first.
        overtaken = all((task.task.query, c.premise.id) in decided for c in task.task.candidates)
        if len(names) != len(set(names)) or (len(names) != overlap and (task in settled or not overtaken)):
            unanswered.append(f"task {task.task.task_id} ended in state {task.state} with answers of {names}")
    expected = brute_force(hypotheses, decides=_decided(people.ledger.holding()))
    found = await pair_set(sampler, people.run_id)
    return Problems(
        lost, unanswered, await _held_twice(store, people.run_id, overlap), [str(pair) for pair in found ^ expected]
    )


def _lost(ledger: Ledger, tasks: list[people_pb2.JudgedTask], log: list[values.TaskEvent]) -> list[str]:
    """Acknowledged answers that the queue or its log does not have, or has otherwise."""
    stored: dict[str, tuple[str, dict[str, bool]]] = {}
    for task in tasks:
        texts = {c.premise.id: c.premise.text for c in task.task.candidates}
        for answer in task.answers:
            yes = {texts[v.premise_id]: v.judgement == EXPLAINS for v in answer.verdicts}
            stored[answer.answer_id] = (answer.annotator, yes)
    said = {answer_id: (s.annotator, s.premises) for answer_id, s in ledger.holding().items()}
    problems = [
        f"{name}: acknowledged {said.get(name)}, stored {stored.get(name)}"
        for name in said.keys() | stored.keys()
        if said.get(name) != stored.get(name)
    ]
    logged = Counter(one.answer.answer_id for one in log if one.kind is Kind.ANSWERED)
    problems += [f"{name} stands {logged[name]} times in the log" for name in ledger.said if logged[name] != 1]
    taken_back = {one.former_answer_id for one in log if one.kind is Kind.UNDONE}
    if taken_back != ledger.undone:
        problems.append(f"undone: {taken_back ^ ledger.undone}")
    return problems


async def _held_twice(store: TaskStore, run_id: str, overlap: int) -> list[str]:
    """Tasks that at some moment were in more hands than they wanted answers."""
    problems, seq = [], 0
    live: dict[str, set[str]] = defaultdict(set)
    answered: Counter[str] = Counter()
    while events := await store.events(run_id, seq):
        for event in events:
            if event.seq != seq + 1:
                problems.append(f"event {event.seq} follows {seq}")
            seq = event.seq
            held = live[event.task_id]
            if event.kind is Kind.LEASED:
                if event.person in held:
                    problems.append(f"{event.person} holds task {event.task_id} twice")
                held.add(event.person)
            elif event.kind in {Kind.ANSWERED, Kind.EXPIRED, Kind.RELEASED}:
                held.discard(event.person)
            answered[event.task_id] += (event.kind is Kind.ANSWERED) - (event.kind is Kind.UNDONE)
            if len(held) + answered[event.task_id] > overlap:
                problems.append(f"task {event.task_id} is held by {held} with {answered[event.task_id]} answers")
    return problems


def _decided(holding: dict[str, AcknowledgedAnswer]) -> Callable[[str, str], bool]:
    """The majority of what was said, and the truth where people were equally many."""
    votes: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for said in holding.values():
        for premise, yes in said.premises.items():
            votes[said.query, premise].append(yes)

    def decides(query: str, premise: str) -> bool:
        given = votes[query, premise]
        yes = sum(given)
        return explains(query, premise) if 2 * yes == len(given) else 2 * yes > len(given)

    return decides


def agreement_differs(found: people_pb2.GetAgreementResponse, ledger: Ledger) -> float:
    """The greatest difference between the run's figures of agreement and those of what the ledger holds."""
    by_premise: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
    for said in ledger.holding().values():
        for premise, yes in said.premises.items():
            by_premise[said.query, premise][said.annotator] = yes
    held = agreement_of(list(by_premise.values()))
    assert found.candidates == held.candidates
    figures = ("cohen_kappa", "fleiss_kappa", "krippendorff_alpha")
    return max(abs(getattr(found, figure) - getattr(held, figure)) for figure in figures)


def verdict(premise_id: str, said: Verdict | int, text: str = "") -> values.Verdict:
    """One verdict as the sampler reads it."""
    one = said if isinstance(said, Verdict) else Verdict(said)  # type: ignore[arg-type]
    return values.Verdict(
        premise_id=premise_id,
        judgement=values.Judgement(one.judgement),
        leaf=one.leaf,
        grade=one.grade,
        remark=values.Remark(one.remark),
        text=text,
        in_sight_ms=one.in_sight_ms,
    )


def sent(
    verdicts: Iterable[tuple[str, Verdict | int]] = (),
    seen_upto: int = 0,
    elapsed_s: float | None = None,
    **said: Any,
) -> SentAnswer:
    """An answer; `said` are its other fields."""
    given = tuple(verdict(premise_id, one) for premise_id, one in verdicts)
    return SentAnswer(values.Answer(verdicts=given, **said), seen_upto, elapsed_s)
