"""Converts between sampler.proto's messages and the sampler's values. Decides only defaults and required fields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from types import MappingProxyType

from aeenc import errors
from aeenc.oracle import EXPLAINS, REFUSES, Verdict
from aeenc.v1 import oracle_pb2, people_pb2, sampler_pb2, types_pb2
from aeenc.values import Answer
from services.corpus.sameness import same_key
from services.kit.convert import ENVELOPE_BYTES, bounded, decode_enum, opened_by, to_duration, to_timestamp
from services.kit.limits import AnswerRoom, Limits, check_count
from services.sampler.acs.algorithm import ROOT, Rules, Statement
from services.sampler.acs.negatives import NegativeFilter
from services.sampler.execution.retention import OldRun
from services.sampler.oracles.answers import statement_of
from services.sampler.people.controls import Mistake, Qualification
from services.sampler.people.decisions import SentAnswer, SentVerdicts, verdict_of
from services.sampler.people.overview import NodeNow, QueueNow, TreeNow
from services.sampler.people.queue import LeasedTask
from services.sampler.people.review import Report
from services.sampler.people.task_store import TaskEvent
from services.sampler.people.tasks import (
    Remark,
    TaskAnswer,
    TaskRecord,
    TaskState,
    VerdictKinds,
    answer_from,
    kinds_of,
)
from services.sampler.records.runs import (
    MAX_NOTE,
    Hypothesis,
    Pair,
    PairSign,
    PremiseSource,
    Run,
    RunConfig,
    parse_time,
)
from services.store.life_cycles import now

DEFAULT_K = 20
DEFAULT_MAX_DEPTH = 8
START_BYTES = 64 * 1024 * 1024  # memory holds all hypotheses of a start at once
MAX_MARGIN = 2.0  # cosines lie this far apart at most

_SIGNS: dict[types_pb2.PairSign, PairSign | None] = {
    types_pb2.PAIR_SIGN_POSITIVE: "POSITIVE",
    types_pb2.PAIR_SIGN_NEGATIVE: "NEGATIVE",
    types_pb2.PAIR_SIGN_SKIPPED: "SKIPPED",
}

_STATES: dict[people_pb2.TaskState, TaskState | None] = {
    people_pb2.TASK_STATE_WAITING: "WAITING",
    people_pb2.TASK_STATE_DECIDED: "DECIDED",
    people_pb2.TASK_STATE_CONFLICT: "CONFLICT",
    people_pb2.TASK_STATE_SETTLED: "SETTLED",
    people_pb2.TASK_STATE_WITHDRAWN: "WITHDRAWN",
}

_SOURCES: dict[types_pb2.PremiseSource, PremiseSource] = {
    types_pb2.PREMISE_SOURCE_RETRIEVED: "RETRIEVED",
    types_pb2.PREMISE_SOURCE_SEARCHED: "SEARCHED",
}


async def from_start_requests(
    requests: AsyncIterator[sampler_pb2.StartRunRequest], max_hypotheses: int
) -> tuple[RunConfig, list[Hypothesis]]:
    """The configuration of the first message and the hypotheses of all. Refuses more than fit into one run."""
    config: sampler_pb2.RunConfig | None = None
    hypotheses: list[Hypothesis] = []
    whole = bounded(requests, START_BYTES, "hypotheses", "start several runs")
    async for request in opened_by("config", whole):
        config = config or request.config
        hypotheses += (Hypothesis(one.id, one.text, one.question, one.answer) for one in request.hypotheses)
        if len(hypotheses) > max_hypotheses:
            raise errors.TooLarge(f"hypotheses: more than {max_hypotheses:,}; start several runs")
    return from_config(config or sampler_pb2.RunConfig()), hypotheses


def from_config(message: sampler_pb2.RunConfig) -> RunConfig:
    """The configuration, with the defaults of sampler.proto."""
    if message.collect not in sampler_pb2.Collect.values():
        raise errors.InvalidArgument.field("config.collect", f"is {message.collect}; give BOTH or POSITIVES_ONLY")
    if message.live and message.model.version:
        raise errors.InvalidArgument.field("config.live", "needs a label to follow; leave config.model.version out")
    return RunConfig(
        corpus=message.corpus,
        oracle=message.oracle,
        idempotency_key=message.idempotency_key,
        rules=Rules(
            k=message.k or DEFAULT_K,
            max_depth=message.max_depth if message.HasField("max_depth") else DEFAULT_MAX_DEPTH,
            max_judgements=message.max_judgements,
            max_negatives_per_query=message.max_negatives_per_query,
            max_nodes_per_tree=message.max_nodes_per_tree,
            positives_only=message.collect == sampler_pb2.COLLECT_POSITIVES_ONLY,
            conditioned=message.conditioned,
            negatives=_from_filter(message.negative_filter),
        ),
        label=message.model.label,
        version=message.model.version,
        split=message.split,
        live=message.live,
    )


def _from_filter(message: sampler_pb2.NegativeFilter) -> NegativeFilter:
    margins = {
        name: getattr(message, name) if message.HasField(name) else None
        for name in ("absolute_margin", "relative_margin")
    }
    for name, margin in margins.items():
        if margin is not None and not 0 <= margin <= MAX_MARGIN:
            problem = f"is {margin:g}; give 0 to {MAX_MARGIN:g}, or leave it out"
            raise errors.InvalidArgument.field(f"config.negative_filter.{name}", problem)
    if 0 < message.max_rank < message.min_rank:
        problem = f"is {message.max_rank}, below min_rank {message.min_rank}; give a window with room in it"
        raise errors.InvalidArgument.field("config.negative_filter.max_rank", problem)
    return NegativeFilter(message.min_rank, message.max_rank, rewordings=message.rewordings, **margins)


def to_config(config: RunConfig) -> sampler_pb2.RunConfig:
    """The configuration as the run works by it, defaults filled in."""
    rules = config.rules
    no_filter = rules.negatives == NegativeFilter()
    message = sampler_pb2.RunConfig(
        corpus=config.corpus,
        oracle=config.oracle,
        idempotency_key=config.idempotency_key,
        k=rules.k,
        max_depth=rules.max_depth,
        max_judgements=rules.max_judgements,
        collect=sampler_pb2.COLLECT_POSITIVES_ONLY if rules.positives_only else sampler_pb2.COLLECT_BOTH,
        split=config.split,
        live=config.live,
        max_negatives_per_query=rules.max_negatives_per_query,
        max_nodes_per_tree=rules.max_nodes_per_tree,
        conditioned=rules.conditioned,
        negative_filter=None if no_filter else sampler_pb2.NegativeFilter(**asdict(rules.negatives)),
    )
    if config.version:
        message.model.version = config.version
    else:
        message.model.label = config.label or "stable"
    return message


def to_run(run: Run) -> sampler_pb2.Run:
    """A run."""
    return sampler_pb2.Run(
        id=run.id,
        config=to_config(run.config),
        state=f"WORK_STATE_{run.state}",
        error=run.error,
        model_version=run.model_version,
        generation=run.generation,
        progress=sampler_pb2.RunProgress(**asdict(run.progress)),
        created_at=to_timestamp(run.created_at),
        ended_at=to_timestamp(run.ended_at),
        current_version=run.version,
    )


def to_garbage(old: OldRun) -> types_pb2.Garbage:
    """A run that a collection removes."""
    return types_pb2.Garbage(kind="run", id=old.id, reason=old.reason, bytes=old.bytes)


def from_sign(sign: types_pb2.PairSign) -> PairSign | None:
    """The sign to list; None for all."""
    return decode_enum(_SIGNS, sign, "sign", None)


def to_pair(pair: Pair) -> types_pb2.Pair:
    """A pair."""
    return types_pb2.Pair(
        seq=pair.seq,
        query=pair.query,
        premise_id=pair.premise_id,
        premise=pair.premise,
        sign=f"PAIR_SIGN_{pair.sign}",
        reason=pair.reason,
        provenance=types_pb2.Provenance(
            run_id=pair.run_id,
            node_id=pair.node_id,
            rank=pair.rank,
            score=pair.score,
            model_version=pair.model_version,
            generation=pair.generation,
            oracle=pair.oracle,
            annotator=pair.annotator,
            judged_at=to_timestamp(parse_time(pair.judged_at)),
            grade=pair.grade,
            amended=pair.amended,
            note=pair.note,
            source=f"PREMISE_SOURCE_{pair.source or 'UNSPECIFIED'}",
        ),
    )


def from_pairs(messages: Sequence[types_pb2.Pair], limits: Limits) -> list[Pair]:
    """Pairs to import. Refuses none and too many before it converts any, those without a sign, and impossible times."""
    check_count(len(messages), limits, "pairs")
    return [_from_pair(message, f"pairs[{position}]") for position, message in enumerate(messages)]


def _from_pair(message: types_pb2.Pair, place: str) -> Pair:
    sign = _SIGNS.get(message.sign)
    if sign is None:
        raise errors.InvalidArgument.field(f"{place}.sign", f"is {message.sign}; give POSITIVE, NEGATIVE or SKIPPED")
    origin = message.provenance
    return Pair(
        query=message.query,
        premise_id=message.premise_id,
        premise=message.premise,
        sign=sign,
        node_id=origin.node_id,
        rank=origin.rank,
        score=origin.score,
        model_version=origin.model_version,
        generation=origin.generation,
        oracle=origin.oracle,
        annotator=origin.annotator,
        judged_at=_judged_at(origin, f"{place}.provenance.judged_at"),
        grade=origin.grade,
        reason=message.reason,
        note=origin.note[:MAX_NOTE],
        source=decode_enum(_SOURCES, origin.source, f"{place}.provenance.source", ""),
    )


def _judged_at(origin: types_pb2.Provenance, field: str) -> str:
    if not origin.HasField("judged_at"):
        return now()
    try:
        return origin.judged_at.ToDatetime(tzinfo=UTC).isoformat()
    except (OverflowError, ValueError):
        problem = f"is {origin.judged_at.seconds} s after 1970; give a time in the years 1 to 9999, or leave it out"
        raise errors.InvalidArgument.field(field, problem) from None


def from_verdicts(messages: Iterable[oracle_pb2.Verdict]) -> SentVerdicts:
    """Verdicts as they were sent."""
    return [
        (m.premise_id, Verdict(m.judgement, m.leaf, m.grade if m.HasField("grade") else None, remark=m.remark))
        for m in messages
    ]


def from_submission(request: people_pb2.SubmitVerdictsRequest) -> SentAnswer:
    """An answer as it was sent. Without `elapsed`, the time since the lease was granted counts."""
    elapsed_s = request.elapsed.seconds + request.elapsed.nanos / 1e9 if request.HasField("elapsed") else None
    return replace(from_answer(request.answer), seen_upto=request.seen_upto, elapsed_s=elapsed_s)


def from_answer(message: oracle_pb2.Answer) -> SentAnswer:
    """An answer, or what changes of one."""
    if message.node_verdict not in oracle_pb2.NodeVerdict.values():
        raise errors.InvalidArgument.field("node_verdict", f"{message.node_verdict} is unknown; update the sampler")
    said = statement_of(Answer.from_message(message))
    return SentAnswer(from_verdicts(message.verdicts), additions=from_verdicts(message.additions), **said.parts())


def from_decision(message: oracle_pb2.Answer) -> SentVerdicts:
    """An adjudicator's verdicts. Raises InvalidArgument for anything else."""
    alone = oracle_pb2.Answer(task_id=message.task_id, annotator=message.annotator, verdicts=message.verdicts)
    if message != alone:
        raise errors.InvalidArgument.field("answer", "holds more than verdicts, which alone are adjudicated; amend it")
    return from_verdicts(message.verdicts)


def from_state(state: people_pb2.TaskState) -> TaskState | None:
    """The state to list; None for all."""
    return decode_enum(_STATES, state, "state", None)


def to_time(at: float) -> datetime:
    """A moment of Redis's clock."""
    return datetime.fromtimestamp(at, UTC)


def to_lease(leased: LeasedTask) -> people_pb2.Lease:
    """A lease with what is to be judged."""
    task = leased.record.task
    return people_pb2.Lease(
        lease_id=leased.lease.id,
        run_id=leased.record.run_id,
        task=task.to_proto(),
        same_keys=[same_key(candidate.text) for candidate in task.candidates],
        expires_at=to_timestamp(to_time(leased.lease.expires_at)),
        remaining=to_duration(max(leased.lease.expires_at - leased.at, 0.0)),
        hypothesis_id=leased.hypothesis_id,
        node_id=leased.record.node_id,
    )


def to_judged_task(record: TaskRecord, only: str = "") -> people_pb2.JudgedTask:
    """A task and what people have said of it, or what one of them has said."""
    return people_pb2.JudgedTask(
        task=record.task.to_proto(),
        state=f"TASK_STATE_{record.state}",
        answers=[_to_answer(answer) for answer in record.answers if not only or answer.annotator == only],
        decision=_verdicts(record.decision, {one: record.grade(one) for one in record.decision}),
        conflicts=record.conflicts,
        adjudicator=record.adjudicator,
    )


def _to_answer(answer: TaskAnswer) -> oracle_pb2.Answer:
    verdicts = _verdicts(answer.verdicts, answer.grades, answer.remarks, {one.id: one.text for one in answer.added})
    message = to_statement(answer)
    message.verdicts.extend(one for one in verdicts if not one.text)
    message.additions.extend(one for one in verdicts if one.text)
    message.answer_id, message.late = answer.id, answer.late
    message.at.FromDatetime(to_time(answer.at))
    return message


def to_statement(said: Statement) -> oracle_pb2.Answer:
    """An answer without verdicts."""
    return oracle_pb2.Answer(
        annotator=said.annotator,
        note=said.note,
        written=said.written,
        intermediates=said.intermediates,
        alternatives=[types_pb2.PremiseSet(premise_ids=one) for one in said.alternatives],
        inference=said.inference,
        node_verdict=f"NODE_VERDICT_{said.node_verdict or 'UNSPECIFIED'}",
    )


def to_event(event: TaskEvent) -> people_pb2.TaskEvent:
    """An event, with what was said where it is an entry of the verdict log."""
    entry, answer = event.entry, None
    if "lease_id" in entry and "choices" in entry:
        answer = _to_answer(answer_from(entry))
    elif entry.get("choices"):
        verdicts = _verdicts(kinds_of(entry["choices"]), entry.get("grades", {}))
        answer = oracle_pb2.Answer(annotator=event.annotator, verdicts=verdicts)
    return people_pb2.TaskEvent(
        seq=event.seq,
        kind=f"TASK_EVENT_KIND_{event.event}",
        task_id=event.task_id,
        run_id=event.run_id,
        person=event.annotator,
        at=to_timestamp(to_time(event.at)),
        answer=answer,
        former_answer_id=entry.get("supersedes", "") or (entry.get("answer_id", "") if event.event == "UNDONE" else ""),
        reason=entry.get("reason", ""),
        overlap=entry.get("overlap", 0),
        model_version=entry.get("version", ""),
    )


def to_tree(tree: TreeNow, limit_bytes: int) -> people_pb2.TreeState:
    """A tree. Raises TooLarge for one over the limit of an answer."""
    room = AnswerRoom(limit_bytes - ENVELOPE_BYTES, "read it by ExportTrees, or raise the sampler's MESSAGE_BYTES")
    room.take(len((tree.question + tree.answer + tree.hypothesis_id).encode()))
    return people_pb2.TreeState(
        run_id=tree.run_id,
        hypothesis_id=tree.hypothesis_id,
        nodes=list(room.all_of(_to_node(tree, node) for node in tree.nodes)),
        finished=tree.finished,
        question=tree.question,
        answer=tree.answer,
    )


def _to_node(tree: TreeNow, now: NodeNow) -> people_pb2.TreeNode:
    node = now.node
    return people_pb2.TreeNode(
        node_id=f"{tree.index}-{node.ordinal}",
        parent_id=f"{tree.index}-{node.parent}" if node.ordinal != ROOT else "",
        premise_id=node.premise_id,
        text=node.text,
        author=node.author,
        depth=node.depth,
        state=f"TREE_NODE_STATE_{now.state}",
        task_id=now.task_id,
        accepted=[
            oracle_pb2.Verdict(
                premise_id=one.id, text=one.text, judgement=EXPLAINS, leaf=one.leaf, annotator=one.author
            )
            for one in now.accepted
        ],
        holders=now.holders,
        answered=now.answers,
        overlap=now.overlap,
        answers=[to_statement(one) for one in now.said],
        model_version=now.version,
    )


def to_queue(queue: QueueNow) -> people_pb2.Queue:
    """A queue with its counts."""
    return people_pb2.Queue(
        name=queue.name,
        overlap=queue.settings.overlap,
        undo=to_duration(queue.settings.undo_s),
        guideline=queue.guideline,
        max_grade=queue.settings.max_grade,
        qualification=to_qualification(queue.qualification),
        total=people_pb2.TaskCounts(**vars(queue.total)),
        runs=[people_pb2.TaskCounts(run_id=run_id, **vars(counts)) for run_id, counts in queue.runs.items()],
    )


def to_qualification(found: Qualification | None) -> people_pb2.Qualification | None:
    """A person's qualification, where there is one."""
    if found is None:
        return None
    return people_pb2.Qualification(
        items=found.items, answered=found.answered, state=f"QUALIFICATION_STATE_{found.state}"
    )


def to_agreement(report: Report, limit_bytes: int) -> people_pb2.GetAgreementResponse:
    """The figures, each annotator's, and those of as many control items as an answer holds. Raises TooLarge."""
    found = report.agreement
    room = AnswerRoom(limit_bytes - ENVELOPE_BYTES, "raise the sampler's MESSAGE_BYTES")
    people = [
        people_pb2.AnnotatorReport(
            annotator=name,
            answers=one.answers,
            late=one.late,
            control_verdicts=one.control_verdicts,
            control_correct=one.control_correct,
            mean_elapsed=to_duration(one.elapsed_s / max(one.answers, 1)),
            answers_hour=one.answers_hour,
        )
        for name, one in report.people.items()
    ]
    controls = (
        people_pb2.ControlReport(
            query=one.query,
            answers=one.answers,
            verdicts=one.verdicts,
            correct=one.correct,
            mistakes=[people_pb2.ControlMistake(right=_right(wrong), people=wrong.people) for wrong in one.mistakes],
        )
        for one in report.controls
    )
    return people_pb2.GetAgreementResponse(
        cohen_kappa=found.cohen_kappa,
        fleiss_kappa=found.fleiss_kappa,
        krippendorff_alpha=found.krippendorff_alpha,
        candidates=found.candidates,
        annotators=found.annotators,
        positive_agreement=found.positive_agreement,
        edge_f1=found.edge_f1,
        reports=list(room.all_of(people)),
        controls=list(room.first_of(controls)),
    )


def _right(wrong: Mistake) -> oracle_pb2.Verdict:
    return oracle_pb2.Verdict(text=wrong.text, judgement=EXPLAINS if wrong.explains else REFUSES)


def _verdicts(
    kinds: VerdictKinds,
    grades: Mapping[str, float | None] = MappingProxyType({}),
    remarks: Mapping[str, Remark] = MappingProxyType({}),
    texts: Mapping[str, str] = MappingProxyType({}),
) -> list[oracle_pb2.Verdict]:
    verdicts = []
    for premise_id, kind in kinds.items():
        verdict = verdict_of(kind, grades.get(premise_id))
        verdicts.append(
            oracle_pb2.Verdict(
                premise_id=premise_id,
                judgement=verdict.judgement,
                leaf=verdict.leaf,
                grade=verdict.grade,
                remark=f"REMARK_{remarks.get(premise_id, 'UNSPECIFIED')}",
                text=texts.get(premise_id, ""),
            )
        )
    return verdicts
