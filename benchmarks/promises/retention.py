"""Runs, jobs, checkpoints and events come and go with retention on: Redis and the disk must stop growing.

The figures are means: the last third of the time over the middle third. Redis's log is written anew before each look,
since it grows by design until Redis does so itself at 64 MB.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aeenc import AsyncClient, errors
from aeenc.v1 import registry_pb2_grpc, sampler_pb2_grpc, trainer_pb2_grpc
from benchmarks.harness.rows import Rows
from benchmarks.promises.fleet import CORPUS, PREMISES, Fleet, job_fields, running_fleet
from services.sampler.settings import SamplerSettings
from services.trainer.settings import TrainerSettings
from support.worlds.trainer_world import QUERIES

KEEP_S = 20.0
SAMPLER = {"run_keep_s": KEEP_S, "runs_kept": 40}
TRAINER = {"job_keep_s": KEEP_S, "jobs_kept": 6, "checkpoint_keep_s": KEEP_S, "checkpoints_kept": 4}
RPCS = {
    sampler_pb2_grpc.SamplerServiceStub: ("DeleteRun",),
    trainer_pb2_grpc.TrainerServiceStub: ("DeleteJob",),
    registry_pb2_grpc.RegistryAdminServiceStub: ("DeleteCheckpoint", "CollectGarbage"),
}
LOOKS = 90  # over the whole time
MOST = 0.02
ENDED = (3, 4, 5)  # RunState and JobState: SUCCEEDED, FAILED, CANCELLED


class Traffic:
    """Everything that leaves records behind, again and again."""

    def __init__(self, client: AsyncClient, pairs: str, until: float) -> None:
        self.counts: Counter[str] = Counter()
        self._client, self._pairs, self._until = client, pairs, until

    async def run(self) -> None:
        """All kinds at once, until time is up."""
        kinds = (self._judged_run, self._peoples_run, self._import, self._job, self._generation)
        await asyncio.gather(*(self._again(kind) for kind in kinds))

    async def _again(self, kind: Callable[[int], Awaitable[None]]) -> None:
        number = 0
        while time.monotonic() < self._until:
            number += 1
            try:
                await kind(number)
                self.counts[kind.__name__[1:].replace("_", " ")] += 1
            except errors.AeencError as error:
                self.counts[f"{kind.__name__[1:]}: {error.code} {error.message[:80]}"] += 1
                await asyncio.sleep(0.5)

    async def _judged_run(self, number: int) -> None:
        roots = [(f"t{n}", f"{QUERIES[n]} {number}") for n in range(3)]
        run = await self._client.sampler.start_run(roots, corpus=CORPUS, oracle="gold", k=4, max_depth=1)
        await self._client.sampler.wait(run.id)
        await asyncio.sleep(0.5)

    async def _peoples_run(self, number: int) -> None:
        run = await self._client.sampler.start_run(
            [(f"t{number}", f"{QUERIES[0]} for people {number}")], corpus=CORPUS, oracle="team", k=3, max_depth=0
        )
        for _ in range(20):
            if leases := await self._client.people.lease(f"ann-{number}", run_id=run.id):
                await self._client.people.submit(leases[0], [])
                break
            await asyncio.sleep(0.1)
        await self._client.sampler.cancel(run.id)
        await asyncio.sleep(0.5)

    async def _import(self, number: int) -> None:
        pairs = [pair async for pair in self._client.sampler.pairs(self._pairs)][:20]
        for pair in pairs:
            pair.query += f" {number}"
        await self._client.sampler.import_pairs(CORPUS, pairs)
        await asyncio.sleep(1.0)

    async def _job(self, number: int) -> None:
        job = await self._client.trainer.start_job(**job_fields(self._pairs, epochs=1, seed=number))
        ended = await self._client.trainer.wait(job.id)
        await self._client.registry.publish(ended.version, force=True)

    async def _generation(self, number: int) -> None:
        old = [one.id for one in await self._client.index.generations(CORPUS) if not one.active]
        premises = [*PREMISES, type(PREMISES[0])(id=f"more-{number}", text=f"another fact of number {number}")]
        await self._client.index.build(CORPUS, premises, request_id=f"build-{number}")
        for generation in old:
            await self._client.index.delete(CORPUS, generation)
        await asyncio.sleep(2.0)


def lacking() -> list[str]:
    """Settings and RPCs of retention that this checkout does not have."""
    fields = {"sampler": SamplerSettings.model_fields, "trainer": TrainerSettings.model_fields}
    wanted = {"sampler": SAMPLER, "trainer": TRAINER}
    found = [f"AEENC_{s.upper()}_{name.upper()}" for s, own in wanted.items() for name in own if name not in fields[s]]
    rpcs = {name for names in RPCS.values() for name in names}
    known = {one for stub in RPCS for one in _rpcs_of(stub)}
    return found + sorted(rpcs - known)


def _rpcs_of(stub: Callable[[Any], object]) -> set[str]:
    class Channel:
        def __getattr__(self, name: str) -> Callable[..., object]:
            return lambda *_, **__: name

    return set(vars(stub(Channel())))


async def retention(rows: Rows, minutes: float) -> None:
    """The rows of the soak."""
    missing = lacking()
    rows.add("retention: settings and RPCs that are not there", len(missing), "", "= 0", not missing, missing or None)
    settings = {
        "sampler": {name: value for name, value in SAMPLER.items() if name in SamplerSettings.model_fields},
        "trainer": {name: value for name, value in TRAINER.items() if name in TrainerSettings.model_fields},
    }
    async with running_fleet(settings=settings) as fleet, fleet.client() as client:
        await fleet.build()
        traffic = Traffic(client, await fleet.import_pairs(), time.monotonic() + minutes * 60)
        looks = await asyncio.gather(traffic.run(), _look(fleet, minutes * 60))
        kept = {
            "runs": sum(run.state in ENDED for run in await client.sampler.runs()),
            "jobs": sum(job.state in ENDED for job in await client.trainer.jobs()),
            "checkpoints": len(await client.trainer.checkpoints()),
        }
    _report(rows, looks[1], minutes, traffic.counts, kept)


async def _look(fleet: Fleet, seconds: float) -> list[dict[str, float]]:
    """Redis's memory, its log and the other files, in MB, again and again."""
    found = []
    async with fleet.store() as redis:
        for _ in range(LOOKS):
            await asyncio.sleep(seconds / LOOKS)
            await redis.bgrewriteaof()
            while (await redis.info("persistence"))["aof_rewrite_in_progress"]:  # noqa: ASYNC110 -- Redis is asked
                await asyncio.sleep(0.05)
            memory = (await redis.info("memory"))["used_memory"]
            folders = await asyncio.to_thread(lambda: {one.name: _size_mb(one) for one in fleet.home.iterdir()})
            log = folders.pop("redis")
            disk = sum(size for name, size in folders.items() if not name.endswith(".log"))
            found.append({"Redis memory": memory / 1e6, "Redis's log": log, "disk": disk})
    return found


def _size_mb(path: Path) -> float:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    total = 0
    for one in files:
        try:
            total += one.stat().st_size
        except FileNotFoundError:  # gone meanwhile
            continue
    return total / 1e6


def growth(values: Sequence[float]) -> float:
    """The mean of the last third over that of the middle third, less one."""
    third = len(values) // 3
    return statistics.mean(values[-third:]) / statistics.mean(values[third:-third]) - 1


def _report(
    rows: Rows, looks: list[dict[str, float]], minutes: float, counts: Counter[str], kept: dict[str, int]
) -> None:
    name = f"retention, {minutes:g} min"
    rows.note(f"{name}: what came and went", counts.total(), "times", dict(counts))
    for what in looks[0]:
        values = [look[what] for look in looks]
        told = f"{values[0]:.2f} MB at first, {values[len(values) // 2]:.2f}, {values[-1]:.2f} in the end"
        rows.at_most(f"{name}: {what}, last third over middle third", growth(values), "share", MOST, told)
    most = {"runs": SAMPLER["runs_kept"], "jobs": TRAINER["jobs_kept"], "checkpoints": TRAINER["checkpoints_kept"]}
    for what, count in kept.items():
        rows.note(
            f"{name}: {what} at the end", count, "", f"kept: {most[what]:g} and what is younger than {KEEP_S:g} s"
        )
