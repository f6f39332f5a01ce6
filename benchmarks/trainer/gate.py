"""`make bench NAME=gate`: how often the quality gate of Publish refuses worse and equal checkpoints. Half a minute.

The noise is that of real systems: the differences of average precision, query by query, of pairs of rows of
docs/results/table1-dev (594 queries; their spread is .05 to .26). A trial draws a pair and queries of it, with
replacement, moves the mean difference to the loss that it simulates, and asks the gate itself. `ARGS=--trials N`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import FailedPrecondition
from aeenc.evaluation.metrics import FEWEST
from benchmarks.harness.rows import ROOT, Rows
from services.trainer.registry.quality_gate import QualityGate

REPORTS = ROOT / "docs" / "results" / "table1-dev"
ENCODERS = ("minilm", "ae-enc", "tml-single", "scl-single", "mnrl", "gist", "supcon", "ours", "ours-full")
CHAIN = 10  # versions as good as each other that were published before

Differences = NDArray[np.float64]


def real_differences() -> list[Differences]:
    """The differences (594,) of each pair of encoders that were trained in different ways, less their mean."""
    reports = [json.loads((REPORTS / f"{name}-0.json").read_bytes())["report"] for name in ENCODERS]
    precisions = [np.array(report["strict_by_query"]["AP"]) for report in reports]
    differences = [one - other for one, other in itertools.combinations(precisions, 2)]
    return [one - one.mean() for one in differences]


async def refusals(measured: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> tuple[float, float]:
    """The shares of candidates, given with what serves, that the gate refuses and has too few queries for."""
    metrics: dict[str, Any] = {}
    gate = QualityGate(_labels("serving"), SimpleNamespace(metrics=_read(metrics)))  # type: ignore[arg-type]
    refused = too_few = 0
    for candidate, serving in measured:
        metrics["candidate"] = {
            "after": {"average_precisions": candidate.tolist()},
            "measured": {"serving": serving.tolist()},
        }
        try:
            _, verdict = await gate.compare("candidate", "space", "stable")
            too_few += verdict.not_compared.startswith("too few")
        except FailedPrecondition:
            refused += 1
    return refused / len(measured), too_few / len(measured)


async def rate(noise: Sequence[Differences], loss: float, queries: int, trials: int) -> tuple[float, float]:
    """The same shares for candidates that are worse by `loss` MAP on so many queries."""
    generator = np.random.default_rng([queries, round(1000 * loss)])
    drawn = [generator.choice(noise[int(generator.integers(len(noise)))], queries) - loss for _ in range(trials)]
    return await refusals([(one, np.zeros(queries)) for one in drawn])


async def best_of_many(noise: Sequence[Differences], trials: int) -> float:
    """The share of equals that would be refused beside the best of CHAIN others, measured on the same 200 queries."""
    generator = np.random.default_rng(CHAIN)
    spread = float(np.median([one.std() for one in noise])) / np.sqrt(2)  # of one system's noise
    made = [generator.normal(scale=spread, size=(CHAIN + 1, 200)) for _ in range(trials)]
    return (await refusals([(one[0], one[1 + int(one[1:].mean(axis=1).argmax())]) for one in made]))[0]


def _labels(version: str) -> Any:
    async def label(*_: str) -> Any:
        return SimpleNamespace(version=version, versions=(version,), revision=1)

    return SimpleNamespace(label=label)


def _read(metrics: dict[str, Any]) -> Any:
    async def read(version: str) -> Any:
        return metrics[version]

    return read


async def measure(rows: Rows, trials: int) -> None:
    """Adds all rows."""
    noise = real_differences()
    widest = max(noise, key=np.std)
    spread = f"spread {min(one.std() for one in noise):.2f} to {widest.std():.2f}"
    rows.at_least(
        f"worse by .05 MAP, 200 queries: refused ({spread})", (await rate(noise, 0.05, 200, trials))[0], "", 0.95
    )
    rows.at_most("equal, 200 queries: refused", (await rate(noise, 0.0, 200, trials))[0], "", 0.1)
    rows.at_least("5 queries, MAP 1 to 0: too few", (await rate(noise, 1.0, 5, trials))[1], "", 1.0)
    for loss, queries in ((0.05, 100), (0.05, 50), (0.1, 50), (0.1, FEWEST), (0.2, FEWEST), (0.0, FEWEST)):
        share = (await rate(noise, loss, queries, trials))[0]
        rows.note(f"{f'worse by {loss:g} MAP' if loss else 'equal'}, {queries} queries: refused", share, "")
    rows.note(
        f"worse by .05 MAP, 200 queries, the widest pair ({widest.std():.2f}): refused",
        (await rate([widest], 0.05, 200, trials))[0],
        "",
    )
    rows.note(f"equal, 200 queries, beside the best of {CHAIN} equals: refused", await best_of_many(noise, trials), "")


def main() -> None:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="per row")
    rows = Rows("gate")
    asyncio.run(measure(rows, parser.parse_args().trials))
    rows.finish()


if __name__ == "__main__":
    main()
