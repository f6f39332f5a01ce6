"""The RPCs of the sampler by which people change tasks at a queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aeenc import values
from aeenc.v1 import oracle_pb2, people_pb2
from benchmarks.promises.mutations.mutation import Subject, agreed, fresh
from benchmarks.promises.mutations.sampler import K, RunMutation
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from support.waiting import eventually

EXPLAINS, REFUSES = oracle_pb2.JUDGEMENT_EXPLAINS, oracle_pb2.JUDGEMENT_DOES_NOT_EXPLAIN


def verdict(premise_id: str, judgement: oracle_pb2.Judgement = EXPLAINS) -> oracle_pb2.Verdict:
    """One verdict."""
    return oracle_pb2.Verdict(premise_id=premise_id, judgement=judgement)


class PeopleMutation(RunMutation):
    """Base of the mutations of tasks. A subject's name is its task; `people` says who has it in what way."""

    queue = "team"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.run_ids: dict[str, str] = {}  # by task
        self.leases: dict[str, values.Lease] = {}  # by task
        self.names: dict[str, str] = {}  # by task: the person of the lease
        self.answers: dict[str, str] = {}  # by task: the answer's id

    @property
    def tasks(self) -> TaskStore:
        """The tasks in Redis."""
        store: TaskStore = self.world.shared["tasks"]
        return store

    async def queued(self, count: int) -> str:
        """A run with so many tasks."""
        run = await self.start(count, self.queue)
        people = self.world.client.people

        async def are_queued() -> bool:
            return len([task async for task in people.list_tasks(run.id)]) == count

        await eventually(are_queued, timeout_s=120)
        return str(run.id)

    async def lease(self, count: int, people: int = 1) -> list[str]:
        """Has so many tasks leased to as many people each. Returns the tasks."""
        run_id = await self.queued(count)
        for _ in range(people):
            for name in [fresh("ann") for _ in range(count)]:
                [lease] = await self.world.client.people.lease(name, run_id=run_id)
                task = lease.task.task_id
                self.run_ids[task], self.leases[task], self.names[task] = run_id, lease, name
                await self.took(lease, task)
        return [task for task, of in self.run_ids.items() if of == run_id]

    async def took(self, lease: people_pb2.Lease, task: str) -> None:
        """What a person does with a lease at once: nothing."""

    async def answer(self, lease: people_pb2.Lease, premise_ids: Sequence[str]) -> None:
        """Answers a task."""
        done = await self.world.client.people.submit(lease, list(premise_ids))
        self.answers[lease.task.task_id] = done.answer_id

    async def records(self, subjects: Sequence[Subject]) -> list[TaskRecord]:
        """The records of the subjects' tasks."""
        found: dict[str, TaskRecord] = {}
        for run_id in {self.run_ids[subject.name] for subject in subjects}:
            ids = [subject.name for subject in subjects if self.run_ids[subject.name] == run_id]
            found |= {record.task.task_id: record for record in (await self.tasks.read_many(run_id, ids))[0]}
        return [found[subject.name] for subject in subjects]

    async def logged(self, subjects: Sequence[Subject], operation: str) -> Counter[str]:
        """How often an operation stands in the verdict log, by task."""
        run_ids = {self.run_ids[subject.name] for subject in subjects}
        logs = await asyncio.gather(*(self.tasks.verdict_log(run_id) for run_id in run_ids))
        return Counter(change.task_id for log in logs for change in log if change.entry["op"] == operation)

    def first(self, task: str) -> str:
        """The first candidate of a leased task."""
        return str(self.leases[task].task.candidates[0].premise.id)

    def second(self, task: str) -> str:
        """The second candidate of a leased task."""
        return str(self.leases[task].task.candidates[1].premise.id)


class LeaseTask(PeopleMutation):
    """LeaseTask, each by a person of their own. A subject's name is the person."""

    rpc = "PeopleService.LeaseTask"
    ignored = ("leases.remaining",)

    async def prepare(self, count: int) -> list[Subject]:
        run_id = await self.queued(count)
        names = [fresh("ann") for _ in range(count)]
        self.run_ids |= dict.fromkeys(names, run_id)
        return [Subject(name, self._maker(run_id, name), {"free"}) for name in names]

    @staticmethod
    def _maker(run_id: str, name: str) -> Any:
        request_id = fresh("r")

        def request(max_tasks: int) -> people_pb2.LeaseTaskRequest:
            return people_pb2.LeaseTaskRequest(
                run_id=run_id, annotator=name, max_tasks=max_tasks, request_id=request_id
            )

        return lambda: (request(1), request(2), "held")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        held: Counter[str] = Counter()
        told: Counter[str] = Counter()
        for run_id in {self.run_ids[subject.name] for subject in subjects}:
            ids = await self.tasks.task_ids(run_id, 0, 10_000)
            held.update(one.annotator for r in (await self.tasks.read_many(run_id, ids))[0] for one in r.leases)
            told.update(one.annotator for one in await self._events(run_id) if one.event == "LEASED")
        word = {0: "free", 1: "held"}
        return [
            agreed(*(word.get(found[subject.name], f"{found[subject.name]} times") for found in (held, told)))
            for subject in subjects
        ]

    async def _events(self, run_id: str) -> list[Any]:
        found: list[Any] = []
        while more := await self.tasks.events(run_id, found[-1].seq if found else 0, wait_ms=1):
            found += more
        return found


class RenewLease(PeopleMutation):
    """RenewLease. It has no request id: a lease that is renewed again only lasts longer."""

    rpc = "PeopleService.RenewLease"
    refusal = ""
    ignored = ("expires_at", "remaining")

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(task, self._maker(task), {"first"}) for task in await self.lease(count)]

    def _maker(self, task: str) -> Any:
        return lambda: (people_pb2.RenewLeaseRequest(lease_id=self.leases[task].lease_id), None, "renewed")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        ends = {task: lease.expires_at.timestamp() for task, lease in self.leases.items()}
        records = await self.records(subjects)
        return [
            "renewed" if record.leases[0].expires_at > ends[subject.name] + 0.001 else "first"
            for subject, record in zip(subjects, records, strict=True)
        ]


class ReleaseTask(PeopleMutation):
    """ReleaseTask. It has no request id: to give back again changes nothing."""

    rpc = "PeopleService.ReleaseTask"
    refusal = ""

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(task, self._maker(task), {"held"}) for task in await self.lease(count)]

    def _maker(self, task: str) -> Any:
        return lambda: (people_pb2.ReleaseTaskRequest(lease_id=self.leases[task].lease_id), None, "released")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "RELEASED")
        return [
            agreed("released" if record.leases[0].ended else "held", "released" if logged[subject.name] else "held")
            for subject, record in zip(subjects, records, strict=True)
        ]


class SubmitVerdicts(PeopleMutation):
    """SubmitVerdicts. Another answer under the same lease is refused as such."""

    rpc = "PeopleService.SubmitVerdicts"
    refusal = "FAILED_PRECONDITION"

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(task, self._maker(task), {"open"}) for task in await self.lease(count)]

    def _maker(self, task: str) -> Any:
        def request(premise_id: str, seq: int) -> people_pb2.SubmitVerdictsRequest:
            lease_id = self.leases[task].lease_id
            return people_pb2.SubmitVerdictsRequest(
                lease_id=lease_id, answer=oracle_pb2.Answer(verdicts=[verdict(premise_id)]), seen_upto=K, client_seq=seq
            )

        return lambda: (request(self.first(task), 1), request(self.second(task), 2), "answered")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "ANSWERED")
        word = {0: "open", 1: "answered"}
        return [
            agreed(*(word.get(n, f"{n} times") for n in (len(record.answers), logged[subject.name])))
            for subject, record in zip(subjects, records, strict=True)
        ]


class UndoVerdicts(PeopleMutation):
    """UndoVerdicts of each person's one answer."""

    rpc = "PeopleService.UndoVerdicts"

    async def took(self, lease: people_pb2.Lease, task: str) -> None:
        await self.answer(lease, [self.first(task)])

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(task, self._maker(task), {"answered"}) for task in await self.lease(count)]

    def _maker(self, task: str) -> Any:
        request_id = fresh("r")

        def request(count: int) -> people_pb2.UndoVerdictsRequest:
            return people_pb2.UndoVerdictsRequest(
                annotator=self.names[task], run_id=self.run_ids[task], count=count, request_id=request_id
            )

        return lambda: (request(1), request(2), "undone")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "UNDONE")
        return [
            agreed("answered" if record.answers else "undone", "undone" if logged[subject.name] else "answered")
            for subject, record in zip(subjects, records, strict=True)
        ]


class AmendVerdicts(UndoVerdicts):
    """AmendVerdicts of each person's one answer."""

    rpc = "PeopleService.AmendVerdicts"

    def _maker(self, task: str) -> Any:
        request_id = fresh("r")

        def request(premise_id: str) -> people_pb2.AmendVerdictsRequest:
            return people_pb2.AmendVerdictsRequest(
                answer_id=self.answers[task],
                answer=oracle_pb2.Answer(verdicts=[verdict(premise_id)], annotator="lead"),
                request_id=request_id,
            )

        return lambda: (request(self.second(task)), request(self.first(task)), "amended")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "AMENDED")
        return [
            agreed("amended" if record.answers[0].by else "answered", "amended" if logged[subject.name] else "answered")
            for subject, record in zip(subjects, records, strict=True)
        ]


class Adjudicate(PeopleMutation):
    """Adjudicate, of tasks about which two people differ."""

    rpc = "PeopleService.Adjudicate"
    queue = "judges"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._seen: Counter[str] = Counter()

    async def took(self, lease: people_pb2.Lease, task: str) -> None:
        self._seen[task] += 1
        ids = [candidate.premise.id for candidate in lease.task.candidates]
        await self.answer(lease, ids[:1] if self._seen[task] == 1 else [])

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(task, self._maker(task), {"open"}) for task in await self.lease(count, people=2)]

    def _maker(self, task: str) -> Any:
        request_id = fresh("r")

        def request(judgement: oracle_pb2.Judgement) -> people_pb2.AdjudicateRequest:
            verdicts = [verdict(self.first(task), judgement)]
            answer = oracle_pb2.Answer(task_id=task, annotator="lead", verdicts=verdicts)
            return people_pb2.AdjudicateRequest(run_id=self.run_ids[task], answer=answer, request_id=request_id)

        return lambda: (request(EXPLAINS), request(REFUSES), "decided")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "ADJUDICATED")
        return [
            agreed("decided" if record.adjudicator else "open", "decided" if logged[subject.name] else "open")
            for subject, record in zip(subjects, records, strict=True)
        ]


class CloseTask(PeopleMutation):
    """CloseTask, of tasks that somebody holds."""

    rpc = "PeopleService.CloseTask"

    async def prepare(self, count: int) -> list[Subject]:
        return [Subject(task, self._maker(task), {"open"}) for task in await self.lease(count)]

    def _maker(self, task: str) -> Any:
        request_id = fresh("r")

        def request(annotator: str) -> people_pb2.CloseTaskRequest:
            return people_pb2.CloseTaskRequest(
                task_id=task, run_id=self.run_ids[task], annotator=annotator, request_id=request_id
            )

        return lambda: (request("lead"), request("another"), "closed")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "CLOSED")
        return [
            agreed("closed" if record.decided_at else "open", "closed" if logged[subject.name] else "open")
            for subject, record in zip(subjects, records, strict=True)
        ]


class SettleTask(UndoVerdicts):
    """CloseTask with `settle`, of each person's one answer."""

    rpc = "PeopleService.CloseTask"
    ignored = ("task.state",)

    def _maker(self, task: str) -> Any:
        request_id = fresh("r")

        def request(annotator: str) -> people_pb2.CloseTaskRequest:
            return people_pb2.CloseTaskRequest(
                task_id=task, run_id=self.run_ids[task], annotator=annotator, settle=True, request_id=request_id
            )

        return lambda: (request(self.names[task]), request("another"), "settled")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "HASTENED")
        return [
            agreed("settled" if record.final else "answered", "settled" if logged[subject.name] else "answered")
            for subject, record in zip(subjects, records, strict=True)
        ]


class RetrieveAgain(PeopleMutation):
    """RetrieveAgain, of tasks of a version that the label no longer names. It has no request id: again is in vain."""

    rpc = "PeopleService.RetrieveAgain"
    refusal = ""
    ignored = ("task_ids",)

    async def prepare(self, count: int) -> list[Subject]:
        tasks = await self.lease(count)
        labels = {one.name: one.version async for one in self.world.client.registry.list_labels()}
        other = next(one.version for one in self.world.fleet.versions if one.version != labels["stable"])
        await self.world.client.registry.set_label("stable", other)
        run_id = self.run_ids[tasks[0]]

        async def follows() -> bool:
            tried = await self.world.client.people.retrieve_again(run_id, "lead", dry_run=True)
            return tried.model_version == other

        await eventually(follows, timeout_s=60)
        return [Subject(task, self._maker(task), {"held"}) for task in tasks]

    def _maker(self, task: str) -> Any:
        request = people_pb2.RetrieveAgainRequest(
            run_id=self.run_ids[task],
            task_id=task,
            lease_id=self.leases[task].lease_id,
            annotator=self.names[task],
        )
        return lambda: (request, None, "sent back")

    async def states(self, subjects: Sequence[Subject]) -> list[str]:
        records, logged = await self.records(subjects), await self.logged(subjects, "WITHDRAWN")
        words = {0: "held", 1: "sent back"}
        return [
            agreed(
                "held" if record.held(record.leases[0].taken_at) else "sent back",
                words.get(logged[subject.name], f"{logged[subject.name]} times"),
            )
            for subject, record in zip(subjects, records, strict=True)
        ]


MUTATIONS = (
    LeaseTask,
    RenewLease,
    ReleaseTask,
    SubmitVerdicts,
    UndoVerdicts,
    AmendVerdicts,
    Adjudicate,
    CloseTask,
    SettleTask,
    RetrieveAgain,
)
