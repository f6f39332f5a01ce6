"""Two trainers, two samplers, three encoders and an index over one Redis, for half an hour, while everything happens.

publisher ─ publications, label moves, rollbacks, tandems ─▶ every acknowledged move is read again
people    ─ runs that are cancelled through the other sampler
killer    ─ SIGKILL of one process after another, started again at once; clocks are a minute apart
callers   ─ Encode, all the time, with the SDK's own retries
observer  ─ does ListRollouts name every encoder that lives?
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aeenc import AsyncClient, errors, values
from aeenc.v1 import trainer_pb2
from benchmarks.harness.rows import Rows
from benchmarks.promises.clocks import find_library, shifted
from benchmarks.promises.fleet import CORPUS, Fleet, job_fields, running_fleet
from support.service_process import ServiceProcess
from support.worlds.trainer_world import QUERIES

CALLERS = 4
PAUSE_S = (4.0, 12.0)  # between two kills
MOVE_EVERY_S = 1.5
SEEN_AFTER_S = 10.0  # an encoder that serves so long must be named
OBSERVE_EVERY_S = 1.0
REDIS_SHARE = 0.1  # of the kills
CLOCKS_S = {"encoder-1": 60, "encoder-2": -60, "sampler-1": 60, "trainer-1": -60}
PASSING = (errors.Unavailable, errors.DeadlineExceeded, errors.Aborted, errors.Cancelled)


@dataclass
class Seen:
    """Counts of the events and of the failures of one soak."""

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


class Soak:
    """The actors over one fleet."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.seen = Seen()
        self._fleet, self._rng, self._until = fleet, random.Random(seed), 0.0
        self._clients = [fleet.client(number) for number in range(2)]
        self._ready_since: dict[str, float] = {process.name: time.monotonic() for process in fleet.all()}
        self._tandems: list[str] = []
        self._acknowledged: dict[tuple[str, str], values.Label] = {}  # the last move of each label

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until

    def _client(self) -> AsyncClient:
        return self._rng.choice(self._clients)

    async def run(self, seconds: float) -> None:
        """Everything at once, until time is up; then a last look."""
        self._until = time.monotonic() + seconds
        callers = (self._caller(number) for number in range(CALLERS))
        await asyncio.gather(self._publisher(), self._people(), self._killer(), self._observer(), *callers)
        await asyncio.sleep(5)
        await self._look_for_stable()
        for label in self._acknowledged.values():
            await self._check("at the end", label)
        await asyncio.gather(*(client.close() for client in self._clients))

    async def train_tandems(self, pairs: str, count: int) -> None:
        """Trains encoders for spaces of their own."""
        client = self._clients[0].trainer
        for seed in range(count):
            loss, mode = trainer_pb2.LOSS_TRIPLET_MARGIN, trainer_pb2.MODE_DUAL
            job = await client.start_job(**job_fields(pairs, seed=seed + 1, epochs=1, mode=mode, loss=loss))
            ended = await client.wait(job.id)
            if ended.state != values.WorkState.SUCCEEDED:
                raise RuntimeError(f"the job of a tandem failed: {ended.error}")
            self._tandems.append(ended.version)

    async def _caller(self, number: int) -> None:
        async with self._fleet.client() as client:
            while self._goes_on:
                try:
                    await client.encoder.encode([QUERIES[number]])
                    self.seen.counts["encoded"] += 1
                except errors.AeencError as error:
                    self.seen.failed.append(f"{error.code}: {error.message}")
                await asyncio.sleep(0.02)

    async def _publisher(self) -> None:
        moves = [self._publish, self._publish, self._move, self._move, self._roll_back, self._tandem]
        while self._goes_on:
            move = self._rng.choice(moves)
            try:
                await move()
            except PASSING as error:
                self.seen.counts[f"{move.__name__[1:]} {error.code}"] += 1
            except errors.FailedPrecondition as error:
                self.seen.counts[f"{move.__name__[1:]} refused {error.reason}"] += 1
            await asyncio.sleep(MOVE_EVERY_S * self._rng.random())

    def _version(self) -> str:
        return self._rng.choice(self._fleet.versions).version

    async def _publish(self) -> None:
        done = await self._client().registry.publish(self._version(), force=True, wait_s=self._rng.choice([0.0, 5.0]))
        await self._kept("published", done.label)

    async def _move(self) -> None:
        label = self._rng.choice(["canary", "run-a", "run-b"])
        await self._kept("moved", await self._client().registry.set_label(label, self._version()))

    async def _roll_back(self) -> None:
        done = await self._client().registry.rollback()
        await self._kept("rolled back", done.label)

    async def _tandem(self) -> None:
        """Publishes a tandem through each trainer at once, or takes the last one back; then looks for `stable`."""
        if not self._tandems:
            return
        if self._rng.random() < 0.4:
            moves = [self._clients[0].registry.rollback(corpus=CORPUS, wait_s=5.0)]
        else:
            versions = [self._rng.choice(self._tandems) for _ in self._clients]
            pairs = zip(self._clients, versions, strict=True)
            moves = [one.registry.publish(version, force=True, wait_s=10.0) for one, version in pairs]
        for outcome in await asyncio.gather(*moves, return_exceptions=True):
            if isinstance(outcome, errors.AeencError):
                self.seen.counts[f"tandem {outcome.code} {getattr(outcome, 'reason', '')}".rstrip()] += 1
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self.seen.counts["tandem"] += 1
        await self._look_for_stable()

    async def _kept(self, what: str, label: values.Label) -> None:
        """Reads an acknowledged move again: its revision, or one that overtook it."""
        self.seen.counts[what] += 1
        self._acknowledged[label.space_id, label.name] = label
        await self._check(what, label)

    async def _check(self, what: str, label: values.Label) -> None:
        rows = await self._insist(lambda client: _labels(client, label.space_id))
        found = [row for row in rows if row.name == label.name]
        if not found or found[0].revision < label.revision:
            self.seen.lost.append(f"{what} {label.name} to {label.versions}, revision {label.revision}; found {found}")
        elif found[0].revision == label.revision and found[0].versions != label.versions:
            self.seen.lost.append(f"{label.name} at {label.revision} names {found[0].versions}, not {label.versions}")

    async def _look_for_stable(self) -> None:
        """The space that the corpus serves has a `stable`, a moment after whatever has just ended."""
        for _ in range(20):
            corpora = await self._insist(_corpora)
            spaces = [one.active.space_id for one in corpora if one.corpus == CORPUS]
            labels = await self._insist(_labels)
            missing = set(spaces) - {row.space_id for row in labels if row.name == "stable"}
            if not missing:
                return
            await asyncio.sleep(0.5)
        self.seen.closed.append(f"the corpus serves {missing}, which has no stable")

    async def _insist(self, call: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call(self._client())
            except PASSING:
                await asyncio.sleep(0.2)

    async def _people(self) -> None:
        """Runs whose worker may be in either sampler, cancelled through either."""
        number = 0
        while self._goes_on:
            number += 1
            one, other = self._rng.sample(self._clients, 2)
            try:
                roots = [(f"t{number}", f"{QUERIES[number % len(QUERIES)]} {number}")]
                run = await one.sampler.start_run(roots, corpus=CORPUS, oracle="team", k=2, max_depth=0)
                await asyncio.sleep(self._rng.random())
                await other.people.lease(f"ann-{number}", run_id=run.id)
                await other.sampler.cancel(run.id, request_id=f"cancel-{number}")
                state = (await self._insist(lambda client: client.sampler.get_run(run.id))).state  # noqa: B023
                if state != values.WorkState.CANCELLED:
                    self.seen.stuck.append(f"run {run.id} was cancelled and is {state}")
                self.seen.counts["run cancelled"] += 1
            except PASSING as error:
                self.seen.counts[f"people {error.code}"] += 1
            await asyncio.sleep(self._rng.random())

    async def _killer(self) -> None:
        while self._goes_on:
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            if self._rng.random() < REDIS_SHARE:
                await asyncio.to_thread(self._fleet.redis.kill)
                await self._fleet.redis.restart()
                self._ready_since = dict.fromkeys(self._ready_since, time.monotonic())
                self.seen.counts["kill redis"] += 1
                continue
            victim = self._rng.choice(list(self._fleet.all()))
            self._ready_since.pop(victim.name, None)
            await asyncio.to_thread(victim.kill)
            await victim.restart()
            self._ready_since[victim.name] = time.monotonic()
            self.seen.counts[f"kill {victim.name.partition('-')[0]}"] += 1

    async def _observer(self) -> None:
        while self._goes_on:
            await asyncio.sleep(OBSERVE_EVERY_S)
            before = time.monotonic()
            with contextlib.suppress(*PASSING):
                told = await self._client().registry.get_rollouts("stable")
                names = {row.instance for row in told.rollouts}
                self.seen.counts["looked"] += 1
                for encoder in self._fleet.processes["encoder"]:
                    since = self._ready_since.get(encoder.name, before)
                    if before - since > SEEN_AFTER_S and encoder.name not in names and self._still(encoder, since):
                        self.seen.unseen.append(f"{encoder.name}, which serves for {before - since:.0f} s")

    def _still(self, encoder: ServiceProcess, since: float) -> bool:
        """Whether it has lived all the time."""
        return encoder.alive and self._ready_since.get(encoder.name) == since


async def _corpora(client: AsyncClient) -> list[values.CorpusInfo]:
    return [corpus async for corpus in client.index.list_corpora()]


async def _labels(client: AsyncClient, space_id: str = "") -> list[values.Label]:
    return [label async for label in client.registry.list_labels(space_id=space_id)]


async def fleet_soak(rows: Rows, minutes: float, seed: int) -> None:
    """One row a promise."""
    with tempfile.TemporaryDirectory(prefix="aeenc-clocks-") as scratch:
        library = find_library(Path(scratch))
        environment = {name: shifted(library, seconds) for name, seconds in CLOCKS_S.items()}
        async with running_fleet(encoders=3, samplers=2, trainers=2, environment=environment) as fleet:
            await fleet.build()
            await fleet.add_versions(4)
            soak = Soak(fleet, seed)
            await soak.train_tandems(await fleet.import_pairs(), 2)
            await soak.run(minutes * 60)
    _report(rows, soak.seen, minutes, has_clocks=library is not None)


def _report(rows: Rows, seen: Seen, minutes: float, *, has_clocks: bool) -> None:
    name = f"fleet, {minutes:g} min"
    kills = {what: count for what, count in seen.counts.items() if what.startswith("kill")}
    moves = {what: count for what, count in seen.counts.items() if not what.startswith("kill")}
    clocks = "" if has_clocks else "libfaketime cannot be had: apt-get install libfaketime"
    rows.add(f"{name}: clocks of processes a minute apart", has_clocks, "", "True", has_clocks, clocks or CLOCKS_S)
    rows.add(f"{name}: kills", sum(kills.values()), "times", "> 0", bool(kills), kills)
    rows.at_most(f"{name}: acknowledged labels lost", len(seen.lost), "labels", 0, seen.lost[:2] or moves)
    looked = f"{seen.counts['looked']} looks"
    rows.at_most(f"{name}: encoders unseen", len(seen.unseen), "times", 0, seen.unseen[:2] or looked)
    encoded = f"{seen.counts['encoded']} calls"
    rows.at_most(f"{name}: Encode calls that failed", len(seen.failed), "calls", 0, seen.failed[:2] or encoded)
    tandems = {what: count for what, count in seen.counts.items() if what.startswith("tandem")}
    rows.at_most(f"{name}: spaces served without stable", len(seen.closed), "times", 0, seen.closed[:2] or tandems)
    rows.add(
        f"{name}: tandems published or taken back",
        tandems.get("tandem", 0),
        "times",
        "> 0",
        tandems.get("tandem", 0) > 0,
    )
    cancelled = f"{seen.counts['run cancelled']} runs"
    rows.at_most(f"{name}: cancelled runs that go on", len(seen.stuck), "runs", 0, seen.stuck[:2] or cancelled)
