"""The trainer's services and the registry: each RPC converts, calls one domain method, and converts back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from aeenc.v1 import registry_pb2, registry_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from services.kit.convert import page_within, to_timestamp
from services.kit.server import GrpcServer, to_service_info
from services.trainer import convert
from services.trainer.convert import from_evaluate_requests, to_report
from services.trainer.evaluation.evaluator import MAX_BYTES, MAX_GOLD, MAX_QUERIES, Evaluator
from services.trainer.jobs.garbage import Deletion
from services.trainer.jobs.training_jobs import TrainingJobs
from services.trainer.registry.checkpoints import Checkpoints
from services.trainer.registry.child import Device
from services.trainer.registry.operator_models import OperatorModels
from services.trainer.registry.publishing import Publisher
from services.trainer.registry.tandems import Tandems


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """RPCs of jobs, evaluations and checkpoints, without their removal."""

    def __init__(
        self,
        server: GrpcServer,
        jobs: TrainingJobs,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        models: OperatorModels,
        tandems: Tandems,
        device: Device,
    ) -> None:
        self._server, self._jobs, self._evaluator = server, jobs, evaluator
        self._checkpoints, self._models, self._tandems, self._device = checkpoints, models, tandems, device
        self._page = partial(page_within, jobs.limits.message_bytes, jobs.limits.items)

    async def StartJob(self, request: trainer_pb2.StartJobRequest, context: Any) -> trainer_pb2.StartJobResponse:
        job = await self._jobs.start(*convert.from_config(request.config))
        return trainer_pb2.StartJobResponse(job=convert.to_job(job))

    async def GetJob(self, request: trainer_pb2.GetJobRequest, context: Any) -> trainer_pb2.GetJobResponse:
        return trainer_pb2.GetJobResponse(job=convert.to_job(await self._jobs.store.get(request.job_id)))

    async def ListJobs(self, request: trainer_pb2.ListJobsRequest, context: Any) -> trainer_pb2.ListJobsResponse:
        jobs, token = await self._page(request, self._jobs.store.cycles.page, convert.to_job)
        return trainer_pb2.ListJobsResponse(jobs=jobs, next_page_token=token)

    async def WatchJob(
        self, request: trainer_pb2.WatchJobRequest, context: Any
    ) -> AsyncIterator[trainer_pb2.WatchJobResponse]:
        async for event, job in self._jobs.store.cycles.watch(request.job_id, request.from_seq):
            yield trainer_pb2.WatchJobResponse(seq=event.seq, at=to_timestamp(event.at), job=convert.to_job(job))

    async def CancelJob(self, request: trainer_pb2.CancelJobRequest, context: Any) -> trainer_pb2.CancelJobResponse:
        job = await self._jobs.cancel(request.job_id, request.request_id)
        return trainer_pb2.CancelJobResponse(job=convert.to_job(job))

    async def ResumeJob(self, request: trainer_pb2.ResumeJobRequest, context: Any) -> trainer_pb2.ResumeJobResponse:
        job = await self._jobs.resume(request.job_id, request.request_id)
        return trainer_pb2.ResumeJobResponse(job=convert.to_job(job))

    async def Evaluate(
        self, request_iterator: AsyncIterator[trainer_pb2.EvaluateRequest], context: Any
    ) -> trainer_pb2.EvaluateResponse:
        read = partial(from_evaluate_requests, request_iterator, MAX_QUERIES, MAX_GOLD, MAX_BYTES)
        report = await asyncio.to_thread(to_report, await self._evaluator.evaluate(read))
        return trainer_pb2.EvaluateResponse(report=report)

    async def ListCheckpoints(
        self, request: trainer_pb2.ListCheckpointsRequest, context: Any
    ) -> trainer_pb2.ListCheckpointsResponse:
        tandems = {tandem.version: tandem for tandem in await self._tandems.all(readable=True)}
        page, token = await self._page(
            request,
            await self._checkpoints.pages(),
            lambda found: convert.to_checkpoint(found[0], found[1], tandems.get(found[0].version)),
            place_of=str,
        )
        return trainer_pb2.ListCheckpointsResponse(checkpoints=page, next_page_token=token)

    async def GetCheckpoint(
        self, request: trainer_pb2.GetCheckpointRequest, context: Any
    ) -> trainer_pb2.GetCheckpointResponse:
        row = await self._checkpoints.get(request.version)
        labels = await self._checkpoints.labels_of(request.version)
        tandem = await self._tandems.get(request.version)
        return trainer_pb2.GetCheckpointResponse(checkpoint=convert.to_checkpoint(row, labels, tandem))

    async def GetInfo(
        self, request: trainer_pb2.TrainerServiceGetInfoRequest, context: Any
    ) -> trainer_pb2.TrainerServiceGetInfoResponse:
        return trainer_pb2.TrainerServiceGetInfoResponse(
            service=to_service_info(self._server, self._jobs.limits),
            default_space_id=self._models.space_id,
            device=self._device.name,
            active_job=self._jobs.runner.active_job,
        )


class TrainerAdminServicer(trainer_pb2_grpc.TrainerAdminServiceServicer):
    """RPCs that remove jobs and checkpoints."""

    def __init__(self, deletion: Deletion) -> None:
        self._deletion = deletion

    async def DeleteJob(self, request: trainer_pb2.DeleteJobRequest, context: Any) -> trainer_pb2.DeleteJobResponse:
        await self._deletion.delete_job(request.job_id, request.request_id)
        return trainer_pb2.DeleteJobResponse()

    async def DeleteCheckpoint(
        self, request: trainer_pb2.DeleteCheckpointRequest, context: Any
    ) -> trainer_pb2.DeleteCheckpointResponse:
        await self._deletion.delete_checkpoint(request.version, request.request_id)
        return trainer_pb2.DeleteCheckpointResponse()

    async def CollectGarbage(
        self, request: trainer_pb2.TrainerAdminServiceCollectGarbageRequest, context: Any
    ) -> trainer_pb2.TrainerAdminServiceCollectGarbageResponse:
        garbage = await self._deletion.collect(dry_run=request.dry_run, request_id=request.request_id)
        return trainer_pb2.TrainerAdminServiceCollectGarbageResponse(garbage=convert.to_garbage(garbage))


class RegistryAdminServicer(registry_pb2_grpc.RegistryAdminServiceServicer):
    """RPCs of labels."""

    def __init__(self, publishing: Publisher) -> None:
        self._publishing = publishing

    async def Publish(self, request: registry_pb2.PublishRequest, context: Any) -> registry_pb2.PublishResponse:
        publication = await self._publishing.publish(
            convert.from_publish(request), wait_s=request.wait.ToNanoseconds() / 1e9
        )
        return convert.to_publication(registry_pb2.PublishResponse, publication)

    async def SetLabel(self, request: registry_pb2.SetLabelRequest, context: Any) -> registry_pb2.SetLabelResponse:
        row = await self._publishing.set_label(convert.from_set_label(request))
        return registry_pb2.SetLabelResponse(label=convert.to_label(row))

    async def DeleteLabel(
        self, request: registry_pb2.DeleteLabelRequest, context: Any
    ) -> registry_pb2.DeleteLabelResponse:
        await self._publishing.delete_label(request.label, request.space_id, request.request_id)
        return registry_pb2.DeleteLabelResponse()

    async def Rollback(self, request: registry_pb2.RollbackRequest, context: Any) -> registry_pb2.RollbackResponse:
        publication = await self._publishing.rollback(
            request.label,
            request.space_id,
            corpus=request.corpus,
            expected_revision=convert.revision(request),
            wait_s=request.wait.ToNanoseconds() / 1e9,
            request_id=request.request_id,
        )
        return convert.to_publication(registry_pb2.RollbackResponse, publication)

    async def ListLabels(
        self, request: registry_pb2.ListLabelsRequest, context: Any
    ) -> registry_pb2.ListLabelsResponse:
        rows, token = await self._publishing.labels(request.space_id, request.page_size, request.page_token)
        return registry_pb2.ListLabelsResponse(labels=map(convert.to_label, rows), next_page_token=token)

    async def ListRollouts(
        self, request: registry_pb2.ListRolloutsRequest, context: Any
    ) -> registry_pb2.ListRolloutsResponse:
        row, rollouts = await self._publishing.rollouts(request.label, request.space_id)
        return registry_pb2.ListRolloutsResponse(
            label=convert.to_label(row), rollouts=convert.to_rollouts(rollouts, row)
        )
