"""Converts between sampler.proto's messages and the sampler's values. Decides only defaults and required fields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC
from typing import cast

from aeenc import errors
from aeenc.v1 import oracle_pb2, people_pb2, sampler_pb2, types_pb2
from aeenc.values import (
    Agreement,
    Answer,
    Collect,
    ModelSelector,
    NegativeFilter,
    Queue,
    RunConfig,
    TaskState,
    TreeState,
)
from services.corpus.sameness import same_key
from services.kit.convert import ENVELOPE_BYTES, bounded, opened_by, to_duration, to_timestamp
from services.kit.limits import AnswerRoom, Limits, check_count
from services.sampler.acs.algorithm import PairSign
from services.sampler.oracles.answers import cleaned
from services.sampler.people.queue import LeasedTask
from services.sampler.people.tasks import SentAnswer, TaskRecord, moment_of
from services.sampler.records.runs import (
    COUNTERS,
    MAX_NOTE,
    NO_ROOT,
    Hypothesis,
    Pair,
    Run,
    parse_time,
)
from services.store.life_cycles import now

DEFAULT_K = 20
DEFAULT_MAX_DEPTH = 8
START_BYTES = 64 * 1024 * 1024  # memory holds all hypotheses of a start at once
MAX_MARGIN = 2.0  # cosines lie this far apart at most

SIGNS: dict[types_pb2.PairSign, PairSign | None] = {
    types_pb2.PAIR_SIGN_POSITIVE: "POSITIVE",
    types_pb2.PAIR_SIGN_NEGATIVE: "NEGATIVE",
    types_pb2.PAIR_SIGN_SKIPPED: "SKIPPED",
}
STATES = {number: TaskState(number) for number in people_pb2.TaskState.values() if number}
_OF_PAIR = ("query", "premise_id", "premise", "reason")
_ORIGIN = ("node_id", "rank", "score", "model_version", "generation", "oracle", "annotator", "grade", "note")


async def from_start_requests(
    requests: AsyncIterator[sampler_pb2.StartRunRequest], max_hypotheses: int
) -> tuple[RunConfig, list[Hypothesis]]:
    """The configuration of the first message and the hypotheses of all. Refuses more than fit into one run."""
    config: sampler_pb2.RunConfig | None = None
    hypotheses: list[Hypothesis] = []
    whole = bounded(requests, START_BYTES, "hypotheses", "start several runs")
    async for request in opened_by("config", whole):
        config = config or request.config
        hypotheses += (
            Hypothesis(one.id, one.text, one.question, one.answer, one.before_id, tuple(one.only_ids))
            for one in request.hypotheses
        )
        if len(hypotheses) > max_hypotheses:
            raise errors.TooLarge(f"hypotheses: more than {max_hypotheses:,}; start several runs")
    return from_config(config or sampler_pb2.RunConfig()), hypotheses


def from_config(message: sampler_pb2.RunConfig) -> RunConfig:
    """The configuration, with the defaults of sampler.proto."""
    if message.collect not in sampler_pb2.Collect.values():
        raise errors.InvalidArgument.field("config.collect", f"is {message.collect}; give BOTH or POSITIVES_ONLY")
    if message.live and message.model.version:
        raise errors.InvalidArgument.field("config.live", "needs a label to follow; leave config.model.version out")
    config = RunConfig.from_message(message)
    model = message.model
    return replace(
        config,
        k=config.k or DEFAULT_K,
        max_depth=DEFAULT_MAX_DEPTH if config.max_depth is None else config.max_depth,
        collect=config.collect or Collect.BOTH,
        model=ModelSelector(version=model.version) if model.version else ModelSelector(label=model.label or "stable"),
        negative_filter=_checked(config.negative_filter or NegativeFilter()),
    )


def _checked(by: NegativeFilter) -> NegativeFilter | None:
    """The filter; None for one that leaves nothing out."""
    for name in ("absolute_margin", "relative_margin"):
        margin = getattr(by, name)
        if margin is not None and not 0 <= margin <= MAX_MARGIN:
            problem = f"is {margin:.8g}; give 0 to {MAX_MARGIN:g}, or leave it out"
            raise errors.InvalidArgument.field(f"config.negative_filter.{name}", problem)
    if 0 < by.max_rank < by.min_rank:
        problem = f"is {by.max_rank}, below min_rank {by.min_rank}; give a window with room in it"
        raise errors.InvalidArgument.field("config.negative_filter.max_rank", problem)
    return None if by == NegativeFilter() else by


def to_run(run: Run) -> sampler_pb2.Run:
    """A run."""
    return sampler_pb2.Run(
        id=run.id,
        config=run.config.to_message(),
        state=f"WORK_STATE_{run.state}",
        error=run.error,
        model_version=run.model_version,
        generation=run.generation,
        progress=sampler_pb2.RunProgress(**{name: getattr(run.progress, name) for name in COUNTERS}),
        created_at=to_timestamp(run.created_at),
        ended_at=to_timestamp(run.ended_at),
        current_version=run.version,
    )


def to_pair(pair: Pair) -> types_pb2.Pair:
    """A pair."""
    origin = {name: getattr(pair, name) for name in _ORIGIN}
    return types_pb2.Pair(
        **{name: getattr(pair, name) for name in _OF_PAIR},
        seq=pair.seq,
        sign=f"PAIR_SIGN_{pair.sign}",
        provenance=types_pb2.Provenance(
            **origin, run_id=pair.run_id, amended=pair.amended, judged_at=to_timestamp(parse_time(pair.judged_at))
        ),
    )


def from_pairs(messages: Sequence[types_pb2.Pair], limits: Limits) -> list[Pair]:
    """Pairs to import. Refuses none and too many before it converts any, those without a sign, and impossible times."""
    check_count(len(messages), limits, "pairs")
    return [_from_pair(message, f"pairs[{position}]") for position, message in enumerate(messages)]


def _from_pair(message: types_pb2.Pair, place: str) -> Pair:
    sign = SIGNS.get(message.sign)
    if sign is None:
        raise errors.InvalidArgument.field(f"{place}.sign", f"is {message.sign}; give POSITIVE, NEGATIVE or SKIPPED")
    origin = message.provenance
    try:
        judged_at = origin.judged_at.ToDatetime(tzinfo=UTC).isoformat() if origin.HasField("judged_at") else now()
    except (OverflowError, ValueError):
        problem = f"is {origin.judged_at.seconds} s after 1970; give a time in the years 1 to 9999, or leave it out"
        raise errors.InvalidArgument.field(f"{place}.provenance.judged_at", problem) from None
    told = {name: getattr(of, name) for of, names in ((message, _OF_PAIR), (origin, _ORIGIN)) for name in names}
    return Pair(**{**told, "note": origin.note[:MAX_NOTE]}, sign=sign, judged_at=judged_at)


def from_submission(request: people_pb2.SubmitVerdictsRequest) -> SentAnswer:
    """An answer as it was sent. Without `elapsed`, the time since the lease was granted counts."""
    elapsed_s = request.elapsed.seconds + request.elapsed.nanos / 1e9 if request.HasField("elapsed") else None
    return replace(from_answer(request.answer), seen_upto=request.seen_upto, elapsed_s=elapsed_s)


def from_answer(message: oracle_pb2.Answer) -> SentAnswer:
    """An answer, or what changes of one."""
    if message.node_verdict not in oracle_pb2.NodeVerdict.values():
        raise errors.InvalidArgument.field("node_verdict", f"{message.node_verdict} is unknown; update the sampler")
    return SentAnswer(cleaned(Answer.from_message(message), task_id=""))  # the lease or the answer's id names it


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


def to_judged_task(record: TaskRecord, only: str = "", root: Hypothesis = NO_ROOT) -> people_pb2.JudgedTask:
    """A task, what people have said of it, or what one of them has said, and its tree."""
    return people_pb2.JudgedTask(
        task=record.task.to_proto(),
        state=cast("people_pb2.TaskState", record.state),
        answers=[one.answer.to_message() for one in record.answers if not only or one.annotator == only],
        decision=Answer(verdicts=tuple(record.decision.values()), annotator=record.adjudicator).to_message(),
        conflicts=record.conflicts,
        question=root.question,
        question_answer=root.answer,
        hypothesis_id=root.id,
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
