"""The calls of SamplerService that serve people: converts and delegates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aeenc.v1 import sampler_pb2, sampler_pb2_grpc
from services.kit.convert import position_of, to_timestamp
from services.sampler.tasks import convert
from services.sampler.tasks.queue import TaskQueue
from services.sampler.tasks.review import Review


class TaskCalls(sampler_pb2_grpc.SamplerServiceServicer):
    """The part of the servicer for human queues."""

    _queue: TaskQueue
    _review: Review

    async def LeaseTask(self, request: sampler_pb2.LeaseTaskRequest, context: Any) -> sampler_pb2.LeaseTaskResponse:
        leased = await self._queue.lease(request.run_id, request.annotator, request.max_tasks, request.request_id)
        return sampler_pb2.LeaseTaskResponse(leases=[convert.to_lease(one) for one in leased])

    async def RenewLease(self, request: sampler_pb2.RenewLeaseRequest, context: Any) -> sampler_pb2.RenewLeaseResponse:
        expires_at = await self._queue.renew(request.lease_id)
        return sampler_pb2.RenewLeaseResponse(expires_at=to_timestamp(convert.to_time(expires_at)))

    async def ReleaseTask(
        self, request: sampler_pb2.ReleaseTaskRequest, context: Any
    ) -> sampler_pb2.ReleaseTaskResponse:
        await self._queue.release(request.lease_id, request.reason)
        return sampler_pb2.ReleaseTaskResponse()

    async def SubmitVerdicts(
        self, request: sampler_pb2.SubmitVerdictsRequest, context: Any
    ) -> sampler_pb2.SubmitVerdictsResponse:
        answer_id, late = await self._queue.submit(
            request.lease_id,
            convert.from_verdicts(request.verdicts),
            request.seen_upto,
            convert.from_elapsed(request),
            request.client_seq,
            request.note,
        )
        return sampler_pb2.SubmitVerdictsResponse(answer_id=answer_id, late=late)

    async def UndoVerdicts(
        self, request: sampler_pb2.UndoVerdictsRequest, context: Any
    ) -> sampler_pb2.UndoVerdictsResponse:
        undone = await self._review.undo(request.run_id, request.annotator, request.count, request.request_id)
        return sampler_pb2.UndoVerdictsResponse(answer_ids=undone)

    async def AmendVerdicts(
        self, request: sampler_pb2.AmendVerdictsRequest, context: Any
    ) -> sampler_pb2.AmendVerdictsResponse:
        verdicts = convert.from_verdicts(request.verdicts)
        answer_id = await self._review.amend(request.answer_id, verdicts, request.annotator, request.request_id)
        return sampler_pb2.AmendVerdictsResponse(answer_id=answer_id)

    async def Adjudicate(self, request: sampler_pb2.AdjudicateRequest, context: Any) -> sampler_pb2.AdjudicateResponse:
        verdicts = convert.from_verdicts(request.verdicts)
        answer_id = await self._review.adjudicate(
            request.run_id, request.task_id, verdicts, request.adjudicator, request.request_id
        )
        return sampler_pb2.AdjudicateResponse(answer_id=answer_id)

    async def GetAgreement(
        self, request: sampler_pb2.GetAgreementRequest, context: Any
    ) -> sampler_pb2.GetAgreementResponse:
        return convert.to_agreement(*await self._review.agreement(request.run_id))

    async def ListTasks(self, request: sampler_pb2.ListTasksRequest, context: Any) -> sampler_pb2.ListTasksResponse:
        state, after = convert.from_state(request.state), position_of(request.page_token)
        found, position = await self._review.tasks(request.run_id, state, after, request.page_size)
        return sampler_pb2.ListTasksResponse(
            tasks=[convert.to_judged_task(record) for record in found], next_page_token=str(position or "")
        )

    async def WatchTasks(
        self, request: sampler_pb2.WatchTasksRequest, context: Any
    ) -> AsyncIterator[sampler_pb2.WatchTasksResponse]:
        async for event in self._review.watch(request.run_id, request.from_seq):
            yield convert.to_event(event)
