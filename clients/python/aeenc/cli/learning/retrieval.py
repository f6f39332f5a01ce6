"""`aeenc retrieve`: the premises that explain a text; and the options that evaluation shares with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from aeenc import Client, Retrieved
from aeenc.calls.encoding import Precision
from aeenc.calls.retrieval import Fusion, FusionMethod, Mode, Retrieval
from aeenc.cli.options import collected, taking
from aeenc.cli.output import Output, output_of, table
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument

Label = Annotated[str | None, typer.Option(show_default="stable", help="Query encoder by label.")]
Version = Annotated[str | None, typer.Option(help="Query encoder by version; a label must name it.")]


def check_model(label: str | None, version: str | None) -> None:
    """Raises InvalidArgument when both name the query encoder."""
    if label is not None and version is not None:
        raise InvalidArgument("--label and --version both name the query encoder; give one")


def retrieval_of(
    mode: Annotated[
        Mode | None, typer.Option(show_default="dense", help="By encoder, by words, or by both, with --fusion.")
    ] = None,
    lexical_weight: Annotated[
        float | None, typer.Option(min=0, max=1, show_default="the index's", help="BM25's share in mode hybrid.")
    ] = None,
    fusion: Annotated[FusionMethod | None, typer.Option(show_default="min_max", help="Of mode hybrid.")] = None,
    features: Annotated[
        str,
        typer.Option(
            metavar="JSON", help="Order what modes hybrid and dense find anew, by weights of features by name."
        ),
    ] = "",
    prior: Annotated[float, typer.Option(min=0, max=1, help="Share of what explained similar hypotheses.")] = 0.0,
    negative_feedback: Annotated[
        float, typer.Option(min=0, max=1, help="Share of what the first five have in common, taken off the query.")
    ] = 0.0,
    rerank: Annotated[
        int, typer.Option(min=0, help="Let the cross-encoder of label stable order so many premises anew.")
    ] = 0,
    rerank_weight: Annotated[
        float, typer.Option(min=0, help="Its score's weight beside the first ranking's; 0: its score alone.")
    ] = 0.0,
) -> Retrieval | None:
    """Builds the options of Retrieve from those of a command; None when none is set."""
    if features and mode not in {"hybrid", "dense"}:
        raise InvalidArgument("--features order what modes hybrid and dense find; add --mode hybrid, or leave them out")
    if fusion is not None and mode != "hybrid":
        raise InvalidArgument("--fusion joins the rankings of mode hybrid; add --mode hybrid, or leave it out")
    if lexical_weight is not None and mode != "hybrid":
        raise InvalidArgument("--lexical-weight is BM25's share in mode hybrid; add --mode hybrid, or leave it out")
    weights = _weights(features) if features else {}
    if mode is None and not any((prior, negative_feedback, rerank, rerank_weight)):
        return None
    return Retrieval(
        mode or "dense",
        Fusion(fusion or "min_max", lexical_weight, weights) if mode == "hybrid" or weights else None,
        prior=prior,
        negative_feedback=negative_feedback,
        rerank=rerank,
        rerank_weight=rerank_weight,
    )


def _weights(features: str) -> dict[str, float]:
    """Reads weights by name. Raises InvalidArgument for another text."""
    from aeenc.files.lines import parsed  # a search without them reads no JSON

    given = parsed("--features", features)
    if not isinstance(given, dict) or not all(type(weight) in {int, float} for weight in given.values()):
        raise InvalidArgument(
            f"--features is {features[:80]!r}; give an object of weights by name, as `aeenc tune-retrieval` prints it"
        )
    return given


def check_splits(client: Client, corpus: str, generation: str, splits: Sequence[str]) -> None:
    """Raises InvalidArgument for a split that no premise of a generation has. Reads all its premises."""
    known = {split for one in client.index.list_premises(corpus, generation=generation) for split in one.splits}
    if unknown := sorted(set(splits) - known):
        names = ", ".join(sorted(known)) or "none"
        raise InvalidArgument(f"--split {', '.join(unknown)}: no premise of corpus {corpus!r} has it; known: {names}")


@collected
def call_of(
    k: Annotated[int, typer.Option("-k", min=1, help="Premises a text.")] = 10,
    label: Label = None,
    version: Version = None,
    splits: Annotated[
        list[str] | None, typer.Option("--split", help="Only premises of this split, or of none; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Never this premise; may be repeated.")
    ] = None,
    only_ids: Annotated[
        list[str] | None, typer.Option("--only", metavar="ID", help="Only this premise; may be repeated.")
    ] = None,
    before_id: Annotated[
        str, typer.Option("--before", metavar="ID", help="Only premises that were inserted before this one.")
    ] = "",
    tags: Annotated[
        list[str] | None,
        typer.Option(
            "--tags",
            metavar="TAG,-TAG…",
            help="Only premises with these tags, without those after -; repeated: or.",
        ),
    ] = None,
    accepted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="A premise that explains part of each text: find what the rest needs; may be repeated."
        ),
    ] = None,
    precision: Annotated[
        Precision | None,
        typer.Option(show_default="the label's", help="How exactly to encode the texts."),
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts too long for the model.")] = False,
    routing_key: Annotated[str, typer.Option(help="Calls with one key get the same side of a canary rollout.")] = "",
) -> None:
    """Collects the options of a call but for those of `retrieval_of`; `accepted` are those of each text."""


def for_texts(call: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Returns the options of `call_of` as keyword arguments of `retrieve` for texts. Raises as `check_model` does."""
    check_model(call.get("label"), call.get("version"))
    return {**call, "accepted": [call["accepted"]] * len(texts) if call.get("accepted") else ()}


@taking(retrieval=retrieval_of, call=call_of)
def retrieve(
    context: typer.Context,
    corpus: Annotated[str, typer.Argument(help="The corpus.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Hypotheses to explain.")],
    call: dict[str, Any],
    retrieval: Retrieval | None = None,
) -> None:
    """Finds the premises that best explain each text."""
    connected = client(context)
    found = connected.index.retrieve(corpus, texts, retrieval=retrieval, **for_texts(call, texts))
    if "splits" in call and (found.unknown_splits or not all(found)):
        check_splits(connected, corpus, found.generation, call["splits"])
    show(output_of(context), corpus, texts, found, retrieval)


def show(out: Output, corpus: str, texts: list[str], found: Retrieved, retrieval: Retrieval | None) -> None:
    """Writes what was found for texts. Raises InvalidArgument for tags that no premise has."""
    if found.unknown_tags:
        raise InvalidArgument(f"--tags: no premise of corpus {corpus!r} has {', '.join(found.unknown_tags)}")
    results = [
        {"text": text, "premises": [asdict(hit) for hit in hits]} for text, hits in zip(texts, found, strict=True)
    ]
    tables = [
        table(
            ["id", "premise", "score"],
            [(hit.id, hit.text, f"{hit.score:.3f}") for hit in hits],
            title=text,
            right=1,
            whole=("id",),
        )
        for text, hits in zip(texts, found, strict=True)
    ]
    origin = {"model_version": found.model_version, "space_id": found.space_id, "generation": found.generation}
    encoder = f"encoder {found.model_version}, " if found.model_version else ""
    source = f"{encoder}generation {found.generation}"
    if retrieval is not None and retrieval.mode == "iterative_lexical":  # each round has scores of its own
        source += "; the order is the ranking, the scores are not comparable"
    out.result({"corpus": corpus, "results": results, **origin}, *tables, source)
