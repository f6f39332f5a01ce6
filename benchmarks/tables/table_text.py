"""Table 1 as Markdown: what was measured, mean and standard deviation over seeds, beside what the paper prints."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

METRICS = ("MAP", "NDCG", "NDCG@10", "NDCG@50", "Hit@10", "Hit@20", "Hit@50")
_HEAD = (
    "Protocols and metrics: [evaluation.md](../evaluation.md). Several seeds: mean ± standard deviation. `make table1` "
    "measures what is missing and writes this page; `make table1 ARGS='--only NAME --split {split}'` measures one row. "
    "The reports of all rows lie in [table1-{split}](table1-{split})."
)


@dataclass(frozen=True)
class MeasuredRow:
    """One row: its reports, one a seed, what the paper prints, and why there is no report."""

    name: str
    title: str
    reports: Sequence[Mapping[str, Any]]
    paper: Mapping[str, float]
    reason: str = ""

    def values(self, protocol: str, metric: str) -> list[float]:
        """The figure of each seed."""
        return [report[protocol][metric] for report in self.reports if protocol in report]


def shown(values: Sequence[float]) -> str:
    """`.494`, or `.566 ± .002` over several seeds."""
    if not values:
        return ""
    mean = _short(statistics.mean(values))
    return f"{mean} ± {_short(statistics.stdev(values))}" if len(values) > 1 else mean


def markdown(rows: Sequence[MeasuredRow], split: str, source: str) -> str:
    """The whole page."""
    there = [row for row in rows if row.reports]
    lines = [f"# Table 1, {split} split", ""]
    if there:
        report = there[0].reports[0]
        counts = ", ".join(f"{report[name]:,} {name}" for name in ("queries", "pairs", "candidates"))
        lines += [f"{counts}. {_HEAD.format(split=split)}", ""]
    lines += _table("Protocol `strict`: the query's own text is dropped", there, "strict", source="")
    lines += _table("Protocol `paper`: it is kept; beside it what the paper prints", there, "paper", source=source)
    lines += _unmeasured([row for row in rows if not row.reports])
    return "\n".join(lines) + "\n"


def _table(title: str, rows: Sequence[MeasuredRow], protocol: str, *, source: str) -> list[str]:
    printed = [name for name in METRICS if source and any(name in row.paper for row in rows)]
    head = ["system", "`NAME`", *METRICS, *(f"paper: {name}" for name in printed)]
    lines = [f"## {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [row.title, row.name, *(shown(row.values(protocol, name)) for name in METRICS)]
        cells += [_short(row.paper[name]) if name in row.paper else "" for name in printed]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *([f"Paper: {source}.", ""] if source else [])]


def _unmeasured(rows: Sequence[MeasuredRow]) -> list[str]:
    if not rows:
        return []
    lines = ["## Not measured yet", ""]
    return [*lines, *(f"- `{row.name}`: {row.title}{f' ({row.reason})' if row.reason else ''}" for row in rows), ""]


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")
