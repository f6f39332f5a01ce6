"""Evaluation reports as plain values and as tables, under the printed names of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table

from aeenc import values
from aeenc.cli.output import PROTOCOLS, fields_of, table
from aeenc.evaluation.graded import LENGTHS, Gain, grade_text
from aeenc.evaluation.metrics import METRIC_FIELDS
from aeenc.evaluation.strata import Stratum

GAINS = {Gain.LINEAR: "linear", Gain.EXPONENTIAL: "exponential", Gain.TEXTGRAPHS: "TextGraphs"}
_GRADED = {f"NDCG {name}": f"ndcg_{gain.value}" for gain, name in GAINS.items()} | {
    f"oracle NDCG@200 {name}": f"oracle_ndcg_{gain.value}" for gain, name in GAINS.items()
}
SHOWN = ("MAP", "NDCG", "Hit@10", "Hit@50")
_FEW = ("MAP", "Hit@10")
FOLDED = ", folded"


def report_dict(report: values.EvaluationReport) -> dict[str, Any]:
    """Converts a report to plain values without its absent parts."""
    counts = fields_of(report, "candidates", "queries", "pairs", "model_version", "generation")
    named: dict[str, Any] = _by_protocol(report) | counts
    if report.rerank_versions:
        named["rerank_versions"] = report.rerank_versions
    if report.parts:
        named["parts"] = {
            part.kind.name.lower().replace("_", " "): _by_protocol(part) | fields_of(part, "queries", "pairs")
            for part in report.parts
        }
    if report.hypothesis_alone is not None:
        named["trees"] = {name: _tree_dict(getattr(report, name)) for name in ("hypothesis_alone", "gold_tree")}
    if (graded := report.graded) is not None:
        named["graded"] = {name: getattr(graded, field) for name, field in _GRADED.items()}
        named["graded"]["recall_by_grade"] = {
            grade_text(one.grade): {str(length): getattr(one, f"recall_at_{length}") for length in LENGTHS}
            for one in graded.recalls
        }
    return named


def _by_protocol(measured: values.EvaluationReport | values.EvaluationPart) -> dict[str, Any]:
    """Converts the metrics of the protocols that there are, by name."""
    found = {name: metrics for name in PROTOCOLS if (metrics := getattr(measured, name)) is not None}
    return {
        name: {printed: getattr(metrics, field) for printed, field in METRIC_FIELDS.items()}
        for name, metrics in found.items()
    }


def strata_dict(strata: Iterable[Stratum]) -> dict[str, Any]:
    """Converts strata to plain values by the names of their bands."""
    return {one.name: {**one.metrics.to_dict(), "queries": one.queries, "pairs": one.pairs} for one in strata}


def report_tables(report: Mapping[str, Any], *, whole: bool = True) -> list[Table]:
    """Makes the tables of `report_dict`: both protocols, the parts under the strict one, whole trees.

    Unless `whole`, only MAP and Hit@10 of both protocols, and strata. Where `report` has what was measured with
    premises that say the same made one (`folded`), its figures stand beside those without.
    """
    folded: Mapping[str, Any] = report.get("folded", {})
    columns = {
        name + beside: measured[name]
        for name in PROTOCOLS
        for measured, beside in ((report, ""), (folded, FOLDED))
        if name in measured
    }
    rows = [[name, *(f"{one[name]:.3f}" for one in columns.values())] for name in (METRIC_FIELDS if whole else _FEW)]
    made = [table(["metric", *columns], rows, right=len(columns))]
    made += [_bands(f"by {name}", _beside(report["by"], folded.get("by", {}), name)) for name in report.get("by", {})]
    if not whole:
        return made
    if "parts" in report:
        made.append(_bands("part", _beside(report, folded, "parts")))
    if "trees" in report:
        names = ("Recall@25", "Recall@25 micro", "AllCorrect@25")
        rows = [
            [way.replace("_", " "), *(f"{level[name]:.3f}" for name in names)]
            for way, level in _beside(report, folded, "trees")
        ]
        made.append(table(["whole trees", *names], rows, right=len(names)))
    if "graded" in report:
        graded = [report["graded"], *([folded["graded"]] if folded else [])]
        rows = [[name, *(f"{one[name]:.3f}" for one in graded)] for name in _GRADED]
        made.append(table(["by grades (strict)", "", *([FOLDED[2:]] if folded else [])], rows, right=len(graded)))
        for one, beside in zip(graded, ("", FOLDED), strict=False):
            made.append(recall_table(f"recall of grade{beside}", one["recall_by_grade"]))
    return made


def _bands(title: str, parts: Iterable[tuple[str, Mapping[str, Any]]]) -> Table:
    """Makes a table of parts of the pairs: the metrics of each under the strict protocol, if there, and its counts."""
    rows = []
    for name, one in parts:
        metrics = one.get("strict", one)
        figures = (f"{metrics[metric]:.3f}" if metric in metrics else "" for metric in SHOWN)
        rows.append((name, *figures, one["queries"], one["pairs"]))
    return table([f"{title} (strict)", *SHOWN, "queries", "pairs"], rows, right=len(SHOWN) + 2)


def _beside(report: Mapping[str, Any], folded: Mapping[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the rows of a table, each with its folded one behind it."""
    for row, measured in report[name].items():
        yield row, measured
        if row in folded.get(name, {}):
            yield row + FOLDED, folded[name][row]


def recall_table(title: str, by_grade: Mapping[str, Mapping[str, float]]) -> Table:
    """Makes a table of the recall of each grade in the first LENGTHS of a list."""
    rows = [(grade, *(f"{share:.4f}" for share in row.values())) for grade, row in by_grade.items()]
    return table([title, *(f"@{length}" for length in LENGTHS)], rows, right=len(LENGTHS))


def _tree_dict(level: values.TreeMetrics) -> dict[str, Any]:
    shares = ("Recall@25=recall_at_25", "Recall@25 micro=recall_at_25_micro", "AllCorrect@25=all_correct_at_25")
    return fields_of(level, *shares, "trees", "leaves")
