"""The RPCs that delete runs, jobs and checkpoints, one by one or by the settings of retention."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from aeenc import errors
from aeenc.v1 import sampler_pb2, trainer_pb2
from benchmarks.promises.mutations.mutation import Subject, agreed, fresh
from benchmarks.promises.mutations.sampler import RunMutation
from benchmarks.promises.mutations.trainer import JobMutation, LabelMutation
from services.trainer.registry.checkpoints import FOLDER


class DeleteRun(RunMutation):
    """DeleteRun of runs that were cancelled."""

    rpc = "SamplerAdminService.DeleteRun"

    async def prepare(self, count: int) -> list[Subject]:
        runs = [(await self.start()).id for _ in range(count + 1)]
        for run_id in runs:
            await self.world.client.sampler.cancel(run_id)
        return [Subject(one, self._maker(one, runs[-1]), {"there"}) for one in runs[:-1]]

    @staticmethod
    def _maker(run_id: str, another: str) -> Any:
        ask, request_id = sampler_pb2.DeleteRunRequest, fresh("r")
        return lambda: (*(ask(run_id=one, request_id=request_id) for one in (run_id, another)), "gone")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        client, listed = self.world.client.sampler, await self.runs()
        return [agreed(_word(one.name in listed), await _found(client.get_run(one.name))) for one in subjects]


class CollectRuns(RunMutation):
    """CollectGarbage of the sampler, whose settings keep everything: nothing goes."""

    rpc = "SamplerAdminService.CollectGarbage"

    async def prepare(self, count: int) -> list[Subject]:
        runs = [(await self.start()).id for _ in range(count)]
        return [Subject(run_id, self._maker(), {"live"}) for run_id in runs]

    @staticmethod
    def _maker() -> Any:
        ask, request_id = sampler_pb2.SamplerAdminServiceCollectGarbageRequest, fresh("r")
        return lambda: (*(ask(dry_run=one, request_id=request_id) for one in (False, True)), "live")


class DeleteJob(JobMutation):
    """DeleteJob of jobs that were cancelled."""

    rpc = "TrainerAdminService.DeleteJob"

    async def prepare(self, count: int) -> list[Subject]:
        jobs = [await self.start() for _ in range(count + 1)]
        for job_id in jobs:
            await self.world.client.trainer.cancel(job_id)
        return [Subject(one, self._maker(one, jobs[-1]), {"there"}) for one in jobs[:-1]]

    @staticmethod
    def _maker(job_id: str, another: str) -> Any:
        ask, request_id = trainer_pb2.DeleteJobRequest, fresh("r")
        return lambda: (*(ask(job_id=one, request_id=request_id) for one in (job_id, another)), "gone")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        client = self.world.client.trainer
        listed = {job.id async for job in client.list_jobs()}
        return [agreed(_word(one.name in listed), await _found(client.get_job(one.name))) for one in subjects]


class CollectJobs(JobMutation):
    """CollectGarbage of the trainer, whose settings keep everything: nothing that is in use goes."""

    rpc = "TrainerAdminService.CollectGarbage"
    ignored = ("garbage",)

    async def prepare(self, count: int) -> list[Subject]:
        jobs = [await self.start() for _ in range(count)]
        return [Subject(job_id, self._maker(), {"live"}) for job_id in jobs]

    @staticmethod
    def _maker() -> Any:
        ask, request_id = trainer_pb2.TrainerAdminServiceCollectGarbageRequest, fresh("r")
        return lambda: (*(ask(dry_run=one, request_id=request_id) for one in (False, True)), "live")


class DeleteCheckpoint(LabelMutation):
    """DeleteCheckpoint of versions that nothing names."""

    rpc = "TrainerAdminService.DeleteCheckpoint"

    async def prepare(self, count: int) -> list[Subject]:
        fleet = self.world.fleet
        kept = len(fleet.versions)
        made = [one.version for one in (await fleet.add_versions(count + 1))[kept:]]
        del fleet.versions[kept:]  # labels shall not name them
        return [Subject(one, self._maker(one, made[-1]), {"there"}) for one in made[:-1]]

    @staticmethod
    def _maker(version: str, another: str) -> Any:
        ask, request_id = trainer_pb2.DeleteCheckpointRequest, fresh("r")
        return lambda: (*(ask(version=one, request_id=request_id) for one in (version, another)), "gone")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        found = [await self._state(subject.name) for subject in subjects]
        # A call whose caller has gone may take effect between two reads; what is partly done stays so.
        return [
            await self._state(subject.name) if state.startswith("partly") else state
            for subject, state in zip(subjects, found, strict=True)
        ]

    async def _state(self, version: str) -> str:
        client = self.world.client.trainer
        listed = {one.version async for one in client.list_checkpoints()}
        word = agreed(_word(version in listed), await _found(client.get_checkpoint(version)))
        on_disk = (self.world.fleet.space.store.root / FOLDER / version).exists()
        return word if on_disk or word == "gone" else "partly: listed without its files"


def _word(is_there: bool) -> str:
    return "there" if is_there else "gone"


async def _found(call: Awaitable[Any]) -> str:
    """Whether somebody who asks for one thing finds it. What nobody finds may be swept later."""
    try:
        await call
    except errors.NotFound:
        return "gone"
    return "there"


MUTATIONS = (DeleteRun, CollectRuns, DeleteJob, CollectJobs, DeleteCheckpoint)
