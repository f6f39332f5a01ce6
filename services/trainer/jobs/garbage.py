"""Deletions of jobs and checkpoints, and the collection of garbage: what the settings no longer keep, or killed
processes have left. First out of everybody's sight in one step, then from the disk.

    delete_job ────────► tombstone in Redis ──► finish: events, queries, directory
    delete_checkpoint ─► who needs it? ──► tombstone, unless a label does ──► (grace period) ──► finish: files

What is interrupted is finished by the next call of `finish`, in whichever trainer. One trainer of a namespace collects
at a time. Checkpoints that anybody needs stay, whatever their age. Ages are by the clock of Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

from redis.asyncio import Redis

from aeenc import errors
from aeenc.index import IndexClient
from aeenc.values import Garbage
from services.corpus.holds import GenerationHolds
from services.kit.concurrency import cancel_all, every, run_in_thread
from services.kit.logs import get
from services.store.artifacts import remove_directory
from services.store.formats import UNREADABLE, made_of
from services.store.life_cycles import LIVE
from services.store.redis import turn
from services.store.registry import Registry
from services.store.registry_rows import versions_of
from services.store.requests import Request
from services.trainer.jobs.job import Job, JobStore
from services.trainer.jobs.tandem_building import TandemBuilder
from services.trainer.registry.checkpoints import FOLDER, Checkpoints
from services.trainer.registry.tandems import Tandems

log = get(__name__)

ROUND_S = 60.0
BUSY = "another trainer is collecting garbage"
LEASE_S = 10.0  # renewed while a trainer collects; a killed one is followed within this time
UNKNOWN_KEPT_S = 86_400.0  # age of a directory without a record: another deployment may write here by mistake
KEPT_BACK = (errors.FailedPrecondition, errors.NotFound, errors.Unavailable, errors.DataLoss)  # of one thing, for now


@dataclass(frozen=True)
class Retention:
    """Limits on what is kept: seconds after a job ends or a checkpoint is registered, and counts. 0: no limit."""

    job_s: float = 0.0
    jobs: int = 0
    checkpoint_s: float = 0.0
    checkpoints: int = 0


class Deletion:
    """Deletes jobs and checkpoints of one namespace. Collects garbage when asked, and between `start` and `stop`.

    `grace_s`: how long the files of a deleted checkpoint stay.
    """

    def __init__(
        self,
        store: JobStore,
        checkpoints: Checkpoints,
        registry: Registry,
        tandems: Tandems,
        index: IndexClient,
        building: TandemBuilder,
        holds: GenerationHolds,
        redis: Redis,
        retention: Retention,
        *,
        lease: str,
        jobs_dir: Path,
        grace_s: float,
    ) -> None:
        self._store, self._checkpoints, self._registry = store, checkpoints, registry
        self._tandems, self._index, self._building, self._holds = tandems, index, building, holds
        self._retention, self._redis, self._lease = retention, redis, lease
        self._jobs_dir, self._grace_s = jobs_dir, grace_s
        self._rounds: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()

    async def delete_job(self, job_id: str, request_id: str = "") -> None:
        """Deletes a job that has ended. Raises NotFound, FailedPrecondition for a live one, and as the store does."""
        await self._store.delete(job_id, Request(request_id, "DeleteJob", {"job_id": job_id}))
        await self._finish_job(job_id)

    async def delete_checkpoint(self, version: str, request_id: str = "") -> None:
        """Deletes a checkpoint. Raises NotFound, and FailedPrecondition (IN_USE) naming who needs it."""
        request = Request(request_id, "DeleteCheckpoint", {"version": version})
        if await self._registry.requests.answer(request, bool):
            return
        await self._checkpoints.get(version)
        async with self._tandems.turn():  # no tandem becomes active meanwhile
            if why := (await self.needed()).get(version):
                raise errors.FailedPrecondition(f"checkpoint {version} is in use: {why}", reason="IN_USE")
            await self._registry.checkpoints.bury(version, request)
            await self._tandems.remove(version)
        log.info("checkpoint deleted", version=version)

    async def needed(self) -> dict[str, str]:
        """Tells why checkpoints are needed, by version: for labels, tandems, live jobs, and what corpora serve."""
        needed: dict[str, str] = {}
        for tandem in await self._tandems.all():
            if tandem.premise_version != tandem.version:
                needed[tandem.premise_version] = f"it encodes the premises of {tandem.version}'s tandem"
        live, rows = await self._live(), await self._registry.checkpoints.all()
        spaces = {row.version: row.space_id for row in rows}
        for job in live.values():
            base = job.config.base_version
            of_premises = await self._registry.checkpoints.space(spaces.get(base, "")) or ""
            for version in (base, job.config.guide_version, of_premises):
                needed[version] = f"job {job.id} is {job.state} and learns with it"
        needed |= {row.version: f"job {row.job_id}, which made it, is not done" for row in rows if row.job_id in live}
        async for found in self._index.list_corpora():
            needed[found.active.premise_version] = f"corpus {found.corpus!r} serves premises that it has encoded"
        for label in await self._registry.labels():
            place = f"label {label.name!r} of space {label.space_id}"
            if premise_version := await self._registry.checkpoints.space(label.space_id):
                needed[premise_version] = f"it encodes the premises of space {label.space_id}, which {place} opens"
            needed |= dict.fromkeys(versions_of(label.previous), f"{place} goes back to it")
            needed |= dict.fromkeys(label.versions, f"{place} names it")
        needed.pop("", None)
        return needed

    async def _live(self) -> dict[str, Job]:
        jobs = {}
        for job_id in await self._store.cycles.active():
            with contextlib.suppress(errors.NotFound):  # it has just been deleted
                jobs[job_id] = await self._store.get(job_id)
        return jobs

    async def finish(self) -> None:
        """Removes what earlier deletions have left, and the files of checkpoints whose grace period is over."""
        for job_id in await self._store.cycles.deleted():
            with contextlib.suppress(*UNREADABLE):  # a trainer of the newer release carries it on
                await self._finish_job(job_id)
        for version in await self._registry.checkpoints.claim_buried(self._grace_s):
            with contextlib.suppress(errors.NotFound):  # an earlier attempt has removed them
                await run_in_thread(self._checkpoints.store.delete, FOLDER, version)
            await self._tandems.remove(version)  # its deletion may have broken off before
            await self._registry.checkpoints.forget_buried(version)
            log.info("files of a deleted checkpoint removed", version=version)

    async def _finish_job(self, job_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # it has none, or lies on another trainer's disk
            await run_in_thread(remove_directory, self._jobs_dir / job_id)
        await self._store.clear(job_id)

    def start(self) -> None:
        """Begins to collect garbage every minute."""
        self._rounds = asyncio.create_task(every(ROUND_S, self._round, "garbage stays for now"))

    async def stop(self) -> None:
        """Ends the rounds."""
        await cancel_all([self._rounds] if self._rounds else [])

    async def collect(self, *, dry_run: bool, request_id: str = "") -> list[Garbage]:
        """Removes garbage now and lists it; with `dry_run` it is only listed. A retry of a request gets its answer.

        Raises Unavailable while another trainer collects, or without the index, which knows what corpora serve.
        """
        request = Request(request_id, "TrainerAdminService/CollectGarbage", {"dry_run": dry_run})
        found = await self._registry.requests.answer(
            request, lambda record: made_of(list[Garbage], json.loads(record["answer"]))
        )
        if found is not None:
            return found
        if dry_run:
            garbage = [one async for one in self._garbage()]
        else:
            async with self._one, turn(self._redis, self._lease, LEASE_S, BUSY) as may_go_on:
                garbage = [one async for one in self._garbage() if await may_go_on() and await self._remove(one)]
                await self.finish()
        answer = json.dumps([asdict(one) for one in garbage])
        await self._registry.requests.record(request, {"answer": answer})
        return garbage

    async def _round(self) -> None:
        await self._keep_holds()  # neither needs a turn: trainers may remove the same hold or label
        await self._building.sweep()
        await self.collect(dry_run=False)

    async def _keep_holds(self) -> None:
        """Ends the holds of jobs that are over: their trainer died before it could, or the index was away.

        Live ones hold their generation again, or for the first time: the index may have been away then, too, or was
        restored, or the call that started or resumed the job ended before it was held.
        """
        for job_id in {*await self._holds.held(), *await self._store.cycles.active()}:
            if await self._store.state(job_id) not in LIVE:
                await self._holds.release(job_id)
            with contextlib.suppress(errors.NotFound, *UNREADABLE):
                if not (job := await self._store.get(job_id)).ended:  # perhaps resumed meanwhile
                    await self._holds.hold(job_id, job.config.corpus, job.generation)

    async def _garbage(self) -> AsyncIterator[Garbage]:
        keep = self._retention
        for job in await self._store.cycles.expired(keep.job_s, keep.jobs):
            size = await self._store.size_bytes(job.id) + await run_in_thread(_bytes, self._jobs_dir / job.id)
            yield Garbage(kind="job", id=job.id, reason=job.reason, bytes=size)
        if keep.checkpoint_s or keep.checkpoints:
            try:
                async for one in self._old_checkpoints(keep):
                    yield one
            except UNREADABLE as error:  # of what may need them
                log.warning("old checkpoints stay for now", reason=error.message)
        for directory, reason in await finished_directories(self._jobs_dir, self._store):
            size = await run_in_thread(_bytes, directory)
            yield Garbage(kind="job directory", id=directory.name, reason=reason, bytes=size)
        left = await run_in_thread(self._checkpoints.store.left, FOLDER)
        sizes = [await run_in_thread(_bytes, directory) for directory in left]  # now: one sweep removes all
        for directory, size in zip(left, sizes, strict=True):
            yield Garbage(kind="unfinished checkpoint", id=directory.name, reason="its writer has died", bytes=size)

    async def _old_checkpoints(self, keep: Retention) -> AsyncIterator[Garbage]:
        ages = await self._registry.checkpoints.ages()
        surplus = len(ages) - keep.checkpoints if keep.checkpoints else 0
        needed = await self.needed()
        for place, (version, age_s) in enumerate(ages.items()):
            if version in needed:
                continue
            if keep.checkpoint_s and age_s > keep.checkpoint_s:
                reason = f"made {age_s:,.0f} s ago, kept for {keep.checkpoint_s:,.0f} s"
            elif place < surplus:
                reason = f"not among the newest {keep.checkpoints:,}"
            else:
                continue
            with contextlib.suppress(errors.NotFound, *UNREADABLE):  # the former: somebody has deleted it meanwhile
                size = (await self._checkpoints.get(version)).size_bytes
                yield Garbage(kind="checkpoint", id=version, reason=reason, bytes=size)

    async def _remove(self, one: Garbage) -> bool:
        try:
            if one.kind == "job":
                await self._store.get(one.id)  # a damaged one is not removed unasked
                await self.delete_job(one.id)
            elif one.kind == "checkpoint":
                await self.delete_checkpoint(one.id)
            elif one.kind == "job directory":
                await run_in_thread(shutil.rmtree, self._jobs_dir / one.id, ignore_errors=True)
            elif not await run_in_thread(self._checkpoints.store.sweep, FOLDER):
                return False
        except KEPT_BACK as error:
            log.info("garbage stays for now", kind=one.kind, id=one.id, reason=error.message)
            return False
        log.info("garbage removed", kind=one.kind, id=one.id, reason=one.reason)
        return True


def _bytes(directory: Path) -> int:
    """The size of the files of a directory; 0 for one that is gone."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # it is being removed
            total += path.stat().st_size if path.is_file() else 0
    return total


async def finished_directories(jobs_dir: Path, store: JobStore) -> list[tuple[Path, str]]:
    """Lists directories of jobs that succeeded, and of unknown jobs unchanged for a day, each with the reason.

    A failed or cancelled job can be resumed, so its directory stays. Raises Unavailable if Redis is away.
    """
    finished = []
    for directory in await run_in_thread(lambda: sorted(jobs_dir.glob("*/"))):
        state = await store.state(directory.name)
        if state == "SUCCEEDED":
            finished.append((directory, "its job has succeeded"))
        elif state is None and await run_in_thread(_is_old, directory):
            finished.append((directory, "no record names its job"))
    return finished


def _is_old(directory: Path) -> bool:
    try:
        changed = max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
    except OSError:  # it vanished, is in use, or is not ours to read
        return False
    return time.time() - changed > UNKNOWN_KEPT_S
