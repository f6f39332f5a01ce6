"""The operations on training jobs: start, cancel and resume. `store` reads them, `runner` computes them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime

from aeenc import errors
from aeenc.trees import EVERYTHING
from services.corpus.generation import PREMISES, Generation, folder_of, open_generation
from services.corpus.holds import GenerationHolds
from services.kit.limits import Limits, check_texts
from services.kit.tracing import traceparent
from services.store.artifacts import ArtifactStore
from services.store.formats import UNREADABLE
from services.store.life_cycles import LIVE, State
from services.store.registry import CheckpointRow
from services.store.requests import Request
from services.trainer.evaluation.protocol import EvaluationQuery, GoldStandard, merge_queries
from services.trainer.jobs.job import Job, JobConfig, JobStore
from services.trainer.jobs.losses import LOSSES, NOTHING_CONFIGURED, Configured, loss_of_ones_own
from services.trainer.jobs.pair_sources import DataSets, SampledPairs
from services.trainer.jobs.runner import JobRunner
from services.trainer.registry.checkpoints import CROSS_ENCODER, Checkpoints, active_generation


class TrainingJobs:
    """All jobs of one namespace. Raises the classes of `aeenc.errors`."""

    def __init__(
        self,
        store: JobStore,
        checkpoints: Checkpoints,
        pairs: SampledPairs,
        data_sets: DataSets,
        runner: JobRunner,
        holds: GenerationHolds,
        limits: Limits,
        configured: Configured = NOTHING_CONFIGURED,
    ) -> None:
        self.store, self._checkpoints, self._holds = store, checkpoints, holds
        self._pairs, self._data_sets, self.runner = pairs, data_sets, runner
        self.limits, self._configured = limits, configured

    async def start(self, config: JobConfig, validation: Sequence[EvaluationQuery]) -> Job:
        """Starts a job on the generation and base version of now, or finds the one that its key has started."""
        self._check(config, validation)
        fingerprint = config.fingerprint(validation)
        if config.idempotency_key:
            started = await self.store.cycles.started_by(config.idempotency_key)
            if started:
                return _same(await self.store.get(started), config, fingerprint)
        generation, base_version = await self._resolve(config, validation)
        await asyncio.to_thread(self._data_sets.check, config.data_sets, config.split)
        await self._pairs.check(config.corpus, config.run_ids, config.split, need_positives=not config.data_sets)
        job = Job(
            id=uuid.uuid4().hex[:16],
            config=replace(config, base_version=base_version),
            generation=generation,
            state="PENDING",
            created_at=datetime.now(UTC),
            fingerprint=fingerprint,
            traceparent=traceparent(),
        )
        stored = await self.store.get(await self.store.create(job, validation))
        if stored.id == job.id:
            await self._holds.hold(job.id, config.corpus, generation)
        self.runner.wake()
        return _same(stored, config, fingerprint)

    async def _resolve(self, config: JobConfig, validation: Sequence[EvaluationQuery]) -> tuple[str, str]:
        """Resolves the corpus's active generation, and the version of its space to start from.

        A job that makes a space of its own may start from another one: then against that one's generation of the same
        premises. Raises InvalidArgument for a gold premise that the generation lacks.
        """
        store = self._checkpoints.store
        generation = await asyncio.to_thread(active_generation, store, config.corpus)
        opened = await asyncio.to_thread(open_generation, store, config.corpus, generation)
        base_version = config.base_version or opened.premise_version
        base = await self._checkpoints.get(base_version)
        if config.mode in {"SIAMESE", "DUAL"} and base.space_id != opened.space_id:
            opened = await asyncio.to_thread(_same_premises_in, store, opened, base.space_id)
        for version in filter(None, (base_version, config.guide_version)):
            self._check_space(await self._checkpoints.get(version), config.corpus, opened.space_id)
        if validation:
            gold = await asyncio.to_thread(merge_queries, validation, opened.stored)
            await asyncio.to_thread(GoldStandard.of, gold, opened.premises.ordinal_by_text)
        return opened.id, base_version

    def _check_space(self, row: CheckpointRow, corpus: str, space_id: str) -> None:
        if row.space_id == CROSS_ENCODER:
            raise errors.FailedPrecondition(
                f"checkpoint {row.version} is a cross-encoder, from which no job can start; name a checkpoint of "
                f"corpus {corpus!r}'s space {space_id}"
            )
        if row.space_id != space_id:
            raise errors.SpaceMismatch(
                f"checkpoint {row.version} is of space {row.space_id}, corpus {corpus!r} of space {space_id}; name a "
                "checkpoint of that space"
            )

    def _check(self, config: JobConfig, validation: Sequence[EvaluationQuery]) -> None:
        if not config.corpus:
            raise errors.InvalidArgument.field("config.corpus", "is empty; name a corpus of the index")
        if not (config.run_ids or config.data_sets):
            remedy = "name at least one run (ListRuns, `aeenc runs`; `aeenc train --run RUN`), or a data set"
            raise errors.InvalidArgument.field("config.run_ids", f"is empty; {remedy}")
        dotted = self._configured.loss(config.custom_loss)
        config.check(loss_of_ones_own(dotted) if dotted else LOSSES[config.loss])
        self._configured.base_model(config.base_model)
        if config.note.strip():  # a list has it in each job
            check_texts([config.note], self.limits, "config.note")
        if validation:
            self._check_validation(validation)

    def _check_validation(self, validation: Sequence[EvaluationQuery]) -> None:
        if len(validation) > self.limits.items:
            raise errors.TooLarge(
                f"config.validation: {len(validation):,} queries are over the limit of {self.limits.items:,}; give "
                "a sample of them, or raise AEENC_TRAINER_MAX_ITEMS"
            )
        check_texts([query.text for query in validation], self.limits, "config.validation")
        if any(query.accessible != EVERYTHING for query in validation):
            raise errors.InvalidArgument.field(
                "config.validation", "has before_id or only_ids, which go with Evaluate; leave them out"
            )
        empty = [n for n, query in enumerate(validation) if not query.gold]
        if empty:
            raise errors.InvalidArgument.field(
                f"config.validation[{empty[0]}].premises", "is empty; a gold query needs at least one premise"
            )

    async def cancel(self, job_id: str, request_id: str) -> Job:
        """Cancels a job. Raises FailedPrecondition for an ended one. A retry of a request gets its first answer."""
        request = Request(request_id, "CancelJob", {"job_id": job_id})
        if record := await self.store.cycles.requests.answer(request, dict):
            return await self.store.get(job_id, record)
        answer = await self.store.transition(job_id, LIVE, "CANCELLED", request=request)
        job = await self.store.get(job_id)
        if answer != "OK":
            raise errors.FailedPrecondition(f"job {job_id} has ended ({answer}); there is nothing to cancel")
        await self.runner.drop(job_id)
        await self._holds.release(job_id)
        return job

    async def resume(self, job_id: str, request_id: str = "") -> Job:
        """Resumes a job. A live one stays as it is: if its trainer is gone, another takes it over.

        Raises FailedPrecondition for one that has succeeded. A retry of a request gets its first answer.
        """
        request = Request(request_id, "ResumeJob", {"job_id": job_id})
        if record := await self.store.cycles.requests.answer(request, dict):
            return await self.store.get(job_id, record)
        resumable: tuple[State, ...] = ("FAILED", "CANCELLED")
        answer = await self.store.transition(job_id, resumable, "PENDING", request=request, already=LIVE)
        if answer == "SUCCEEDED":
            raise errors.FailedPrecondition(f"job {job_id} has succeeded; start a new job")
        job = await self.store.get(job_id)
        await self._holds.hold(job_id, job.config.corpus, job.generation)
        self.runner.wake()
        return job


def _same_premises_in(store: ArtifactStore, opened: Generation, space_id: str) -> Generation:
    """Opens the generation of a space that has the premises of another, which is returned where there is none."""
    folder, premises = folder_of(opened.corpus), opened.artifact.files[PREMISES].sha256
    for name in store.list(folder):
        with suppress(errors.NotFound, *UNREADABLE):  # one may be on its way out, or damaged
            found = store.described(folder, name)
            if found.meta["space_id"] == space_id and found.files[PREMISES].sha256 == premises:
                return open_generation(store, opened.corpus, name)
    return opened


def _same(job: Job, config: JobConfig, fingerprint: str) -> Job:
    """Returns a job if it was started with this configuration. Raises AlreadyExists naming what differs."""
    if job.fingerprint == fingerprint:
        return job
    before, now = asdict(job.config), asdict(config)
    if not config.base_version:  # the job has the one that this stood for
        now["base_version"] = before["base_version"]
    differing = next((name for name in now if now[name] != before[name]), "")
    difference = f"{differing} {before[differing]!r}, now {now[differing]!r}" if differing else "other `validation`"
    raise errors.AlreadyExists(
        f"idempotency key {job.config.idempotency_key!r} started job {job.id} with another configuration: "
        f"{difference[:200]}; choose another key"
    )
