"""Between the queue messages of sampler.proto and the values of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from aeenc.oracle import Verdict
from aeenc.v1 import oracle_pb2, sampler_pb2
from services.kit.convert import decode_enum, to_duration, to_timestamp
from services.sampler.tasks.agreement import Agreement
from services.sampler.tasks.deciding import Given, verdict_of
from services.sampler.tasks.queue import Leased
from services.sampler.tasks.record import Choices, State, TaskRecord
from services.sampler.tasks.review import AnnotatorReport
from services.sampler.tasks.task_store import TaskEvent

_STATES: dict[sampler_pb2.TaskState, State | None] = {
    sampler_pb2.TASK_STATE_WAITING: "WAITING",
    sampler_pb2.TASK_STATE_DECIDED: "DECIDED",
    sampler_pb2.TASK_STATE_CONFLICT: "CONFLICT",
    sampler_pb2.TASK_STATE_SETTLED: "SETTLED",
}


def from_verdicts(messages: Iterable[oracle_pb2.Verdict]) -> Given:
    """Verdicts as they were sent."""
    return [
        (m.premise_id, Verdict(m.judgement, leaf=m.leaf, grade=m.grade if m.HasField("grade") else None))
        for m in messages
    ]


def from_elapsed(request: sampler_pb2.SubmitVerdictsRequest) -> float | None:
    """Seconds that the person took; None when it was not said."""
    return request.elapsed.ToTimedelta().total_seconds() if request.HasField("elapsed") else None


def from_state(state: sampler_pb2.TaskState) -> State | None:
    """The state to list; None for all."""
    return decode_enum(_STATES, state, "state", None)


def to_time(at: float) -> datetime:
    """A moment of Redis's clock."""
    return datetime.fromtimestamp(at, UTC)


def to_lease(leased: Leased) -> sampler_pb2.Lease:
    """A lease with what is to be judged."""
    return sampler_pb2.Lease(
        lease_id=leased.lease.id,
        run_id=leased.record.run_id,
        task=leased.record.task.to_proto(),
        expires_at=to_timestamp(to_time(leased.lease.expires_at)),
    )


def to_judged_task(record: TaskRecord) -> sampler_pb2.JudgedTask:
    """A task and what people have said of it."""
    return sampler_pb2.JudgedTask(
        task=record.task.to_proto(),
        state=f"TASK_STATE_{record.state}",
        answers=[
            sampler_pb2.TaskAnswer(
                answer_id=answer.id,
                annotator=answer.annotator,
                verdicts=_verdicts(answer.choices, answer.grades),
                late=answer.late,
                at=to_timestamp(to_time(answer.at)),
                note=answer.note,
            )
            for answer in record.answers
        ],
        decision=_verdicts(record.decision, {}),
        conflicts=record.conflicts,
        adjudicator=record.adjudicator,
    )


def to_agreement(found: Agreement, reports: dict[str, AnnotatorReport]) -> sampler_pb2.GetAgreementResponse:
    """The figures, and each annotator's."""
    return sampler_pb2.GetAgreementResponse(
        cohen_kappa=found.cohen_kappa,
        fleiss_kappa=found.fleiss_kappa,
        krippendorff_alpha=found.krippendorff_alpha,
        candidates=found.candidates,
        annotators=found.annotators,
        reports=[
            sampler_pb2.AnnotatorReport(
                annotator=name,
                answers=report.answers,
                late=report.late,
                control_verdicts=report.control_verdicts,
                control_correct=report.control_correct,
                mean_elapsed=to_duration(report.elapsed_s / max(report.answers, 1)),
            )
            for name, report in reports.items()
        ],
    )


def to_event(event: TaskEvent) -> sampler_pb2.WatchTasksResponse:
    """An event."""
    return sampler_pb2.WatchTasksResponse(
        seq=event.seq,
        event=f"TASK_EVENT_{event.event}",
        task_id=event.task_id,
        run_id=event.run_id,
        at=to_timestamp(to_time(event.at)),
    )


def _verdicts(choices: Choices, grades: dict[str, float]) -> list[oracle_pb2.Verdict]:
    verdicts = []
    for premise_id, choice in choices.items():
        verdict = verdict_of(choice, grades.get(premise_id))
        verdicts.append(
            oracle_pb2.Verdict(
                premise_id=premise_id, judgement=verdict.judgement, leaf=verdict.leaf, grade=verdict.grade
            )
        )
    return verdicts
