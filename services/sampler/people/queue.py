"""What people do with the tasks of runs: lease, renew, give back, answer, undo, amend, adjudicate, close, send back.

    LeaseTask ─▶ sweep expired leases ─▶ best waiting task (or a control item) ─▶ lease
    SubmitVerdicts ─▶ answer ─▶ decided once `overlap` people have answered ─▶ `gateway` hands it to the run
    AmendVerdicts, Adjudicate ─▶ the run has recorded the node? ─▶ step, stored with the pairs that replace the run's

Nobody gets a task that others hold or that they have judged themselves. A lease lasts three times the mean answer time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from aeenc import errors
from aeenc.oracle import Candidate
from aeenc.trees import Accessible
from aeenc.values import Answer, Judgement
from services.sampler.oracles.answers import MAX_ADDED
from services.sampler.people import steps
from services.sampler.people.controls import ControlItems, NotQualified, draw
from services.sampler.people.task_store import READ, Step, TaskStore
from services.sampler.people.tasks import Lease, SentAnswer, TaskRecord, check_annotator, corrections, parts_of
from services.sampler.records.node_store import NodeStore
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import MAX_NOTE, Pair, Run
from services.sampler.settings import QueueSettings
from services.store.formats import UNREADABLE
from services.store.requests import Request

LEASE_TIMES = 3.0  # of the mean answer time
MAX_TASKS = 64


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


def numbered(request: Request, number: int) -> Request:
    """The part of a request that makes the thing of this number: each is noted by itself."""
    return replace(request, id=f"{request.id} {number}") if request.id and number else request


class TaskQueue:
    """The human queues of one namespace. Raises the classes of `aeenc.errors`.

    `look_up` gives premises of a run by id, in the same order; `follow` lets a run follow its label.
    """

    def __init__(
        self,
        runs: RunStore,
        nodes: NodeStore,
        tasks: TaskStore,
        queues: Mapping[str, QueueSettings],
        controls: ControlItems,
        look_up: Callable[[Run, Sequence[str], Accessible], Awaitable[list[Candidate]]],
        follow: Callable[..., Awaitable[Run]],
        message_bytes: int,
    ) -> None:
        self._message_bytes = message_bytes
        self._runs, self._nodes, self._tasks = runs, nodes, tasks
        self._queues, self._controls, self._look_up, self._follow = queues, controls, look_up, follow
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
        if leased := await self._leased_before(request):
            return leased
        refused: errors.AeencError | None = None
        for run in await self._open_runs(wanted):
            if len(leased) == most:
                break
            try:
                await self.sweep(run.id)
                only = await self._only(run, wanted)
                while len(leased) < most and (one := await self._take(run, annotator, leased, request, only)):
                    leased.append(one)
            except (NotQualified, errors.TooLarge) as error:  # another queue or run may have tasks for this person
                refused = error
            except UNREADABLE:  # a task: it keeps nobody from those of other runs
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
        sent = await self._with_premises(run, task_id, sent)

        def step(old: TaskRecord, at: float) -> steps.Change:
            change = steps.submit(old, lease_id, sent, client_seq, at, who)
            if change.events and run.state == "CANCELLED":  # one that has failed goes on with its answers
                message = f"run {run.id} was cancelled: the answer is not kept; resume the run, then send it again"
                raise errors.FailedPrecondition(message, reason="RUN_ENDED")
            return change

        record, answer_id = await self._tasks.apply(run.id, task_id, step, queue=run.config.oracle)
        return answer_id, any(one.answer.late for one in record.answers if one.answer.answer_id == answer_id)

    async def undo(self, run_id: str, annotator: str, count: int, request_id: str) -> list[str]:
        """Takes back as many of a person's last answers as it can. Raises the obstacle to the first."""
        check_annotator(annotator)
        await self._runs.get(run_id)
        undone: list[str] = []
        asked = Request(request_id, "UndoVerdicts", {"run_id": run_id, "annotator": annotator, "count": count or 1})
        for number in range(count or 1):
            request = numbered(asked, number)
            try:
                taken_back = await self._tasks.made(request) or await self._undo_last(run_id, annotator, request)
            except errors.FailedPrecondition:
                if not undone:
                    raise
                break
            if not taken_back:
                break
            undone.append(taken_back)
        if not undone:
            raise errors.NotFound(f"{annotator} has no answers in run {run_id} to take back")
        return undone

    async def _undo_last(self, run_id: str, annotator: str, request: Request) -> str:
        """Takes a person's last answer back; empty: they have none. Where another call was faster, the one before."""

        def step(old: TaskRecord, at: float) -> steps.Change:
            given = old.answer_of(annotator)
            return steps.undo(old, given.answer.answer_id, at) if given else steps.Change(old)

        while last := await self._tasks.answered_by(run_id, annotator, -1):
            if taken_back := (await self._tasks.apply(run_id, last[0], step, request))[1]:
                return taken_back
        return ""

    async def amend(self, answer_id: str, sent: SentAnswer, annotator: str, request_id: str, *, others: bool) -> str:
        """Replaces single verdicts of an answer or adds to it, and so do the pairs that the run has made of it.

        The run's worker then lets the tree grow below what is accepted now.
        """
        check_annotator(annotator)
        run_id, task_id = parts_of(answer_id, "answer")
        run = await self._runs.get(run_id)
        asked = {"answer_id": answer_id, "annotator": annotator, "answer": sent.said}
        sent = await self._with_premises(run, task_id, sent)
        return await self._change(
            run,
            task_id,
            lambda old, at: steps.amend(old, answer_id, sent, annotator, at, others=others),
            Request(request_id, "AmendVerdicts", asked),
        )

    async def adjudicate(self, run_id: str, decision: Answer, request_id: str) -> str:
        """Decides a conflict, or changes what was decided. Gives the id of the decision."""
        task_id, adjudicator = decision.task_id, decision.annotator
        check_annotator(adjudicator)
        if replace(decision, verdicts=()) != Answer(task_id=task_id, annotator=adjudicator):
            problem = "holds more than verdicts, which alone are adjudicated; amend it"
            raise errors.InvalidArgument.field("answer", problem)
        run = await self._runs.get(run_id)
        asked = {"run_id": run_id, "task_id": task_id, "annotator": adjudicator, "answer": SentAnswer(decision).said}
        request = Request(request_id, "Adjudicate", asked)
        return await self._change(run, task_id, lambda old, at: steps.adjudicate(old, decision, at), request)

    async def close(
        self,
        run_id: str,
        task_id: str,
        who: str,
        reason: str,
        request_id: str,
        overlap: int,
        *,
        settle: bool,
        others: bool,
    ) -> TaskRecord:
        """Lets the answers that there are, or `overlap` of them, decide a task. Gives the task.

        With `settle` the run goes on with a decision at once; it can then only be amended. Without `others` a person
        may do nothing else.
        """
        check_annotator(who)
        if settle and overlap:
            raise errors.InvalidArgument.field("overlap", f"is {overlap}, and settle is set; give one of them")
        if not settle and not others:
            raise errors.PermissionDenied("this credential may only settle what its person has answered (settle)")
        await self._runs.get(run_id)
        asked = {"run_id": run_id, "task_id": task_id, "annotator": who, "settle": settle, "overlap": overlap}
        request = Request(request_id, "CloseTask", {**asked, "reason": reason})

        def step(old: TaskRecord, at: float) -> steps.Change:
            if settle:
                return steps.hasten(old, who)
            return steps.lower(old, overlap, at, who) if overlap else steps.close(old, who, reason[:MAX_NOTE], at)

        return (await self._tasks.apply(run_id, task_id, step, request))[0]

    async def retrieve_again(
        self, wanted: Wanted, lease_id: str, who: str, *, dry_run: bool
    ) -> tuple[Run, Sequence[str]]:
        """Lets a run follow its label, and withdraws the wanted tasks that nobody has begun, or that `who` holds.

        Gives the run with its version, and the tasks; a dry run changes nothing.
        """
        if lease_id and parts_of(lease_id, "lease")[0] != wanted.run_id:
            raise errors.InvalidArgument.field("lease_id", f"{lease_id} is not of run {wanted.run_id!r}")
        before = await self._runs.get(wanted.run_id)
        await self.send_back(before, wanted, lease_id, who, dry_run=True)  # refuses what there is not
        run = await self._follow(wanted.run_id, dry_run=dry_run)
        return run, await self.send_back(run, wanted, lease_id, who, dry_run=dry_run)

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

    async def _with_premises(self, run: Run, task_id: str, sent: SentAnswer) -> SentAnswer:
        """The answer with the premises of its additions, looked up in the run's generation.

        Raises InvalidArgument for candidates of the task, the query, its ancestors, and refusals.
        """
        additions = sent.answer.additions
        if not additions:
            return sent
        record = (await self._tasks.read(run.id, task_id))[0]
        task = record.task
        if len(additions) > MAX_ADDED:
            problem = f"has {len(additions)} items; at most {MAX_ADDED} in one answer"
            raise errors.InvalidArgument.field("additions", problem)
        accessible = await self._nodes.accessible(run.id, record.node_id)
        added = await self._look_up(run, [verdict.premise_id for verdict in additions], accessible)
        asked = {candidate.id for candidate in task.candidates}
        found = []
        for position, (verdict, premise) in enumerate(zip(additions, added, strict=True)):
            for wrong, where, problem in (
                (
                    premise.id in asked,
                    "premise_id",
                    f"{premise.id!r} is a candidate of the task; judge it among `verdicts`",
                ),
                (
                    premise.text in (task.query, *task.path),
                    "premise_id",
                    f"{premise.id!r} says what is to be explained here or above; a tree may not lead back to itself",
                ),
                (
                    verdict.judgement is not Judgement.EXPLAINS,
                    "judgement",
                    f"is {int(verdict.judgement)}; only premises that explain (EXPLAINS) are added",
                ),
            ):
                if wrong:
                    raise errors.InvalidArgument.field(f"additions[{position}].{where}", problem)
            found.append(replace(verdict, premise_id=premise.id, text=premise.text))
        return replace(sent, answer=replace(sent.answer, additions=tuple(found)))

    async def _change(self, run: Run, task_id: str, step: Step, request: Request) -> str:
        """Applies a step that may change what a run has recorded, with the pairs that replace those. Gives its id.

        Raises until the run has recorded the node: a pair that replaces another must follow it in the log.
        """
        before, _ = await self._tasks.read(run.id, task_id)
        node_id = before.node_id
        not_yet = errors.Unavailable(f"run {run.id} is about to record node {node_id}; try again in a moment")
        if before.settled:
            if made := await self._tasks.made(request):  # once the task is read: an earlier attempt may have settled it
                return made
            tree, _, ordinal = node_id.partition("-")
            found = await self._nodes.trees(run.id, [int(tree)])  # none of a run that was deleted meanwhile
            if not any(int(ordinal) in one.results for one in found):
                if (await self._runs.get(run.id)).ended:
                    problem = f"run {run.id} ended before it recorded node {node_id}"
                    raise errors.FailedPrecondition(f"{problem}; resume it first (aeenc resume {run.id})")
                raise not_yet

        def recorded(old: TaskRecord, at: float) -> steps.Change:
            if old.settled and not before.settled:
                raise not_yet
            return step(old, at)

        return (await self._tasks.apply(run.id, task_id, recorded, request, pairs=partial(corrected_pairs, run)))[1]

    async def _of(self, lease_id: str) -> tuple[Run, str]:
        run_id, task_id = parts_of(lease_id, "lease")
        try:
            return await self._runs.get(run_id), task_id
        except errors.NotFound:
            raise errors.NotFound(f"no lease {lease_id!r}; LeaseTask gives leases") from None

    async def _leased_before(self, request: Request) -> list[LeasedTask]:
        found: list[LeasedTask] = []
        for number in range(MAX_TASKS):
            if not (lease_id := await self._tasks.made(numbered(request, number))):
                break
            found += await self._made(lease_id)
        return found

    async def _made(self, lease_id: str) -> list[LeasedTask]:
        """The lease that a request has made; none where its run was deleted, or nothing is left of it."""
        run_id, task_id = parts_of(lease_id, "lease")
        found, at = await self._tasks.read_many(run_id, [task_id])
        return [
            await self._leased(lease, record, at) for record in found for lease in record.leases if lease.id == lease_id
        ]

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
        room = self._message_bytes - sum(one.record.size_bytes for one in taken)
        async with self._picking:
            overtaken, too_large = True, ""
            while overtaken:
                overtaken, too_large = False, ""
                async for chunk in self._candidates(run, annotator, len(taken), only):
                    found, at = await self._tasks.read_many(run.id, chunk)
                    for record in found:
                        if record.task.task_id in mine or not record.open_to(annotator, at):
                            continue
                        if (size := record.size_bytes) > room:
                            if taken:
                                return None
                            too_large = f"task {record.task.task_id} of run {run.id} takes {size:,} bytes"
                            continue
                        lease_id = f"{run.id}.{record.task.task_id}.{uuid.uuid4().hex[:12]}"
                        change = steps.lease(record, annotator, lease_id, at, lease_s)
                        part = numbered(request, len(taken))
                        if await self._tasks.write(change, at, part):
                            return await self._leased(change.record.leases[-1], change.record, at)
                        if made := await self._tasks.made(part):  # by another attempt of the same request
                            return next(iter(await self._made(made)), None)
                        overtaken = True
        if too_large:
            limit = f"over the limit of {self._message_bytes:,} of an answer"
            remedy = "raise the sampler's MESSAGE_BYTES, or start a run with a smaller k"
            raise errors.TooLarge(f"{too_large}, {limit}; {remedy}")
        return None

    async def _leased(self, lease: Lease, record: TaskRecord, at: float) -> LeasedTask:
        [root] = await self._nodes.hypotheses(record.run_id, [record.node_id])
        return LeasedTask(lease, record, at, root.id)

    async def _candidates(
        self, run: Run, annotator: str, taken: int, only: frozenset[str] | None
    ) -> AsyncIterator[Sequence[str]]:
        """The waiting tasks that this person has not judged, after a control item when one is due, in parts.

        The first part is one task, which mostly is open, and each is twice as long as the one before. Among tasks that
        somebody has asked for (`only`), a control item would be known as one. Raises NotQualified.
        """
        if not await self._tasks.waiting(run.id, 0, 1):
            return
        qualifies = await self._controls.qualifies(run, annotator, is_named=only is not None)
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


def corrected_pairs(run: Run, record: TaskRecord, who: str) -> list[Pair]:
    """A pair for each candidate whose verdict or grade has changed since the run went on, best rank first."""
    changed = corrections(record)
    return [
        run.pair(
            record.task.query,
            candidate,
            verdict,
            node_id=record.node_id,
            annotator=who,
            note=record.note[:MAX_NOTE],
            amended=True,
            version=record.task.model_version,
        )
        for candidate in record.candidates
        if (verdict := changed.get(candidate.id)) is not None
    ]
