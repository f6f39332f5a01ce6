"""`aeenc compare`: whether two systems differ, from their TREC runs. Needs no service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from aeenc.cli.output import METRICS, output_of, table
from aeenc.errors import InvalidArgument
from aeenc.evaluation import (
    average_precision,
    metrics_of,
    ndcg,
    paired_randomisation_test,
    ranks_of,
    read_qrels,
    read_run,
)
from aeenc.evaluation.metrics import Ranks

# What is tested: one value a query. Hit@k counts pairs, which are not independent; the test is over queries' shares.
_PER_QUERY: dict[str, Callable[[Ranks], float]] = {
    "MAP": average_precision,
    "NDCG": ndcg,
    "NDCG@10": lambda ranks: ndcg(ranks, 10),
    "NDCG@50": lambda ranks: ndcg(ranks, 50),
    "Hit@10": lambda ranks: float(np.mean(ranks <= 10)),
    "Hit@20": lambda ranks: float(np.mean(ranks <= 20)),
    "Hit@50": lambda ranks: float(np.mean(ranks <= 50)),
}


def compare(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(help="A TREC run, such as `aeenc evaluate --run` writes.")],
    second: Annotated[Path, typer.Argument(help="Another system's run on the same queries.")],
    qrels: Annotated[Path, typer.Option(help="TREC qrels of both.")],
    rounds: Annotated[int, typer.Option(min=100, max=1_000_000, help="Of the randomisation.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the randomisation.")] = 0,
) -> None:
    """Compares two systems: metrics of both, and p of a paired randomisation test, two-sided, over queries."""
    gold = read_qrels(qrels)
    runs = [read_run(path) for path in (first, second)]
    for path, run in zip((first, second), runs, strict=True):
        if not set(run) & set(gold):
            raise InvalidArgument(f"{path} answers no query of {qrels}; give runs and qrels of one split")
    ranks = [ranks_of(run, gold) for run in runs]
    metrics = [metrics_of(own).to_dict() for own in ranks]
    p_values = {
        name: paired_randomisation_test(
            *(np.array([value(one) for one in own]) for own in ranks), rounds=rounds, seed=seed
        )
        for name, value in _PER_QUERY.items()
    }
    rows = [
        (
            name,
            *(f"{one[name]:.4f}" for one in metrics),
            f"{metrics[1][name] - metrics[0][name]:+.4f}",
            f"{p_values[name]:.4f}",
        )
        for name in METRICS
    ]
    result = {"queries": len(gold), "first": metrics[0], "second": metrics[1], "p": p_values}
    shown = table(["metric", first.name, second.name, "change", "p"], rows, right=4)
    output_of(context).result(result, shown, f"{len(gold):,} queries; MAP and NDCG over what the runs hold")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare")(compare)
