"""The trainer's client: training jobs, evaluations and checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from aeenc.calls.encoding import selector
from aeenc.calls.inputs import Items, each
from aeenc.calls.retrieval import Retrieval
from aeenc.calls.waiting import wait_for_end
from aeenc.transport.channel import Channel
from aeenc.trees import Tree
from aeenc.v1 import trainer_pb2, trainer_pb2_grpc, types_pb2

CHUNK_QUERIES = 512
EVALUATE_TIMEOUT_S = 1800.0
_END_STATES = (trainer_pb2.JOB_STATE_SUCCEEDED, trainer_pb2.JOB_STATE_FAILED, trainer_pb2.JOB_STATE_CANCELLED)

Gold = types_pb2.GoldQuery | tuple[str, Sequence[str]]


def gold_query(query: Gold) -> types_pb2.GoldQuery:
    """Makes a gold query from its message or from (text, premise texts)."""
    return query if isinstance(query, types_pb2.GoldQuery) else types_pb2.GoldQuery(text=query[0], premises=query[1])


def gold_tree(tree: Tree) -> trainer_pb2.GoldTree:
    """Reduces a tree to what an evaluation needs: the texts of its inner nodes and of its leaves."""
    inner = dict.fromkeys(tree.texts[label] for label in tree.children)
    inner.pop(tree.hypothesis, None)
    leaves = dict.fromkeys(tree.texts[label] for label in tree.leaves)
    return trainer_pb2.GoldTree(hypothesis=tree.hypothesis, intermediates=inner, leaves=leaves)


class TrainerClient:
    """Calls TrainerService, and TrainerAdminService through `admin` (default: the same channel).

    Raises the classes of `aeenc.errors`.
    """

    def __init__(self, channel: Channel, admin: Channel | None = None) -> None:
        self.channel = channel
        self._admin_channel = admin or channel
        self._stub = trainer_pb2_grpc.TrainerServiceStub(channel.grpc)
        self._admin = trainer_pb2_grpc.TrainerAdminServiceStub(self._admin_channel.grpc)

    async def start_job(self, *, validation: Iterable[Gold] = (), **fields: Any) -> trainer_pb2.Job:
        """Starts a training job; `fields` are those of JobConfig (corpus, run_ids, data_sets, loss, epochs, …).

        Makes an idempotency key where none is given.
        """
        config = trainer_pb2.JobConfig(validation=[gold_query(query) for query in validation], **fields)
        config.idempotency_key = config.idempotency_key or uuid.uuid4().hex
        return await self._job(self._stub.StartJob, trainer_pb2.StartJobRequest(config=config))

    async def job(self, job_id: str) -> trainer_pb2.Job:
        """Gets a job."""
        return await self._job(self._stub.GetJob, trainer_pb2.GetJobRequest(job_id=job_id))

    async def jobs(self) -> list[trainer_pb2.Job]:
        """Lists all jobs, newest first."""
        request = trainer_pb2.ListJobsRequest(page_size=1000)
        return [job async for job in self.channel.pages(self._stub.ListJobs, request, "jobs")]

    async def watch(self, job_id: str, *, from_seq: int = 0) -> AsyncIterator[tuple[int, trainer_pb2.Job]]:
        """Replays a job's events from a sequence number on and follows them until it ends."""
        request = trainer_pb2.WatchJobRequest(job_id=job_id, from_seq=from_seq)
        async for event in self.channel.stream(self._stub.WatchJob, request):
            yield event.seq, event.job

    async def wait(
        self, job_id: str, *, on_progress: Callable[[trainer_pb2.Job], None] | None = None
    ) -> trainer_pb2.Job:
        """Waits until a job has ended, across restarts of the trainer, and returns it even if it failed."""
        await self.job(job_id)  # a trainer that is away from the beginning is not waited for
        patient = TrainerClient(self.channel.patient())
        return await wait_for_end(
            lambda seq: self.watch(job_id, from_seq=seq), lambda: patient.job(job_id), _END_STATES, on_progress
        )

    async def cancel(self, job_id: str, *, request_id: str = "") -> trainer_pb2.Job:
        """Stops a job. Raises FailedPrecondition for one that has ended."""
        request = trainer_pb2.CancelJobRequest(job_id=job_id, request_id=request_id or uuid.uuid4().hex)
        return await self._job(self._stub.CancelJob, request)

    async def resume(self, job_id: str, *, request_id: str = "") -> trainer_pb2.Job:
        """Continues a job from its last finished epoch."""
        request = trainer_pb2.ResumeJobRequest(job_id=job_id, request_id=request_id or uuid.uuid4().hex)
        return await self._job(self._stub.ResumeJob, request)

    async def delete(self, job_id: str, *, request_id: str = "") -> None:
        """Deletes a job that has ended, with its files. Raises FailedPrecondition for a live one."""
        request = trainer_pb2.DeleteJobRequest(job_id=job_id, request_id=request_id or uuid.uuid4().hex)
        await self._admin_channel.unary(self._admin.DeleteJob, request)

    async def delete_checkpoint(self, version: str, *, request_id: str = "") -> None:
        """Deletes a checkpoint. Raises FailedPrecondition, naming who needs it, for one in use."""
        request = trainer_pb2.DeleteCheckpointRequest(version=version, request_id=request_id or uuid.uuid4().hex)
        await self._admin_channel.unary(self._admin.DeleteCheckpoint, request)

    async def collect_garbage(self, *, dry_run: bool = False, request_id: str = "") -> list[types_pb2.Garbage]:
        """Removes what the trainer's settings no longer keep, and lists it; with `dry_run` it only lists it."""
        request = trainer_pb2.TrainerAdminServiceCollectGarbageRequest(
            dry_run=dry_run, request_id=request_id or uuid.uuid4().hex
        )
        return list((await self._admin_channel.unary(self._admin.CollectGarbage, request)).garbage)

    async def _job(self, method: Callable[..., Any], request: Any) -> trainer_pb2.Job:
        job: trainer_pb2.Job = (await self.channel.unary(method, request)).job
        return job

    async def evaluate(
        self,
        corpus: str,
        queries: Iterable[Gold] | AsyncIterable[Gold],
        *,
        label: str | None = None,
        version: str | None = None,
        generation: str = "",
        retrieval: Retrieval | None = None,
        training: Iterable[Gold] | AsyncIterable[Gold] = (),
        trees: Iterable[Tree] | AsyncIterable[Tree] = (),
        ranks: bool = False,
        strict_only: bool = False,
        timeout_s: float = EVALUATE_TIMEOUT_S,
    ) -> types_pb2.EvaluationReport:
        """Evaluates a query encoder on gold queries against all premises of a corpus, under both protocols.

        With `retrieval`, evaluates the index's answers instead. `training` (gold queries) splits the report into parts
        seen in training and not; `trees` adds the quality over whole trees; `ranks` adds each gold premise's rank.
        """
        config = trainer_pb2.EvaluateConfig(
            corpus=corpus,
            model=selector(label, version),
            generation=generation,
            retrieval=retrieval.to_proto() if retrieval else None,
            ranks=ranks,
            strict_only=strict_only,
        )
        response: trainer_pb2.EvaluateResponse = await self.channel.send_stream(
            self._stub.Evaluate,
            lambda: _evaluate_requests(config, _evaluate_items(queries, training, trees)),
            timeout_s=timeout_s,
        )
        return response.report

    async def checkpoints(self) -> list[trainer_pb2.Checkpoint]:
        """Lists all checkpoints, newest first."""
        request = trainer_pb2.ListCheckpointsRequest(page_size=1000)
        return [
            checkpoint async for checkpoint in self.channel.pages(self._stub.ListCheckpoints, request, "checkpoints")
        ]

    async def checkpoint(self, version: str) -> trainer_pb2.Checkpoint:
        """Gets a checkpoint."""
        request = trainer_pb2.GetCheckpointRequest(version=version)
        checkpoint: trainer_pb2.Checkpoint = (await self.channel.unary(self._stub.GetCheckpoint, request)).checkpoint
        return checkpoint

    async def info(self) -> trainer_pb2.TrainerServiceGetInfoResponse:
        """Gets the trainer's space, device, active job, limits and state."""
        return await self.channel.unary(self._stub.GetInfo, trainer_pb2.TrainerServiceGetInfoRequest())


async def _evaluate_items(
    queries: Items[Gold], training: Items[Gold], trees: Items[Tree]
) -> AsyncIterator[tuple[str, Any]]:
    async for query in each(queries):
        yield "queries", gold_query(query)
    async for query in each(training):
        yield "training", gold_query(query)
    async for tree in each(trees):
        yield "trees", gold_tree(tree)


async def _evaluate_requests(
    config: trainer_pb2.EvaluateConfig, items: AsyncIterator[tuple[str, Any]]
) -> AsyncIterator[trainer_pb2.EvaluateRequest]:
    message = trainer_pb2.EvaluateRequest(config=config)
    count = 0
    async for name, item in items:
        if count == CHUNK_QUERIES:
            yield message
            message, count = trainer_pb2.EvaluateRequest(), 0
        getattr(message, name).append(item)
        count += 1
    yield message
