"""Evaluation reports as plain values and as tables, under the printed names of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from aeenc.cli.output import METRICS, table
from aeenc.evaluation.metrics import METRIC_FIELDS
from aeenc.v1 import types_pb2

_SHOWN = ("MAP", "NDCG", "Hit@10", "Hit@50")


def report_dict(report: types_pb2.EvaluationReport) -> dict[str, Any]:
    """Converts a report to plain values without its absent parts."""
    values: dict[str, Any] = {
        "strict": metrics_dict(report.strict),
        **({"paper": metrics_dict(report.paper)} if report.HasField("paper") else {}),
        "candidates": report.candidates,
        "queries": report.queries,
        "pairs": report.pairs,
        "model_version": report.model_version,
        "generation": report.generation,
    }
    if report.rerank_version:
        values["rerank_version"] = report.rerank_version
    if report.parts:
        values["parts"] = {_name(part): _part_dict(part) for part in report.parts}
    if report.HasField("hypothesis_alone"):
        values["trees"] = {name: _tree_dict(getattr(report, name)) for name in ("hypothesis_alone", "gold_tree")}
    return values


def metrics_dict(metrics: types_pb2.RetrievalMetrics) -> dict[str, float]:
    """Converts metrics to values by name."""
    return {name: getattr(metrics, field) for name, field in METRIC_FIELDS.items()}


def report_tables(values: Mapping[str, Any]) -> list[Table]:
    """Makes the tables of `report_dict`: both protocols, the parts under the strict one, whole trees."""
    protocols = [name for name in ("strict", "paper") if name in values]
    rows = [[name, *(f"{values[protocol][name]:.3f}" for protocol in protocols)] for name in METRICS]
    made = [table(["metric", *protocols], rows, right=len(protocols))]
    if "parts" in values:
        parts = [
            (
                name,
                *(f"{part['strict'][metric]:.3f}" if "strict" in part else "" for metric in _SHOWN),
                part["queries"],
                part["pairs"],
            )
            for name, part in values["parts"].items()
        ]
        made.append(table(["part (strict)", *_SHOWN, "queries", "pairs"], parts, right=len(_SHOWN) + 2))
    if "trees" in values:
        names = ("Recall@25", "Recall@25 micro", "AllCorrect@25")
        rows = [
            [way.replace("_", " "), *(f"{level[name]:.3f}" for name in names)] for way, level in values["trees"].items()
        ]
        made.append(table(["whole trees", *names], rows, right=len(names)))
    return made


def _name(part: types_pb2.EvaluationPart) -> str:
    name = types_pb2.EvaluationPartKind.Name(part.kind)
    return name.removeprefix("EVALUATION_PART_KIND_").lower().replace("_", " ")


def _part_dict(part: types_pb2.EvaluationPart) -> dict[str, Any]:
    found = {name: metrics_dict(getattr(part, name)) for name in ("strict", "paper") if part.HasField(name)}
    return {**found, "queries": part.queries, "pairs": part.pairs}


def _tree_dict(level: types_pb2.TreeMetrics) -> dict[str, Any]:
    return {
        "Recall@25": level.recall_at_25,
        "Recall@25 micro": level.recall_at_25_micro,
        "AllCorrect@25": level.all_correct_at_25,
        "trees": level.trees,
        "leaves": level.leaves,
    }
