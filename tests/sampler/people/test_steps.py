"""The steps of a task, one by one, without a clock or a store."""

from dataclasses import replace

import pytest

from aeenc import errors, values
from aeenc.oracle import ABSTAINS, BAD_FACT, EXPLAINS, IRRELEVANT, REFUSES, UNSEEN, Candidate, Task, Verdict
from services.sampler.people import steps
from services.sampler.people.tasks import TaskRecord, corrections, decide, from_row, task_json
from support.worlds.people_world import sent

E, L, R, A, U = (EXPLAINS, False), (EXPLAINS, True), (REFUSES, False), (ABSTAINS, False), (UNSEEN, False)
TASK = Task("0-0", "run", "query", ("root",), (), tuple(Candidate(f"p{n}", f"fact {n}", n, 0.5) for n in range(1, 5)))
YES, NO = Verdict(EXPLAINS), Verdict(REFUSES)
State = values.TaskState


def told(change: steps.Change) -> list[tuple[str, str]]:
    return [(event.kind.name, event.person) for event in change.events]


def kinds(verdicts: dict[str, values.Verdict]) -> dict[str, tuple]:
    return {premise_id: (one.judgement, one.leaf) for premise_id, one in verdicts.items()}


def decided(verdicts: list[tuple[str, Verdict]], who: str) -> values.Answer:
    return replace(sent(verdicts).answer, annotator=who)


def new(overlap: int = 1, policy: str = "majority") -> TaskRecord:
    return TaskRecord("run", TASK, overlap, policy)  # type: ignore[arg-type]


def leased(record: TaskRecord, who: str, at: float = 0.0, lease_s: float = 60.0) -> TaskRecord:
    return steps.lease(record, who, f"run.0-0.{who}{at:g}", at, lease_s).record


def answered(record: TaskRecord, who: str, verdicts=(), *, upto: int = 4, at: float = 1.0) -> TaskRecord:
    return steps.submit(leased(record, who), f"run.0-0.{who}0", sent(verdicts, upto, 1.0), 1, at).record


def test_only_what_was_seen_and_left_unticked_is_refused():
    record = answered(new(), "ann", [("p1", YES), ("p4", Verdict(EXPLAINS, leaf=True))], upto=2)
    assert kinds(record.decision) == {"p1": E, "p2": R, "p3": U, "p4": L}
    record = answered(new(), "ann", [("p1", Verdict(ABSTAINS)), ("p2", Verdict(UNSEEN)), ("p3", Verdict(0))], upto=4)
    assert kinds(record.decision) == {"p1": A, "p2": U, "p3": U, "p4": R}


@pytest.mark.parametrize(
    ("verdicts", "upto", "message"),
    [
        ([("p9", YES)], 4, "'p9' is not among the candidates"),
        ([("p1", YES), ("p1", NO)], 4, "judged twice"),
        ([("p1", Verdict(17))], 4, "17 is unknown"),
        ([("p1", Verdict(EXPLAINS, grade=float("nan")))], 4, "finite"),
        ([("p1", Verdict(REFUSES, remark=9))], 4, r"verdicts\[0\]\.remark: 9 is unknown"),  # type: ignore[arg-type]
        ([], 0, "says nothing"),
    ],
)
def test_a_wrong_answer_is_refused_by_name_and_changes_nothing(verdicts, upto: int, message: str):
    with pytest.raises(errors.InvalidArgument, match=message):
        answered(new(), "ann", verdicts, upto=upto)


def test_a_kind_of_verdict_that_nothing_decides_by_is_refused_not_passed_over():
    record = answered(new(), "ann", [("p1", Verdict(ABSTAINS))], upto=4)
    first, *others = record.answers[0].answer.verdicts
    later = replace(first, judgement=values.Judgement(17))
    answer = replace(record.answers[0].answer, verdicts=(later, *others))
    with pytest.raises(errors.FailedPrecondition, match=r"'p1' has verdicts of .*UNKNOWN_17.*; update the sampler"):
        decide(replace(record, answers=(replace(record.answers[0], answer=answer),)))


@pytest.mark.parametrize(
    ("votes", "policy", "decided"),
    [
        ("EE", "majority", E),
        ("ER", "majority", None),
        ("EER", "majority", E),
        ("ERR", "majority", R),
        ("EER", "adjudicate", None),
        ("EEA", "adjudicate", E),
        ("ERA", "majority", None),
        ("RAU", "majority", R),
        ("AAU", "majority", A),
        ("UU", "majority", U),
        ("ELL", "majority", L),
        ("EL", "majority", E),
        ("ELRR", "majority", None),
    ],
)
def test_several_answers_decide_by_policy(votes: str, policy: str, decided: tuple | None):
    said = {"E": YES, "L": Verdict(EXPLAINS, leaf=True), "R": NO, "A": Verdict(ABSTAINS), "U": Verdict(UNSEEN)}
    record = new(len(votes), policy)
    for n, vote in enumerate(votes):
        assert record.state is State.WAITING
        record = answered(record, f"person {n}", [("p1", said[vote]), ("p2", YES)])
    assert kinds(record.decision).get("p1") == decided
    assert record.conflicts == (() if decided else ("p1",))
    assert record.state is (State.DECIDED if decided else State.CONFLICT)
    assert kinds(record.decision)["p2"] == E


def test_an_answer_is_a_retry_by_its_number_and_all_that_it_says():
    record, lease_id = answered(new(), "ann", [("p1", YES)]), "run.0-0.ann0"
    given = sent([("p1", YES)], 4, 9.0)  # a retry may have taken another time
    assert steps.submit(record, lease_id, given, 1, 2.0) == steps.Change(record, id="run.0-0.1")
    others = (sent([("p2", YES)], 4), sent([("p1", YES)], 1), sent([("p1", YES)], 4, written=("a fact",)))
    for other in others:
        with pytest.raises(errors.AlreadyExists, match=r"client_seq 1 .*run\.0-0\.1; amend"):
            steps.submit(record, lease_id, other, 1, 2.0)
    with pytest.raises(errors.FailedPrecondition) as refused:
        steps.submit(record, lease_id, given, 0, 2.0)  # without a number it is none
    assert refused.value.reason == "LEASE_ANSWERED"
    amended = steps.amend(record, "run.0-0.1", sent([("p2", YES)]), "ann", 2.0).record
    assert steps.submit(amended, lease_id, given, 1, 3.0).id == "run.0-0.1"
    with pytest.raises(errors.FailedPrecondition, match="taken back, lease the task again"):
        steps.submit(steps.undo(record, "run.0-0.1", 2.0).record, lease_id, given, 0, 3.0)


def test_remarks_stay_until_their_verdict_is_amended_and_times_in_sight_are_those_of_the_author():
    said = {"p1": Verdict(REFUSES, remark=IRRELEVANT), "p2": Verdict(ABSTAINS, remark=BAD_FACT)}
    record = answered(new(), "ann", [(name, replace(one, in_sight_ms=1500)) for name, one in said.items()])
    again = steps.submit(record, "run.0-0.ann0", sent(said.items(), 4), 1, 2.0)
    assert again.record == record, "a retry may have measured another time"

    def shown(record: TaskRecord) -> tuple[dict[str, str], list[int]]:
        verdicts = record.answers[0].answer.verdicts
        return {one.premise_id: one.remark.name for one in verdicts if one.remark}, [v.in_sight_ms for v in verdicts]

    assert shown(record) == ({"p1": "IRRELEVANT", "p2": "BAD_FACT"}, [1500, 1500, 0, 0])
    record = steps.amend(record, "run.0-0.1", sent([("p1", Verdict(EXPLAINS, in_sight_ms=9000))]), "lead", 2.0).record
    assert shown(record) == ({"p2": "BAD_FACT"}, [1500, 1500, 0, 0])
    read_on = [("p2", Verdict(REFUSES, in_sight_ms=9)), ("p3", Verdict(REFUSES, in_sight_ms=1200))]
    record = steps.amend(record, "run.0-0.2", sent(read_on), "ann", 3.0).record
    assert shown(record) == ({}, [1500, 1500, 1200, 0])


def test_a_late_answer_ends_its_persons_other_lease_and_spares_those_with_room():
    record = leased(new(overlap=3), "ann", 0.0, 10.0)
    record = leased(leased(leased(record, "ann", 20.0), "bob", 21.0), "cem", 22.0)
    change = steps.submit(record, "run.0-0.ann0", sent([("p1", YES)], 4), 1, 25.0)
    assert told(change) == [("EXPIRED", "ann"), ("ANSWERED", "ann")]
    assert [lease.annotator for lease in change.record.held(25.0)] == ["bob", "cem"]


def test_a_renewed_lease_never_lasts_longer_than_an_hour():
    record = leased(new(), "ann", 0.0, 60.0)
    record = steps.renew(record, "run.0-0.ann0", 50.0, 60.0).record
    assert record.leases[0].expires_at == 110.0
    for at in range(100, 3600, 50):
        record = steps.renew(record, "run.0-0.ann0", float(at), 60.0).record
    assert record.leases[0].expires_at == 3600.0
    with pytest.raises(errors.FailedPrecondition) as over:
        steps.renew(record, "run.0-0.ann0", 3600.0, 60.0)
    assert over.value.reason == "LEASE_EXPIRED"
    assert leased(new(), "bob", 0.0, 1e9).leases[0].expires_at == 3600.0


def test_a_released_lease_is_over_for_good():
    record = steps.release(leased(new(), "ann"), "run.0-0.ann0", 1.0, "lunch").record
    assert (record.free(1.0), record.returned) == (1, 1)
    assert steps.release(record, "run.0-0.ann0", 2.0, "again").record == record
    with pytest.raises(errors.FailedPrecondition) as refused:
        steps.submit(record, "run.0-0.ann0", sent([("p1", YES)], 4), 1, 2.0)
    assert refused.value.reason == "LEASE_RELEASED"


def test_nobody_judges_a_task_twice():
    record = answered(new(overlap=2), "ann")
    assert not record.open_to("ann", 2.0)
    assert record.open_to("bob", 2.0)
    assert not leased(record, "bob", 2.0).open_to("cem", 2.0)


def test_an_answer_is_taken_back_until_the_run_has_gone_on():
    record = answered(new(), "ann")
    assert steps.settle(record, 5.0, 10.0, "3-1").record == record
    undone = steps.undo(record, "run.0-0.1", 5.0).record
    assert (undone.state, undone.answers, undone.undone) == (State.WAITING, (), True)
    with pytest.raises(errors.FailedPrecondition, match="no longer holds"):
        steps.undo(undone, "run.0-0.1", 5.0)
    with pytest.raises(errors.NotFound):
        steps.undo(undone, "run.0-0.2", 5.0)
    settled = steps.settle(record, 11.0, 10.0, "3-1").record
    assert (settled.state, settled.node_id) == (State.SETTLED, "3-1")
    with pytest.raises(errors.FailedPrecondition) as used:
        steps.undo(settled, "run.0-0.1", 12.0)
    assert used.value.reason == "ANSWER_USED"


def test_an_amendment_changes_the_decision_and_what_the_run_was_told():
    record = answered(new(), "ann", [("p1", YES)])
    change = steps.amend(record, "run.0-0.1", sent([("p2", YES)]), "bob", 2.0)
    assert (change.id, kinds(change.record.decision)) == ("run.0-0.2", {"p1": E, "p2": E, "p3": R, "p4": R})
    assert corrections(change.record) == {}
    settled = steps.settle(change.record, 100.0, 10.0, "3-1").record
    amended = steps.amend(settled, "run.0-0.2", sent([("p1", NO)]), "ann", 101.0).record
    assert (amended.state, kinds(corrections(amended))) == (State.SETTLED, {"p1": R})
    back = steps.amend(amended, "run.0-0.3", sent([("p1", YES)]), "ann", 102.0).record
    assert kinds(corrections(back)) == {"p1": E}
    with pytest.raises(errors.FailedPrecondition, match="no longer holds"):
        steps.amend(back, "run.0-0.1", sent([("p1", NO)]), "ann", 103.0)


def test_what_an_author_says_after_somebody_elses_amendment_is_their_own_and_no_longer_undone():
    record = answered(new(), "ann", [("p1", YES)])
    record = steps.amend(record, "run.0-0.1", sent([("p1", NO), ("p3", YES)]), "lead", 2.0).record
    record = steps.amend(record, "run.0-0.2", sent([("p2", YES)]), "ann", 3.0).record
    [answer] = record.answers
    assert kinds(answer.verdicts) == kinds(record.decision) == {"p1": R, "p2": E, "p3": E, "p4": R}
    assert kinds(answer.own_verdicts) == {"p1": E, "p2": E, "p3": R, "p4": R}
    with pytest.raises(errors.FailedPrecondition, match="amended by somebody else") as used:
        steps.undo(record, answer.answer.answer_id, 4.0)
    assert used.value.reason == "ANSWER_USED"


@pytest.mark.parametrize(
    ("votes", "decided", "grade"),
    [("E4 E2 R9", E, 3.0), ("E4 R R", R, None), ("E4 R1 A", None, None), ("L4 E1", E, 2.5), ("R1 A5", R, 1.0)],
)
def test_a_decision_has_the_mean_grade_of_those_who_agree_with_it(
    votes: str, decided: tuple | None, grade: float | None
):
    given = votes.split()
    record = new(len(given))
    for n, vote in enumerate(given):
        judgement = {"R": REFUSES, "A": ABSTAINS}.get(vote[0], EXPLAINS)
        verdict = Verdict(judgement, leaf=vote[0] == "L", grade=float(vote[1:]) if vote[1:] else None)
        record = answered(record, f"person {n}", [("p1", verdict)])
    assert kinds(record.decision).get("p1") == decided
    assert grade == (record.decision["p1"].grade if decided else None)


def test_a_hastened_decision_is_settled_before_its_time_and_cannot_be_undone():
    record = answered(new(), "ann", [("p1", YES)])
    assert steps.settle(record, 2.0, 3600.0, "0-0").record == record
    final = steps.hasten(record, "ann").record
    with pytest.raises(errors.FailedPrecondition):
        steps.undo(final, "run.0-0.1", 2.0)
    assert steps.settle(final, 2.0, 3600.0, "0-0").record.settled == record.decision


def test_a_lowered_task_that_is_decided_is_no_longer_held():
    record = leased(answered(new(overlap=2), "ann", [("p1", YES)]), "bob", at=2.0)
    lowered = steps.lower(record, 1, 3.0).record
    assert (lowered.state, lowered.held(3.0)) == (State.DECIDED, [])
    waiting = leased(new(overlap=3), "bob", at=2.0)
    assert steps.lower(waiting, 2, 3.0).record.held(3.0), "an answer is still missing"


@pytest.mark.parametrize("disputed", [False, True])
def test_a_closed_task_is_decided_by_the_answers_that_there_are_and_opens_again_when_one_is_taken_back(disputed: bool):
    record = answered(new(overlap=3), "ann", [("p1", YES)], upto=2)
    if disputed:
        record = answered(record, "ben", [("p2", YES)], upto=2)
    closed = steps.close(leased(record, "cem", 2.0), "chief", "", 3.0).record
    judged = {"p1": A, "p2": A} if disputed else {"p1": E, "p2": R}
    assert kinds(closed.decision) == {**judged, "p3": U, "p4": U}
    assert (closed.state, closed.conflicts, closed.held(3.0)) == (State.DECIDED, (), [])
    again = steps.undo(closed, "run.0-0.1", 4.0).record
    assert (again.state, again.overlap, len(again.answers)) == (State.WAITING, 3, int(disputed))
    assert (again.adjudicator, again.adjudicated, again.disputed) == ("", {}, ())
    if disputed:
        one = steps.adjudicate(closed, decided([("p1", YES)], "lead"), 4.0).record
        with pytest.raises(errors.FailedPrecondition, match="was adjudicated; amend it instead"):
            steps.undo(one, "run.0-0.1", 5.0)


def test_a_conflict_waits_for_an_adjudicator_who_decides_every_candidate_of_it():
    graded = [("p1", Verdict(EXPLAINS, grade=2.0)), ("p2", YES)]
    record = answered(answered(new(overlap=2), "ann", graded), "bob", [("p3", YES)])
    assert record.conflicts == ("p1", "p2", "p3")
    assert steps.settle(record, 1e6, 0.0, "3-1").record == record
    with pytest.raises(errors.InvalidArgument, match="p3"):
        steps.adjudicate(record, decided([("p1", YES), ("p2", NO)], "judge"), 3.0)
    ruling = decided([("p1", Verdict(EXPLAINS, grade=5.0)), ("p2", NO), ("p3", Verdict(ABSTAINS))], "judge")
    change = steps.adjudicate(record, ruling, 3.0)
    judged = change.record
    assert (judged.state, kinds(judged.decision)) == (State.DECIDED, {"p1": E, "p2": R, "p3": A, "p4": R})
    [event] = change.events
    grades = [verdict.grade for verdict in (judged.decision["p1"], event.answer.verdicts[0])]
    assert grades == [5.0, 5.0], "it stands above those of the answers"
    again = steps.adjudicate(judged, decided([("p1", NO)], "chief"), 4.0).record
    assert (again.adjudicator, kinds(again.decision)) == ("chief", {"p1": R, "p2": R, "p3": A, "p4": R})
    with pytest.raises(errors.FailedPrecondition, match="adjudicated"):
        steps.undo(judged, judged.answers[0].answer.answer_id, 4.0)


def test_of_the_leases_that_a_person_gave_back_only_the_last_is_kept():
    record = new(overlap=2)
    record = steps.lease(record, "bob", "b", 0.0, 60.0).record
    for number in range(5):
        record = steps.lease(record, "ann", f"a{number}", 1.0, 60.0).record
        record = steps.release(record, f"a{number}", 2.0, "").record
    assert [lease.id for lease in record.leases] == ["b", "a4"]


def test_a_control_item_is_never_decided():
    control = replace(new(overlap=1000), gold={"p1": True, "p2": False})
    record = answered(control, "ann", [("p1", YES)])
    assert (record.state, record.decision) == (State.WAITING, {})
    assert record.open_to("bob", 1.0)


def test_a_record_is_read_as_it_was_written():
    record = answered(answered(new(overlap=2), "ann", [("p1", Verdict(EXPLAINS, grade=0.5))]), "bob")
    record = steps.adjudicate(record, decided([("p1", NO)], "judge"), 3.0).record
    row = {"format_version": "1", "task": task_json(TASK), "record": record.to_json(), "place": "0", "revision": "0"}
    assert from_row(record.run_id, TASK.task_id, row) == record
