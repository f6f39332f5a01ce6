"""`make bench NAME=fleet-soak`: a whole fleet while one thing after another fails. Thirty minutes (`--minutes`).

    callers   ── Encode, Retrieve ──▶ 3 encoders, 3 indexes ─▶ every answer is compared with one from before
    writers   ── imports, runs, jobs, label moves, activations ──▶ 2 samplers, 2 trainers ─▶ master, replica, Sentinels
    saboteur  ── SIGKILL, SIGSTOP, fail-over, store away; one at a time, mended before the next

Callers use the SDK and let it try twice. A failed call counts unless what it needs was wholly away: Redis during a
fail-over, the artifacts while their store is away. What was acknowledged is looked for at the end. With `--s3` the
artifacts lie in a bucket of moto's server, and every encoder and index has a directory of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aeenc import AsyncClient, Retry, errors, values
from aeenc.v1 import types_pb2
from benchmarks.harness.rows import Rows
from benchmarks.promises.fleet import CORPUS, PREMISES, SERVICES, Fleet, job_fields, running_fleet
from support.servers.replicated_redis import ReplicatedRedis
from support.servers.s3_server import s3_server
from support.service_process import ServiceProcess
from support.worlds.trainer_world import QUERIES

COUNTS = {"encoders": 3, "indexes": 3, "samplers": 2, "trainers": 2}
PLURAL = dict(zip(SERVICES, COUNTS, strict=True))
REPLICATED = {"redis_replicas": 1, "redis_replicas_s": 1.0}
LABELS = ("canary", "run-a")
CALL_S = 40.0  # longer than any pause
PAUSED_S = (5.0, 20.0)
AWAY_S = (3.0, 10.0)
BETWEEN_S = (2.0, 5.0)
SETTLE_S = 3.0  # after a repair, until clients have noticed
CALLERS = 3
JOB_EVERY_S = 45.0
SAME = 1e-5
PASSING = (errors.Unavailable, errors.DeadlineExceeded, errors.Aborted, errors.Cancelled)


@dataclass
class Seen:
    """What happened, and what should not have."""

    counts: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    longest_s: dict[str, float] = field(default_factory=dict)  # call by kind


@dataclass
class Acknowledged:
    """What the services have acknowledged."""

    imports: dict[str, str] = field(default_factory=dict)  # run by query
    runs: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    labels: dict[str, values.Label] = field(default_factory=dict)  # the last move
    generations: set[str] = field(default_factory=set)  # one of these is active


class Outages:
    """When something that has no second copy was away, by what needs it."""

    def __init__(self) -> None:
        self._times: dict[str, list[list[float]]] = {"redis": [], "store": []}

    @asynccontextmanager
    async def away(self, what: str) -> AsyncIterator[None]:
        """Until a moment after the block, calls that need `what` may fail."""
        times = [time.monotonic(), float("inf")]
        self._times[what].append(times)
        try:
            yield
        finally:
            times[1] = time.monotonic() + SETTLE_S

    def excuse(self, needs: tuple[str, ...], since: float) -> str:
        """What a call needed that was away between `since` and now; empty if nothing was."""
        for what in needs:
            if any(start <= time.monotonic() and since <= end for start, end in self._times[what]):
                return what
        return ""


class Soak:
    """Callers, writers and the saboteur over one fleet."""

    def __init__(self, fleet: Fleet, seed: int, s3: subprocess.Popen[str] | None) -> None:
        self._s3 = s3
        self.seen, self.acknowledged = Seen(), Acknowledged()
        self._fleet, self._rng, self._until = fleet, random.Random(seed), 0.0
        self._outages = Outages()
        targets = {name: fleet.targets(name) for name in fleet.processes}
        self._client = AsyncClient(**targets, timeout_s=CALL_S, retry=Retry(attempts=2))
        self._vectors: dict[str, Any] = {}
        self._found: dict[tuple[str, str], list[list[str]]] = {}
        self._generations: list[str] = []

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until

    async def run(self, seconds: float) -> None:
        """Everything at once until time is up and the last failure is mended; then a look at what is there."""
        pairs = await self._fleet.import_pairs()
        await self._refer()
        self._until = time.monotonic() + seconds
        tasks = [self._encode, self._retrieve] * CALLERS + [self._import] * 2
        tasks += [self._run, self._move, self._activate]
        await asyncio.gather(self._sabotage(), self._train(pairs), *(self._repeated(task) for task in tasks))
        await self._look()
        await self._client.close()

    async def _refer(self) -> None:
        """Notes the right answers: of each version, and of each version in each generation."""
        client = self._client
        self._generations = [
            (await client.index.build(CORPUS, premises, activate=True)).id for premises in (PREMISES, PREMISES[:40])
        ]
        self.acknowledged.generations = {self._generations[-1]}
        made = await self._fleet.add_versions(len(LABELS))
        for label, version in zip(LABELS, made, strict=True):
            self.acknowledged.labels[label] = await client.registry.set_label(label, version.version)
        for version in (self._fleet.space.version, *(one.version for one in made)):
            answer = await self._insist(lambda version=version: client.encoder.encode(QUERIES, version=version))
            self._vectors[version] = answer.vectors
            for generation in self._generations:
                found = await self._insist(
                    lambda version=version, generation=generation: client.index.retrieve(
                        CORPUS, QUERIES, k=5, version=version, generation=generation
                    )
                )
                self._found[version, generation] = [[hit.id for hit in hits] for hits in found.results]

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats a call while a version is being loaded or something is being mended."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return await call()
            except (*PASSING, errors.FailedPrecondition, errors.NotFound):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def _repeated(self, task: Callable[[int], Awaitable[None]]) -> None:
        for number in itertools.count():
            if not self._goes_on:
                return
            await task(number)
            await asyncio.sleep(0.02)

    async def _call(self, kind: str, call: Callable[[], Awaitable[Any]], *needs: str) -> Any:
        """Makes a call; None when it failed. A failure counts unless something that it needs was away."""
        begun = time.monotonic()
        try:
            answer = await call()
            self.seen.counts[kind] += 1
            return answer
        except errors.AeencError as error:
            if away := self._outages.excuse(needs, begun):
                self.seen.excused[f"{kind}, {away} away"] += 1
                if not isinstance(error, PASSING):
                    self.seen.failed.append(f"{kind}: {error.code} {error.message} while {away} was away")
            else:
                self.seen.failed.append(f"{kind}: {error.code} {error.message}")
            await asyncio.sleep(0.2)
            return None
        finally:
            took_s = time.monotonic() - begun
            self.seen.longest_s[kind] = max(self.seen.longest_s.get(kind, 0.0), took_s)

    async def _until_done(self, kind: str, call: Callable[[], Awaitable[Any]], *needs: str) -> Any:
        """Repeats a call with its request id; what is answered in the end was done once."""
        while (answer := await self._call(kind, call, *needs)) is None:
            if not self._goes_on:
                return None
        return answer

    async def _encode(self, number: int) -> None:
        which, label = number % len(QUERIES), (None, *LABELS)[number % 3]
        answer = await self._call("Encode", lambda: self._client.encoder.encode([QUERIES[which]], label=label))
        if answer is not None:
            known = self._vectors.get(answer.model_version)
            if known is None or np.abs(known[which] - answer.vectors[0]).max() > SAME:
                self.seen.wrong.append(f"the vector of query {which} by {answer.model_version}")

    async def _retrieve(self, number: int) -> None:
        which, label = number % len(QUERIES), (None, *LABELS)[number % 3]
        answer = await self._call(
            "Retrieve", lambda: self._client.index.retrieve(CORPUS, [QUERIES[which]], k=5, label=label)
        )
        if answer is not None:
            known = self._found.get((answer.model_version, answer.generation))
            if known is None or known[which] != [hit.id for hit in answer.results[0]]:
                self.seen.wrong.append(f"query {which} by {answer.model_version} in {answer.generation}")

    async def _import(self, _: int) -> None:
        query, request_id = uuid.uuid4().hex, uuid.uuid4().hex
        pair = types_pb2.Pair(query=query, premise="fact", premise_id="f1", sign=types_pb2.PAIR_SIGN_POSITIVE)
        answer = await self._until_done(
            "ImportPairs", lambda: self._client.sampler.import_pairs(CORPUS, [pair], request_id=request_id), "redis"
        )
        if answer is not None:
            self.acknowledged.imports[query] = answer.run_id
        await asyncio.sleep(0.2)

    async def _run(self, number: int) -> None:
        roots, request_id = [(f"t{number}", f"{QUERIES[number % len(QUERIES)]} {number}")], uuid.uuid4().hex
        answer = await self._until_done(
            "StartRun",
            lambda: self._client.sampler.start_run(
                roots, corpus=CORPUS, oracle="gold", k=3, max_depth=1, idempotency_key=request_id
            ),
            "redis",
        )
        if answer is not None:
            self.acknowledged.runs.append(answer.id)
        await asyncio.sleep(2.0)

    async def _move(self, number: int) -> None:
        label, version = LABELS[number % 2], self._rng.choice(self._fleet.versions).version
        request_id = uuid.uuid4().hex
        answer = await self._until_done(
            "SetLabel",
            lambda: self._client.registry.set_label(label, version, request_id=request_id),
            "redis",
            "store",
        )
        if answer is not None:
            self.acknowledged.labels[label] = answer
        await asyncio.sleep(1.0)

    async def _activate(self, number: int) -> None:
        generation, request_id = self._generations[number % 2], uuid.uuid4().hex
        self.acknowledged.generations.add(generation)
        answer = await self._until_done(
            "ActivateGeneration",
            lambda: self._client.index.activate(CORPUS, generation, request_id=request_id),
            "store",
        )
        if answer is not None:
            self.acknowledged.generations = {generation}
        await asyncio.sleep(2.0)

    async def _train(self, pairs: str) -> None:
        for seed in itertools.count(1):
            if not self._goes_on:
                return
            request_id = uuid.uuid4().hex
            answer = await self._until_done(
                "StartJob",
                lambda seed=seed, request_id=request_id: self._client.trainer.start_job(
                    **job_fields(pairs, seed=seed, epochs=1), idempotency_key=request_id
                ),
                "redis",
                "store",
            )
            if answer is not None:
                self.acknowledged.jobs.append(answer.id)
            await asyncio.sleep(min(JOB_EVERY_S, max(self._until - time.monotonic(), 0)))

    async def _sabotage(self) -> None:
        services = ("encoder", "index", "sampler", "trainer")
        faults: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            *((f"{name} killed", lambda name=name: self._kill(self._any(name))) for name in services),
            *((f"{name} paused", lambda name=name: self._pause(self._any(name))) for name in services),
            ("redis killed", lambda: self._fail_over(signal.SIGKILL)),
            ("redis paused", lambda: self._fail_over(signal.SIGSTOP)),
            ("sentinel killed", self._kill_sentinel),
            ("replica killed", self._kill_replica),
            ("store away", self._take_store),
        ]
        while self._goes_on:
            self._rng.shuffle(faults)
            for name, fault in itertools.takewhile(lambda _: self._goes_on, faults):
                await fault()
                self.seen.counts[f"fault: {name}"] += 1
                await asyncio.sleep(self._rng.uniform(*BETWEEN_S))

    def _any(self, service: str) -> ServiceProcess:
        return self._rng.choice(self._fleet.processes[service])

    async def _kill(self, process: ServiceProcess) -> None:
        await asyncio.to_thread(process.kill)
        await asyncio.sleep(self._rng.uniform(0, 3))
        await process.restart()

    async def _pause(self, process: ServiceProcess) -> None:
        process.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._rng.uniform(*PAUSED_S))
        finally:
            process.process.send_signal(signal.SIGCONT)

    async def _fail_over(self, number: signal.Signals) -> None:
        redis: ReplicatedRedis = self._fleet.redis
        async with self._outages.away("redis"):
            master = await asyncio.to_thread(redis.master)
            if number == signal.SIGKILL:
                await asyncio.to_thread(master.kill)
            else:
                master.signal(number)
            await redis.follows(master)
            if number == signal.SIGKILL:
                await asyncio.to_thread(master.start)
            else:
                master.signal(signal.SIGCONT)
            await redis.whole()

    async def _kill_sentinel(self) -> None:
        sentinel = self._rng.choice(self._fleet.redis.sentinels)
        await asyncio.to_thread(sentinel.kill)
        await asyncio.sleep(self._rng.uniform(*AWAY_S))
        await asyncio.to_thread(sentinel.start)

    async def _kill_replica(self) -> None:
        redis: ReplicatedRedis = self._fleet.redis
        master = await asyncio.to_thread(redis.master)
        async with self._outages.away("redis"):  # the only one, so that no write is acknowledged
            replica = next(node for node in redis.nodes if node is not master)
            await asyncio.to_thread(replica.kill)
            await asyncio.sleep(self._rng.uniform(*AWAY_S))
            await asyncio.to_thread(replica.start)
            await redis.whole()

    async def _take_store(self) -> None:
        if self._s3 is not None:
            async with self._outages.away("store"):
                self._s3.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(self._rng.uniform(*AWAY_S))
                finally:
                    self._s3.send_signal(signal.SIGCONT)
            return
        root = self._fleet.space.store.root
        away = root.with_name("artifacts-away")
        async with self._outages.away("store"):
            root.rename(away)
            try:
                await asyncio.sleep(self._rng.uniform(*AWAY_S))
            finally:
                with suppress(OSError):
                    root.rename(root.with_name(f"made-meanwhile-{uuid.uuid4().hex}"))  # by who found none
                away.rename(root)

    async def _look(self) -> None:
        """Looks for everything that was acknowledged."""
        done, client = self.acknowledged, self._client
        for query, run_id in done.imports.items():
            found = await self._insist_found(lambda run_id=run_id: _queries(client, run_id))
            if found != [query]:
                self.seen.lost.append(f"import {query} of run {run_id}: {found}")
        for run_id in done.runs:
            run = await self._insist_found(lambda run_id=run_id: client.sampler.wait(run_id))
            if run is None or run.state != values.WorkState.SUCCEEDED:
                self.seen.lost.append(f"run {run_id}: {run}")
        for job_id in done.jobs:
            job = await self._insist_found(lambda job_id=job_id: client.trainer.wait(job_id))
            if job is None or job.state != values.WorkState.SUCCEEDED:
                self.seen.lost.append(f"job {job_id}: {job}")
        await self._look_at_labels()
        await self._look_at_generations()

    async def _look_at_labels(self) -> None:
        rows = {row.name: row for row in await self._insist(lambda: _labels(self._client))}
        for name, label in self.acknowledged.labels.items():
            now = rows.get(name)
            if now is None or now.revision < label.revision:
                self.seen.lost.append(f"label {name} at {label.revision}: {now}")
            elif now.revision == label.revision and now.versions != label.versions:
                self.seen.lost.append(f"label {name} names {now.versions}, not {label.versions}")

    async def _look_at_generations(self) -> None:
        for process in self._fleet.processes["index"]:
            async with AsyncClient(index=process.target, timeout_s=CALL_S) as one:
                corpora = [corpus async for corpus in one.index.list_corpora()]
            active = next((corpus.active.id for corpus in corpora if corpus.corpus == CORPUS), "none")
            if active not in self.acknowledged.generations:
                self.seen.lost.append(f"{process.name} serves {active}, not {self.acknowledged.generations}")

    async def _insist_found(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except errors.NotFound:
                return None
            except PASSING:
                await asyncio.sleep(0.2)


async def _queries(client: AsyncClient, run_id: str) -> list[str]:
    return [pair.query async for pair in client.sampler.list_pairs(run_id)]


async def _labels(client: AsyncClient) -> list[values.Label]:
    return [label async for label in client.registry.list_labels()]


async def soak(rows: Rows, minutes: float, seed: int, *, with_s3: bool) -> None:
    """Runs the fleet and reports."""
    settings: Mapping[str, Mapping[str, Any]] = {"sampler": REPLICATED, "trainer": REPLICATED}
    options: dict[str, Any] = {"settings": settings, "start_redis": ReplicatedRedis}
    async with AsyncExitStack() as stack:
        s3: subprocess.Popen[str] | None = None
        if with_s3:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-s3-")))
            s3, environment = stack.enter_context(s3_server(home))
            os.environ.update({name: value for name, value in environment.items() if name != "PYTHONPATH"})
            sys.path.append(environment["PYTHONPATH"])
            names = [f"{service}-{n}" for service in SERVICES for n in range(COUNTS[PLURAL[service]])]
            options |= {"artifacts_url": "s3://bucket/aeenc", "environment": dict.fromkeys(names, environment)}
        fleet = await stack.enter_async_context(running_fleet(**COUNTS, **options))
        done = Soak(fleet, seed, s3)
        await done.run(minutes * 60)
    seen, name = done.seen, f"{minutes:g} min" + ", S3" * with_s3
    faults = {what[7:]: count for what, count in seen.counts.items() if what.startswith("fault")}
    calls = {what: count for what, count in seen.counts.items() if not what.startswith("fault")}
    kept = done.acknowledged
    sizes = {name: len(getattr(kept, name)) for name in ("imports", "runs", "jobs", "labels")}
    rows.add(f"{name}: failures, one at a time", sum(faults.values()), "times", "> 0", bool(faults), faults)
    failed = Counter(
        " ".join(one.split()[:2]) + one[one.rfind(" while ") :] * (" while " in one) for one in seen.failed
    )
    rows.at_most(f"{name}: wrong answers", len(seen.wrong), "answers", 0, seen.wrong[:3] or calls)
    rows.at_most(
        f"{name}: calls failed beside a healthy replica",
        len(seen.failed),
        "calls",
        0,
        [dict(failed), *seen.failed[:3]] if failed else calls,
    )
    rows.at_most(f"{name}: acknowledged things lost", len(seen.lost), "things", 0, seen.lost[:3] or sizes)
    rows.note(f"{name}: calls failed while what they need was away", seen.excused.total(), "calls", dict(seen.excused))
    longest = {kind: round(took_s, 1) for kind, took_s in seen.longest_s.items()}
    rows.note(f"{name}: longest call", max(seen.longest_s.values()), "s", longest)


def main() -> None:
    """Runs the soak and ends the process; exit status 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--s3", action="store_true", help="the artifacts lie in a bucket of moto's server")
    options = parser.parse_args()
    rows = Rows("fleet-soak-s3" if options.s3 else "fleet-soak")
    asyncio.run(soak(rows, options.minutes, options.seed, with_s3=options.s3))
    rows.finish()


if __name__ == "__main__":
    main()
