"""The evaluation that docs/evaluation.md defines: metrics from ranks, TREC files, the paired test. Pure numpy."""

from aeenc.evaluation.metrics import (
    UNRANKED,
    Metrics,
    average_precision,
    hit,
    metrics_of,
    ndcg,
    paired_randomisation_test,
)
from aeenc.evaluation.trec import Run, query_id, ranks_of, read_qrels, read_run, write_qrels, write_run

__all__ = [
    "UNRANKED",
    "Metrics",
    "Run",
    "average_precision",
    "hit",
    "metrics_of",
    "ndcg",
    "paired_randomisation_test",
    "query_id",
    "ranks_of",
    "read_qrels",
    "read_run",
    "write_qrels",
    "write_run",
]
