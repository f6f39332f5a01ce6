"""The evaluation that docs/evaluation.md defines: metrics from ranks, TREC files, the paired test. Pure numpy."""

from aeenc.evaluation.answers import AnswerDataset, Question, question_class
from aeenc.evaluation.graded import (
    Gain,
    GradedMetrics,
    graded_metrics_of,
    graded_ndcg,
    is_graded,
    oracle_ndcg,
    recall_by_grade,
)
from aeenc.evaluation.metrics import (
    UNRANKED,
    Metrics,
    average_precision,
    hit,
    metrics_of,
    ndcg,
    paired_randomisation_test,
)
from aeenc.evaluation.textgraphs import RatedDataset, RatedQuery, RatedSet, read_textgraphs
from aeenc.evaluation.trec import (
    Run,
    fuse,
    query_id,
    ranks_of,
    read_grades,
    read_qrels,
    read_run,
    write_fused,
    write_qrels,
    write_run,
)

__all__ = [
    "UNRANKED",
    "AnswerDataset",
    "Gain",
    "GradedMetrics",
    "Metrics",
    "Question",
    "RatedDataset",
    "RatedQuery",
    "RatedSet",
    "Run",
    "average_precision",
    "fuse",
    "graded_metrics_of",
    "graded_ndcg",
    "hit",
    "is_graded",
    "metrics_of",
    "ndcg",
    "oracle_ndcg",
    "paired_randomisation_test",
    "query_id",
    "question_class",
    "ranks_of",
    "read_grades",
    "read_qrels",
    "read_run",
    "read_textgraphs",
    "recall_by_grade",
    "write_fused",
    "write_qrels",
    "write_run",
]
