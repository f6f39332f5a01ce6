"""Runs, jobs, checkpoints and events come and go with retention on: Redis and the disk must stop growing.

The figures are means: the last third of the time over the middle third. What goes after a day or a hundred thousand
entries (notes of requests, events of all queues) would still grow after half an hour: each look shortens that in Redis
to the soak's measure, and counts the index's notes of requests, which are files, by themselves. Redis writes its log
anew by itself, here when it has grown by a fifth: with the launcher's megabyte it would swing between one and two. Jobs
start at fixed times, so that a machine that slows down does not keep fewer checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from kit.test_authorisation import methods

from aeenc import AsyncClient, errors
from aeenc.v1 import sampler_pb2, trainer_pb2
from benchmarks.harness.rows import Rows
from benchmarks.promises.fleet import CORPUS, NAMESPACE, PREMISES, Fleet, job_fields, running_fleet
from benchmarks.promises.mutations.mutation import stubs
from services.sampler.settings import SamplerSettings
from services.store.redis import key_prefix
from services.trainer.settings import TrainerSettings
from support.worlds.trainer_world import QUERIES

KEEP_S = 20.0
SAMPLER = {"run_keep_s": KEEP_S, "runs_kept": 40}
TRAINER = {
    "job_keep_s": KEEP_S,
    "jobs_kept": 6,
    "checkpoint_keep_s": KEEP_S,
    "checkpoints_kept": 4,
    "grace_s": KEEP_S,
}
EVENTS_KEPT = 200  # of all queues; services keep 100,000
RPCS = (
    "SamplerAdminService.DeleteRun",
    "SamplerAdminService.CollectGarbage",
    "TrainerAdminService.DeleteJob",
    "TrainerAdminService.DeleteCheckpoint",
    "TrainerAdminService.CollectGarbage",
)
OTHER_CORPUS = "other"  # a job's own generation must stay
COLLECT_EVERY_S = 7.0
RECORDS = "space/artifacts/generations/*/.builds"
JOB_EVERY_S = 15.0
LOOKS = 600  # over the whole time
REWRITE = {"auto-aof-rewrite-percentage": 20, "auto-aof-rewrite-min-size": 65536}
PART = "disk, "
MOST = 0.02
ENDED = (3, 4, 5)  # WorkState: SUCCEEDED, FAILED, CANCELLED


class Traffic:
    """Everything that leaves records behind, again and again."""

    def __init__(self, fleet: Fleet, client: AsyncClient, until: float) -> None:
        self.counts: Counter[str] = Counter()
        self._fleet, self._client, self._until = fleet, client, until

    async def run(self) -> None:
        """All kinds at once, until time is up."""
        kinds = [self._judged_run, self._peoples_run, self._import, self._job, self._generation]
        if not lacking():
            kinds += [self._collect, self._delete]
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

    async def _import(self, _: int) -> None:
        await self._fleet.import_pairs()
        await asyncio.sleep(1.0)

    async def _job(self, number: int) -> None:
        slot = asyncio.create_task(asyncio.sleep(JOB_EVERY_S))
        pairs = await self._fleet.import_pairs()  # those of earlier jobs may be gone
        job = await self._client.trainer.start_job(**job_fields(pairs, epochs=1, seed=number))
        ended = await self._client.trainer.wait(job.id)
        if not ended.version:
            raise errors.FailedPrecondition(f"job {job.id} failed: {ended.error}")
        await self._client.registry.publish(ended.version, force=True)
        await slot

    async def _generation(self, number: int) -> None:
        old = [one.id async for one in self._client.index.list_generations(OTHER_CORPUS) if not one.active]
        premises = [*PREMISES, type(PREMISES[0])(id=f"more-{number}", text=f"another fact of number {number}")]
        await self._client.index.build(OTHER_CORPUS, premises, request_id=f"build-{number}")
        for generation in old:
            await self._client.index.delete(OTHER_CORPUS, generation)
        await asyncio.sleep(2.0)

    async def _collect(self, number: int) -> None:
        await asyncio.sleep(COLLECT_EVERY_S)
        for service, module in (("sampler", sampler_pb2), ("trainer", trainer_pb2)):
            name = f"{service.capitalize()}AdminService"
            channel = getattr(self._client, service).channel
            request = getattr(module, f"{name}CollectGarbageRequest")(request_id=f"collect-{service}-{number}")
            await channel.unary(stubs()[f"{name}Stub"](channel.grpc).CollectGarbage, request)

    async def _delete(self, number: int) -> None:
        await asyncio.sleep(COLLECT_EVERY_S)
        for run in [one async for one in self._client.sampler.list_runs() if one.state in ENDED and one.config.oracle][
            :5
        ]:
            channel = self._client.sampler.channel
            request = sampler_pb2.DeleteRunRequest(run_id=run.id, request_id=f"delete-{number}-{run.id}")
            with contextlib.suppress(errors.NotFound):  # its time was over
                await channel.unary(stubs()["SamplerAdminServiceStub"](channel.grpc).DeleteRun, request)


def lacking() -> list[str]:
    """Settings and RPCs of retention that this checkout does not have."""
    fields = {"sampler": SamplerSettings.model_fields, "trainer": TrainerSettings.model_fields}
    wanted = {"sampler": SAMPLER, "trainer": TRAINER}
    found = [f"AEENC_{s.upper()}_{name.upper()}" for s, own in wanted.items() for name in own if name not in fields[s]]
    return found + [rpc for rpc in RPCS if f"aeenc.v1.{rpc}" not in methods()]


async def retention(rows: Rows, minutes: float) -> None:
    """The rows of the soak."""
    missing = lacking()
    rows.add("retention: settings and RPCs that are not there", len(missing), "", "= 0", not missing, missing or None)
    settings = {
        "sampler": {name: value for name, value in SAMPLER.items() if name in SamplerSettings.model_fields},
        "trainer": {name: value for name, value in TRAINER.items() if name in TrainerSettings.model_fields},
    }
    async with running_fleet(settings=settings) as fleet, fleet.client() as client:
        for corpus in (CORPUS, OTHER_CORPUS):
            await fleet.build(corpus)
        traffic = Traffic(fleet, client, time.monotonic() + minutes * 60)
        looks = await asyncio.gather(traffic.run(), _look(fleet, minutes * 60))
        kept = {
            "runs": sum([run.state in ENDED async for run in client.sampler.list_runs()]),
            "jobs": sum([job.state in ENDED async for job in client.trainer.list_jobs()]),
            "checkpoints": len([one async for one in client.trainer.list_checkpoints()]),
        }
    _report(rows, looks[1], minutes, traffic.counts, kept)


async def _look(fleet: Fleet, seconds: float) -> list[dict[str, float]]:
    """Redis's memory for data, its log and the other files, in MB, again and again."""
    found = []
    async with fleet.store() as redis:
        for name, value in REWRITE.items():
            await redis.config_set(name, value)
        for _ in range(LOOKS):
            await asyncio.sleep(seconds / LOOKS)
            await _shorten(redis)
            memory = (await redis.info("memory"))["used_memory_dataset"]  # without the buffers of a rewrite
            folders = await asyncio.to_thread(_folders, fleet.home)
            log, kept = folders.pop("redis"), sum(_size_mb(folder) for folder in fleet.home.glob(RECORDS))
            disk = sum(folders.values()) - kept
            measured = {"Redis memory": memory / 1e6, "Redis's log": log, "disk": disk, RECORDS: kept}
            found.append({**measured, **{f"{PART}{name}": size for name, size in folders.items()}})
    return found


async def _shorten(redis: Any) -> None:
    """Lets notes of requests live no longer than ended runs, and keeps few events of all queues."""
    for pattern in ("request-done:*", "task-request:*"):
        async for key in redis.scan_iter(f"{key_prefix(NAMESPACE)}{pattern}", count=1000):
            if await redis.ttl(key) > KEEP_S:
                await redis.expire(key, int(KEEP_S))
    await redis.xtrim(f"{key_prefix(NAMESPACE)}task-events", maxlen=EVENTS_KEPT, approximate=False)


def _folders(home: Path) -> dict[str, float]:
    """Sizes of what services keep, without their logs; the store's folders apart."""
    artifacts = home / "space" / "artifacts"
    found = {one.name: _size_mb(one) for one in home.iterdir() if one.suffix != ".log"}
    parts = {one.name: _size_mb(one) for one in artifacts.iterdir()}
    return {**found, **parts, "space": found["space"] - sum(parts.values())}


def _size_mb(path: Path) -> float:
    walked = [(path.parent, [], [path.name])] if path.is_file() else os.walk(path)  # it passes over what goes meanwhile
    total = 0
    for folder, _, names in walked:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(folder, name).stat().st_size
    return total / 1e6


def growth(values: Sequence[float]) -> float:
    """The mean of the last third over that of the middle third, less one."""
    middle, last = _thirds(values)
    return statistics.mean(last) / statistics.mean(middle) - 1


def _thirds(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The middle third and the last one."""
    third = len(values) // 3
    return values[third:-third], values[-third:]


def _report(
    rows: Rows, looks: list[dict[str, float]], minutes: float, counts: Counter[str], kept: dict[str, int]
) -> None:
    name = f"retention, {minutes:g} min"
    rows.note(f"{name}: what came and went", counts.total(), "times", dict(counts))
    kept_a_day = [look.pop(RECORDS) for look in looks]
    rows.note(f"{name}: the index's records of builds, kept for a day", kept_a_day[-1] * 1e3, "kB")
    for part in sorted({name for look in looks for name in look if name.startswith(PART)}):
        thirds = _thirds([look.pop(part, 0.0) for look in looks])
        rows.note(
            f"{name}: {part}, middle third and last third", [round(statistics.mean(one), 3) for one in thirds], "MB"
        )
    for what in looks[0]:
        values = [look[what] for look in looks]
        told = f"{values[0]:.2f} MB at first, {values[len(values) // 2]:.2f}, {values[-1]:.2f} in the end"
        rows.at_most(f"{name}: {what}, last third over middle third", growth(values), "share", MOST, told)
    most = {"runs": SAMPLER["runs_kept"], "jobs": TRAINER["jobs_kept"], "checkpoints": TRAINER["checkpoints_kept"]}
    for what, count in kept.items():
        rows.note(
            f"{name}: {what} at the end", count, "", f"kept: {most[what]:g} and what is younger than {KEEP_S:g} s"
        )
