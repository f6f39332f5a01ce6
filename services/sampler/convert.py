"""Converts between sampler.proto's messages and the sampler's values. Decides only defaults and required fields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC
from typing import cast

from aeenc import errors
from aeenc.v1 import oracle_pb2, people_pb2, sampler_pb2, types_pb2
from aeenc.values import Agreement, Answer, Queue, TaskState, TreeState
from services.corpus.sameness import same_key
from services.kit.convert import ENVELOPE_BYTES, bounded, decode_enum, opened_by, to_duration, to_timestamp
from services.kit.limits import AnswerRoom, Limits, check_count
from services.sampler.acs.algorithm import Rules
from services.sampler.acs.negatives import NegativeFilter
from services.sampler.execution.retention import OldRun
from services.sampler.oracles.answers import cleaned
from services.sampler.people.decisions import SentAnswer
from services.sampler.people.queue import LeasedTask
from services.sampler.people.tasks import TaskRecord, moment_of
from services.sampler.records.runs import (
    MAX_NOTE,
    Hypothesis,
    Pair,
    PairSign,
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
    )


def _judged_at(origin: types_pb2.Provenance, field: str) -> str:
    if not origin.HasField("judged_at"):
        return now()
    try:
        return origin.judged_at.ToDatetime(tzinfo=UTC).isoformat()
    except (OverflowError, ValueError):
        problem = f"is {origin.judged_at.seconds} s after 1970; give a time in the years 1 to 9999, or leave it out"
        raise errors.InvalidArgument.field(field, problem) from None


def from_submission(request: people_pb2.SubmitVerdictsRequest) -> SentAnswer:
    """An answer as it was sent. Without `elapsed`, the time since the lease was granted counts."""
    elapsed_s = request.elapsed.seconds + request.elapsed.nanos / 1e9 if request.HasField("elapsed") else None
    return replace(from_answer(request.answer), seen_upto=request.seen_upto, elapsed_s=elapsed_s)


def from_answer(message: oracle_pb2.Answer) -> SentAnswer:
    """An answer, or what changes of one."""
    if message.node_verdict not in oracle_pb2.NodeVerdict.values():
        raise errors.InvalidArgument.field("node_verdict", f"{message.node_verdict} is unknown; update the sampler")
    return SentAnswer(cleaned(Answer.from_message(message)))


def from_state(state: people_pb2.TaskState) -> TaskState | None:
    """The state to list; None for all."""
    return decode_enum(
        {number: TaskState(number) for number in people_pb2.TaskState.values() if number}, state, "state", None
    )


def to_lease(leased: LeasedTask) -> people_pb2.Lease:
    """A lease with what is to be judged."""
    task = leased.record.task
    return people_pb2.Lease(
        lease_id=leased.lease.id,
        run_id=leased.record.run_id,
        task=task.to_proto(),
        same_keys=[same_key(candidate.text) for candidate in task.candidates],
        expires_at=to_timestamp(moment_of(leased.lease.expires_at)),
        remaining=to_duration(max(leased.lease.expires_at - leased.at, 0.0)),
        hypothesis_id=leased.hypothesis_id,
        node_id=leased.record.node_id,
    )


def to_judged_task(record: TaskRecord, only: str = "") -> people_pb2.JudgedTask:
    """A task and what people have said of it, or what one of them has said."""
    return people_pb2.JudgedTask(
        task=record.task.to_proto(),
        state=cast("people_pb2.TaskState", record.state),
        answers=[one.answer.to_message() for one in record.answers if not only or one.annotator == only],
        decision=Answer(verdicts=tuple(record.decision.values()), annotator=record.adjudicator).to_message(),
        conflicts=record.conflicts,
    )


def to_tree(tree: TreeState, limit_bytes: int) -> people_pb2.TreeState:
    """A tree. Raises TooLarge for one over the limit of an answer."""
    message = tree.to_message()
    room = AnswerRoom(limit_bytes - ENVELOPE_BYTES, "read it by ExportTrees, or raise the sampler's MESSAGE_BYTES")
    room.take(message.ByteSize())
    return message


def to_queue(queue: Queue) -> people_pb2.Queue:
    """A queue with its counts; without a qualification where the person needs none."""
    message = queue.to_message()
    if not queue.qualification.items:
        message.ClearField("qualification")
    return message


def to_agreement(found: Agreement, limit_bytes: int) -> people_pb2.GetAgreementResponse:
    """The figures, each annotator's, and those of as many control items as an answer holds. Raises TooLarge."""
    message = replace(found, controls=()).to_message()
    room = AnswerRoom(limit_bytes - ENVELOPE_BYTES, "raise the sampler's MESSAGE_BYTES")
    room.take(message.ByteSize())
    message.controls.extend(room.first_of(one.to_message() for one in found.controls))
    return message
