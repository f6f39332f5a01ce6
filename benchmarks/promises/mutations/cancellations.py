"""Calls that are cancelled at random moments under load, then a kill or a stop: what is left, and whether all agree.

    subjects ready ─▶ calls, cancelled or out of time at random ─▶ settle ─▶ read ─▶ kill or stop, start ─▶ read again
    ─▶ retry

In one round of three the kill comes into the middle of the calls. What was acknowledged must be there; what was not
must be there or not, whole; what answers say before the end must be what they say after the start; and a retry of what
was not acknowledged must do it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from aeenc import errors
from benchmarks.harness.rows import Rows
from benchmarks.promises.fleet import CORPUS
from benchmarks.promises.mutations.mutation import Mutation, Subject, World, is_gone
from benchmarks.promises.mutations.table import MUTATIONS, mutable_world, unlisted
from support.worlds.trainer_world import QUERIES

ROUNDS = ("kill in the middle", "settle, SIGKILL", "settle, SIGTERM")
CALLERS = 6  # of one RPC at once
LOAD = 3  # callers that encode and retrieve meanwhile
FIRST_GUESS_S = 0.05
LATEST = 1.3  # of an RPC's usual duration
SETTLE_S = 1.0
INSIST_S = 30.0
MIDDLE = 0.6  # of a round's calls, before the kill comes


@dataclass
class Report:
    """Counts the outcomes of the calls of one RPC."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of calls that were acknowledged
    differences: list[str] = field(default_factory=list)

    @property
    def usual_s(self) -> float:
        """The usual duration of a call."""
        return statistics.median(self.seconds[-50:]) if self.seconds else FIRST_GUESS_S


class Trials:
    """The calls of some RPCs of one service, round by round."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._rng = world, random.Random(seed)
        self.reports: dict[str, Report] = defaultdict(Report)
        self._made = 0

    async def round(self, mutations: Sequence[Mutation], count: int, kind: str) -> None:
        """So many calls of each RPC, then the end of the service and its new start."""
        service = mutations[0].service
        by_mutation = {mutation: await mutation.prepare(count) for mutation in mutations}
        middle = kind == ROUNDS[0]
        async with loaded(self._world):
            calls = asyncio.ensure_future(self._call_all(by_mutation))
            if middle:
                goal = self._made + MIDDLE * count * len(mutations)
                while self._made < goal and not calls.done():  # noqa: ASYNC110 -- a counter
                    await asyncio.sleep(0.01)
                await self._end(service, kill=True)
            await calls
        if not middle:
            await asyncio.sleep(SETTLE_S)
            await self._check(by_mutation, "before the end")
            await self._end(service, kill=kind.endswith("SIGKILL"))
        await self._world.restart(service)
        await self._check(by_mutation, "after the start")
        await self._retry(by_mutation)
        for mutation in mutations:
            await mutation.tidy()

    async def _call_all(self, by_mutation: dict[Mutation, list[Subject]]) -> None:
        for mutation, subjects in by_mutation.items():
            waiting = iter(subjects)
            await asyncio.gather(*(self._caller(mutation, waiting) for _ in range(CALLERS)))

    async def _caller(self, mutation: Mutation, subjects: Iterable[Subject]) -> None:
        for subject in subjects:
            for _ in range(subject.calls):
                await self._call(mutation, subject)

    async def _call(self, mutation: Mutation, subject: Subject) -> None:
        report = self.reports[mutation.rpc]
        request, _, after = subject.make()
        moment_s = self._rng.uniform(0.0, LATEST * report.usual_s)
        is_deadline = self._rng.random() < 0.5
        begun = time.monotonic()
        call = asyncio.ensure_future(mutation.call(request, moment_s if is_deadline else 30.0))
        self._made, subject.pending = self._made + 1, (request, after)
        if not is_deadline:
            asyncio.get_running_loop().call_later(moment_s, call.cancel)
        try:
            await call
            outcome = "acknowledged"
            report.seconds.append(time.monotonic() - begun)
            subject.allowed, subject.pending = {after}, None
        except asyncio.CancelledError:
            outcome = "cancelled"
            subject.allowed |= {after, *subject.between}
        except grpc.aio.AioRpcError as error:
            if is_gone(error):
                outcome = error.code().name.lower()
                subject.allowed |= {after, *subject.between}
            else:  # what an unacknowledged call did before may refuse the next
                outcome = f"refused {error.code().name}"
                subject.pending = None
        report.outcomes[outcome] += 1

    async def _retry(self, by_mutation: dict[Mutation, list[Subject]]) -> None:
        """Sends again what was not acknowledged: now it must be, and must be done."""
        for mutation, subjects in by_mutation.items():
            report = self.reports[mutation.rpc]
            for subject in subjects:
                if subject.pending is None:
                    continue
                request, after = subject.pending
                try:
                    await _insist(mutation, request)
                    subject.allowed = {after}
                    report.outcomes["retried"] += 1
                except grpc.aio.AioRpcError as error:
                    report.differences.append(f"{subject.name} retried: {error.code().name} {error.details()}")
        await self._check(by_mutation, "after a retry")

    async def _end(self, service: str, *, kill: bool) -> None:
        for process in self._world.fleet.processes[service]:
            if kill:
                await asyncio.to_thread(process.kill)
            else:
                await process.stop()

    async def _check(self, by_mutation: dict[Mutation, list[Subject]], when: str) -> None:
        for mutation, subjects in by_mutation.items():
            for subject, state in zip(subjects, await mutation.states(subjects), strict=True):
                if state not in subject.allowed:
                    told = f"{mutation.rpc} {subject.name} {when}: {state}, not {' or '.join(sorted(subject.allowed))}"
                    self.reports[mutation.rpc].differences.append(told)
                subject.allowed = {state}


async def _insist(mutation: Mutation, request: Any) -> None:
    """Sends a request until it is acknowledged or refused, as the SDK does; a killed process may hold a lease."""
    deadline = time.monotonic() + INSIST_S
    while True:
        try:
            await mutation.call(request, 30.0)
            return
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


@asynccontextmanager
async def loaded(world: World) -> AsyncIterator[Counter[str]]:
    """Callers that encode and retrieve within the block; gives the outcomes of their calls."""
    outcomes: Counter[str] = Counter()

    async def caller(number: int) -> None:
        while True:
            text = QUERIES[number % len(QUERIES)]
            try:
                if number % 2:
                    await world.client.encoder.encode([text])
                else:
                    await world.client.index.retrieve(CORPUS, [text], k=5)
                outcomes["OK"] += 1
            except errors.AeencError as error:
                outcomes[error.code] += 1
            await asyncio.sleep(0.01)

    callers = [asyncio.ensure_future(caller(number)) for number in range(LOAD)]
    try:
        yield outcomes
    finally:
        for one in callers:
            one.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


async def cancellations(rows: Rows, trials: int, seed: int, only: str = "") -> None:
    """All rounds over all services; one row an RPC."""
    missing = unlisted()
    rows.add("RPCs without a place in the tables", len(missing), "RPCs", "= 0", not missing, missing or None)
    async with mutable_world() as world:
        runner = Trials(world, seed)
        for service in ("index", "sampler", "trainer"):
            chosen = [one for one in MUTATIONS if one.service == service and only in one.rpc]
            for number, kind in enumerate(ROUNDS):
                share = trials // len(ROUNDS) + (number < trials % len(ROUNDS))
                begun = time.monotonic()
                if service == "trainer":  # a job that trains takes the processor from the others
                    for mutation in chosen:
                        await runner.round([mutation(world)], share, kind)
                elif chosen:
                    await runner.round([mutation(world) for mutation in chosen], share, kind)
                print(f"  {service}, {kind}: {time.monotonic() - begun:.0f} s", flush=True)
    for rpc, report in runner.reports.items():
        found, total = report.differences, report.outcomes.total()
        told = f"{dict(report.outcomes)}, usually {report.usual_s * 1e3:.1f} ms"
        total -= report.outcomes["retried"]
        rows.at_most(f"{rpc}: differences after {total} cancellations", len(found), "times", 0, found[:3] or told)
        rows.add(f"{rpc}: cancelled or out of time", total, "calls", f"≥ {trials}", total >= trials, told)
