"""SamplerService, PeopleService and SamplerAdminService over gRPC: convert and delegate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

from aeenc.v1 import people_pb2, people_pb2_grpc, sampler_pb2, sampler_pb2_grpc
from aeenc.values import Answer, TaskEvent
from services.kit.convert import decode_enum, page_within, to_timestamp
from services.kit.credentials.gate import caller, person_name
from services.kit.credentials.roles import Role
from services.kit.limits import AnswerRoom, Limits
from services.kit.server import GrpcServer, to_service_info
from services.sampler import convert
from services.sampler.execution.retention import Retention
from services.sampler.execution.sampling import Sampling
from services.sampler.people.overview import Asked, Overview
from services.sampler.people.queue import TaskQueue, Wanted
from services.sampler.people.tasks import moment_of

MAX_PAGE = 500  # of people's tasks and changes


class SamplerServicer(sampler_pb2_grpc.SamplerServiceServicer):
    """Converts, delegates, converts back."""

    def __init__(self, sampling: Sampling, server: GrpcServer) -> None:
        self._sampling, self._server = sampling, server
        self._page = partial(page_within, sampling.limits.message_bytes, sampling.limits.items)

    async def StartRun(
        self, request_iterator: AsyncIterator[sampler_pb2.StartRunRequest], context: Any
    ) -> sampler_pb2.StartRunResponse:
        config, hypotheses = await convert.from_start_requests(request_iterator, self._sampling.max_hypotheses)
        return sampler_pb2.StartRunResponse(run=convert.to_run(await self._sampling.start(config, hypotheses)))

    async def GetRun(self, request: sampler_pb2.GetRunRequest, context: Any) -> sampler_pb2.GetRunResponse:
        return sampler_pb2.GetRunResponse(run=convert.to_run(await self._sampling.runs.get(request.run_id)))

    async def ListRuns(self, request: sampler_pb2.ListRunsRequest, context: Any) -> sampler_pb2.ListRunsResponse:
        runs, token = await self._page(request, self._sampling.runs.cycles.page, convert.to_run)
        return sampler_pb2.ListRunsResponse(runs=runs, next_page_token=token)

    async def WatchRun(
        self, request: sampler_pb2.WatchRunRequest, context: Any
    ) -> AsyncIterator[sampler_pb2.WatchRunResponse]:
        async for event, run in self._sampling.runs.cycles.watch(request.run_id, request.from_seq):
            yield sampler_pb2.WatchRunResponse(seq=event.seq, at=to_timestamp(event.at), run=convert.to_run(run))

    async def CancelRun(self, request: sampler_pb2.CancelRunRequest, context: Any) -> sampler_pb2.CancelRunResponse:
        run = await self._sampling.cancel(request.run_id, request.request_id)
        return sampler_pb2.CancelRunResponse(run=convert.to_run(run))

    async def ResumeRun(self, request: sampler_pb2.ResumeRunRequest, context: Any) -> sampler_pb2.ResumeRunResponse:
        run = await self._sampling.resume(request.run_id, request.request_id)
        return sampler_pb2.ResumeRunResponse(run=convert.to_run(run))

    async def ListPairs(self, request: sampler_pb2.ListPairsRequest, context: Any) -> sampler_pb2.ListPairsResponse:
        sign = decode_enum(convert.SIGNS, request.sign, "sign", None)
        read = partial(self._sampling.pairs, request.run_id, sign=sign)
        pairs, token = await self._page(request, read, convert.to_pair)
        return sampler_pb2.ListPairsResponse(pairs=pairs, next_page_token=token)

    async def ImportPairs(
        self, request: sampler_pb2.ImportPairsRequest, context: Any
    ) -> sampler_pb2.ImportPairsResponse:
        pairs = convert.from_pairs(request.pairs, self._sampling.limits)
        run_id, added = await self._sampling.import_pairs(request.corpus, pairs, request.run_id, request.request_id)
        return sampler_pb2.ImportPairsResponse(run_id=run_id, added=added)

    async def ExportTrees(
        self, request: sampler_pb2.ExportTreesRequest, context: Any
    ) -> AsyncIterator[sampler_pb2.ExportTreesResponse]:
        async for hypothesis_id, record in self._sampling.export_trees(request.run_id):
            yield sampler_pb2.ExportTreesResponse(hypothesis_id=hypothesis_id, record_json=record)

    async def GetInfo(
        self, request: sampler_pb2.SamplerServiceGetInfoRequest, context: Any
    ) -> sampler_pb2.SamplerServiceGetInfoResponse:
        return sampler_pb2.SamplerServiceGetInfoResponse(
            service=to_service_info(self._server, self._sampling.limits),
            oracles=self._sampling.oracles,
            active_runs=self._sampling.runner.active_runs,
            waiting_runs=[
                sampler_pb2.WaitingRun(run_id=run_id, reason=reason)
                for run_id, reason in self._sampling.runner.waiting_runs.items()
            ],
        )


class PeopleServicer(people_pb2_grpc.PeopleServiceServicer):
    """Converts, delegates, converts back."""

    def __init__(self, queue: TaskQueue, overview: Overview, limits: Limits) -> None:
        self._queue, self._overview = queue, overview
        self._limit_bytes = limits.message_bytes
        self._page = partial(page_within, limits.message_bytes, MAX_PAGE)

    async def LeaseTask(self, request: people_pb2.LeaseTaskRequest, context: Any) -> people_pb2.LeaseTaskResponse:
        wanted = Wanted(request.run_id, request.queue, request.hypothesis_id, request.task_id)
        annotator = caller().person(request.annotator, "annotator")
        leased = await self._queue.lease(wanted, annotator, request.max_tasks, request.request_id)
        return people_pb2.LeaseTaskResponse(leases=[convert.to_lease(one) for one in leased])

    async def RenewLease(self, request: people_pb2.RenewLeaseRequest, context: Any) -> people_pb2.RenewLeaseResponse:
        expires_at = await self._queue.renew(request.lease_id, caller().person("", "lease_id"))
        return people_pb2.RenewLeaseResponse(expires_at=to_timestamp(moment_of(expires_at)))

    async def ReleaseTask(self, request: people_pb2.ReleaseTaskRequest, context: Any) -> people_pb2.ReleaseTaskResponse:
        await self._queue.release(request.lease_id, request.reason, caller().person("", "lease_id"))
        return people_pb2.ReleaseTaskResponse()

    async def SubmitVerdicts(
        self, request: people_pb2.SubmitVerdictsRequest, context: Any
    ) -> people_pb2.SubmitVerdictsResponse:
        sent = convert.from_submission(request)
        who = caller().person("", "lease_id")
        answer_id, late = await self._queue.submit(request.lease_id, sent, request.client_seq, who)
        return people_pb2.SubmitVerdictsResponse(answer_id=answer_id, late=late)

    async def UndoVerdicts(
        self, request: people_pb2.UndoVerdictsRequest, context: Any
    ) -> people_pb2.UndoVerdictsResponse:
        annotator = caller().person(request.annotator, "annotator")
        undone = await self._queue.undo(request.run_id, annotator, request.count, request.request_id)
        return people_pb2.UndoVerdictsResponse(answer_ids=undone)

    async def AmendVerdicts(
        self, request: people_pb2.AmendVerdictsRequest, context: Any
    ) -> people_pb2.AmendVerdictsResponse:
        sent = convert.from_answer(request.answer)
        annotator, others = caller().person(sent.answer.annotator, "annotator"), caller().role >= Role.ADJUDICATE
        answer_id = await self._queue.amend(request.answer_id, sent, annotator, request.request_id, others=others)
        return people_pb2.AmendVerdictsResponse(answer_id=answer_id)

    async def Adjudicate(self, request: people_pb2.AdjudicateRequest, context: Any) -> people_pb2.AdjudicateResponse:
        decision = Answer.from_message(request.answer)
        decision = replace(decision, annotator=caller().person(decision.annotator, "annotator"))
        answer_id = await self._queue.adjudicate(request.run_id, decision, request.request_id)
        return people_pb2.AdjudicateResponse(answer_id=answer_id)

    async def CloseTask(self, request: people_pb2.CloseTaskRequest, context: Any) -> people_pb2.CloseTaskResponse:
        record = await self._queue.close(
            request.run_id,
            request.task_id,
            caller().person(request.annotator, "annotator"),
            request.reason,
            request.request_id,
            request.overlap,
            settle=request.settle,
            others=caller().role >= Role.ADJUDICATE,
        )
        return people_pb2.CloseTaskResponse(task=convert.to_judged_task(record))

    async def RetrieveAgain(
        self, request: people_pb2.RetrieveAgainRequest, context: Any
    ) -> people_pb2.RetrieveAgainResponse:
        wanted = Wanted(request.run_id, hypothesis_id=request.hypothesis_id, task_id=request.task_id)
        who = caller().person(request.annotator, "annotator")
        run, tasks = await self._queue.retrieve_again(wanted, request.lease_id, who, dry_run=request.dry_run)
        return people_pb2.RetrieveAgainResponse(model_version=run.version, task_ids=tasks)

    async def ListChanges(self, request: people_pb2.ListChangesRequest, context: Any) -> people_pb2.ListChangesResponse:
        read = partial(self._overview.changes, request.run_id, request.task_id)
        changes, token = await self._page(request, read, TaskEvent.to_message)
        return people_pb2.ListChangesResponse(changes=changes, next_page_token=token)

    async def GetTree(self, request: people_pb2.GetTreeRequest, context: Any) -> people_pb2.GetTreeResponse:
        tree = await self._overview.tree(request.run_id, request.hypothesis_id)
        return people_pb2.GetTreeResponse(tree=convert.to_tree(tree, self._limit_bytes))

    async def WatchTree(
        self, request: people_pb2.WatchTreeRequest, context: Any
    ) -> AsyncIterator[people_pb2.WatchTreeResponse]:
        async for tree in self._overview.watch_tree(request.run_id, request.hypothesis_id):
            yield people_pb2.WatchTreeResponse(tree=convert.to_tree(tree, self._limit_bytes))

    async def ListQueues(self, request: people_pb2.ListQueuesRequest, context: Any) -> people_pb2.ListQueuesResponse:
        queues = await self._overview.queues(caller().person(request.annotator, "annotator"))
        room = AnswerRoom(self._limit_bytes, "shorten their guidelines, or raise the sampler's MESSAGE_BYTES")
        return people_pb2.ListQueuesResponse(queues=list(room.all_of(map(convert.to_queue, queues))))

    async def GetAgreement(
        self, request: people_pb2.GetAgreementRequest, context: Any
    ) -> people_pb2.GetAgreementResponse:
        return convert.to_agreement(await self._overview.agreement(request.run_id), self._limit_bytes)

    async def ListTasks(self, request: people_pb2.ListTasksRequest, context: Any) -> people_pb2.ListTasksResponse:
        read: Any
        if request.answered_by:
            mine = caller().person(request.answered_by, "answered_by")
            read = partial(self._overview.answers, request.run_id, mine)
        else:
            blind = caller().role < Role.ADJUDICATE
            viewer = caller().person(request.annotator, "annotator") if blind else person_name(request.annotator)
            state = decode_enum(convert.STATES, request.state, "state", None)
            read = partial(self._overview.tasks, request.run_id, state)

        def to_message(asked: Asked) -> people_pb2.JudgedTask:
            record, root = asked
            return convert.to_judged_task(record, mine if request.answered_by else record.hidden_from(viewer), root)

        tasks, token = await self._page(request, read, to_message)
        return people_pb2.ListTasksResponse(tasks=tasks, next_page_token=token)

    async def WatchTasks(
        self, request: people_pb2.WatchTasksRequest, context: Any
    ) -> AsyncIterator[people_pb2.WatchTasksResponse]:
        async for event in self._overview.watch(request.run_id, request.from_seq, from_now=request.from_now):
            yield people_pb2.WatchTasksResponse(event=event.to_message())


class SamplerAdminServicer(sampler_pb2_grpc.SamplerAdminServiceServicer):
    """Removes runs."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention

    async def DeleteRun(self, request: sampler_pb2.DeleteRunRequest, context: Any) -> sampler_pb2.DeleteRunResponse:
        await self._retention.delete(request.run_id, request.request_id)
        return sampler_pb2.DeleteRunResponse()

    async def CollectGarbage(
        self, request: sampler_pb2.SamplerAdminServiceCollectGarbageRequest, context: Any
    ) -> sampler_pb2.SamplerAdminServiceCollectGarbageResponse:
        found = await self._retention.collect(request.request_id, dry_run=request.dry_run)
        return sampler_pb2.SamplerAdminServiceCollectGarbageResponse(garbage=[one.to_message() for one in found])
