"""The promises of the contracts, held against a running fleet: `make bench NAME=promises`, an hour and a quarter.

    faults     callers and writers ──▶ 3 encoders, 3 indexes, 2 samplers, 2 trainers, Redis with replica and Sentinels;
               one thing after another is killed, paused, failed over or taken away, each mended before the next; calls
               are broken off and sent again. What is lost, done twice, answered wrongly, or fails?
    backups    the same writers; `aeenc backup`, killed in the middle, then whole; restored elsewhere: what is missing?
    retention  the same writers with short retention: do Redis and the disk stop growing?

A failed call counts unless what it needs was wholly away: Redis during a fail-over, the artifacts while their store is.
`--only PART` runs one part, `--minutes` and `--rounds` make it shorter; the rows then say so. With `--s3` the artifacts
of `faults` lie in a bucket of moto's server, and every encoder and index has a directory of its own. Loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

from aeenc import Retry
from benchmarks.fleet.backups import backups
from benchmarks.fleet.writers import LABELS, Look, Writers
from benchmarks.harness.fleet import CORPUS, NAMESPACE, PREMISES, SERVICES, Fleet, running_fleet
from benchmarks.harness.rows import Rows, run_parts
from services.sampler.records.keys import RunKeys
from support.servers.replicated_redis import ReplicatedRedis
from support.servers.s3_server import s3_server
from support.service_process import ServiceProcess
from support.waiting import eventually
from support.worlds.trainer_world import QUERIES

COUNTS = {"encoder": 3, "index": 3, "sampler": 2, "trainer": 2}
REPLICATED = {"redis_replicas": 1, "redis_replicas_s": 1.0}
CALL_S, PAUSED_S, AWAY_S, BETWEEN_S = 40.0, (5.0, 20.0), (3.0, 10.0), (2.0, 5.0)
CALLERS, BROKEN, SAME = 3, 0.2, 1e-5
KEEP_S = 20.0
KEPT = {
    "sampler": {"run_keep_s": KEEP_S, "runs_kept": 40},
    "trainer": {"job_keep_s": KEEP_S, "jobs_kept": 6, "checkpoint_keep_s": KEEP_S, "checkpoints_kept": 4,
                "grace_s": KEEP_S},
}  # fmt: skip
REWRITE = {"auto-aof-rewrite-percentage": 20, "auto-aof-rewrite-min-size": 65536}  # or the log swings by a megabyte
EVENTS = 500  # of all queues, of which the sampler keeps 100,000: more than half an hour makes
LOOKS, GROWTH = 300, 0.02  # of `retention`: over the whole time; of the last third over the middle one


class Callers:
    """Encode and retrieve, and compare every answer with one from before."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._vectors: dict[str, Any] = {}
        self._found: dict[tuple[str, str], list[list[str]]] = {}

    async def refer(self) -> None:
        """Notes the right answers of each version, and of each version in each generation."""
        client, fleet = self._writers.client, self._writers.fleet
        built = [await client.index.build(CORPUS, premises) for premises in (PREMISES[:40], PREMISES)]
        self._writers.generations = [one.id for one in built]
        for label in LABELS:
            await client.registry.set_label(label, (await fleet.add_version()).version)
        for label in (None, *LABELS):

            async def answers(label: str | None = label) -> bool:
                with contextlib.suppress(Exception):  # the version is being loaded
                    answer = await client.encoder.encode(QUERIES, label=label)
                    self._vectors[answer.model_version] = answer.vectors
                    for one in built:
                        found = await client.index.retrieve(
                            CORPUS, QUERIES, k=5, version=answer.model_version, generation=one.id
                        )
                        self._found[answer.model_version, one.id] = [[hit.id for hit in hits] for hits in found.results]
                    return True
                return False

            await eventually(answers, timeout_s=60)

    async def encode(self, number: int) -> None:
        """One text by one of the labels."""
        which, label = number % len(QUERIES), (None, *LABELS)[number % 3]
        encode = self._writers.client.encoder.encode
        answer = await self._writers.call("Encode", lambda: encode([QUERIES[which]], label=label), ())
        known = self._vectors.get(answer.model_version)
        if known is None or np.abs(known[which] - answer.vectors[0]).max() > SAME:
            self._writers.wrong.append(f"the vector of query {which} by {answer.model_version}")

    async def retrieve(self, number: int) -> None:
        """The premises of one text by one of the labels."""
        which, label = number % len(QUERIES), (None, *LABELS)[number % 3]
        find = self._writers.client.index.retrieve
        answer = await self._writers.call("Retrieve", lambda: find(CORPUS, [QUERIES[which]], k=5, label=label), ())
        known = self._found.get((answer.model_version, answer.generation))
        if known is None or known[which] != [hit.id for hit in answer.results[0]]:
            self._writers.wrong.append(f"query {which} by {answer.model_version} in {answer.generation}")


class Saboteur:
    """Breaks one thing after another, and mends it before the next."""

    def __init__(self, writers: Writers, s3: subprocess.Popen[str] | None) -> None:
        self._fleet, self._outages, self._wrong, self._s3 = writers.fleet, writers.outages, writers.wrong, s3
        self._rng, self.done = random.Random(writers.seed), Counter[str]()

    async def go(self, goes_on: Callable[[], bool]) -> None:
        """Until time is up."""
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            **{f"{name} killed": lambda name=name: self._kill(self._any(name)) for name in SERVICES},
            **{f"{name} paused": lambda name=name: self._pause(self._any(name).process) for name in SERVICES},
            "redis killed": lambda: self._fail_over(signal.SIGKILL),
            "redis paused": lambda: self._fail_over(signal.SIGSTOP),
            "sentinel killed": lambda: self._kill_node(self._rng.choice(self._fleet.redis.sentinels)),
            "replica killed": self._kill_replica,
            "store away": self._take_store,
        }
        while goes_on():
            for name in self._rng.sample(list(faults), len(faults)):
                if goes_on():
                    await faults[name]()
                    self.done[name] += 1
                    await self._wait(BETWEEN_S)

    async def _wait(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._rng.uniform(*seconds))

    def _any(self, service: str) -> ServiceProcess:
        return self._rng.choice(self._fleet.processes[service])

    async def _kill(self, process: ServiceProcess) -> None:
        await asyncio.to_thread(process.kill)
        await self._wait((0, 3))
        await process.restart()

    async def _pause(self, process: Any, seconds: tuple[float, float] = PAUSED_S) -> None:
        process.send_signal(signal.SIGSTOP)
        try:
            await self._wait(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    async def _fail_over(self, number: signal.Signals) -> None:
        redis: ReplicatedRedis = self._fleet.redis
        async with self._outages.away("redis"):
            master = await asyncio.to_thread(redis.master)
            is_killed = number == signal.SIGKILL
            await asyncio.to_thread(*([master.kill] if is_killed else [master.signal, number]))
            await redis.follows(master)
            await asyncio.to_thread(*([master.start] if is_killed else [master.signal, signal.SIGCONT]))
            await redis.whole()

    async def _kill_node(self, node: Any) -> None:
        await asyncio.to_thread(node.kill)
        await self._wait(AWAY_S)
        await asyncio.to_thread(node.start)

    async def _kill_replica(self) -> None:
        redis: ReplicatedRedis = self._fleet.redis
        master = await asyncio.to_thread(redis.master)
        async with self._outages.away("redis"):  # the only one, so that no write is acknowledged
            await self._kill_node(next(node for node in redis.nodes if node is not master))
            await redis.whole()

    async def _take_store(self) -> None:
        root = self._fleet.space.store.root
        away = root.with_name("artifacts-away")
        async with self._outages.away("store"):
            if self._s3 is not None:
                return await self._pause(self._s3, AWAY_S)
            root.rename(away)
            try:
                await self._wait(AWAY_S)
            finally:
                if root.exists():
                    self._wrong.append("somebody has made a store where the lost one was")
                    root.rename(root.with_name(f"made-meanwhile-{time.monotonic_ns()}"))
                away.rename(root)


async def faults(rows: Rows, given: argparse.Namespace) -> None:
    """Everything at once until time is up and the last failure is mended; then a look at what is there."""
    settings = {"sampler": REPLICATED, "trainer": REPLICATED}
    options: dict[str, Any] = {"settings": settings, "start_redis": ReplicatedRedis}
    async with AsyncExitStack() as stack:
        s3: subprocess.Popen[str] | None = None
        if given.s3:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-s3-")))
            s3, environment = stack.enter_context(s3_server(home))
            os.environ.update({name: value for name, value in environment.items() if name != "PYTHONPATH"})
            sys.path.append(environment["PYTHONPATH"])
            options |= {"artifacts_url": "s3://bucket/aeenc", "environment": environment}
        fleet = await stack.enter_async_context(running_fleet(COUNTS, **options))
        client = await stack.enter_async_context(fleet.client(timeout_s=CALL_S, retry=Retry(attempts=2)))
        writers = Writers(fleet, client, await fleet.import_pairs(), given.seed, BROKEN)
        callers, saboteur = Callers(writers), Saboteur(writers, s3)
        await callers.refer()
        until = time.monotonic() + given.minutes * 60
        paced = {callers.encode: 0.02, callers.retrieve: 0.02, writers.import_pairs: 0.2, writers.sample: 2.0}
        paced |= {writers.ask_people: 1.0, writers.move: 1.0, writers.activate: 2.0, writers.build: 2.0}
        steps = [*paced, *[callers.encode, callers.retrieve] * (CALLERS - 1), writers.train]
        goes_on = lambda: time.monotonic() < until  # noqa: E731
        await asyncio.gather(
            saboteur.go(goes_on), *(writers.repeat(step, goes_on, paced.get(step, 20.0)) for step in steps)
        )
        lost = []
        for number, process in enumerate(fleet.processes["index"]):
            answers = [one for one in writers.answers if one.kind == "active" or not number]
            async with fleet.client(index=process.target, timeout_s=CALL_S) as own:
                lost += await Look(own, fleet.space.store, writers, set(writers.removing)).lost(answers)
    name, told = f"{given.minutes:g} min" + ", S3" * given.s3, dict(writers.counts)
    failures = [what for _, what in writers.failed]
    rows.at_least(f"{name}: failures, one at a time", saboteur.done.total(), "times", 1, dict(saboteur.done))
    rows.at_most(f"{name}: answers that are wrong, or another when sent again", len(writers.wrong), "", 0,
                 writers.wrong[:3] or told)  # fmt: skip
    rows.at_most(f"{name}: calls failed beside a healthy replica", len(failures), "calls", 0, failures[:3] or told)
    rows.at_most(f"{name}: acknowledged things lost", len(lost), "", 0, lost[:3] or len(writers.answers))
    longest = {kind: round(took_s, 1) for kind, took_s in writers.longest_s.items()}
    rows.note(f"{name}: longest call", max(longest.values()), "s", longest)


async def retention(rows: Rows, given: argparse.Namespace) -> None:
    """Runs, jobs, checkpoints and generations come and go: means of the last third of the time over the middle one."""
    async with running_fleet(settings=KEPT) as fleet, fleet.client() as client:
        await fleet.build()
        writers = Writers(fleet, client, await fleet.import_pairs(), given.seed)
        until = time.monotonic() + given.minutes * 60

        async def train(number: int) -> None:
            writers.pairs = await fleet.import_pairs()  # those of earlier jobs may be gone
            slot = asyncio.create_task(asyncio.sleep(15.0))  # a slow machine shall keep as many checkpoints
            await writers.train(number)
            await slot

        paced = {
            writers.sample: 0.5,
            writers.ask_people: 0.5,
            writers.import_pairs: 1.0,
            writers.build: 2.0,
            train: 0.0,
        }
        steps = [writers.repeat(step, lambda: time.monotonic() < until, pause_s) for step, pause_s in paced.items()]
        working = asyncio.gather(*steps)
        looks = await _looks(fleet, given.minutes * 60)
        await working
    name = f"retention, {given.minutes:g} min"
    failures = [what for _, what in writers.failed]
    rows.at_most(f"{name}: calls failed", len(failures), "calls", 0, failures[:3] or dict(writers.counts))
    for what in looks[0]:
        sizes = [look[what] for look in looks]
        told = f"{sizes[0]:.2f} MB at first, {sizes[-1]:.2f} in the end"
        rows.at_most(f"{name}: {what}, last third over middle third", growth(sizes), "share", GROWTH, told)


async def _looks(fleet: Fleet, seconds: float) -> list[dict[str, float]]:
    """Redis's memory for data, its log, and the other files but the notes of builds, in MB, again and again."""
    found, events = [], RunKeys(NAMESPACE).all_events
    async with fleet.store() as redis:
        for name, value in REWRITE.items():
            await redis.config_set(name, value)
        for _ in range(LOOKS):
            await asyncio.sleep(seconds / LOOKS)
            async for key in redis.scan_iter("*request*", count=1000):  # kept for a day; here no longer than runs
                if await redis.ttl(key) > KEEP_S:
                    await redis.expire(key, int(KEEP_S))
            await redis.xtrim(events, maxlen=EVENTS, approximate=False)
            memory = (await redis.info("memory"))["used_memory_dataset"] / 1e6  # without the buffers of a rewrite
            log, disk = await asyncio.to_thread(_sizes_mb, fleet.home)
            found.append({"Redis memory": memory, "Redis's log": log, "disk": disk})
    return found


def _sizes_mb(home: Path) -> tuple[float, float]:
    """The sizes of Redis's files, and of all others but logs and the notes of builds, which are kept for a day."""
    sizes = {True: 0.0, False: 0.0}
    for folder, _, names in os.walk(home):  # it passes over what goes meanwhile
        is_redis = folder.startswith(str(home / "redis"))
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if is_redis or not (name.endswith(".log") or "/.builds" in folder):
                    sizes[is_redis] += Path(folder, name).stat().st_size / 1e6
    return sizes[True], sizes[False]


def growth(sizes: Sequence[float]) -> float:
    """The mean of the last third over that of the middle third, less one."""
    third = len(sizes) // 3
    return statistics.mean(sizes[-third:]) / statistics.mean(sizes[third:-third]) - 1


if __name__ == "__main__":
    run_parts(
        "promises",
        __doc__,
        {"faults": faults, "backups": backups, "retention": retention},
        {
            "--minutes": {"type": float, "default": 30.0, "help": "of the parts faults and retention"},
            "--rounds": {"type": int, "default": 5, "help": "of the part backups"},
            "--s3": {"action": "store_true", "help": "the artifacts of faults lie in a bucket of moto's server"},
            "--seed": {"type": int, "default": 1},
        },
    )
