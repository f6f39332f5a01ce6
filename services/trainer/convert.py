"""Converts messages of aeenc.v1 to the trainer's values and back, without decisions."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from google.protobuf.duration_pb2 import Duration

from aeenc import errors
from aeenc.calls.retrieval import Fusion, Retrieval
from aeenc.evaluation import UNRANKED, GradedMetrics, Metrics
from aeenc.evaluation.graded import LENGTHS, check_grade
from aeenc.v1 import index_pb2, registry_pb2, trainer_pb2, types_pb2
from services.kit.convert import bounded, label_of, opened_by, to_timestamp
from services.store.registry import CheckpointRow, LabelRow, RolloutRow
from services.store.registry_rows import TOGETHER, versions_of
from services.trainer.evaluation.evaluator import Evaluation, EvaluationSpec
from services.trainer.evaluation.parts import Part
from services.trainer.evaluation.protocol import EvaluationQuery, Ranks
from services.trainer.evaluation.tree_level import GoldTree, TreeLevel
from services.trainer.jobs.garbage import Garbage
from services.trainer.jobs.job import PROTOTYPES, Job, JobConfig, JobProgress
from services.trainer.jobs.losses import LOSSES, LossSpec
from services.trainer.registry.quality_gate import Comparison, Verdict
from services.trainer.registry.rollout import Publication
from services.trainer.registry.tandems import Tandem


def from_config(message: trainer_pb2.JobConfig) -> tuple[JobConfig, list[tuple[str, list[str]]]]:
    """Reads a job's configuration, with the contract's defaults filled in, and its validation queries."""
    mode = _named(trainer_pb2.Mode, message.mode, "config.mode", "SINGLE")
    crossed = mode == "CROSS_ENCODER"
    loss = _named(trainer_pb2.Loss, message.loss, "config.loss", "REGRESSION" if crossed else "FULL_CORPUS_SOFTMAX")
    usual = "QUERIES" if mode == "SINGLE" or crossed else "ITEMS"
    batching = _named(trainer_pb2.Batching, message.batching, "config.batching", usual)
    given = {name: _short(getattr(message, name)) for name in ("margin", "regularization") if message.HasField(name)}
    defaults = (LOSSES[loss] if not message.custom_loss else LossSpec("", "pairs")).by(batching)
    config = JobConfig(
        corpus=message.corpus,
        run_ids=tuple(message.run_ids),
        idempotency_key=message.idempotency_key,
        base_version=message.base_version,
        loss=loss,
        epochs=message.epochs,
        batch_size=message.batch_size or (8 if crossed else 32),
        learning_rate=_short(message.learning_rate) or defaults.learning_rate,
        temperature=_short(message.temperature) or defaults.temperature,
        margin=given.get("margin", defaults.margin),
        regularization=given.get("regularization", defaults.regularization),
        refused_weight=_short(message.refused_weight) or 1.0,
        seed=message.seed,
        split=message.split,
        note=message.note,
        data_sets=tuple(message.data_sets),
        batching=batching,
        hard_negatives=message.hard_negatives if message.HasField("hard_negatives") else (6 if crossed else 1),
        guide_version=message.guide_version,
        guide_margin=_short(message.guide_margin),
        accumulation=message.accumulation or 1,
        initial_share=_short(message.initial_share),
        items_per_epoch=message.items_per_epoch,
        mode=mode,
        targets=_named(trainer_pb2.Targets, message.targets, "config.targets", "BINARY"),
        candidates=_named(index_pb2.RetrieveMode, message.candidates, "config.candidates", ""),
        negatives=_named(trainer_pb2.Negatives, message.negatives, "config.negatives", "RETRIEVED"),
        own_text=_named(types_pb2.OwnText, message.own_text, "config.own_text", "EXCLUDED"),
        prototypes=message.prototypes or PROTOTYPES,
        custom_loss=message.custom_loss,
    )
    return config, [(query.text, list(query.gold)) for query in _queries(message.validation)]


def to_job(job: Job) -> trainer_pb2.Job:
    """Writes a job, without its validation queries."""
    return trainer_pb2.Job(
        id=job.id,
        config=trainer_pb2.JobConfig(
            **{
                **asdict(job.config),
                "loss": f"LOSS_{job.config.loss}",
                "batching": f"BATCHING_{job.config.batching}",
                "mode": f"MODE_{job.config.mode}",
                "targets": f"TARGETS_{job.config.targets}",
                "candidates": f"RETRIEVE_MODE_{job.config.candidates or 'UNSPECIFIED'}",
                "negatives": f"NEGATIVES_{job.config.negatives}",
                "own_text": f"OWN_TEXT_{job.config.own_text}",
            }
        ),
        state=f"WORK_STATE_{job.state}",
        error=job.error,
        progress=_progress(job.progress),
        version=job.version,
        created_at=to_timestamp(job.created_at),
        ended_at=to_timestamp(job.ended_at),
    )


def to_checkpoint(row: CheckpointRow, labels: Sequence[str], tandem: Tandem | None) -> trainer_pb2.Checkpoint:
    """Writes a checkpoint, the labels that name it, and its tandem."""
    return trainer_pb2.Checkpoint(
        version=row.version,
        space_id=row.space_id,
        pretrained=row.pretrained,
        base_version=row.base_version,
        job_id=row.job_id,
        validation_map=row.validation_map,
        manifest_sha256=row.manifest_sha256,
        labels=labels,
        created_at=to_timestamp(row.created_at),
        size_bytes=row.size_bytes,
        dim=row.dim,
        tandem=trainer_pb2.Tandem(
            corpus=tandem.corpus,
            generation=tandem.generation,
            premise_version=tandem.premise_version,
            replaces=tandem.replaces,
        )
        if tandem
        else None,
    )


def named_versions(request: registry_pb2.PublishRequest | registry_pb2.SetLabelRequest) -> str:
    """Reads the version that a label shall name, or those of an ensemble, as a row has them."""
    if not request.versions or any(not one or TOGETHER in one for one in request.versions):
        raise errors.InvalidArgument.field(
            "versions", f"is {list(request.versions)}; give a version, or those of an ensemble"
        )
    return TOGETHER.join(request.versions)


def to_label(row: LabelRow) -> types_pb2.Label:
    """Writes a label."""
    return label_of(row, previous_versions=versions_of(row.previous), moved_at=to_timestamp(row.moved_at))


def precision(message: Any) -> str:
    """Reads the precision in which a label is to be served; "" for none."""
    return str(_named(types_pb2.Precision, message.precision, "precision", "")).lower()


def to_rollouts(rows: Sequence[RolloutRow], label: LabelRow) -> list[types_pb2.Rollout]:
    """Writes how far each encoder is with a label."""
    return [
        types_pb2.Rollout(
            instance=row.instance,
            label=types_pb2.Label(space_id=label.space_id, name=label.name, revision=row.revision),
            ok=row.ok,
            reason=row.reason,
            finished_at=to_timestamp(row.at),
        )
        for row in rows
    ]


def to_publication(publication: Publication) -> dict[str, Any]:
    """Collects the fields that the responses of Publish and Rollback share."""
    return {
        "label": to_label(publication.label),
        "rollouts": to_rollouts(publication.rollouts, publication.label),
        "complete": publication.complete,
        "generation": publication.generation,
    }


def to_gate(verdict: Verdict) -> dict[str, Any]:
    """Collects what the response of Publish says of the quality gate."""
    return {"comparisons": map(_comparison, verdict.comparisons), "not_compared": verdict.not_compared}


def _comparison(made: Comparison) -> registry_pb2.GateComparison:
    return registry_pb2.GateComparison(**{**asdict(made), "outcome": f"OUTCOME_{made.outcome}"})


async def from_evaluate_requests(
    requests: AsyncIterator[trainer_pb2.EvaluateRequest], max_queries: int, max_bytes: int
) -> EvaluationSpec:
    """Reads the configuration of the first message, and the queries, training queries and trees of all."""
    config: trainer_pb2.EvaluateConfig | None = None
    queries: list[EvaluationQuery] = []
    training: list[EvaluationQuery] = []
    trees: list[GoldTree] = []
    nodes = 0  # of the trees, without their leaves
    whole = bounded(requests, max_bytes, "queries", "evaluate in parts")
    async for request in opened_by("config", whole):
        config = config or request.config
        queries.extend(_queries(request.queries))
        training.extend(_queries(request.training))
        trees.extend(GoldTree(one.hypothesis, tuple(one.intermediates), tuple(one.leaves)) for one in request.trees)
        nodes += sum(1 + len(one.intermediates) for one in request.trees)
        for field, count in (("queries", len(queries)), ("training", len(training)), ("trees", nodes)):
            if count > max_queries:
                raise errors.TooLarge.field(
                    field,
                    f"have {count:,} texts to rank, and more may follow; evaluate in parts of at most {max_queries:,}",
                )
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
    return [types_pb2.Garbage(**asdict(one)) for one in garbage]


def to_report(evaluation: Evaluation) -> types_pb2.EvaluationReport:
    """Writes an evaluation's report."""
    report = evaluation.report
    return types_pb2.EvaluationReport(
        strict=_metrics(report.strict),
        paper=_metrics(report.paper),
        candidates=report.candidates,
        queries=report.queries,
        pairs=report.pairs,
        model_version=evaluation.model_version,
        generation=evaluation.generation,
        rerank_versions=evaluation.rerank_versions,
        parts=[_part(part) for part in evaluation.parts],
        hypothesis_alone=_tree_metrics(evaluation.hypothesis_alone),
        gold_tree=_tree_metrics(evaluation.gold_tree),
        ranks=list(_ranks(report.strict_ranks, report.paper_ranks)) if evaluation.with_ranks else (),
        graded=_graded(report.graded),
    )


def revision(message: Any) -> int | None:
    """Reads the expected revision of a request; None if it is not to be checked."""
    return message.expected_revision if message.HasField("expected_revision") else None


def share(message: Any) -> float | None:
    """Reads the share of the calls that a request asks for; None if it is to stay."""
    return message.share if message.HasField("share") else None


def seconds(duration: Duration) -> float:
    """Reads a duration in seconds."""
    return float(duration.seconds + duration.nanos / 1e9)


def _named(enum: Any, sent: int, field: str, unset: str) -> Any:
    """Reads an enum's value by its name, without the enum's own; 0 is `unset`. Raises InvalidArgument."""
    if sent and sent not in enum.values():
        raise errors.InvalidArgument.field(
            field, f"{sent} is unknown to this service; use one of {sorted(enum.values())[1:]}, or update it"
        )
    return enum.Name(sent).removeprefix(enum.Name(0).removesuffix("UNSPECIFIED")) if sent else unset


def _short(value: float) -> float:
    """Rounds to what the caller wrote: 0.03 travels as 0.029999999329447746 in single precision."""
    return float(f"{value:.7g}")


def _progress(progress: JobProgress) -> trainer_pb2.JobProgress:
    remaining = Duration()
    remaining.FromNanoseconds(int(progress.remaining_s * 1e9))
    fields = asdict(progress)
    fields.pop("remaining_s")
    fields["gain"] = _comparison(progress.gain) if progress.gain else None
    return trainer_pb2.JobProgress(**fields, remaining=remaining)


def _queries(messages: Iterable[types_pb2.GoldQuery]) -> Iterable[EvaluationQuery]:
    return map(_query, messages)


def _query(message: types_pb2.GoldQuery) -> EvaluationQuery:
    premises = tuple(map(sys.intern, message.premises))  # many queries name the same ones
    if not message.grades:
        return EvaluationQuery(message.text, premises)
    if len(message.grades) != len(message.premises):
        raise errors.InvalidArgument.field(
            "queries.grades",
            f"has {len(message.grades)} of {len(message.premises)} premises of {message.text[:80]!r}; give one each",
        )
    told = zip(premises, message.grades, strict=True)
    gold = [(premise, grade) for premise, grade in told if check_grade(grade)]
    return EvaluationQuery(message.text, tuple(one for one, _ in gold), tuple(grade for _, grade in gold))


def _retrieval(message: index_pb2.RetrievalOptions) -> Retrieval:
    fusion = None
    if message.HasField("fusion"):
        weight = message.fusion.lexical_weight if message.fusion.HasField("lexical_weight") else None
        fusion = Fusion(
            _named(index_pb2.FusionMethod, message.fusion.method, "config.retrieval.fusion.method", "MIN_MAX").lower(),
            weight,
            dict(message.fusion.features),
        )
    return Retrieval(
        mode=_named(index_pb2.RetrieveMode, message.mode, "config.retrieval.mode", "DENSE").lower(),
        fusion=fusion,
        prior=message.prior,
        rerank=message.rerank,
        rerank_weight=message.rerank_weight,
        rerank_versions=tuple(message.rerank_versions),
        negative_feedback=message.negative_feedback,
    )


def _metrics(metrics: Metrics | None) -> types_pb2.RetrievalMetrics | None:
    return None if metrics is None else types_pb2.RetrievalMetrics(**asdict(metrics))


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
    return types_pb2.GradedMetrics(
        ndcg_linear=graded.ndcg_linear,
        ndcg_exponential=graded.ndcg_exponential,
        oracle_ndcg_linear=graded.oracle_ndcg_linear,
        oracle_ndcg_exponential=graded.oracle_ndcg_exponential,
        recalls=recalls,
    )


def _part(part: Part) -> types_pb2.EvaluationPart:
    return types_pb2.EvaluationPart(
        kind=f"EVALUATION_PART_KIND_{part.kind}",
        strict=_metrics(part.strict),
        paper=_metrics(part.paper),
        queries=part.queries,
        pairs=part.pairs,
    )


def _tree_metrics(level: TreeLevel | None) -> types_pb2.TreeMetrics | None:
    if level is None:
        return None
    return types_pb2.TreeMetrics(
        recall_at_25=level.recall,
        recall_at_25_micro=level.recall_micro,
        all_correct_at_25=level.all_correct,
        trees=level.trees,
        leaves=level.leaves,
    )


def _ranks(strict: Sequence[Ranks], paper: Sequence[Ranks]) -> Iterable[types_pb2.GoldRanks]:
    for first, second in zip_longest(strict, paper, fillvalue=()):
        yield types_pb2.GoldRanks(strict=_found(first), paper=_found(second))


def _found(ranks: Iterable[int]) -> list[int]:
    return [0 if rank >= UNRANKED else int(rank) for rank in ranks]
