"""The RPCs of the trainer that change something: jobs, and the labels of its registry."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from aeenc.v1 import registry_pb2, trainer_pb2, types_pb2
from benchmarks.promises.fleet import CORPUS, NAMESPACE
from benchmarks.promises.mutations.mutation import Made, Mutation, Subject, agreed, fresh
from services.store.registry import Registry

EPOCHS = 100  # of a job that shall not end by itself
CALLS = 30  # of one label, one after the other
CANCELLED = types_pb2.WORK_STATE_CANCELLED


class JobMutation(Mutation):
    """Base of the mutations of jobs. One job trains, the others wait."""

    service = "trainer"

    def config(self, **fields: Any) -> trainer_pb2.JobConfig:
        """A long job's configuration."""
        run_ids = [self.world.shared["pairs"]]
        return trainer_pb2.JobConfig(corpus=CORPUS, run_ids=run_ids, epochs=EPOCHS, batch_size=1, **fields)

    async def start(self) -> str:
        """Starts a job. Returns its id."""
        request = trainer_pb2.StartJobRequest(config=self.config(idempotency_key=fresh("job")))
        client = self.world.client.trainer
        return str((await client.channel.unary(client._stub.StartJob, request)).job.id)  # noqa: SLF001

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        found = {job.id: job.state async for job in self.world.client.trainer.list_jobs()}
        return ["cancelled" if found[subject.name] == CANCELLED else "live" for subject in subjects]

    async def tidy(self) -> None:
        """Cancels all jobs, so that none trains while the next RPC has its turn."""
        async for job in self.world.client.trainer.list_jobs():
            if job.state in {types_pb2.WORK_STATE_PENDING, types_pb2.WORK_STATE_RUNNING}:
                await self.world.client.trainer.cancel(job.id)


class StartJob(JobMutation):
    """StartJob under an idempotency key."""

    rpc = "TrainerService.StartJob"
    ignored = ("existed", "job.progress", "job.state")

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(key, self._maker(key), {"absent"}) for key in (fresh("start") for _ in range(count))]

    def _maker(self, key: str) -> Any:
        ask = trainer_pb2.StartJobRequest
        requests = [ask(config=self.config(idempotency_key=key, seed=seed)) for seed in (1, 2)]
        return lambda: (*requests, "present")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        keys = [job.config.idempotency_key async for job in self.world.client.trainer.list_jobs()]
        word = {0: "absent", 1: "present"}
        return [word.get(keys.count(subject.name), "twice") for subject in subjects]


class CancelJob(JobMutation):
    """CancelJob of jobs that wait or train."""

    rpc = "TrainerService.CancelJob"
    ignored = ("job.progress", "job.ended_at")

    async def prepare(self, count: int) -> list[Subject]:
        jobs = [await self.start() for _ in range(count + 1)]
        return [Subject(job, self._maker(job, jobs[-1]), {"live"}) for job in jobs[:-1]]

    @staticmethod
    def _maker(job_id: str, another: str) -> Any:
        ask, request_id = trainer_pb2.CancelJobRequest, fresh("r")
        requests = [ask(job_id=one, request_id=request_id) for one in (job_id, another)]
        return lambda: (*requests, "cancelled")


class ResumeJob(JobMutation):
    """ResumeJob of jobs that were cancelled."""

    rpc = "TrainerService.ResumeJob"
    ignored = ("job.progress", "job.state")

    async def prepare(self, count: int) -> list[Subject]:
        jobs = [await self.start() for _ in range(count + 1)]
        for job in jobs:
            await self.world.client.trainer.cancel(job)
        return [Subject(job, self._maker(job, jobs[-1]), {"cancelled"}) for job in jobs[:-1]]

    @staticmethod
    def _maker(job_id: str, another: str) -> Any:
        ask, request_id = trainer_pb2.ResumeJobRequest, fresh("r")
        requests = [ask(job_id=one, request_id=request_id) for one in (job_id, another)]
        return lambda: (*requests, "live")


class LabelMutation(Mutation):
    """Base of the mutations of labels. A subject's name is its label."""

    service = "trainer"
    ignored = ("rollouts", "complete")

    @property
    def versions(self) -> list[str]:
        """Versions of the space that labels may name."""
        return [one.version for one in self.world.fleet.versions]

    async def set(self, label: str, version: str) -> None:
        """Points a label at a version."""
        await self.world.client.registry.set_label(label, version)

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        space_id = self.world.fleet.space.space_id
        told = {one.name: one.version async for one in self.world.client.registry.list_labels(space_id=space_id)}
        registry = Registry(self.world.shared["redis"], NAMESPACE)
        found = []
        for subject in subjects:
            row = await registry.label(space_id, subject.name)
            found.append(agreed(told.get(subject.name, "none"), row.version if row else "none"))
        return found


class SetLabel(LabelMutation):
    """SetLabel, from one version to the next."""

    rpc = "RegistryAdminService.SetLabel"

    async def prepare(self, count: int) -> list[Subject]:
        subjects = []
        for _ in range(-(-count // CALLS)):
            label = fresh("label")
            await self.set(label, self.versions[0])
            subjects.append(Subject(label, self._maker(label), {self.versions[0]}, min(CALLS, count)))
        return subjects

    def _maker(self, label: str) -> Any:
        turns = itertools.cycle([*self.versions[1:], self.versions[0]])

        def make() -> Made:
            wanted, request_id = next(turns), fresh("r")
            other = next(one for one in self.versions if one != wanted)
            return *(self.request(label, one, request_id) for one in (wanted, other)), wanted

        return make

    @staticmethod
    def request(label: str, version: str, request_id: str) -> Any:
        """The message."""
        return registry_pb2.SetLabelRequest(label=label, version=version, request_id=request_id)


class Publish(SetLabel):
    """Publish, from one version to the next."""

    rpc = "RegistryAdminService.Publish"

    @staticmethod
    def request(label: str, version: str, request_id: str) -> Any:
        """The message."""
        return registry_pb2.PublishRequest(label=label, version=version, force=True, request_id=request_id)


class DeleteLabel(LabelMutation):
    """DeleteLabel."""

    rpc = "RegistryAdminService.DeleteLabel"

    async def prepare(self, count: int) -> list[Subject]:
        labels = [fresh("label") for _ in range(count + 1)]
        for label in labels:
            await self.set(label, self.versions[0])
        return [Subject(label, self._maker(label, labels[-1]), {self.versions[0]}) for label in labels[:-1]]

    @staticmethod
    def _maker(label: str, another: str) -> Any:
        ask, request_id = registry_pb2.DeleteLabelRequest, fresh("r")
        return lambda: (*(ask(label=one, request_id=request_id) for one in (label, another)), "none")


class Rollback(LabelMutation):
    """Rollback of labels that were moved once."""

    rpc = "RegistryAdminService.Rollback"

    async def prepare(self, count: int) -> list[Subject]:
        labels = [fresh("label") for _ in range(count + 1)]
        for label in labels:
            for version in self.versions[:2]:
                await self.set(label, version)
        before, now = self.versions[:2]
        return [Subject(label, self._maker(label, labels[-1], before), {now}) for label in labels[:-1]]

    @staticmethod
    def _maker(label: str, another: str, before: str) -> Any:
        ask, request_id = registry_pb2.RollbackRequest, fresh("r")
        return lambda: (*(ask(label=one, request_id=request_id) for one in (label, another)), before)


MUTATIONS = (StartJob, CancelJob, ResumeJob, SetLabel, Publish, DeleteLabel, Rollback)
