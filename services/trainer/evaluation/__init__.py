"""Retrieval quality by the frozen protocol of docs/evaluation.md, from vectors or from rankings. Pure numpy."""

from aeenc.evaluation import Metrics, metrics_of, paired_randomisation_test
from services.trainer.evaluation.protocol import EvaluationQuery, Report, evaluate
from services.trainer.evaluation.ranking import gold_ranks

__all__ = [
    "EvaluationQuery",
    "Metrics",
    "Report",
    "evaluate",
    "gold_ranks",
    "metrics_of",
    "paired_randomisation_test",
]
