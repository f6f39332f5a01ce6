"""Pure steps of a task, from one record to the next, with the events of each.

    WAITING ─ lease, submit (overlap times) ─▶ DECIDED ─ undo_s later: settle ─▶ SETTLED ─ amend ─▶ corrections
       ▲                                          │ ▲
       └───────────────── undo ───────────────────┘ └── adjudicate, close ── CONFLICT ◀── people disagree
    WAITING ─ close ─▶ DECIDED by the answers that there are; without any, everything is unseen
    WAITING ─ send_back, before anybody has begun ─▶ WITHDRAWN ─ put_back, where the same is asked again ─▶ WAITING

No clock, no storage, no randomness: times and ids are arguments. A step that is not allowed raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from aeenc import errors
from aeenc.oracle import Task
from aeenc.values import Answer, Judgement, TaskEvent, TaskEventKind, TaskState, Verdict
from services.sampler.acs.algorithm import explains
from services.sampler.oracles.answers import check
from services.sampler.people.tasks import (
    Lease,
    SentAnswer,
    TaskAnswer,
    TaskRecord,
    addition,
    by_premise,
    complete,
    corrections,
    decide,
    moment_of,
    read_verdicts,
)

MAX_HELD_S = 3600.0  # after an hour without an answer a task goes to another person, renewed or not
MIN_ELAPSED_S = 0.1


@dataclass(frozen=True)
class Change:
    """A step: the record after it, its events, and the id that the caller gets."""

    record: TaskRecord
    events: tuple[TaskEvent, ...] = ()
    id: str = ""

    @property
    def corrects(self) -> str:
        """Who has changed what the run has gone on with; empty: nobody."""
        said = (one.person for one in self.events if one.kind in (TaskEventKind.AMENDED, TaskEventKind.ADJUDICATED))
        return next(said, "") if self.record.settled else ""


def _event(kind: TaskEventKind, person: str = "", **said: Any) -> TaskEvent:
    return TaskEvent(kind=kind, person=person, **said)


def _changed(record: TaskRecord, some: Iterable[Lease], **changes: Any) -> TaskRecord:
    """The record with changes of some of its leases."""
    ids = {one.id for one in some}
    return replace(record, leases=tuple(replace(one, **changes) if one.id in ids else one for one in record.leases))


def _expired(over: list[Lease]) -> tuple[TaskEvent, ...]:
    return tuple(_event(TaskEventKind.EXPIRED, lease.annotator) for lease in over)


def expire(record: TaskRecord, at: float) -> Change:
    """Ends the leases whose time is over. The answer may still come; it is then late."""
    over = [lease for lease in record.leases if not lease.ended and lease.expires_at <= at]
    return Change(_changed(record, over, ended="EXPIRED"), _expired(over))


def lease(record: TaskRecord, annotator: str, lease_id: str, at: float, lease_s: float) -> Change:
    """Gives the task to a person who may take it. Of their leases that had ended before, nothing is left."""
    over = {one.id for one in record.leases if one.ended and one.annotator == annotator}
    swept = expire(record, at)
    taken = Lease(lease_id, annotator, at, at + min(lease_s, MAX_HELD_S))
    after = replace(swept.record, leases=(*(one for one in swept.record.leases if one.id not in over), taken))
    return Change(after, (*swept.events, _event(TaskEventKind.LEASED, annotator)), id=lease_id)


def renew(record: TaskRecord, lease_id: str, at: float, lease_s: float, who: str = "") -> Change:
    """Lets a lease end a lease time from now, and an hour after it was given at the latest."""
    held = _lease(record, lease_id, who)
    if not held.live(at):
        why = {"": "its time has run out", "EXPIRED": "its time has run out", "MOOT": "others have answered"}
        message = f"lease {lease_id} is over ({why.get(held.ended, held.ended.lower())})"
        raise errors.FailedPrecondition(message, reason="LEASE_EXPIRED")
    until = max(held.expires_at, min(at + lease_s, held.taken_at + MAX_HELD_S))
    return Change(_changed(record, [held], expires_at=until))


def release(record: TaskRecord, lease_id: str, at: float, reason: str, who: str = "") -> Change:
    """Gives the task back unanswered; it goes to the end of the queue. A lease that is over stays as it is."""
    held = _lease(record, lease_id, who)
    if not held.live(at):
        return Change(record)
    given_back = replace(_changed(record, [held], ended="RELEASED"), returned=record.returned + 1)
    return Change(given_back, (_event(TaskEventKind.RELEASED, held.annotator, reason=reason),))


def submit(record: TaskRecord, lease_id: str, sent: SentAnswer, seq: int, at: float, who: str = "") -> Change:
    """Takes an answer, in time or late, once. A retry of the same `seq` (0: none) gets the id of its first attempt."""
    held = _lease(record, lease_id, who)
    if held.ended == "ANSWERED" and seq and held.client_seq == seq:
        if held.said != sent.said:
            message = f"client_seq {seq} is that of another answer under lease {lease_id}, {held.answer_id}"
            raise errors.AlreadyExists(f"{message}; amend that one")
        return Change(record, id=held.answer_id)
    for refused, reason, problem in (
        (
            held.ended == "ANSWERED",
            "LEASE_ANSWERED",
            f"was answered before, as {held.answer_id}; amend that answer; if it was taken back, lease the task again",
        ),
        (held.ended == "RELEASED", "LEASE_RELEASED", "was given back; lease the task again"),
        (record.withdrawn, "TASK_WITHDRAWN", "has a task that was retrieved again after it had ended; lease a new one"),
        (
            len(record.answers) >= record.overlap or record.answer_of(held.annotator),
            "TASK_ANSWERED",
            "has a task that was answered under another lease; nothing is left to do",
        ),
    ):
        if refused:
            raise errors.FailedPrecondition(f"lease {lease_id} {problem}", reason=reason)
    chosen = read_verdicts(record.task.candidates, sent.answer.verdicts)
    added = read_verdicts(map(addition, sent.answer.additions), sent.answer.additions, "additions")
    check(record.task, sent.answer, chosen | added)
    took_s = at - held.taken_at if sent.elapsed_s is None else sent.elapsed_s
    took_s = min(max(took_s, MIN_ELAPSED_S), MAX_HELD_S)
    answer_id, late = _answer_id(record), not held.live(at)
    given = complete(record.task.candidates, chosen, added, sent)
    answer = replace(given, annotator=held.annotator, answer_id=answer_id, late=late, at=moment_of(at))
    swept = expire(record, at)
    ended = _changed(swept.record, [held], ended="ANSWERED", answer_id=answer_id, client_seq=seq, said=sent.said)
    answers = (*record.answers, TaskAnswer(answer, took_s))
    after = replace(ended, answers=answers, made=record.made + 1, undone=False)
    # A late answer makes leases needless: the person's other ones, and the youngest beyond the room.
    others = [one for one in after.held(at) if one.annotator != held.annotator]
    kept = sorted(others, key=lambda one: one.taken_at)[: after.overlap - len(answers)]
    surplus = [one for one in after.held(at) if one not in kept]
    told = _event(TaskEventKind.ANSWERED, held.annotator, answer=answer)
    return _decided(
        Change(_changed(after, surplus, ended="MOOT"), (*swept.events, *_expired(surplus), told), id=answer_id), at
    )


def undo(record: TaskRecord, answer_id: str, at: float) -> Change:
    """Takes an answer back, as long as the run has not used it. A closed task is open again."""
    given = _answer(record, answer_id)
    adjudicated = record.adjudicated.keys() - {*record.disputed}
    if record.settled or record.final or adjudicated or given.own:
        amended_by = given.by if given.by != given.annotator else "somebody else before"
        why = f"was amended by {amended_by}" if given.own else f"has become pairs of run {record.run_id}"
        why = "was adjudicated" if adjudicated else why
        raise errors.FailedPrecondition(f"answer {answer_id} {why}; amend it instead", reason="ANSWER_USED")
    left = tuple(other for other in record.answers if other is not given)
    if record.reopens:
        record = replace(record, overlap=record.reopens, reopens=0, adjudicated={}, adjudicator="", disputed=())
    told = _event(TaskEventKind.UNDONE, given.annotator, former_answer_id=answer_id)
    after = replace(record, answers=left, undone=True)
    return _decided(Change(after, (told,), id=answer_id), at)


def amend(
    record: TaskRecord, answer_id: str, sent: SentAnswer, annotator: str, at: float, *, others: bool = True
) -> Change:
    """Replaces single verdicts of an answer that holds, or adds to it; the new answer has an id of its own.

    Without `others` a person may change only their own.
    """
    given, new = _answer(record, answer_id), sent.answer
    before = given.answer
    if not others and annotator != given.annotator:
        raise errors.PermissionDenied(
            f"answer {answer_id} is by {given.annotator}; only its author or an adjudicator amends it"
        )
    chosen = read_verdicts((*record.task.candidates, *map(addition, before.additions)), new.verdicts)
    chosen |= read_verdicts(map(addition, new.additions), new.additions, "additions")
    if not chosen and replace(new, annotator="") == Answer():
        raise errors.InvalidArgument.field("verdicts", "is empty; give those that change")
    seen = {one.premise_id: one.in_sight_ms for one in before.verdicts}  # by its author, who alone adds to it
    is_author = annotator == given.annotator
    chosen = {
        one: replace(said, in_sight_ms=max(seen.get(one, 0), said.in_sight_ms * is_author))
        for one, said in chosen.items()
    }
    holding = {**given.verdicts, **chosen}
    check(record.task, new, holding)
    if decided := [premise_id for premise_id in chosen if premise_id in record.adjudicated]:
        raise errors.FailedPrecondition(
            f"{decided} of task {record.task.task_id!r} were decided by {record.adjudicator}, which stands above every "
            "answer; adjudicate the task again",
            reason="ADJUDICATED",
        )
    own = given.own
    if annotator != given.annotator:
        own = own or tuple(given.verdicts.values())
    elif own:
        own = tuple({**by_premise(own), **chosen}.values())
    asked = {candidate.id for candidate in record.task.candidates}
    refused = {premise_id for premise_id, verdict in chosen.items() if not explains(verdict)}
    amended = replace(
        before,
        answer_id=_answer_id(record),
        verdicts=tuple(one for one in holding.values() if one.premise_id in asked),
        additions=tuple(one for one in holding.values() if one.premise_id not in asked),
        note=new.note or before.note,
        inference=new.inference or before.inference,
        node_verdict=new.node_verdict or before.node_verdict,
        alternatives=new.alternatives
        or tuple(one for one in before.alternatives if refused.isdisjoint(one.premise_ids)),
        intermediates=tuple(dict.fromkeys((*before.intermediates, *new.intermediates))),
        written=tuple(dict.fromkeys((*before.written, *new.written))),
        at=moment_of(at),
    )
    answer = replace(given, answer=amended, by=annotator, own=own)
    answers = tuple(answer if other is given else other for other in record.answers)
    told = _event(TaskEventKind.AMENDED, annotator, answer=amended, former_answer_id=answer_id)
    after = replace(record, answers=answers, made=record.made + 1, decided_at=0.0)
    return _decided(Change(after, (told,), id=amended.answer_id), at)


def adjudicate(record: TaskRecord, decision: Answer, at: float) -> Change:
    """Decides the candidates in conflict, and others that the adjudicator names. Again: changes an earlier decision."""
    if not record.conflicts and not record.adjudicated:
        raise errors.NotFound(f"task {record.task.task_id!r} of run {record.run_id} is not in conflict")
    who = decision.annotator
    read = read_verdicts(record.candidates, decision.verdicts)
    chosen = {premise_id: replace(verdict, annotator=who) for premise_id, verdict in read.items()}
    missing = [premise_id for premise_id in record.conflicts if premise_id not in chosen]
    if missing:
        raise errors.InvalidArgument.field(
            "verdicts",
            f"decide nothing on {', '.join(missing)}, where annotators disagree; say of each that it explains, "
            "refuses or abstains",
        )
    if not chosen:
        raise errors.InvalidArgument.field("verdicts", "is empty; give those that change")
    after = replace(
        record,
        adjudicated={**record.adjudicated, **chosen},
        adjudicator=who,
        made=record.made + 1,
        disputed=tuple(one for one in record.disputed if one not in chosen),
    )
    told = _event(TaskEventKind.ADJUDICATED, who, answer=Answer(annotator=who, verdicts=tuple(chosen.values())))
    return _decided(Change(after, (told,), id=_answer_id(record)), at)


def lower(record: TaskRecord, overlap: int, at: float, who: str = "") -> Change:
    """Lets fewer people judge the task, which may decide it; more are not asked of a task that waits already."""
    if record.control or record.settled or record.withdrawn or overlap >= record.overlap:
        return Change(record)
    told = _event(TaskEventKind.LOWERED, who, overlap=overlap)
    moot = record.held(at) if len(record.answers) >= overlap else []
    return _decided(Change(replace(_changed(record, moot, ended="MOOT"), overlap=overlap), (told,), id="lowered"), at)


def hasten(record: TaskRecord, annotator: str) -> Change:
    """Lets the run go on with the decision now, instead of after the time in which it can be taken back."""
    if record.control or record.settled or record.final:
        return Change(record, id="final")
    if record.state is not TaskState.DECIDED:
        missing = record.overlap - len(record.answers)
        why = "adjudicate it" if record.conflicts else f"{missing} of {record.overlap} answers are missing"
        message = f"task {record.task.task_id!r} of run {record.run_id} is not decided; {why}"
        raise errors.FailedPrecondition(message, reason="TASK_UNDECIDED")
    if record.answer_of(annotator) is None:
        message = f"{annotator} has not answered task {record.task.task_id!r}; those who have may let the run go on"
        raise errors.FailedPrecondition(message, reason="NOT_ANSWERED")
    return Change(replace(record, final=True), (_event(TaskEventKind.HASTENED, annotator),), id="final")


def close(record: TaskRecord, adjudicator: str, reason: str, at: float) -> Change:
    """Decides the task by the answers that there are. What they leave open, nobody has seen, or they dispute, stays so.

    Its overlap falls to the number of answers, and the disputed candidates count as adjudicated by an abstention.
    """
    if record.settled:
        message = f"run {record.run_id} has gone on with task {record.task.task_id!r}; amend or adjudicate it instead"
        raise errors.FailedPrecondition(message, reason="TASK_SETTLED")
    if record.control or record.state in (TaskState.DECIDED, TaskState.WITHDRAWN):
        return Change(record)
    ended = replace(
        _changed(record, record.held(at), ended="MOOT"), overlap=len(record.answers), reopens=record.overlap
    )
    answered = _decided(Change(ended), at).record
    disputed = by_premise(
        Verdict(premise_id=one, judgement=Judgement.ABSTAIN, annotator=adjudicator) for one in answered.conflicts
    )
    closed = replace(answered, adjudicated={**record.adjudicated, **disputed}, disputed=(*disputed,))
    if disputed:
        closed = replace(closed, adjudicator=adjudicator)
    decision = Answer(annotator=adjudicator, verdicts=tuple(disputed.values())) if disputed else None
    told = _event(TaskEventKind.CLOSED, adjudicator, answer=decision, reason=reason)
    return _decided(Change(closed, (told,), id="closed"), at)


def settle(record: TaskRecord, at: float, undo_s: float, node_id: str) -> Change:
    """Hands the decision to a node of the run once it can no longer be taken back; until then nothing happens."""
    if record.state is not TaskState.DECIDED or (at < record.decided_at + undo_s and not record.final):
        return Change(record)
    return Change(replace(record, settled=record.decision, node_id=node_id), (_event(TaskEventKind.SETTLED),))


def send_back(record: TaskRecord, version: str | None, at: float, lease_id: str = "", who: str = "") -> Change:
    """Withdraws a task, so that an encoder version retrieves its node again; None: so that nobody is asked.

    Nothing happens where somebody has answered, somebody else than the holder of `lease_id` is at work, or this version
    has retrieved it.
    """
    if lease_id:
        _lease(record, lease_id, who)
    begun = record.control or record.state is not TaskState.WAITING or record.answers
    if begun or record.task.model_version == version or any(held.id != lease_id for held in record.held(at)):
        return Change(record)
    withdrawn = replace(_changed(record, record.held(at), ended="RELEASED"), withdrawn=True)
    return Change(withdrawn, (_event(TaskEventKind.WITHDRAWN, who, model_version=version or ""),), id="withdrawn")


def put_back(record: TaskRecord, task: Task) -> Change:
    """Lets a withdrawn task wait again, where its node was retrieved again and asks the same."""
    if not record.withdrawn:
        return Change(record)
    asked = replace(task, task_id=record.task.task_id)
    now = replace(record, task=asked, node_id=task.task_id, withdrawn=False)
    return Change(now, (_event(TaskEventKind.QUEUED),))


def _decided(change: Change, at: float) -> Change:
    """The decision after a change of answers, and a CONFLICT event where there was none before."""
    record = change.record
    if record.control or len(record.answers) < record.overlap:
        return replace(change, record=replace(record, decision={}, conflicts=(), decided_at=0.0))
    decision, conflicts = decide(record)
    events = change.events
    if conflicts and not record.conflicts:
        events = (*events, _event(TaskEventKind.CONFLICT))
    decided_at = 0.0 if conflicts else (record.decided_at or at)
    after = replace(record, decision=decision, conflicts=conflicts, decided_at=decided_at)
    after = replace(after, corrected=tuple(corrections(after)))
    return replace(change, record=after, events=events)


def _lease(record: TaskRecord, lease_id: str, who: str = "") -> Lease:
    """The lease. A caller who acts for one person only (`who`) may not use that of another."""
    for held in record.leases:
        if held.id == lease_id:
            if who and held.annotator != who:
                raise errors.PermissionDenied(f"lease {lease_id} is held by {held.annotator}, not by {who}")
            return held
    raise errors.NotFound(f"no lease {lease_id!r}; LeaseTask gives leases")


def _answer(record: TaskRecord, answer_id: str) -> TaskAnswer:
    for given in record.answers:
        if given.answer.answer_id == answer_id:
            return given
    number = answer_id.rpartition(".")[2]
    if number.isdecimal() and 1 <= int(number) <= record.made:
        raise errors.FailedPrecondition(f"answer {answer_id} no longer holds: it was amended or taken back")
    raise errors.NotFound(f"no answer {answer_id!r}; SubmitVerdicts and ListTasks name answers")


def _answer_id(record: TaskRecord) -> str:
    return f"{record.run_id}.{record.task.task_id}.{record.made + 1}"
