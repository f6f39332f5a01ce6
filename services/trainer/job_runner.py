"""Finds jobs that wait, leases one at a time, has it computed by a child process and writes down how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from aeenc import errors
from services.kit.concurrency import cancel_all, finish
from services.kit.logs import get
from services.kit.readiness import Readiness
from services.trainer.checkpoints import Checkpoints
from services.trainer.child import DISK_FULL, EXIT_DISK_FULL, Child, asked_to_end, describe_exit
from services.trainer.data_sets import DataSets
from services.trainer.evaluation import EvaluationQuery
from services.trainer.job_files import JobFiles, Means, TrainingPlan
from services.trainer.job_store import JobStore
from services.trainer.jobs import LIVE, Job, JobConfig, Progress, State
from services.trainer.left_directories import remove_left
from services.trainer.sampled_pairs import SampledPairs
from services.trainer.tandem_building import TandemBuilding
from services.trainer.training_set import JudgedPair
from services.trainer.waits import PASSING, Waits

log = get(__name__)
T = TypeVar("T")

LEASES_A_TERM = 3  # how often a lease is renewed before it would end


class JobFailed(Exception):
    """Why a job ends as failed; the message names the remedy. `version`: what it has learned until then; or empty."""

    def __init__(self, reason: str, version: str = "") -> None:
        super().__init__(reason)
        self.version = version


class JobStopped(Exception):
    """The job was cancelled or taken over, or the trainer ends; nothing is to be written."""


class JobRunner:
    """Works on one job at a time, between `start` and `stop`. A job left behind goes on where its last epoch ended."""

    def __init__(
        self,
        store: JobStore,
        checkpoints: Checkpoints,
        pairs: SampledPairs,
        data_sets: DataSets,
        readiness: Readiness,
        *,
        tandems: TandemBuilding,
        instance: str,
        jobs_dir: Path,
        means: Means,
        lease_s: float,
        poll_s: float,
    ) -> None:
        self._store, self._checkpoints, self._readiness = store, checkpoints, readiness
        self._pairs, self._data_sets, self._tandems = pairs, data_sets, tandems
        # A restarted process is somebody else: what its predecessor still has in flight must not count as its own.
        self._owner = f"{instance}:{uuid.uuid4().hex[:8]}"
        self._jobs_dir, self._means = jobs_dir, means
        self._lease_s, self._poll_s = lease_s, poll_s
        self.active_job = ""
        self._waits = Waits(readiness)
        self._work: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Begins to look for jobs."""
        self._loop = asyncio.create_task(self._look())

    def wake(self) -> None:
        """Looks for jobs now instead of at the next poll, also for those that wait for a service that was away."""
        self._waits.try_now()
        self._wake.set()

    async def drop(self, job_id: str) -> None:
        """Stops working on a job that was cancelled, or waiting for what it needs."""
        self._waits.over(job_id)
        if job_id == self.active_job and self._work is not None:
            await cancel_all([self._work])

    async def stop(self) -> None:
        """Lets go of the job, so that another trainer can take it over at once."""
        await cancel_all([task for task in (self._loop, self._work) if task is not None])

    @property
    def _draining(self) -> bool:
        """Whether the trainer ends: its job is another's to go on with, and it begins none."""
        return self._readiness.state == "DRAINING"

    async def _look(self) -> None:
        worked = True  # before the start
        while True:
            try:
                waiting = await self._store.active()
                if worked:
                    await remove_left(self._jobs_dir, self._store)
                    worked = False
                self._waits.keep(waiting)  # serving before any work: a job that was left behind may take hours
                for job_id in waiting:
                    if self._draining:
                        return
                    if self._waits.due(job_id) and await self._store.take_lease(job_id, self._owner, self._lease_s):
                        self.active_job = job_id
                        self._work = asyncio.create_task(self._hold(job_id))
                        await asyncio.wait([self._work])
                        self.active_job, worked = "", True
                    elif self._waits.due(job_id):
                        self._waits.over(job_id)  # another trainer works on it
            except errors.Unavailable as error:
                self._readiness.degraded(error.message)
            except Exception as error:  # a look that fails must not be the last one
                log.exception("looking for jobs failed")
                self._readiness.degraded(f"cannot look for jobs ({type(error).__name__}); the log has it")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _hold(self, job_id: str) -> None:
        """Works on a job while its lease can be renewed and nobody else has ended it, and gives the lease back."""
        work = asyncio.create_task(self._do(job_id))
        try:
            while not work.done():
                await asyncio.wait([work], timeout=self._lease_s / LEASES_A_TERM)
                # While Redis is away nobody else can take the job over either.
                with contextlib.suppress(errors.Unavailable):
                    if not work.done() and not await self._store.take_lease(job_id, self._owner, self._lease_s):
                        log.warning("job was taken over by another trainer", job=job_id)
                        return
                    if not work.done() and (state := await self._store.state(job_id)) not in LIVE:
                        log.info("job was ended elsewhere", job=job_id, state=state)
                        return
            error = work.exception()
            if isinstance(error, PASSING):
                pause_s = self._waits.put_off(job_id, error.message)
                log.warning("job waits", job=job_id, reason=error.message, seconds=pause_s)
                return
            self._waits.over(job_id)
            if error is not None:
                log.error("job runner failed", job=job_id, exc_info=error)
        finally:
            await finish(asyncio.create_task(self._let_go(job_id, work)))

    async def _let_go(self, job_id: str, work: asyncio.Task[None]) -> None:
        await cancel_all([work])
        with contextlib.suppress(errors.Unavailable):
            await self._store.release_lease(job_id, self._owner)

    async def _do(self, job_id: str) -> None:
        job = await self._store.get(job_id)
        if await self._store.transition(job_id, LIVE, "RUNNING", owner=self._owner) != "OK":
            return
        log.info("job is worked on", job=job_id, epochs_done=job.progress.epochs_done)
        try:
            version = await self._compute(job)
        except JobStopped:
            log.info("job was stopped", job=job_id)
        except JobFailed as error:
            await self._end(job_id, "FAILED", error=str(error), version=error.version)
        except OSError as error:
            reason = describe_exit(EXIT_DISK_FULL) if error.errno in DISK_FULL else f"{error}; then resume the job"
            await self._end(job_id, "FAILED", error=reason)
        except PASSING:
            raise  # a service is away: the job stays RUNNING, and is tried again later
        except errors.AeencError as error:
            await self._end(job_id, "FAILED", error=f"{error.message} (then resume the job)")
        except Exception as error:  # whatever it is, the job must say so and stay resumable
            log.exception("job failed unexpectedly", job=job_id)
            reason = f"internal error ({type(error).__name__}); the trainer's log has it; resume the job to try again"
            await self._end(job_id, "FAILED", error=reason)
        else:
            await self._end(job_id, "SUCCEEDED", version=version)

    async def _compute(self, job: Job) -> str:
        files = self._files(job.id)
        if (
            (result := files.result()) is None
            or "error" in result
            or not all(map(self._checkpoints.has, _made(result)))
        ):
            files.forget_result()
            await self._prepare(job, files)
            result = await self._run_child(job, files)
        version, premise_version = str(result.get("version", "")), str(result.get("premise_version", ""))
        for made in _made(result):
            row = await self._patiently(lambda made=made: self._checkpoints.register(made))  # type: ignore[misc]
        if premise_version:
            await self._report(job.id, {**(files.progress() or {}), "phase": "building"})
            await self._tandems.build(job, row.space_id, version, premise_version)
        if "error" in result:
            raise JobFailed(str(result["error"]), version)
        return version

    async def _prepare(self, job: Job, files: JobFiles) -> None:
        """Writes the child's inputs, unless an earlier attempt has: a resumed job learns from the same pairs."""
        plan = TrainingPlan(
            job_id=job.id,
            config=job.config,
            generation=job.generation,
            artifacts_dir=str(self._checkpoints.store.root.resolve()),
            means=self._means,
        )
        await asyncio.to_thread(files.write_plan, plan)  # what is a setting may be another than at the first attempt
        if not files.has_inputs:
            pairs = [pair async for pair in self._pairs.read(job.config.run_ids)]
            validation = [EvaluationQuery(text, tuple(gold)) for text, gold in await self._store.validation(job.id)]
            await asyncio.to_thread(self._write_inputs, job.config, files, pairs, validation)

    def _write_inputs(
        self, config: JobConfig, files: JobFiles, pairs: list[JudgedPair], validation: list[EvaluationQuery]
    ) -> None:
        further, held_out = self._data_sets.read(config.data_sets, config.split)
        files.write_inputs([*pairs, *further], validation, held_out)

    async def _run_child(self, job: Job, files: JobFiles) -> dict[str, object]:
        self._waits.over(job.id)
        child = await Child.start("job", str(files.directory.resolve()))
        ended = asyncio.create_task(child.wait())
        told: dict[str, object] | None = None
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=self._poll_s)
                progress = files.progress()
                if progress is not None and progress != told:
                    told = progress
                    await self._report(job.id, progress)
            result = files.result()
            if result is not None:
                return result
            if self._draining:
                raise JobStopped
            if asked_to_end(ended.result()):  # who asks a child alone may do so again, and it may hear of an end first
                raise errors.Unavailable(f"its process was asked to end (signal {-ended.result()})")
            raise JobFailed(describe_exit(ended.result()))
        finally:
            # Whoever cancels may repeat it; the directory is not anybody else's before the child is gone.
            await finish(asyncio.create_task(child.end()))
            await cancel_all([ended])

    async def _report(self, job_id: str, progress: dict[str, object]) -> None:
        with contextlib.suppress(errors.Unavailable):  # the next report says more
            answer = await self._store.progress(job_id, self._owner, Progress(**progress))  # type: ignore[arg-type]
            if answer != "OK":
                raise JobStopped

    async def _end(self, job_id: str, state: State, *, error: str = "", version: str = "") -> str:
        log.info("job ended", job=job_id, state=state, error=error, version=version)
        return await self._patiently(
            lambda: self._store.transition(job_id, ("RUNNING",), state, error=error, version=version, owner=self._owner)
        )

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Waits for Redis as long as it takes: what was computed must not be lost."""
        while True:
            try:
                return await call()
            except errors.Unavailable as error:
                log.warning("job waits for redis", reason=error.message)
                await asyncio.sleep(self._poll_s)

    def _files(self, job_id: str) -> JobFiles:
        return JobFiles(self._jobs_dir / job_id)


def _made(result: dict[str, object]) -> list[str]:
    """The checkpoints that a child's result names, each once."""
    return list(dict.fromkeys(str(result[name]) for name in ("premise_version", "version") if name in result))
