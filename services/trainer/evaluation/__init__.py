"""Retrieval quality by the frozen protocol of docs/evaluation.md: ranks, metrics, reports, significance. Pure numpy."""

from services.trainer.evaluation.metrics import Metrics, metrics_of
from services.trainer.evaluation.protocol import EvaluationQuery, Report, evaluate
from services.trainer.evaluation.ranking import gold_ranks
from services.trainer.evaluation.significance import paired_randomisation_test

__all__ = [
    "EvaluationQuery",
    "Metrics",
    "Report",
    "evaluate",
    "gold_ranks",
    "metrics_of",
    "paired_randomisation_test",
]
