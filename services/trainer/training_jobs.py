"""What the trainer offers for jobs, as one domain object: start, follow, stop and continue them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from aeenc import errors
from services.kit.checks import Limits, check_texts
from services.kit.generation import folder_of, read_active
from services.kit.wire import position_of
from services.trainer.checkpoints import Checkpoints
from services.trainer.cross_encoder import SPACE as CROSS_ENCODERS
from services.trainer.job_runner import JobRunner
from services.trainer.job_store import JobStore
from services.trainer.jobs import LIVE, Event, Job, JobConfig, Progress
from services.trainer.sampled_pairs import SampledPairs

PAGE = 100
WATCH_WAIT_MS = 1000

Gold = tuple[str, Sequence[str]]


class TrainingJobs:
    """All jobs of one namespace. Raises the classes of `aeenc.errors`."""

    def __init__(
        self, store: JobStore, checkpoints: Checkpoints, pairs: SampledPairs, runner: JobRunner, limits: Limits
    ) -> None:
        self._store, self._checkpoints, self._pairs = store, checkpoints, pairs
        self._runner = runner
        self.limits = limits

    async def start(self, config: JobConfig, validation: Sequence[Gold]) -> tuple[Job, bool]:
        """Starts a job, resolving generation and base version now. True: the job existed before."""
        self._check(config, validation)
        fingerprint = config.fingerprint(validation)
        if config.idempotency_key:
            existing = await self._store.by_idempotency_key(config.idempotency_key)
            if existing is not None:
                return _same(existing, fingerprint), True
        generation, base_version = await self._resolve(config)
        await self._pairs.check(config.corpus, config.run_ids, config.split)
        job = Job(
            id=uuid.uuid4().hex[:16],
            config=replace(config, base_version=base_version),
            generation=generation,
            state="PENDING",
            error="",
            progress=Progress(),
            version="",
            created_at=datetime.now(UTC),
            ended_at=None,
            fingerprint=fingerprint,
        )
        stored = await self._store.get(await self._store.create(job, validation))
        self._runner.wake()
        return _same(stored, fingerprint), stored.id != job.id

    async def _resolve(self, config: JobConfig) -> tuple[str, str]:
        """The corpus's active generation and the version to start from, which must be of the generation's space."""
        store = self._checkpoints.store
        generation = await asyncio.to_thread(read_active, store, config.corpus)
        if generation is None:
            raise errors.NotFound(f"no corpus {config.corpus!r}; build it and activate a generation")
        artifact = await asyncio.to_thread(store.open, folder_of(config.corpus), generation, verify="size")
        base_version = config.base_version or str(artifact.meta["premise_version"])
        row = await self._checkpoints.get(base_version)
        if row.space_id == CROSS_ENCODERS:
            raise errors.FailedPrecondition(
                f"checkpoint {base_version} is a cross-encoder, which jobs do not train; start from a checkpoint of "
                f"corpus {config.corpus!r}'s space {artifact.meta['space_id']}"
            )
        if row.space_id != artifact.meta["space_id"]:
            raise errors.SpaceMismatch(
                f"checkpoint {base_version} is of space {row.space_id}, corpus {config.corpus!r} of space "
                f"{artifact.meta['space_id']}; start from a checkpoint of that space"
            )
        return generation, base_version

    def _check(self, config: JobConfig, validation: Sequence[Gold]) -> None:
        if not config.corpus:
            raise errors.InvalidArgument.field("config.corpus", "is empty; name a corpus of the index")
        if not config.run_ids:
            raise errors.InvalidArgument.field("config.run_ids", "is empty; name at least one sampling run")
        _within("epochs", config.epochs, 1, 100)
        _within("batch_size", config.batch_size, 1, 1024)
        _within("learning_rate", config.learning_rate, 1e-8, 1.0)
        _within("temperature", config.temperature, 1e-3, 10.0)
        _within("margin", config.margin, 0.0, 2.0)
        _within("regularization", config.regularization, 0.0, 1000.0)
        _within("refused_weight", config.refused_weight, 1e-3, 1000.0)
        if validation:
            check_texts([text for text, _ in validation], self.limits, "config.validation")
            empty = [n for n, (_, gold) in enumerate(validation) if not gold]
            if empty:
                raise errors.InvalidArgument.field(
                    f"config.validation[{empty[0]}].premises", "is empty; a gold query needs at least one premise"
                )

    async def get(self, job_id: str) -> Job:
        """A job. Raises NotFound."""
        return await self._store.get(job_id)

    async def page(self, page_size: int, page_token: str) -> tuple[list[Job], str]:
        """A page of jobs, newest first, and the token of the next."""
        jobs, after = await self._store.page(min(page_size or PAGE, self.limits.items), position_of(page_token))
        return jobs, str(after or "")

    async def watch(self, job_id: str, from_seq: int) -> AsyncIterator[Event]:
        """The events of a job from a sequence number on, until it has ended."""
        job = await self._store.get(job_id)
        seq = max(from_seq, 1) - 1
        while True:
            events = await self._store.events(job, seq, wait_ms=WATCH_WAIT_MS)
            for event in events:
                yield event
                seq = event.seq
            if not events or events[-1].job.ended:
                job = await self._store.get(job_id)
                if job.ended and job.event_seq <= seq:
                    return

    async def cancel(self, job_id: str, request_id: str) -> Job:
        """Stops a job. Raises FailedPrecondition for one that has ended, except to a retry of the same request."""
        answer = await self._store.transition(job_id, LIVE, "CANCELLED")
        job = await self._store.get(job_id)
        if answer != "OK" and not (request_id and answer == "CANCELLED"):
            raise errors.FailedPrecondition(f"job {job_id} has ended ({answer}); there is nothing to cancel")
        await self._runner.drop(job_id)
        return job

    async def resume(self, job_id: str) -> Job:
        """Continues a job. One that is live stays as it is: if its trainer is gone, another takes it over."""
        answer = await self._store.transition(job_id, ("FAILED", "CANCELLED"), "PENDING")
        if answer == "SUCCEEDED":
            raise errors.FailedPrecondition(f"job {job_id} has succeeded; start a new job")
        self._runner.wake()
        return await self._store.get(job_id)

    @property
    def active_job(self) -> str:
        """The job that this process works on; empty: none."""
        return self._runner.active_job


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN fails this too
        raise errors.InvalidArgument.field(f"config.{name}", f"is {value:g}; give {low:g} to {high:g}")


def _same(job: Job, fingerprint: str) -> Job:
    if job.fingerprint != fingerprint:
        raise errors.AlreadyExists(
            f"idempotency key {job.config.idempotency_key!r} started job {job.id} with another configuration; "
            "choose another key"
        )
    return job
