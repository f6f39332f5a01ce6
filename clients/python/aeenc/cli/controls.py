"""`aeenc oracle controls`: control items for a queue of people, from gold trees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aeenc.cli.output import output_of
from aeenc.oracles.controls import control_items, write_control_items
from aeenc.trees import Dataset


def controls(
    context: typer.Context,
    trees: Annotated[Path, typer.Option(help="Gold trees: a directory in EntailmentBank's layout.")],
    to: Annotated[Path, typer.Option(help="The file, for `controls` of a queue in AEENC_SAMPLER_QUEUES.")],
    split: Annotated[str, typer.Option(help="The split whose trees are asked; not that of the run.")] = "dev",
    count: Annotated[int, typer.Option(min=1, help="Most items.")] = 50,
    candidates: Annotated[int, typer.Option(min=2, help="Premises of an item; as many as the run's tasks have.")] = 9,
    seed: Annotated[int, typer.Option(help="What is drawn.")] = 0,
) -> None:
    """Writes tasks with known answers, to be mixed in among those of people.

    What explains is a query's gold; what does not comes from other trees and
    shares no content word with it.
    """
    items = control_items(Dataset.load(trees), split, count=count, candidates=candidates, seed=seed)
    write_control_items(to, items)
    output_of(context).result({"to": str(to), "items": len(items)})
