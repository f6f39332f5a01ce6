"""`aeenc corpus`: a new generation from trees or a file of facts, and explanations for the prior."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from aeenc import Client
from aeenc.cli.facts import read_facts
from aeenc.cli.output import output_of
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument
from aeenc.exports import judgements_of
from aeenc.trees import Dataset
from aeenc.v1 import types_pb2


@dataclass(frozen=True)
class BuiltCorpus:
    """A finished build: `premises` distinct texts, the time it took, and facts sent a second."""

    corpus: str
    generation: str
    premises: int
    active: bool
    seconds: float
    facts_per_s: float


def premises_of(dataset: Dataset) -> list[types_pb2.Premise]:
    """The candidates of a dataset as premises, in the order of insertion."""
    return [
        types_pb2.Premise(id=found.id, text=found.text, aliases=found.aliases, splits=found.splits)
        for found in dataset.candidates()
    ]


def build_corpus(
    client: Client,
    name: str,
    source: Dataset | Sequence[types_pb2.Premise],
    on_progress: Callable[[int, int], None] | None = None,
    *,
    activate: bool = True,
    space_id: str = "",
) -> BuiltCorpus:
    """Builds a generation of the corpus `name`. `on_progress(encoded, all)` is called often, from another thread."""
    premises = premises_of(source) if isinstance(source, Dataset) else source

    def progressed(_received: int, encoded: int) -> None:
        if on_progress is not None:
            on_progress(encoded, len(premises))

    started = time.monotonic()
    generation = client.index.build(
        name,
        premises,
        activate=activate,
        expected_premises=len(premises),
        space_id=space_id,
        on_progress=progressed,
        request_id=uuid.uuid4().hex,  # so that it outlives a restart of the index
    )
    seconds = time.monotonic() - started
    progressed(len(premises), len(premises))
    return BuiltCorpus(
        corpus=name,
        generation=generation.id,
        premises=generation.premises,
        active=generation.active,
        seconds=round(seconds, 3),
        facts_per_s=round(len(premises) / seconds, 1),
    )


def build(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus; created when it does not exist.")],
    data: Annotated[Path | None, typer.Option(help="Directory in EntailmentBank's layout.")] = None,
    facts: Annotated[
        Path | None, typer.Option(help="One fact a line; or .jsonl or .json with `id` and `text`.")
    ] = None,
    activate: Annotated[bool, typer.Option(help="Let searches see it once it is finished.")] = True,
    space_id: Annotated[
        str, typer.Option("--space", show_default="the encoder's own", help="The space of its vectors.")
    ] = "",
) -> None:
    """Builds a new generation of a corpus; the one that serves goes on until the new one is complete."""
    if data is not None and facts is None:
        source: Dataset | list[types_pb2.Premise] = Dataset.load(data)
    elif facts is not None and data is None:
        source = read_facts(facts)
    else:
        raise InvalidArgument("give either --data DIR or --facts FILE")
    out = output_of(context)
    with client(context) as connected, out.progress(f"building {name}", "facts") as report:
        built = build_corpus(
            connected,
            name,
            source,
            lambda encoded, total: report(encoded, total, ""),
            activate=activate,
            space_id=space_id,
        )
    out.result(asdict(built))


def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus.")],
    runs: Annotated[list[str], typer.Option("--run", help="A sampling run; may be repeated.")],
    replace: Annotated[bool, typer.Option(help="Forget what was put before.")] = False,
) -> None:
    """Tells the index what runs found to explain what, for `aeenc retrieve --prior`.

    What was amended or is in dispute between the runs is left out.
    """
    with client(context) as connected:
        by_query, _ = judgements_of(pair for run in runs for pair in connected.sampler.pairs(run))
        found = {query: list(judged.positives.values()) for query, judged in by_query.items() if judged.positives}
        total = connected.index.put_explanations(name, found.items(), replace=replace)
    output_of(context).result({"corpus": name, "put": len(found), "known": total})


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    corpus = typer.Typer(help="Corpora: the premises that are searched.", no_args_is_help=True)
    corpus.command("build")(build)
    corpus.command("explain")(explain)
    app.add_typer(corpus, name="corpus")
