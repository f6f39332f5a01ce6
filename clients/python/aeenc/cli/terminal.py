"""`aeenc oracle terminal`: a person judges in the terminal, out of a run's queue."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from aeenc.cli.judging import Judging
from aeenc.cli.keys import terminal_keys
from aeenc.cli.output import output_of
from aeenc.cli.targets import client


def terminal(
    context: typer.Context,
    run: Annotated[str, typer.Option(metavar="RUN", help="The run to judge for.", show_default="any")] = "",
    annotator: Annotated[
        str | None, typer.Option(envvar="AEENC_ANNOTATOR", help="Who judges.", show_default="your login")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait for more when nothing is left to judge.")] = True,
) -> None:
    """A person judges: 1-9 tick what explains, Enter confirms, space abstains, u undoes.

    Leases tasks of runs whose oracle is a queue (AEENC_SAMPLER_QUEUES).
    Confirming refuses what was shown and left unticked; pages that were
    never turned to (n, p) stay unseen.
    """
    console = Console(stderr=True, highlight=False)

    def show(screen: RenderableType) -> None:
        if console.is_terminal:
            console.clear()
        console.print(screen)

    name = annotator or getpass.getuser()
    with client(context) as connected:
        if run:
            connected.sampler.run(run)  # an unknown one is told before the terminal changes
        with terminal_keys() as keys:
            answered = Judging(connected, name, run, keys, show, wait=wait).work()
    output_of(context).result({"annotator": name, "answered": answered}, f"{name} has answered {answered}")
