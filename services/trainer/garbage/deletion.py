"""Deletions of jobs and checkpoints: first out of everybody's sight in one step, then from the disk.

    delete_job ────────► tombstone in Redis ──► finish: events, queries, directory
    delete_checkpoint ─► who needs it? ──► tombstone, unless a label does ──► (grace period) ──► finish: files

What is interrupted is finished by the next call of `finish`, in whichever trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from aeenc import errors
from aeenc.index import IndexClient
from services.kit.logs import get
from services.store.artifacts import remove_directory
from services.store.registry import Registry
from services.store.registry_rows import versions_of
from services.store.requests import Request
from services.trainer.jobs.job import Job
from services.trainer.jobs.store import JobStore
from services.trainer.registry.checkpoints import FOLDER, Checkpoints
from services.trainer.registry.tandems import Tandems

log = get(__name__)


class Deletion:
    """Deletes jobs and checkpoints of one namespace. `grace_s`: how long the files of a deleted checkpoint stay."""

    def __init__(
        self,
        store: JobStore,
        checkpoints: Checkpoints,
        registry: Registry,
        tandems: Tandems,
        index: IndexClient,
        *,
        jobs_dir: Path,
        grace_s: float,
    ) -> None:
        self._store, self._checkpoints, self._registry = store, checkpoints, registry
        self._tandems, self._index = tandems, index
        self._jobs_dir, self._grace_s = jobs_dir, grace_s

    async def delete_job(self, job_id: str, request_id: str = "") -> None:
        """Deletes a job that has ended. Raises NotFound, FailedPrecondition for a live one, and as the store does."""
        await self._store.delete(job_id, Request(request_id, "DeleteJob", {"job_id": job_id}))
        await self._finish_job(job_id)

    async def delete_checkpoint(self, version: str, request_id: str = "") -> None:
        """Deletes a checkpoint. Raises NotFound, and FailedPrecondition (IN_USE) naming who needs it."""
        request = Request(request_id, "DeleteCheckpoint", {"version": version})
        if await self._registry.requests.answer(request):
            return
        await self._checkpoints.get(version)
        async with self._tandems.turn():  # no tandem becomes active meanwhile
            if why := (await self.needed()).get(version):
                raise errors.FailedPrecondition(f"checkpoint {version} is in use: {why}", reason="IN_USE")
            await self._registry.bury_checkpoint(version, request)
            await self._tandems.remove(version)
        log.info("checkpoint deleted", version=version)

    async def needed(self) -> dict[str, str]:
        """Tells why checkpoints are needed, by version: for labels, tandems, live jobs, and what corpora serve."""
        needed: dict[str, str] = {}
        for tandem in await self._tandems.all():
            if tandem.premise_version != tandem.version:
                needed[tandem.premise_version] = f"it encodes the premises of {tandem.version}'s tandem"
        live = await self._live()
        for job in live.values():
            for version in (job.config.base_version, job.config.guide_version):
                needed[version] = f"job {job.id} is {job.state} and learns with it"
        for row in await self._registry.checkpoints():
            if row.job_id in live:
                needed[row.version] = f"job {row.job_id}, which made it, is not done"
        async for found in self._index.list_corpora():
            needed[found.active.premise_version] = f"corpus {found.corpus!r} serves premises that it has encoded"
        for label in await self._registry.labels():
            place = f"label {label.name!r} of space {label.space_id}"
            if premise_version := await self._registry.space(label.space_id):
                needed[premise_version] = f"it encodes the premises of space {label.space_id}, which {place} opens"
            needed |= dict.fromkeys(versions_of(label.previous), f"{place} goes back to it")
            needed |= dict.fromkeys(label.versions, f"{place} names it")
        needed.pop("", None)
        return needed

    async def _live(self) -> dict[str, Job]:
        jobs = {}
        for job_id in await self._store.active():
            with contextlib.suppress(errors.NotFound):  # it has just been deleted
                jobs[job_id] = await self._store.get(job_id)
        return jobs

    async def finish(self) -> None:
        """Removes what earlier deletions have left, and the files of checkpoints whose grace period is over."""
        for job_id in await self._store.deleted():
            await self._finish_job(job_id)
        for version in await self._registry.claim_buried(self._grace_s):
            with contextlib.suppress(errors.NotFound):  # an earlier attempt has removed them
                await asyncio.to_thread(self._checkpoints.store.delete, FOLDER, version)
            await self._tandems.remove(version)  # its deletion may have broken off before
            await self._registry.forget_buried(version)
            log.info("files of a deleted checkpoint removed", version=version)

    async def _finish_job(self, job_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # it has none, or lies on another trainer's disk
            await asyncio.to_thread(remove_directory, self._jobs_dir / job_id)
        await self._store.clear(job_id)
