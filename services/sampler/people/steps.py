"""Pure steps of a task, from one record to the next, with the log entries and events of each.

    WAITING ─ lease, submit (overlap times) ─▶ DECIDED ─ undo_s later: settle ─▶ SETTLED ─ amend ─▶ corrections
       ▲                                          │ ▲
       └───────────────── undo ───────────────────┘ └── adjudicate, close ── CONFLICT ◀── people disagree
    WAITING ─ close ─▶ DECIDED by the answers that there are; without any, everything is unseen
    WAITING ─ send_back, before anybody has begun ─▶ WITHDRAWN ─ put_back, where the same is asked again ─▶ WAITING

No clock, no storage, no randomness: times and ids are arguments. A step that is not allowed raises and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aeenc import errors
from aeenc.oracle import Task
from services.sampler.oracles.statements import check
from services.sampler.people.decisions import SentAnswer, SentVerdicts, accepted_in, complete, decide, read_verdicts
from services.sampler.people.tasks import (
    EventName,
    Lease,
    TaskAnswer,
    TaskRecord,
    VerdictKind,
    VerdictKinds,
    answer_dict,
    codes,
)

MAX_HELD_S = 3600.0  # after an hour without an answer a task goes to another person, renewed or not
MIN_ELAPSED_S = 0.1

Events = tuple[tuple[EventName, str], ...]


@dataclass(frozen=True)
class Change:
    """A step: the record after it, entries for the verdict log and the watchers, and the id that the caller gets.

    `answered` is an answer that holds from now on, `undone` one that no longer holds, `person` the one who gave them;
    both together: the one takes the other's place. `corrects` names who changed what the run has gone on with. `asks`
    anew: the task's candidates are the same, their scores and version are not.
    """

    record: TaskRecord
    events: Events = ()
    log: tuple[dict[str, Any], ...] = ()
    id: str = ""
    elapsed_s: float | None = None
    answered: str = ""
    undone: str = ""
    person: str = ""
    corrects: str = ""
    asks: bool = False


def expire(record: TaskRecord, at: float) -> Change:
    """Ends the leases whose time is over. The answer may still come; it is then late."""
    over = [lease for lease in record.leases if not lease.ended and lease.expires_at <= at]
    leases = tuple(replace(lease, ended="EXPIRED") if lease in over else lease for lease in record.leases)
    return Change(replace(record, leases=leases), tuple(("EXPIRED", lease.annotator) for lease in over))


def lease(record: TaskRecord, annotator: str, lease_id: str, at: float, lease_s: float) -> Change:
    """Gives the task to a person who may take it. Of their leases that had ended before, nothing is left."""
    over = {one.id for one in record.leases if one.ended and one.annotator == annotator}
    swept = expire(record, at)
    taken = Lease(lease_id, annotator, at, at + min(lease_s, MAX_HELD_S))
    after = replace(swept.record, leases=(*(one for one in swept.record.leases if one.id not in over), taken))
    return Change(after, (*swept.events, ("LEASED", annotator)), id=lease_id)


def renew(record: TaskRecord, lease_id: str, at: float, lease_s: float, who: str = "") -> Change:
    """Lets a lease end a lease time from now, and an hour after it was given at the latest."""
    held = _lease(record, lease_id, who)
    if not held.live(at):
        raise errors.FailedPrecondition(f"lease {lease_id} is over ({_why(held)})", reason="LEASE_EXPIRED")
    until = max(held.expires_at, min(at + lease_s, held.taken_at + MAX_HELD_S))
    return Change(_with_lease(record, replace(held, expires_at=until)))


def release(record: TaskRecord, lease_id: str, at: float, reason: str, who: str = "") -> Change:
    """Gives the task back unanswered; it goes to the end of the queue. A lease that is over stays as it is."""
    held = _lease(record, lease_id, who)
    if not held.live(at):
        return Change(record)
    entry = {"op": "RELEASED", "annotator": held.annotator, "lease_id": lease_id, "reason": reason, "at": at}
    given_back = replace(_with_lease(record, replace(held, ended="RELEASED")), returned=record.returned + 1)
    return Change(given_back, (("RELEASED", held.annotator),), (entry,))


def submit(
    record: TaskRecord,
    lease_id: str,
    sent: SentAnswer,
    seq: int,
    at: float,
    who: str = "",
) -> Change:
    """Takes an answer, in time or late, once. A retry of the same `seq` (0: none) gets the id of its first attempt."""
    held = _lease(record, lease_id, who)
    if held.ended == "ANSWERED":
        if seq and held.client_seq == seq:
            if held.said and held.said != sent.said:
                message = f"client_seq {seq} is that of another answer under lease {lease_id}, {held.answer_id}"
                raise errors.AlreadyExists(f"{message}; amend that one")
            return Change(record, id=held.answer_id)
        message = (
            f"lease {lease_id} was answered before, as {held.answer_id}; amend that answer, or, if it was taken back, "
            "lease the task again"
        )
        raise errors.FailedPrecondition(message, reason="LEASE_ANSWERED")
    if held.ended == "RELEASED":
        message = f"lease {lease_id} was given back; lease the task again"
        raise errors.FailedPrecondition(message, reason="LEASE_RELEASED")
    if record.withdrawn:
        message = f"the task of lease {lease_id} was retrieved again after its lease had ended; lease the new one"
        raise errors.FailedPrecondition(message, reason="TASK_WITHDRAWN")
    if len(record.answers) >= record.overlap or any(a.annotator == held.annotator for a in record.answers):
        message = f"the task of lease {lease_id} was answered under another lease; nothing is left to do"
        raise errors.FailedPrecondition(message, reason="TASK_ANSWERED")
    chosen = read_verdicts(record.task.candidates, sent.verdicts)
    added = read_verdicts(sent.added, sent.additions, "additions")
    said = chosen | added
    check(record.task, sent, accepted_in(said.kinds))
    took_s = min(max(at - held.taken_at if sent.elapsed_s is None else sent.elapsed_s, MIN_ELAPSED_S), MAX_HELD_S)
    answer = TaskAnswer(
        **{**sent.parts(), "annotator": held.annotator},
        id=_answer_id(record),
        lease_id=lease_id,
        verdicts=complete(record.task, chosen.kinds, added.kinds, sent),
        grades=said.grades,
        remarks=said.remarks,
        seen_upto=sent.seen_upto,
        elapsed_s=took_s,
        late=not held.live(at),
        at=at,
        added=sent.added,
    )
    swept = expire(record, at)
    over = replace(held, ended="ANSWERED", answer_id=answer.id, client_seq=seq, said=sent.said)
    after = _with_lease(swept.record, over)
    after = replace(after, answers=(*record.answers, answer), made=record.made + 1, undone=False)
    after, surplus = _without_surplus(after, held.annotator, at)
    return _decided(
        Change(
            after,
            (*swept.events, *surplus, ("ANSWERED", held.annotator)),
            ({"op": "ANSWERED", **answer_dict(answer)},),
            id=answer.id,
            elapsed_s=took_s,
            answered=answer.id,
            person=held.annotator,
        ),
        at,
    )


def undo(record: TaskRecord, answer_id: str, at: float) -> Change:
    """Takes an answer back, as long as the run has not used it. A closed task is open again."""
    answer = _answer(record, answer_id)
    adjudicated = record.adjudicated.keys() - {*record.disputed}
    if record.settled or record.final or adjudicated or answer.own:
        amended_by = answer.by if answer.by != answer.annotator else "somebody else before"
        why = f"was amended by {amended_by}" if answer.own else f"has become pairs of run {record.run_id}"
        why = "was adjudicated" if adjudicated else why
        raise errors.FailedPrecondition(f"answer {answer_id} {why}; amend it instead", reason="ANSWER_USED")
    entry = {"op": "UNDONE", "answer_id": answer_id, "annotator": answer.annotator, "at": at}
    left = tuple(other for other in record.answers if other.id != answer_id)
    if record.reopens:
        record = replace(record, overlap=record.reopens, reopens=0, adjudicated={}, adjudicator="", disputed=())
    change = Change(
        replace(record, answers=left, undone=True),
        (("UNDONE", answer.annotator),),
        (entry,),
        id=answer_id,
        undone=answer_id,
        person=answer.annotator,
    )
    return _decided(change, at)


def amend(
    record: TaskRecord, answer_id: str, sent: SentAnswer, annotator: str, at: float, *, others: bool = True
) -> Change:
    """Replaces single verdicts of an answer that holds, or adds to it; the new answer has an id of its own.

    Without `others` a person may change only their own.
    """
    answer = _answer(record, answer_id)
    if not others and annotator != answer.annotator:
        raise errors.PermissionDenied(
            f"answer {answer_id} is by {answer.annotator}; only its author or an adjudicator amends it"
        )
    said = read_verdicts((*record.task.candidates, *answer.added), sent.verdicts)
    said |= read_verdicts(sent.added, sent.additions, "additions")
    chosen = said.kinds
    if not chosen and sent.empty:
        raise errors.InvalidArgument.field("verdicts", "is empty; give those that change")
    holding = {**answer.verdicts, **chosen}
    check(record.task, sent, accepted_in(holding))
    if decided := [premise_id for premise_id in chosen if premise_id in record.adjudicated]:
        raise errors.FailedPrecondition(
            f"{decided} of task {record.task.task_id!r} were decided by {record.adjudicator}, which stands above every "
            "answer; adjudicate the task again",
            reason="ADJUDICATED",
        )
    own = answer.own
    if annotator != answer.annotator:
        own = own or answer.verdicts
    elif own:
        own = {**own, **chosen}
    amended = replace(
        answer,
        id=_answer_id(record),
        verdicts=holding,
        own=own,
        grades={**{k: v for k, v in answer.grades.items() if k not in chosen}, **said.grades},
        remarks={**{k: v for k, v in answer.remarks.items() if k not in chosen}, **said.remarks},
        note=sent.note or answer.note,
        inference=sent.inference or answer.inference,
        node_verdict=sent.node_verdict or answer.node_verdict,
        alternatives=sent.alternatives
        or tuple(one for one in answer.alternatives if all(chosen.get(key, VerdictKind.LEAF).accepts for key in one)),
        added=tuple({one.id: one for one in (*answer.added, *sent.added)}.values()),
        intermediates=tuple(dict.fromkeys((*answer.intermediates, *sent.intermediates))),
        written=tuple(dict.fromkeys((*answer.written, *sent.written))),
        at=at,
        by=annotator,
    )
    answers = tuple(amended if other.id == answer_id else other for other in record.answers)
    entry = {"op": "AMENDED", "supersedes": answer_id, **answer_dict(amended)}
    change = Change(
        _regraded(record, replace(record, answers=answers, made=record.made + 1, decided_at=0.0)),
        (("AMENDED", annotator),),
        (entry,),
        id=amended.id,
        answered=amended.id,
        undone=answer_id,
        person=answer.annotator,
        corrects=annotator if record.settled else "",
    )
    return _decided(change, at)


def adjudicate(record: TaskRecord, verdicts: SentVerdicts, adjudicator: str, at: float) -> Change:
    """Decides the candidates in conflict, and others that the adjudicator names. Again: changes an earlier decision."""
    if not record.conflicts and not record.adjudicated:
        raise errors.NotFound(f"task {record.task.task_id!r} of run {record.run_id} is not in conflict")
    said = read_verdicts(record.candidates, verdicts)
    chosen = said.kinds
    missing = [premise_id for premise_id in record.conflicts if premise_id not in chosen]
    if missing:
        raise errors.InvalidArgument.field(
            "verdicts",
            f"decide nothing on {', '.join(missing)}, where annotators disagree; say of each that it explains, "
            "refuses or abstains",
        )
    if not chosen:
        raise errors.InvalidArgument.field("verdicts", "is empty; give those that change")
    answer_id = _answer_id(record)
    entry = {"op": "ADJUDICATED", "answer_id": answer_id, "annotator": adjudicator, "choices": codes(chosen), "at": at}
    after = replace(
        record,
        adjudicated={**record.adjudicated, **chosen},
        adjudicated_grades={k: v for k, v in record.adjudicated_grades.items() if k not in chosen} | said.grades,
        adjudicator=adjudicator,
        made=record.made + 1,
        disputed=tuple(one for one in record.disputed if one not in chosen),
    )
    change = Change(
        _regraded(record, after),
        (("ADJUDICATED", adjudicator),),
        ({**entry, "grades": said.grades},),
        id=answer_id,
        corrects=adjudicator if record.settled else "",
    )
    return _decided(change, at)


def lower(record: TaskRecord, overlap: int, at: float, who: str = "") -> Change:
    """Lets fewer people judge the task, which may decide it; more are not asked of a task that waits already."""
    if record.control or record.settled or record.withdrawn or overlap >= record.overlap:
        return Change(record)
    entry = {"op": "LOWERED", "annotator": who, "overlap": overlap, "at": at}
    return _decided(Change(replace(record, overlap=overlap), (("LOWERED", who),), (entry,), id="lowered"), at)


def hasten(record: TaskRecord, annotator: str, at: float) -> Change:
    """Lets the run go on with the decision now, instead of after the time in which it can be taken back."""
    if record.control or record.settled or record.final:
        return Change(record, id="final")
    if record.state != "DECIDED":
        missing = record.overlap - len(record.answers)
        why = "adjudicate it" if record.conflicts else f"{missing} of {record.overlap} answers are missing"
        message = f"task {record.task.task_id!r} of run {record.run_id} is not decided; {why}"
        raise errors.FailedPrecondition(message, reason="TASK_UNDECIDED")
    if all(answer.annotator != annotator for answer in record.answers):
        message = f"{annotator} has not answered task {record.task.task_id!r}; those who have may let the run go on"
        raise errors.FailedPrecondition(message, reason="NOT_ANSWERED")
    entry = {"op": "HASTENED", "annotator": annotator, "at": at}
    return Change(replace(record, final=True), (("HASTENED", annotator),), (entry,), id="final")


def close(record: TaskRecord, adjudicator: str, reason: str, at: float) -> Change:
    """Decides the task by the answers that there are. What they leave open, nobody has seen, or they dispute, stays so.

    Its overlap falls to the number of answers, and the disputed candidates count as adjudicated by an abstention.
    """
    if record.settled:
        message = f"run {record.run_id} has gone on with task {record.task.task_id!r}; amend or adjudicate it instead"
        raise errors.FailedPrecondition(message, reason="TASK_SETTLED")
    if record.control or record.state in ("DECIDED", "WITHDRAWN"):
        return Change(record)
    leases = tuple(replace(lease, ended="MOOT") if lease.live(at) else lease for lease in record.leases)
    answered = _decided(Change(replace(record, leases=leases, overlap=len(record.answers))), at).record
    disputed = dict.fromkeys(answered.conflicts, VerdictKind.ABSTAINED)
    closed = replace(answered, adjudicated={**record.adjudicated, **disputed}, disputed=(*disputed,))
    closed = replace(closed, reopens=record.overlap)
    if disputed:
        closed = replace(closed, adjudicator=adjudicator)
    entry = {"op": "CLOSED", "annotator": adjudicator, "choices": codes(disputed), "reason": reason, "at": at}
    return _decided(Change(closed, (("CLOSED", adjudicator),), (entry,), id="closed"), at)


def settle(record: TaskRecord, at: float, undo_s: float, node_id: str) -> Change:
    """Hands the decision to a node of the run once it can no longer be taken back; until then nothing happens.

    Of a task that was sent back, the node learns at once.
    """
    if record.withdrawn == "ASKED":
        return Change(replace(record, withdrawn="DONE"))
    if record.state != "DECIDED" or (at < record.decided_at + undo_s and not record.final):
        return Change(record)
    return Change(replace(record, settled=record.decision, node_id=node_id), (("SETTLED", ""),))


def send_back(record: TaskRecord, version: str | None, at: float, lease_id: str = "", who: str = "") -> Change:
    """Withdraws a task, so that an encoder version retrieves its node again; None: so that nobody is asked.

    Nothing happens where somebody has answered, somebody else than the holder of `lease_id` is at work, or this version
    has retrieved it.
    """
    if lease_id:
        _lease(record, lease_id, who)
    if record.control or record.state != "WAITING" or record.answers or record.task.model_version == version:
        return Change(record)
    if any(held.id != lease_id for held in record.held(at)):
        return Change(record)
    leases = tuple(replace(lease, ended="RELEASED") if lease.live(at) else lease for lease in record.leases)
    entry = {"op": "WITHDRAWN", "annotator": who, "version": version or "", "at": at}
    withdrawn = replace(record, leases=leases, withdrawn="ASKED")
    return Change(withdrawn, (("WITHDRAWN", who),), (entry,), id="withdrawn")


def put_back(record: TaskRecord, task: Task) -> Change:
    """Lets a withdrawn task wait again, where its node was retrieved again and asks the same."""
    if not record.withdrawn:
        return Change(record)
    asked = replace(task, task_id=record.task.task_id)
    return Change(replace(record, task=asked, withdrawn=""), (("QUEUED", ""),), asks=True)


def corrections(record: TaskRecord) -> VerdictKinds:
    """The current verdicts that differ from those the run went on with, in kind or grade, now or at any time.

    In conflict: abstained.
    """
    if not record.settled:
        return {}
    now = {**dict.fromkeys(record.conflicts, VerdictKind.ABSTAINED), **record.decision}
    return {
        premise_id: verdict
        for premise_id, verdict in now.items()
        if verdict is not record.settled.get(premise_id, VerdictKind.UNSEEN) or premise_id in record.corrected
    }


def _regraded(before: TaskRecord, after: TaskRecord) -> TaskRecord:
    """The record after a change, in which what has another grade than the run went on with counts as corrected."""
    if not before.settled:
        return after
    changed = [one.id for one in after.candidates if before.grade(one.id) != after.grade(one.id)]
    return replace(after, corrected=(*before.corrected, *changed))


def _decided(change: Change, at: float) -> Change:
    """The decision after a change of answers, and a CONFLICT event where there was none before."""
    record = change.record
    if record.control or len(record.answers) < record.overlap:
        return replace(change, record=replace(record, decision={}, conflicts=(), decided_at=0.0))
    found = decide(record.candidates, record.answers, record.policy, record.adjudicated)
    decided_at = 0.0 if found.conflicts else (record.decided_at or at)
    events = change.events
    if found.conflicts and not record.conflicts:
        events = (*events, ("CONFLICT", ""))
    after = replace(record, decision=found.verdicts, conflicts=found.conflicts, decided_at=decided_at)
    after = replace(after, corrected=tuple(corrections(after)))
    return replace(change, record=after, events=events)


def _without_surplus(record: TaskRecord, annotator: str, at: float) -> tuple[TaskRecord, Events]:
    """Ends the leases that a late answer made needless: the person's other ones, and the youngest beyond the room."""
    room = record.overlap - len(record.answers)
    others = [lease for lease in record.held(at) if lease.annotator != annotator]
    kept = sorted(others, key=lambda lease: lease.taken_at)[:room]
    surplus = [lease for lease in record.held(at) if lease not in kept]
    leases = tuple(replace(lease, ended="MOOT") if lease in surplus else lease for lease in record.leases)
    return replace(record, leases=leases), tuple(("EXPIRED", lease.annotator) for lease in surplus)


def _lease(record: TaskRecord, lease_id: str, who: str = "") -> Lease:
    """The lease. A caller who acts for one person only (`who`) may not use that of another."""
    for held in record.leases:
        if held.id == lease_id:
            if who and held.annotator != who:
                raise errors.PermissionDenied(f"lease {lease_id} is held by {held.annotator}, not by {who}")
            return held
    raise errors.NotFound(f"no lease {lease_id!r}; LeaseTask gives leases")


def _answer(record: TaskRecord, answer_id: str) -> TaskAnswer:
    for answer in record.answers:
        if answer.id == answer_id:
            return answer
    number = answer_id.rpartition(".")[2]
    if number.isdecimal() and 1 <= int(number) <= record.made:
        raise errors.FailedPrecondition(f"answer {answer_id} no longer holds: it was amended or taken back")
    raise errors.NotFound(f"no answer {answer_id!r}; SubmitVerdicts and ListTasks name answers")


def _with_lease(record: TaskRecord, changed: Lease) -> TaskRecord:
    leases = tuple(changed if lease.id == changed.id else lease for lease in record.leases)
    return replace(record, leases=leases)


def _answer_id(record: TaskRecord) -> str:
    return f"{record.run_id}.{record.task.task_id}.{record.made + 1}"


def _why(held: Lease) -> str:
    return {"": "its time has run out", "EXPIRED": "its time has run out", "MOOT": "others have answered"}.get(
        held.ended, held.ended.lower()
    )
