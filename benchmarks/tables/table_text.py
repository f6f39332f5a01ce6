"""Table 1 as Markdown: what was measured, mean and standard deviation over seeds, beside what the paper prints."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from aeenc.evaluation.metrics import UNRANKED, hit, ndcg
from benchmarks.tables.by_tree import BY_QUERY, FACTS, JUMP, UNSEEN, Difference, difference, means_of

SBERT, AE_ENC = "minilm", "ae-enc"  # a row, and how rows of the paper's method begin
DEPTHS = (10, 20, 30, 40, 50)
OVER = ("VS SBERT ↑", "VS best baseline ↑")  # MAP, in per cent
METRICS = ("MAP", "NDCG", *(f"NDCG@{k}" for k in DEPTHS), *(f"Hit@{k}" for k in DEPTHS))
_HEAD = (
    "Protocols and metrics: [evaluation.md](../evaluation.md). Several seeds: mean ± standard deviation. `make table1` "
    "measures what is missing and writes this page; `make table1 ARGS='--only NAME --split {split}'` measures one row. "
    "Rates, numbers of epochs, rounds, temperatures and the weights of `ours-full` and `ours-reranked` were chosen on "
    "dev, so that dev figures of trained rows flatter; `ours-tuned` and `ours-ordered` keep the last epoch, and their "
    "weights were tuned on train, like that of `ours-ordered-reranked`, for whose cross-encoder dev chose the epoch. "
    "± is the spread of seeds alone. Figures without ± have one seed: differences of .005 may be chance; [by "
    "tree](#differences-of-strict-map-by-tree) tests the choice of trees. "
    "A cell is blank where a row was measured before its figure was kept; `2 of 3` says for how many seeds it was. "
    "VS SBERT, VS best baseline: how far MAP is above `minilm`, and above the best row that the paper has, too, except "
    "AE-Enc, in per cent; the paper's stand beside its own. "
    "[table1-{split}](table1-{split}) has the report of each row."
)
PARTS = (
    "Unseen: queries that train does not have. Facts alone: only premises of the fact file are gold; other gold "
    "premises, mostly conclusions of the same tree, leave the ranking, and queries without a gold fact are not asked."
)
_TREES = "Trees: their leaves among the first 25 of the hypothesis."
_DIFFERENCES = (
    "Queries of one tree are not independent, nor are trees that share a query, or of which one has another's query"
    " as a premise. So the paired randomisation test and the 95 % interval (bootstrap) draw groups of such trees. A"
    " query counts with its mean over the seeds. They tell whether a difference may come from the choice of trees, "
    "not whether it may come from the seed of a training or from what dev has chosen, and are not corrected for the"
    " number of rows. The least p is .0001. Unseen: queries that train does not have. Rows measured before figures "
    "were kept by query are missing."
)
_JUMPS = (
    "Where MAP of protocol `paper` lies between own text before all premises, 0, and own text dropped, 1 "
    "([own text](own-text-{split}.md)). Rows measured since it is kept."
)
SHARE = ", 4,000 of 166,486 triplets an epoch"  # in titles of rows that we train on less than the paper does
_OF_DIFFERENCE = ("difference", "95 % interval", "p")


@dataclass(frozen=True)
class MeasuredRow:
    """A row of the table. `reports` has one for each seed, and `reason` says why there is none.

    `paper` has the printed figures, and `against` names the row that this one is compared with.
    """

    name: str
    title: str
    reports: Sequence[Mapping[str, Any]]
    paper: Mapping[str, float]
    reason: str = ""
    against: str = ""

    @property
    def told(self) -> str:
        """The title, with the rounds that dev has chosen where there were several."""
        chosen = best_rounds(self.reports)
        return f"{self.title} ({chosen})" if chosen else self.title

    def values(self, protocol: str, metric: str) -> list[float]:
        """The figure of each seed."""
        return [report[protocol][metric] for report in self.reports if metric in report.get(protocol, {})]

    def cells(self, protocol: str, metrics: Sequence[str] = METRICS) -> list[str]:
        """The figures of all seeds, each with how many of the seeds it has where it lacks some."""
        told = {name: self.values(protocol, name) for name in metrics}
        return [
            shown(found) + (f" ({len(found)} of {len(self.reports)})" if 0 < len(found) < len(self.reports) else "")
            for found in told.values()
        ]


def deeper_metrics(ranks: Sequence[Sequence[int]]) -> dict[str, float]:
    """NDCG@k and Hit@k at the depths of the paper's table, from each query's gold ranks; 0 is not ranked."""
    found = [np.array([rank or UNRANKED for rank in own], dtype=np.int64) for own in ranks if len(own)]
    return {f"NDCG@{k}": float(np.mean([ndcg(own, k) for own in found])) for k in DEPTHS} | {
        f"Hit@{k}": hit(found, k) for k in DEPTHS
    }


def best_rounds(reports: Sequence[Mapping[str, Any]]) -> str:
    """`best of 4 rounds on dev: 1, 2` for the reports of two seeds; empty: no loop, or one of a single round."""
    loops = [one for one in reports if len(one.get("dev_by_round", ())) > 2]  # round 0 is the untrained encoder
    if not loops:
        return ""
    best = ", ".join(str(one["best_round"]) for one in loops)
    return f"best of {len(loops[0]['dev_by_round']) - 1} rounds on dev: {best}"


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
    lines += _harder(there)
    lines += _differences(there)
    title = "Protocol `paper`: the query's own text is kept; below each row what the paper prints of the test split"
    lines += _table(title, rows, "paper", source=source)
    lines += _jumps(there, split)
    lines += _unmeasured([row for row in rows if not row.reports])
    return "\n".join(lines) + "\n"


def _table(title: str, rows: Sequence[MeasuredRow], protocol: str, *, source: str) -> list[str]:
    names = ["system", "`NAME`", *METRICS, *OVER]
    lines = [f"## {title}", "", _line(names), f"|{'---|' * len(names)}"]
    ours = _over([(row, statistics.mean(found)) for row in rows if (found := row.values(protocol, "MAP"))])
    theirs = _over([(row, row.paper["MAP"]) for row in rows if row.paper])
    for row in rows:
        if row.reports:
            lines.append(_line([row.told, row.name, *row.cells(protocol), *ours.get(row.name, [""] * len(OVER))]))
        if source and row.paper:
            figures = (_short(row.paper[name]) for name in METRICS)
            lines.append(_line([f"*{row.title.removesuffix(SHARE)}, as printed*", "", *figures, *theirs[row.name]]))
    return [*lines, "", *([f"Paper: {source}.", ""] if source else [])]


def _over(found: Sequence[tuple[MeasuredRow, float]]) -> dict[str, list[str]]:
    """How far the MAP of each row, by its name, is above that of SBERT and of the best baseline, in per cent."""
    sbert = [value for row, value in found if row.name == SBERT]
    baselines = [value for row, value in found if row.paper and not row.name.startswith(AE_ENC)]
    over = [max(those, default=0.0) for those in (sbert, baselines)]
    return {row.name: [f"{100 * (value / one - 1):+.1f}" if one else "" for one in over] for row, value in found}


def _jumps(rows: Sequence[MeasuredRow], split: str) -> list[str]:
    """How far each row has moved queries' own texts down, where it is known."""
    found = [(row, [one[JUMP] for one in row.reports if JUMP in one]) for row in rows]
    lines = [_line([row.told, row.name, shown(jumps)]) for row, jumps in found if jumps]
    head = ["## f, the jump", "", _JUMPS.format(split=split), "", "| system | `NAME` | f |", f"|{'---|' * 3}"]
    return [*head, *lines, ""] if lines else []


def _harder(rows: Sequence[MeasuredRow]) -> list[str]:
    """The strict MAP of unseen queries and over facts alone, and whole trees from the hypothesis alone."""
    names = ("MAP", "MAP, unseen queries", "MAP, facts alone", "Recall@25 of trees", "AllCorrect@25 of trees")
    lines = ["## Unseen queries, facts alone and whole trees, protocol `strict`", "", f"{PARTS} {_TREES}", ""]
    lines += [f"| {' | '.join(['system', '`NAME`', *names])} |", f"|{'---|' * (len(names) + 2)}"]
    for row in rows:
        means = [_means(report) for report in row.reports]
        trees = [one["trees"]["hypothesis_alone"] for one in row.reports if "trees" in one]
        figures = [[one[name] for one in means if name in one] for name in (UNSEEN, FACTS)]
        figures += [[one[name] for one in trees] for name in ("Recall@25", "AllCorrect@25")]
        if not any(figures):
            continue
        lines.append(_line([row.told, row.name, *row.cells("strict", ["MAP"]), *map(shown, figures)]))
    return [*lines, ""]


def _means(report: Mapping[str, Any]) -> dict[str, float]:
    """The MAP of unseen queries and over facts alone; of a report without figures by query, the former at most."""
    if BY_QUERY in report:
        return means_of(report[BY_QUERY])
    unseen = report.get("parts", {}).get("query unseen", {})
    return {UNSEEN: unseen["strict"]["MAP"]} if "strict" in unseen else {}


def _differences(rows: Sequence[MeasuredRow]) -> list[str]:
    """How far each row is above another, by tree, where both keep figures by query."""
    lines = ["## Differences of strict MAP, by tree", "", _DIFFERENCES, ""]
    over_both = " | ".join(f"{what}{of}" for of in ("", ", unseen queries") for what in _OF_DIFFERENCE)
    lines += [f"| system | `NAME` | against | seeds | {over_both} |", f"|{'---|' * 10}"]
    reports = {row.name: row.reports for row in rows}
    for row in rows:
        if row.name == row.against:
            continue
        other = reports.get(row.against, ())
        both = [difference(row.reports, other, unseen=unseen) for unseen in (False, True)]
        if both[0] is None:
            continue
        seeds = f"{len(row.reports)}, {len(other)}"
        lines.append(_line([row.told, row.name, f"`{row.against}`", seeds, *chain.from_iterable(map(_told, both))]))
    return [*lines, ""]


def _told(found: Difference | None) -> list[str]:
    if found is None:
        return [""] * len(_OF_DIFFERENCE)
    return [_signed(found.mean), f"{_signed(found.low)} to {_signed(found.high)}", f"{found.p:.4f}"]


def _unmeasured(rows: Sequence[MeasuredRow]) -> list[str]:
    if not rows:
        return []
    lines = ["## Not measured yet", "", "`make table1 ARGS='--only NAME'` measures one.", ""]
    return [*lines, *(f"- `{row.name}`: {row.title}{f' ({row.reason})' if row.reason else ''}" for row in rows), ""]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _signed(value: float) -> str:
    return ("-" if value < 0 else "+") + _short(abs(value))


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")
