"""`aeenc retrieve`: the premises that best explain a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from aeenc import Retrieved
from aeenc.cli.output import output_of, table
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument


def check_model(label: str | None, version: str | None) -> None:
    """Raises InvalidArgument when both name the query encoder."""
    if label is not None and version is not None:
        raise InvalidArgument("--label and --version both name the query encoder; give one")


def retrieve(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Hypotheses to explain.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Premises a text.")] = 10,
    label: Annotated[str | None, typer.Option(show_default="stable", help="Query encoder by label.")] = None,
    version: Annotated[str | None, typer.Option(help="Query encoder by version; a label must name it.")] = None,
    splits: Annotated[
        list[str] | None, typer.Option("--split", help="Only premises of this split, or of none; may be repeated.")
    ] = None,
    mode: Annotated[
        Literal["dense", "lexical", "hybrid", "iterative_lexical"],
        typer.Option(help="By encoder, by words, or by both."),
    ] = "dense",
    prior: Annotated[float, typer.Option(min=0, max=1, help="Share of what explained similar hypotheses.")] = 0.0,
    negative_feedback: Annotated[
        float, typer.Option(min=0, max=1, help="Share of what the first five have in common, taken off the query.")
    ] = 0.0,
    rerank: Annotated[int, typer.Option(min=0, help="Let a cross-encoder order so many premises anew.")] = 0,
    rerank_weight: Annotated[
        float, typer.Option(min=0, help="Its score's weight beside the first ranking's; 0: its score alone.")
    ] = 0.0,
    precision: Annotated[
        Literal["float32", "float16", "int8"] | None,
        typer.Option(show_default="the encoder's", help="How exactly to encode the texts."),
    ] = None,
    routing_key: Annotated[str, typer.Option(help="Calls with one key get the same side of a canary rollout.")] = "",
) -> None:
    """Finds the premises that best explain each text."""
    check_model(label, version)
    with client(context) as connected:
        found: Retrieved = connected.index.retrieve(
            name,
            texts,
            k=k,
            label=label,
            version=version,
            mode=mode,
            prior=prior,
            negative_feedback=negative_feedback,
            rerank=rerank,
            rerank_weight=rerank_weight,
            splits=splits or (),
            precision=precision,
            routing_key=routing_key,
        )
    results = [
        {"text": text, "premises": [asdict(hit) for hit in hits]} for text, hits in zip(texts, found, strict=True)
    ]
    tables = [
        table(["id", "premise", "score"], [(hit.id, hit.text, f"{hit.score:.3f}") for hit in hits], title=text, right=1)
        for text, hits in zip(texts, found, strict=True)
    ]
    origin = {"model_version": found.model_version, "space_id": found.space_id, "generation": found.generation}
    encoder = f"encoder {found.model_version}, " if found.model_version else ""
    source = f"{encoder}generation {found.generation}"
    output_of(context).result({"corpus": name, "results": results, **origin}, *tables, source)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("retrieve")(retrieve)
