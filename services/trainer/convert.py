"""Converts messages of aeenc.v1 to the trainer's values and back, without decisions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aeenc import errors
from aeenc.calls.retrieval import Fusion, Retrieval
from aeenc.evaluation import UNRANKED, GradedMetrics
from aeenc.evaluation.graded import LENGTHS, check_grade
from aeenc.trees import Accessible
from aeenc.v1 import index_pb2, registry_pb2, trainer_pb2, types_pb2
from aeenc.values import Garbage
from services.kit.convert import bounded, label_of, opened_by, to_duration, to_timestamp
from services.store.registry import CheckpointRow, LabelRow, RolloutRow
from services.store.registry_rows import TOGETHER, versions_of
from services.trainer.evaluation.evaluator import Evaluation, EvaluationSpec
from services.trainer.evaluation.parts import GoldTree
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.job import Job, JobConfig
from services.trainer.registry.operator_models import STABLE
from services.trainer.registry.publishing import Move
from services.trainer.registry.rollout import Publication
from services.trainer.registry.tandems import Tandem

M = TypeVar("M", bound=Message)


def from_config(message: trainer_pb2.JobConfig) -> tuple[JobConfig, list[EvaluationQuery]]:
    """Reads a job's configuration, with the contract's defaults filled in, and its validation queries."""
    given: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.enum_type is not None:
            given[field.name] = _named(message, field.name, within="config.")
        elif isinstance(value, float):  # what the caller wrote: 0.03 travels as 0.029999999329447746
            given[field.name] = float(f"{value:.7g}")
        elif field.message_type is None:
            given[field.name] = tuple(value) if field.is_repeated else value
    return JobConfig.of(given), _queries(message.validation)


def to_job(job: Job) -> trainer_pb2.Job:
    """Writes a job, without its validation queries."""
    return _message(trainer_pb2.Job, job)


def to_checkpoint(row: CheckpointRow, labels: Sequence[str], tandem: Tandem | None) -> trainer_pb2.Checkpoint:
    """Writes a checkpoint, the labels that name it, and its tandem."""
    return _message(trainer_pb2.Checkpoint, row, labels=labels, tandem=tandem)


def from_publish(request: registry_pb2.PublishRequest) -> Move:
    """Reads what a publication is asked for; without a label, of `stable`."""
    move = from_set_label(request, request.label or STABLE)
    return replace(move, force=request.force, only_better=request.only_better)


def from_set_label(request: registry_pb2.PublishRequest | registry_pb2.SetLabelRequest, label: str = "") -> Move:
    """Reads the version that a label shall name, or those of an ensemble, as a row has them, and how."""
    if not request.versions or any(not one or TOGETHER in one for one in request.versions):
        raise errors.InvalidArgument.field(
            "versions", f"is {list(request.versions)}; give a version, or those of an ensemble"
        )
    return Move(
        TOGETHER.join(request.versions),
        label or request.label,
        revision(request),
        request.share if request.HasField("share") else None,
        str(_named(request, "precision")).lower(),
        request.request_id,
    )


def to_label(row: LabelRow) -> types_pb2.Label:
    """Writes a label."""
    return label_of(row, previous_versions=versions_of(row.previous), moved_at=to_timestamp(row.moved_at))


def to_rollouts(rows: Sequence[RolloutRow], label: LabelRow) -> list[types_pb2.Rollout]:
    """Writes how far each encoder is with a label."""
    found = []
    for row in rows:
        at = types_pb2.Label(space_id=label.space_id, name=label.name, revision=row.revision)
        found.append(_message(types_pb2.Rollout, row, label=at, finished_at=row.at))
    return found


def to_publication(kind: type[M], publication: Publication) -> M:
    """Writes the answer of Publish, or of Rollback, which says nothing of the quality gate."""
    label = to_label(publication.label)
    rollouts = to_rollouts(publication.rollouts, publication.label)
    return _message(kind, publication, publication.gate, label=label, rollouts=rollouts)


async def from_evaluate_requests(
    requests: AsyncIterator[trainer_pb2.EvaluateRequest], max_queries: int, max_gold: int, max_bytes: int
) -> EvaluationSpec:
    """Reads the configuration of the first message, and the queries, training queries and trees of all."""
    config: trainer_pb2.EvaluateConfig | None = None
    queries: list[EvaluationQuery] = []
    training: list[EvaluationQuery] = []
    trees: list[GoldTree] = []
    nodes = gold = 0
    whole = bounded(requests, max_bytes, "queries", "evaluate in parts")
    async for request in opened_by("config", whole):
        config = config or request.config
        queries += await asyncio.to_thread(_queries, request.queries)
        training += await asyncio.to_thread(_queries, request.training)
        trees.extend(GoldTree(one.hypothesis, tuple(one.intermediates), tuple(one.leaves)) for one in request.trees)
        nodes += sum(1 + len(one.intermediates) for one in request.trees)
        gold += sum(len(one.premises) for sent in (request.queries, request.training) for one in sent)
        for what, count, most in (
            ("queries", len(queries), max_queries),
            ("training queries", len(training), max_queries),
            ("inner nodes of trees", nodes, max_queries),
            ("gold premises of queries", gold, max_gold),
        ):
            if count > most:
                raise errors.TooLarge(f"{count:,} {what}, and more may follow; evaluate in parts of at most {most:,}")
    if config is None or not queries:
        raise errors.InvalidArgument.field("queries", "is empty; give at least one gold query")
    return EvaluationSpec(
        corpus=config.corpus,
        queries=queries,
        training=training,
        trees=trees,
        label=config.model.label or None,
        version=config.model.version or None,
        generation=config.generation,
        retrieval=_retrieval(config.retrieval) if config.HasField("retrieval") or config.conditioned else None,
        ranks=config.ranks,
        strict_only=config.strict_only,
        conditioned=config.conditioned,
    )


def to_garbage(garbage: Iterable[Garbage]) -> list[types_pb2.Garbage]:
    """Writes what a collection has removed, or would remove."""
    return [_message(types_pb2.Garbage, one) for one in garbage]


def to_report(evaluation: Evaluation) -> types_pb2.EvaluationReport:
    """Writes an evaluation's report."""
    report = evaluation.report
    ranks = zip_longest(report.strict_ranks, report.paper_ranks, fillvalue=()) if evaluation.with_ranks else ()
    found = [types_pb2.GoldRanks(strict=_found(one), paper=_found(other)) for one, other in ranks]
    return _message(types_pb2.EvaluationReport, evaluation, report, ranks=found, graded=_graded(report.graded))


def revision(message: Any) -> int | None:
    """Reads the expected revision of a request; None if it is not to be checked."""
    return message.expected_revision if message.HasField("expected_revision") else None


def _named(message: Message, name: str, unset: str = "", within: str = "") -> Any:
    """Reads a field's enum value by its name, without the enum's own; 0 is `unset`. Raises InvalidArgument."""
    kind: Any = message.DESCRIPTOR.fields_by_name[name].enum_type
    sent = getattr(message, name)
    if sent and sent not in kind.values_by_number:
        known = sorted(kind.values_by_number)[1:]
        raise errors.InvalidArgument.field(
            within + name, f"{sent} is unknown to this service; use one of {known}, or update it"
        )
    return kind.values_by_number[sent].name.removeprefix(_prefix(kind)) if sent else unset


def _prefix(kind: Any) -> str:
    return str(kind.values[0].name).removesuffix("UNSPECIFIED")


def _message(kind: type[M], *values: Any, **given: Any) -> M:
    """Writes what values have by the names of a message's fields, and what is given beside them.

    A length of time is `<field>_s` in the value; enums are their names there.
    """
    fields = {}
    for field in kind.DESCRIPTOR.fields:
        named = (getattr(one, name) for name in (field.name, f"{field.name}_s") for one in values if hasattr(one, name))
        own = given.get(field.name, next(named, None))
        if own is not None and own != "":
            fields[field.name] = _written(field, own)
    return kind(**fields)


def _written(field: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return to_timestamp(value)
    if field.enum_type is not None:
        return _prefix(field.enum_type) + value
    if field.message_type is None or isinstance(value, Message):
        return value
    if isinstance(value, float):
        return to_duration(value)
    kind = GetMessageClass(field.message_type)
    if field.is_repeated:
        return [one if isinstance(one, Message) else _message(kind, one) for one in value]
    return _message(kind, value)


def _queries(messages: Iterable[types_pb2.GoldQuery]) -> list[EvaluationQuery]:
    return list(map(_query, messages))


def _query(message: types_pb2.GoldQuery) -> EvaluationQuery:
    premises = tuple(map(sys.intern, message.premises))  # many queries name the same ones
    accessible = Accessible(message.before_id, tuple(message.only_ids) or None)
    if not message.grades:
        return EvaluationQuery(message.text, premises, accessible=accessible)
    if len(message.grades) != len(message.premises):
        raise errors.InvalidArgument.field(
            "queries.grades",
            f"has {len(message.grades)} of {len(message.premises)} premises of {message.text[:80]!r}; give one each",
        )
    told = zip(premises, message.grades, strict=True)
    gold = [(premise, grade) for premise, grade in told if check_grade(grade)]
    return EvaluationQuery(message.text, tuple(one for one, _ in gold), tuple(grade for _, grade in gold), accessible)


def _retrieval(message: index_pb2.RetrievalOptions) -> Retrieval:
    fusion = None
    if message.HasField("fusion"):
        weight = message.fusion.lexical_weight if message.fusion.HasField("lexical_weight") else None
        fusion = Fusion(
            _named(message.fusion, "method", "MIN_MAX", "config.retrieval.fusion.").lower(),
            weight,
            dict(message.fusion.features),
        )
    return Retrieval(
        mode=_named(message, "mode", "DENSE", "config.retrieval.").lower(),
        fusion=fusion,
        prior=message.prior,
        rerank=message.rerank,
        rerank_weight=message.rerank_weight,
        rerank_versions=tuple(message.rerank_versions),
        negative_feedback=message.negative_feedback,
    )


def _graded(graded: GradedMetrics | None) -> types_pb2.GradedMetrics | None:
    if graded is None:
        return None
    recalls = [
        types_pb2.GradeRecall(
            grade=grade,
            pairs=graded.pairs[grade],
            **{f"recall_at_{length}": share for length, share in zip(LENGTHS, shares, strict=True)},
        )
        for grade, shares in graded.recalls.items()
    ]
    return _message(types_pb2.GradedMetrics, graded, recalls=recalls)


def _found(ranks: Iterable[int]) -> list[int]:
    return [0 if rank >= UNRANKED else int(rank) for rank in ranks]
