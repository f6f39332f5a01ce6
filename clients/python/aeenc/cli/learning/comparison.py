"""`aeenc compare` and `fuse`: whether two systems differ, and ensembles. They read TREC runs and need no service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from aeenc.cli.learning.reports import GAINS, recall_table
from aeenc.cli.output import Output, output_of, table
from aeenc.errors import InvalidArgument
from aeenc.evaluation import (
    Run,
    average_precision,
    graded_ndcg,
    is_graded,
    metrics_of,
    ndcg,
    oracle_ndcg,
    paired_randomisation_test,
    ranks_of,
    read_grades,
    read_run,
    recall_by_grade,
    write_fused,
)
from aeenc.evaluation.graded import LENGTHS, grade_text
from aeenc.evaluation.metrics import Ranks

# One value per query. Hit@k counts pairs, which are not independent, so the test is over shares of queries.
_PER_QUERY: dict[str, Callable[[Ranks], float]] = {
    "MAP": average_precision,
    "NDCG": ndcg,
    "NDCG@10": lambda ranks: ndcg(ranks, 10),
    "NDCG@50": lambda ranks: ndcg(ranks, 50),
    "Hit@10": lambda ranks: float(np.mean(ranks <= 10)),
    "Hit@20": lambda ranks: float(np.mean(ranks <= 20)),
    "Hit@50": lambda ranks: float(np.mean(ranks <= 50)),
}


# One value per query, of ranks, grades and a gain; shown when the qrels have grades.
_GRADED = {
    f"{prefix} {name}": (metric, gain)
    for prefix, metric in (("NDCG", graded_ndcg), ("oracle NDCG@200", oracle_ndcg))
    for gain, name in GAINS.items()
}


def compare(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(help="A TREC run, such as `aeenc evaluate --run` writes.")],
    second: Annotated[Path, typer.Argument(help="Another system's run on the same queries.")],
    qrels: Annotated[
        Path, typer.Option(help="Qrels of both, TREC's or BEIR's; grades other than 0 and 1 add graded metrics.")
    ],
) -> None:
    """Compares two systems: metrics of both, and p of a paired randomisation test, two-sided, over queries."""
    rated = read_grades(qrels)
    gold = {query: [name for name, grade in grades.items() if grade] for query, grades in rated.items()}
    paths = {"first": first, "second": second}
    runs = [read_run(path) for path in paths.values()]
    out = output_of(context)
    answered = {
        side: answers(out, path, run, gold, qrels) for (side, path), run in zip(paths.items(), runs, strict=True)
    }
    ranks = [ranks_of(run, gold) for run in runs]
    metrics = [metrics_of(row).to_dict() for row in ranks]
    by_query = {name: [[value(one) for one in row] for row in ranks] for name, value in _PER_QUERY.items()}
    recalls: list[dict[float, list[float]]] = []
    if is_graded(rated):
        grades = [list(row.values()) for row in rated.values()]
        places = [ranks_of(run, rated) for run in runs]
        for name, (graded, gain) in _GRADED.items():
            by_query[name] = [
                [graded(ranks.tolist(), given, gain) for ranks, given in zip(at, grades, strict=True)] for at in places
            ]
            for row, per_query in zip(metrics, by_query[name], strict=True):
                row[name] = float(np.mean(per_query))
        recalls = [recall_by_grade([one.tolist() for one in row], grades, LENGTHS) for row in places]
    p_values = {name: paired_randomisation_test(*(np.array(row) for row in both)) for name, both in by_query.items()}
    rows = [
        (
            name,
            *(f"{one[name]:.4f}" for one in metrics),
            f"{metrics[1][name] - metrics[0][name]:+.4f}",
            f"{p_values[name]:.4f}",
        )
        for name in metrics[0]
    ]
    result: dict[str, Any] = {"queries": len(gold), "answered": answered}
    result |= {"first": metrics[0], "second": metrics[1], "p": p_values}
    shown = [table(["metric", first.name, second.name, "change", "p"], rows, right=4)]
    if recalls:
        for (side, path), recall in zip(paths.items(), recalls, strict=True):
            by_grade = {
                grade_text(grade): dict(zip(map(str, LENGTHS), row, strict=True)) for grade, row in recall.items()
            }
            result.setdefault("recall_by_grade", {})[side] = by_grade
            shown.append(recall_table(f"{path.name}: recall of grade", by_grade))
    out.result(result, *shown, f"{len(gold):,} queries; MAP and NDCG over what the runs hold")


def answers(out: Output, path: Path, run: Run, gold: Mapping[str, object], qrels: Path) -> int:
    """Counts the queries that a run answers, and notes where it leaves some out. Raises InvalidArgument for none."""
    count = len(run.keys() & gold)
    if not count:
        raise InvalidArgument(f"{path} answers no query of {qrels}; give runs and qrels of one split")
    if count < len(gold):
        out.note(f"{path} answers {count:,} of the {len(gold):,} queries of {qrels}; the others count as not found")
    return count


def fuse(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(help="Two or more TREC runs on the same queries.")],
    out: Annotated[Path, typer.Option(help="The TREC run to write.")],
    tag: Annotated[str, typer.Option(help="Its last column.")] = "fused",
) -> None:
    """Fuses the rankings of several systems by the sum of ranks; ties go to the order of the first run."""
    if not tag.strip() or len(tag.split()) != 1:
        raise InvalidArgument(f"--tag is {tag!r}; give a word without spaces")
    queries = write_fused(out, [read_run(path) for path in runs], tag)
    result = {"runs": [str(path) for path in runs], "queries": queries, "out": str(out)}
    output_of(context).result(result, f"{out}: {len(runs)} runs, {queries:,} queries")
