"""`aeenc oracle gold`: serves an oracle that answers from gold trees, until told to stop. Others: oracle_kinds."""

from __future__ import annotations

import asyncio
import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aeenc.cli.controls import controls
from aeenc.cli.output import Output, output_of
from aeenc.cli.terminal import terminal
from aeenc.oracle import Oracle
from aeenc.oracles.gold import GoldOracle
from aeenc.trees import Dataset


class Mode(StrEnum):
    """What counts as explaining: a query's own premises, or all that stands below it."""

    DIRECT = "direct"
    SUBTREE = "subtree"


Cert = Annotated[Path | None, typer.Option(help="Certificate (PEM) of this oracle; makes connections TLS.")]
Key = Annotated[Path | None, typer.Option(help="Private key (PEM) of --cert.")]


async def serve(
    oracle: Oracle,
    address: str,
    token: str | None,
    out: Output,
    *,
    cert: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM; says where it listens as soon as it does, so that port 0 can be given."""
    server = await oracle.start(address, token=token, cert=cert, key=key)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    bound = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{server.port}"
    out.result({"oracle": oracle.name, "address": bound}, f"oracle {oracle.name} listens on {bound}")
    await stop.wait()
    await server.stop()


def gold(
    context: typer.Context,
    trees: Annotated[Path, typer.Option(help="Directory in EntailmentBank's layout.")],
    split: Annotated[str, typer.Option(help="The split whose trees answer.")] = "train",
    mode: Annotated[Mode, typer.Option(help="Accept a query's own premises, or all below it.")] = Mode.DIRECT,
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 takes a free one.")] = "127.0.0.1:50055",
    token: Annotated[
        str | None, typer.Option(envvar="AEENC_ORACLE_TOKEN", help="Credential that callers need.")
    ] = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Serves an oracle that answers from gold trees, until SIGTERM or Ctrl-C."""
    oracle = GoldOracle(Dataset.load(trees), split, mode=mode.value)
    asyncio.run(serve(oracle, address, token, output_of(context), cert=cert, key=key))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    from aeenc.cli import oracle_kinds  # it serves by this module

    oracle = typer.Typer(help="Oracles: who says what explains.", no_args_is_help=True)
    oracle.command("gold")(gold)
    oracle_kinds.register(oracle)
    oracle.command("terminal")(terminal)
    oracle.command("controls")(controls)
    app.add_typer(oracle, name="oracle")
