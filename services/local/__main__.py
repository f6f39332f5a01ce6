"""`aeenc-local CORPUS TEXT…`: what `aeenc retrieve` prints, from a directory and without any service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc.calls.retrieval import Retrieval
from aeenc.cli.learning.retrieval import call_of, for_texts, retrieval_of, show
from aeenc.cli.main import Command, failures_told
from aeenc.cli.options import taking
from aeenc.cli.output import Output, remember
from services.local.retriever import open_directory


class LocalCommand(Command):
    """A command that tells its failures as those of `aeenc` do."""

    def invoke(self, ctx: Any) -> Any:
        remember(ctx, Output(as_json=bool(ctx.params["as_json"])))
        with failures_told(ctx):
            return super().invoke(ctx)


@taking(retrieval=retrieval_of, call=call_of)
def retrieve(
    corpus: Annotated[str, typer.Argument(help="The corpus.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Hypotheses to explain.")],
    call: dict[str, Any],
    directory: Annotated[
        Path, typer.Option("--dir", envvar="AEENC_HOME", help="The home of `aeenc up`, or an ARTIFACTS_DIR.")
    ] = Path(".aeenc"),
    retrieval: Retrieval | None = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for programs.")] = False,
) -> None:
    """Finds the premises that best explain each text, in this process: no service need run, and nothing is written.

    The answers are those of `aeenc retrieve` by the same encoder. In Python:
    aeenc.local.open(DIR).retrieve(CORPUS, TEXTS).
    """
    found = open_directory(directory).retrieve(corpus, texts, retrieval=retrieval, **for_texts(call, texts))
    show(Output(as_json), corpus, texts, found, retrieval)


def main() -> None:
    """Runs the script `aeenc-local`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(cls=LocalCommand)(retrieve)
    app(prog_name="aeenc-local")


if __name__ == "__main__":
    main()
