"""Messages of aeenc.v1 to evaluations and back. No decision is taken here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict
from itertools import zip_longest

from aeenc import errors
from aeenc.calls.retrieval import Fusion, FusionMethod, Mode, Retrieval
from aeenc.evaluation import UNRANKED, Metrics
from aeenc.v1 import index_pb2, trainer_pb2, types_pb2
from services.kit.convert import decode_enum
from services.trainer.evaluating import Evaluation, Inquiry
from services.trainer.evaluation import EvaluationQuery
from services.trainer.evaluation.parts import Part
from services.trainer.evaluation.protocol import Ranks
from services.trainer.evaluation.tree_level import GoldTree, TreeLevel

_MODES: dict[int, Mode] = {
    index_pb2.RETRIEVE_MODE_DENSE: "dense",
    index_pb2.RETRIEVE_MODE_LEXICAL: "lexical",
    index_pb2.RETRIEVE_MODE_HYBRID: "hybrid",
    index_pb2.RETRIEVE_MODE_ITERATIVE_LEXICAL: "iterative_lexical",
}
_METHODS: dict[int, FusionMethod] = {
    index_pb2.FUSION_METHOD_MIN_MAX: "min_max",
    index_pb2.FUSION_METHOD_RECIPROCAL_RANK: "reciprocal_rank",
}


async def from_evaluate_requests(
    requests: AsyncIterator[trainer_pb2.EvaluateRequest], max_queries: int, max_bytes: int
) -> Inquiry:
    """The configuration of the first message, and the queries, training queries and trees of all."""
    config: trainer_pb2.EvaluateConfig | None = None
    queries: list[EvaluationQuery] = []
    training: list[EvaluationQuery] = []
    trees: list[GoldTree] = []
    size_bytes = 0
    async for request in requests:
        size_bytes += request.ByteSize()
        if config is None:
            config = request.config
        elif request.HasField("config"):
            raise errors.InvalidArgument.field("config", "stands in a later message; send it in the first alone")
        queries.extend(_queries(request.queries))
        training.extend(_queries(request.training))
        trees.extend(GoldTree(one.hypothesis, tuple(one.intermediates), tuple(one.leaves)) for one in request.trees)
        if max(len(queries), len(training), len(trees)) > max_queries or size_bytes > max_bytes:
            limit = f"{max_queries:,} or {max_bytes:,} bytes"
            raise errors.TooLarge(f"queries: more than {limit} in one evaluation; evaluate in parts")
    if config is None or not queries:
        raise errors.InvalidArgument.field("queries", "is empty; give at least one gold query")
    return Inquiry(
        corpus=config.corpus,
        queries=queries,
        training=training,
        trees=trees,
        label=config.model.label or None,
        version=config.model.version or None,
        generation=config.generation,
        retrieval=_retrieval(config.retrieval) if config.HasField("retrieval") else None,
        ranks=config.ranks,
        strict_only=config.strict_only,
    )


def to_report(evaluation: Evaluation) -> types_pb2.EvaluationReport:
    """An evaluation's report."""
    report = evaluation.report
    return types_pb2.EvaluationReport(
        strict=_metrics(report.strict),
        paper=_metrics(report.paper),
        candidates=report.candidates,
        queries=report.queries,
        pairs=report.pairs,
        model_version=evaluation.model_version,
        generation=evaluation.generation,
        rerank_version=evaluation.rerank_version,
        parts=[_part(part) for part in evaluation.parts],
        hypothesis_alone=_tree_metrics(evaluation.hypothesis_alone),
        gold_tree=_tree_metrics(evaluation.gold_tree),
        ranks=list(_ranks(report.strict_ranks, report.paper_ranks)) if evaluation.with_ranks else (),
    )


def _queries(messages: Iterable[types_pb2.GoldQuery]) -> Iterable[EvaluationQuery]:
    return (EvaluationQuery(query.text, tuple(query.premises)) for query in messages)


def _retrieval(message: trainer_pb2.RetrievalOptions) -> Retrieval:
    fusion = None
    if message.HasField("fusion"):
        weight = message.fusion.lexical_weight if message.fusion.HasField("lexical_weight") else None
        fusion = Fusion(
            decode_enum(_METHODS, message.fusion.method, "config.retrieval.fusion.method", "min_max"), weight
        )
    return Retrieval(
        mode=decode_enum(_MODES, message.mode, "config.retrieval.mode", "dense"),
        fusion=fusion,
        prior=message.prior,
        rerank=message.rerank,
        rerank_weight=message.rerank_weight,
        conditioned=message.conditioned,
        negative_feedback=message.negative_feedback,
    )


def _metrics(metrics: Metrics | None) -> types_pb2.RetrievalMetrics | None:
    return None if metrics is None else types_pb2.RetrievalMetrics(**asdict(metrics))


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
