"""The client of human queues: lease a task, judge it, hand the verdicts in; amend, adjudicate and watch.

lease, = await client.people.lease("ann")
await client.people.submit(lease, ticked, seen_upto=9)   # candidates seen and not ticked are refused
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from aeenc import values
from aeenc.calls.inputs import change
from aeenc.calls.rpc import ServiceClient, rpc, value
from aeenc.errors import InvalidArgument
from aeenc.oracle import Answer, Verdicts
from aeenc.v1 import people_pb2, people_pb2_grpc
from aeenc.values.writing import duration, message, shown

StateName = Literal["waiting", "decided", "conflict", "settled", "withdrawn"]
PAGE = 200


def _somebody(answered_by: str | None) -> str | None:
    if answered_by == "":  # to the service, it means everybody
        raise InvalidArgument.field("answered_by", "is empty; say whose answers to list, or leave it out")
    return answered_by


class PeopleClient(ServiceClient):
    """Calls PeopleService, on the sampler's server. Raises the classes of `aeenc.errors`.

    Verdicts are the ids of premises that explain, or a mapping from id to a judgement or Verdict. Every call is safe to
    retry, and the channel retries it.
    """

    _services = (people_pb2_grpc.PeopleServiceStub,)

    @rpc(people_pb2.LeaseTaskRequest, value("Lease", "leases"))
    async def lease(
        self,
        annotator: str,
        *,
        run_id: str = "",
        queue: str = "",
        hypothesis_id: str = "",
        task_id: str = "",
        max_tasks: int = 1,
        request_id: str = "",
    ) -> list[values.Lease]:
        """Leases the next tasks of a run, of a queue, or of any run; none when nothing waits for this person.

        With `run_id`, `hypothesis_id` stays in one tree, and `task_id` names a single task.
        """

    @rpc(people_pb2.RenewLeaseRequest, lambda answer: answer.expires_at.ToDatetime(tzinfo=UTC))
    async def renew(self, lease_id: str) -> datetime:
        """Extends a lease and returns its new end. Raises FailedPrecondition (LEASE_EXPIRED) for an expired one."""

    @rpc(people_pb2.ReleaseTaskRequest)
    async def release(self, lease_id: str, reason: str = "") -> None:
        """Gives a task back unanswered; it goes to the end of the queue."""

    async def submit(
        self,
        lease: values.Lease,
        verdicts: Verdicts | Answer[Any],
        *,
        seen_upto: int | None = None,
        elapsed_s: float | None = None,
        client_seq: int = 0,
    ) -> values.SubmittedVerdicts:
        """Answers a task: with verdicts, or with an `Answer`, which says more of the node as a whole.

        Other candidates are refused up to rank `seen_upto` and unseen beyond. Without it, all others are refused, as if
        the person had looked at every candidate. For somebody who stopped reading, give the rank of the last candidate
        that they looked at; 0: they looked at none. The lease says who answers, not the `annotator` of an `Answer`.
        Raises FailedPrecondition: TASK_ANSWERED when others were faster, LEASE_ANSWERED, LEASE_RELEASED;
        InvalidArgument or NotFound for an addition that may not explain this query.
        """
        if not isinstance(lease, values.Lease | people_pb2.Lease):
            raise InvalidArgument.field("lease", f"is {shown(lease)}; give a Lease, as `lease` returns")
        lowest = max((candidate.rank for candidate in lease.task.candidates), default=0)
        request = message(
            people_pb2.SubmitVerdictsRequest,
            lease_id=lease.lease_id,
            answer=_whole(verdicts).to_proto(),
            seen_upto=lowest if seen_upto is None else seen_upto,
            elapsed=None if elapsed_s is None else duration(elapsed_s, "elapsed_s"),
            client_seq=client_seq or random.getrandbits(63),
        )
        return values.SubmittedVerdicts.from_message(await self.channel.unary(self._stub.SubmitVerdicts, request))

    @rpc(people_pb2.UndoVerdictsRequest, lambda answer: list(answer.answer_ids))
    async def undo(self, annotator: str, run_id: str, *, count: int = 1, request_id: str = "") -> list[str]:
        """Takes the last answers of a person back and returns their ids, the last first."""

    async def amend(
        self, answer_id: str, verdicts: Verdicts | Answer[Any], annotator: str, *, request_id: str = ""
    ) -> str:
        """Replaces the given verdicts of an answer, and what else an `Answer` says.

        What is left out stays as it is; additions, written facts and intermediates join those of before. The run's
        tree grows below what is accepted now. Returns the id of the answer that is valid from now on.
        """
        given = replace(_whole(verdicts), annotator=annotator).to_proto()
        request = change(people_pb2.AmendVerdictsRequest, answer_id=answer_id, answer=given, request_id=request_id)
        return str((await self.channel.unary(self._stub.AmendVerdicts, request)).answer_id)

    async def adjudicate(
        self, run_id: str, task_id: str, verdicts: Verdicts, annotator: str, *, request_id: str = ""
    ) -> str:
        """Decides a conflict: verdicts on all candidates in conflict, and on others if they are to change."""
        request = change(
            people_pb2.AdjudicateRequest,
            run_id=run_id,
            answer=Answer(verdicts, annotator=annotator).to_proto(task_id),
            request_id=request_id,
        )
        return str((await self.channel.unary(self._stub.Adjudicate, request)).answer_id)

    @rpc(people_pb2.CloseTaskRequest, value("JudgedTask", "task"))
    async def close(
        self, run_id: str, task_id: str, annotator: str, *, reason: str = "", overlap: int = 0, request_id: str = ""
    ) -> values.JudgedTask:
        """Closes a task that nobody will answer any more: the answers that there are decide it. Returns the task.

        With `overlap`, so many answers decide it, where more were wanted. What answers leave open becomes skipped
        pairs. Raises FailedPrecondition once the run has gone on with the task.
        """

    async def settle(self, run_id: str, task_id: str, annotator: str, *, request_id: str = "") -> values.JudgedTask:
        """Lets the run go on with a decided task at once, instead of after the queue's `undo_s`. Returns the task.

        Raises FailedPrecondition: TASK_UNDECIDED while answers are missing, NOT_ANSWERED for somebody else's task.
        """
        named = {"run_id": run_id, "task_id": task_id, "annotator": annotator}
        request = change(people_pb2.CloseTaskRequest, **named, settle=True, request_id=request_id)
        return values.JudgedTask.from_message((await self.channel.unary(self._stub.CloseTask, request)).task)

    @rpc(people_pb2.RetrieveAgainRequest, value("RetrievedAgain"))
    async def retrieve_again(
        self,
        run_id: str,
        annotator: str,
        *,
        hypothesis_id: str = "",
        task_id: str = "",
        lease_id: str = "",
        dry_run: bool = False,
    ) -> values.RetrievedAgain:
        """Lets a run retrieve by the version that its label names now, of open tasks those that nobody has begun.

        Only those of a hypothesis, or a single one, if named; `lease_id` gives one back that the person holds. Returns
        the version and the tasks; with `dry_run` nothing changes. Raises FailedPrecondition: RUN_ENDED, VERSION_FIXED.
        """

    @rpc(people_pb2.ListChangesRequest, value("TaskEvent"), pages="changes")
    def list_changes(self, run_id: str, *, task_id: str = "", page_size: int = PAGE) -> AsyncIterator[values.TaskEvent]:
        """Yields what people have done with the tasks of a run, or with one, oldest first: the audit trail."""

    @rpc(people_pb2.GetTreeRequest, value("TreeState", "tree"))
    async def get_tree(self, run_id: str, hypothesis_id: str) -> values.TreeState:
        """Gets the tree of a hypothesis: its nodes, what explains each, and who works on it."""

    @rpc(people_pb2.WatchTreeRequest, value("TreeState", "tree"))
    def watch_tree(self, run_id: str, hypothesis_id: str) -> AsyncIterator[values.TreeState]:
        """Yields the tree of a hypothesis, and again whenever it has changed, until its run has ended."""

    @rpc(people_pb2.ListQueuesRequest, value("Queue", "queues"))
    async def list_queues(self, annotator: str = "") -> list[values.Queue]:
        """Lists the queues with their guidelines and the numbers of their tasks, and those of one person."""

    @rpc(people_pb2.GetAgreementRequest, value("Agreement"))
    async def get_agreement(self, run_id: str, *, timeout_s: float = 120.0) -> values.Agreement:
        """Gets the agreement of a run's annotators and a report on each. Takes seconds."""

    @rpc(people_pb2.ListTasksRequest, value("JudgedTask"), pages="tasks", made={"answered_by": _somebody})
    def list_tasks(
        self,
        run_id: str,
        *,
        state: StateName | int | None = None,
        annotator: str = "",
        answered_by: str | None = None,
        page_size: int = PAGE,
    ) -> AsyncIterator[values.JudgedTask]:
        """Yields the tasks of a run, or those in one state, with their valid answers, in the order they were queued.

        As `annotator` may see them: without others' answers to a task that they may still judge. With `answered_by`,
        whatever `state` and `annotator`: those that this person has answered, the latest first, with their answers
        alone. A page of `page_size` is fetched when it is needed.
        """

    @rpc(people_pb2.WatchTasksRequest, value("TaskEvent", "event"))
    def watch(self, run_id: str = "", *, from_seq: int = 0, from_now: bool = False) -> AsyncIterator[values.TaskEvent]:
        """Replays the events of a run's tasks, or of all, and follows them; a run's until it has ended.

        `from_now`: replays none.
        """


def _whole(given: Verdicts | Answer[Any]) -> Answer[Any]:
    return given if isinstance(given, Answer) else Answer(given)
