"""Lets people lease, renew, give back and answer the tasks of runs.

    LeaseTask ─▶ sweep expired leases ─▶ best waiting task (or a control item) ─▶ lease
    SubmitVerdicts ─▶ answer ─▶ decided once `overlap` people have answered ─▶ `gateway` hands it to the run

Nobody gets a task that others hold or that they have judged themselves. A lease lasts three times the mean answer time.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aeenc import errors
from aeenc.oracle import Candidate, Task
from aeenc.values import Judgement
from services.sampler.oracles.answers import MAX_ADDED
from services.sampler.people import steps
from services.sampler.people.controls import ControlItems, NotQualified, draw
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import Lease, SentAnswer, TaskRecord, check_annotator, parts_of
from services.sampler.records.node_store import NodeStore
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Run
from services.sampler.settings import QueueSettings
from services.store.formats import NewerFormat
from services.store.requests import Request

LEASE_TIMES = 3.0  # of the mean answer time
MAX_TASKS = 64
CANDIDATE_BYTES = 128  # beside its id and its text
READ = 32

LookUp = Callable[[Run, Sequence[str]], Awaitable[list[Candidate]]]


@dataclass(frozen=True)
class Wanted:
    """The tasks that a person asks for: of a run, of a queue, of one tree, or a single one. Empty: any."""

    run_id: str = ""
    queue: str = ""
    hypothesis_id: str = ""
    task_id: str = ""


@dataclass(frozen=True)
class LeasedTask:
    """A task with the lease that a person holds on it, at a time of Redis's clock.

    `hypothesis_id` names the tree that asks it first; a control item names that of a task beside it.
    """

    lease: Lease
    record: TaskRecord
    at: float
    hypothesis_id: str = ""


def _size_bytes(record: TaskRecord) -> int:
    """A lease of the task in an answer takes less."""
    task = record.task
    shown = (*task.accepted, *task.candidates)
    texts = (task.query, *task.path, *(text for one in shown for text in (one.id, one.text)))
    return sum(len(text.encode()) for text in texts) + CANDIDATE_BYTES * (len(shown) + 8)


def numbered(request: Request, number: int) -> Request:
    """The part of a request that makes the thing of this number: each is noted by itself."""
    return replace(request, id=f"{request.id} {number}") if request.id and number else request


class TaskQueue:
    """The human queues of one namespace. Raises the classes of `aeenc.errors`.

    `look_up` gives premises of a run by id, in the same order.
    """

    def __init__(
        self,
        runs: RunStore,
        nodes: NodeStore,
        tasks: TaskStore,
        queues: Mapping[str, QueueSettings],
        controls: ControlItems,
        look_up: LookUp,
        message_bytes: int,
    ) -> None:
        self._message_bytes = message_bytes
        self._runs, self._nodes, self._tasks, self._look_up = runs, nodes, tasks, look_up
        self._queues, self._controls = queues, controls
        self._picking = asyncio.Lock()  # or all callers of this process would reach for the same task

    async def lease(self, wanted: Wanted, annotator: str, max_tasks: int, request_id: str) -> list[LeasedTask]:
        """At most `max_tasks` tasks for a person, among those wanted. None if nothing waits.

        No further one that the answer would not hold: its lease would be lost. Raises TooLarge if it holds none.
        """
        check_annotator(annotator)
        most = max_tasks or 1
        if most > MAX_TASKS:
            raise errors.InvalidArgument.field("max_tasks", f"is {max_tasks}; give 1 to {MAX_TASKS}")
        request = Request(request_id, "LeaseTask", {"annotator": annotator, "max_tasks": most, **vars(wanted)})
        if request_id and (earlier := await self._leased_before(request)):
            return earlier
        leased: list[LeasedTask] = []
        refused: errors.AeencError | None = None
        for run in await self._open_runs(wanted):
            try:
                await self.sweep(run.id)
                only = await self._only(run, wanted)
                while len(leased) < most:
                    one = await self._take(run, annotator, leased, request, only)
                    if one is None:
                        break
                    leased.append(one)
            except (NotQualified, errors.TooLarge) as error:  # another queue or run may have tasks for this person
                refused = error
            except NewerFormat:  # a task: it keeps nobody from those of other runs
                if wanted.run_id:
                    raise
        if refused and not leased:
            raise refused
        return leased

    async def renew(self, lease_id: str, who: str = "") -> float:
        """When a renewed lease ends, in seconds of Redis's clock."""
        run, task_id = await self._of(lease_id)
        lease_s = await self.lease_s(run.config.oracle)
        record, _ = await self._tasks.apply(
            run.id, task_id, lambda old, at: steps.renew(old, lease_id, at, lease_s, who)
        )
        return next(lease.expires_at for lease in record.leases if lease.id == lease_id)

    async def release(self, lease_id: str, reason: str, who: str = "") -> None:
        """Gives a task back unanswered."""
        run, task_id = await self._of(lease_id)
        await self._tasks.apply(run.id, task_id, lambda old, at: steps.release(old, lease_id, at, reason[:1024], who))

    async def submit(self, lease_id: str, sent: SentAnswer, client_seq: int, who: str = "") -> tuple[str, bool]:
        """Takes an answer; gives its id, and whether it came after its lease had ended.

        `who` is the only person for whom the caller may act; empty: anybody.
        """
        run, task_id = await self._of(lease_id)
        if sent.answer.additions:
            sent = await self.with_premises(run, (await self._tasks.read(run.id, task_id))[0].task, sent)

        def step(old: TaskRecord, at: float) -> steps.Change:
            change = steps.submit(old, lease_id, sent, client_seq, at, who)
            if change.answered and run.state == "CANCELLED":  # one that has failed goes on with its answers
                message = f"run {run.id} was cancelled: the answer is not kept; resume the run, then send it again"
                raise errors.FailedPrecondition(message, reason="RUN_ENDED")
            return change

        record, answer_id = await self._tasks.apply(run.id, task_id, step, queue=run.config.oracle)
        return answer_id, any(one.answer.late for one in record.answers if one.answer.answer_id == answer_id)

    async def with_premises(self, run: Run, task: Task, sent: SentAnswer) -> SentAnswer:
        """The answer with the premises of its additions, looked up in the run's generation.

        Raises InvalidArgument for candidates of the task, the query, its ancestors, and refusals.
        """
        additions = sent.answer.additions
        if not additions:
            return sent
        if len(additions) > MAX_ADDED:
            problem = f"has {len(additions)} items; at most {MAX_ADDED} in one answer"
            raise errors.InvalidArgument.field("additions", problem)
        added = await self._look_up(run, [verdict.premise_id for verdict in additions])
        asked = {candidate.id for candidate in task.candidates}
        found = []
        for position, (verdict, premise) in enumerate(zip(additions, added, strict=True)):
            field, problem = "premise_id", ""
            if premise.id in asked:
                problem = f"{premise.id!r} is a candidate of the task; judge it among `verdicts`"
            elif premise.text in (task.query, *task.path):
                problem = (
                    f"{premise.id!r} says what is to be explained here or above; a tree may not lead back to itself"
                )
            elif verdict.judgement is not Judgement.EXPLAINS:
                field = "judgement"
                problem = f"is {int(verdict.judgement)}; only premises that explain (EXPLAINS) are added"
            if problem:
                raise errors.InvalidArgument.field(f"additions[{position}].{field}", problem)
            found.append(replace(verdict, premise_id=premise.id, text=premise.text))
        return replace(sent, answer=replace(sent.answer, additions=tuple(found)))

    async def send_back(
        self, run: Run, wanted: Wanted, lease_id: str = "", who: str = "", *, dry_run: bool = False
    ) -> list[str]:
        """Withdraws the wanted tasks that nobody has begun and that another than the run's version has retrieved.

        With a lease, its task, too, if `who` holds it (empty: anybody). Gives the tasks, which a dry run leaves alone.
        """
        only = await self._only(run, wanted)
        ids = await (self._tasks.waiting(run.id) if only is None else self._tasks.waiting_of(run.id, only))
        held = parts_of(lease_id, "lease")[1] if lease_id else ""
        if held and held not in ids and (only is None or held in only):
            ids.append(held)

        def step(old: TaskRecord, at: float) -> steps.Change:
            return steps.send_back(old, run.version, at, lease_id if old.task.task_id == held else "", who)

        found = []
        for start in range(0, len(ids), READ):
            records, at = await self._tasks.read_many(run.id, ids[start : start + READ])
            found += [record.task.task_id for record in records if step(record, at).id]
        if dry_run:
            return found
        return [task_id for task_id in found if (await self._tasks.apply(run.id, task_id, step))[1]]

    async def sweep(self, run_id: str) -> None:
        """Ends the leases of a run whose time is over, so that their tasks wait again."""
        for task_id in (await self._tasks.due(run_id))[0]:
            await self._tasks.apply(run_id, task_id, steps.expire)

    async def lease_s(self, queue: str) -> float:
        """The seconds that a lease of this queue lasts."""
        settings = self._queues.get(queue) or QueueSettings()
        mean_s = await self._tasks.mean_answer_s(queue)
        lease_s = max(LEASE_TIMES * mean_s, settings.min_lease_s) if mean_s else settings.first_lease_s
        return min(lease_s, steps.MAX_HELD_S)

    async def _only(self, run: Run, wanted: Wanted) -> frozenset[str] | None:
        """The tasks that somebody wants, where it is not any of the run."""
        if wanted.task_id:
            await self._tasks.read(run.id, wanted.task_id)
            return frozenset([wanted.task_id])
        if wanted.hypothesis_id:
            tree = await self._nodes.tree_of(run.id, wanted.hypothesis_id)
            return frozenset(await self._tasks.asking(run.id, [node.text for node in tree.pending()]))
        return None

    async def _open_runs(self, wanted: Wanted) -> list[Run]:
        run_id = wanted.run_id
        if not run_id and (wanted.task_id or wanted.hypothesis_id):
            raise errors.InvalidArgument.field("run_id", "is empty; name the run of the task or hypothesis")
        if wanted.queue and wanted.queue not in self._queues:
            raise errors.NotFound(f"no queue {wanted.queue!r}; there are {sorted(self._queues)}")
        if run_id:
            run = await self._runs.get(run_id)
            if run.config.oracle not in self._queues:
                raise errors.NotFound(
                    f"run {run_id} has no queue: its oracle {run.config.oracle!r} is not among {sorted(self._queues)}"
                )
            return [] if run.ended else [run]
        asked = {wanted.queue} if wanted.queue else self._queues.keys()
        return [run for run in await self._runs.live() if run.config.oracle in asked]

    async def _of(self, lease_id: str) -> tuple[Run, str]:
        run_id, task_id = parts_of(lease_id, "lease")
        try:
            return await self._runs.get(run_id), task_id
        except errors.NotFound:
            raise errors.NotFound(f"no lease {lease_id!r}; LeaseTask gives leases") from None

    async def _leased_before(self, request: Request) -> list[LeasedTask]:
        found: list[LeasedTask] = []
        for number in range(MAX_TASKS):
            lease_id = await self._tasks.made(numbered(request, number))
            if not lease_id:
                break
            run_id, task_id = parts_of(lease_id, "lease")
            with contextlib.suppress(errors.NotFound):  # its run was deleted
                record, at = await self._tasks.read(run_id, task_id)
                found += [await self._leased(lease, record, at) for lease in record.leases if lease.id == lease_id]
        return found

    async def _take(
        self,
        run: Run,
        annotator: str,
        taken: Sequence[LeasedTask],
        request: Request,
        only: frozenset[str] | None,
    ) -> LeasedTask | None:
        """Leases the best task that this person may take; none of those taken, whose lease a slow call may outlive.

        Raises TooLarge where an answer has room for none.
        """
        lease_s = await self.lease_s(run.config.oracle) * (len(taken) + 1)  # a person judges one after the other
        mine = {one.record.task.task_id for one in taken}
        room = self._message_bytes - sum(_size_bytes(one.record) for one in taken)
        async with self._picking:
            while True:
                overtaken, too_large = False, ""
                async for chunk in self._candidates(run, annotator, len(taken), only):
                    found, at = await self._tasks.read_many(run.id, chunk)
                    for record in found:
                        if record.task.task_id in mine or not record.open_to(annotator, at):
                            continue
                        if (size := _size_bytes(record)) > room:
                            if taken:
                                return None
                            too_large = f"task {record.task.task_id} of run {run.id} takes {size:,} bytes"
                            continue
                        lease_id = f"{run.id}.{record.task.task_id}.{uuid.uuid4().hex[:12]}"
                        change = steps.lease(record, annotator, lease_id, at, lease_s)
                        if await self._tasks.write(change, at, numbered(request, len(taken))):
                            return await self._leased(change.record.leases[-1], change.record, at)
                        overtaken = True
                if too_large and not overtaken:
                    remedy = "raise the sampler's MESSAGE_BYTES, or start a run with a smaller k"
                    limit = f"over the limit of {self._message_bytes:,} of an answer"
                    raise errors.TooLarge(f"{too_large}, {limit}; {remedy}")
                if not overtaken:
                    return None

    async def _leased(self, lease: Lease, record: TaskRecord, at: float) -> LeasedTask:
        tree = record.node_id.partition("-")[0]
        hypothesis_id = (await self._nodes.hypothesis(record.run_id, int(tree))).id if tree else ""
        return LeasedTask(lease, record, at, hypothesis_id)

    async def _candidates(
        self, run: Run, annotator: str, taken: int, only: frozenset[str] | None
    ) -> AsyncIterator[Sequence[str]]:
        """The waiting tasks that this person has not judged, after a control item when one is due, in parts.

        The first part is one task, which mostly is open, and each is twice as long as the one before. Among tasks that
        somebody has asked for (`only`), a control item would be known as one. Raises NotQualified.
        """
        if not await self._tasks.waiting(run.id, 0, 1):
            return
        qualifies = await self._qualifies(run, annotator, only)
        if only is not None:
            yield await self._tasks.waiting_of(run.id, only)
            return
        drawn = draw(run.id, annotator, await self._tasks.answered(run.id, annotator) + taken)
        if qualifies or drawn < self._queues[run.config.oracle].control_share:
            yield await self._controls.next_item(run, annotator, qualifying=qualifies)
        start, most = 0, 1
        while not qualifies and (part := await self._tasks.waiting(run.id, start, most)):
            yield await self._tasks.unanswered(run.id, annotator, part)
            start, most = start + most, min(2 * most, READ)

    async def _qualifies(self, run: Run, annotator: str, only: frozenset[str] | None) -> bool:
        """Whether this person is in the qualification round. Raises NotQualified where that gives them no task."""
        found = await self._controls.qualification(run, annotator)
        if found is None or found.passed:
            return False
        queue = run.config.oracle
        if found.answered >= found.items:
            raise NotQualified(
                f"{annotator} has not passed the qualification round of queue {queue!r}: fewer than "
                f"{self._queues[queue].qualify_share:.0%} of the verdicts were right; ask who leads the queue"
            )
        if only is not None:
            raise NotQualified(
                f"{annotator} has answered {found.answered} of the {found.items} tasks that qualify for queue "
                f"{queue!r}; lease without naming a hypothesis or task first"
            )
        return True
