"""`aeenc export` and `aeenc import`: what runs have recorded as files, and pairs of files as a run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aeenc import Client
from aeenc.cli.output import output_of
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument
from aeenc.exports import (
    gold_judgements,
    last_words,
    read_pairs,
    write_beir,
    write_pairs,
    write_pairs_as_beir,
    write_triplets,
)
from aeenc.exports.whole import whole_file, whole_folder
from aeenc.trees import Dataset, Tree, draw, to_dot, to_svg, tree_from_record, write_trees
from aeenc.v1 import types_pb2

Runs = Annotated[list[str], typer.Argument(help="Runs; their pairs are joined.", metavar="RUN...")]
Run = Annotated[str | None, typer.Argument(help="A run; or give --data.", metavar="[RUN]", show_default=False)]
Data = Annotated[Path | None, typer.Option(help="Gold trees instead of a run: a directory in EntailmentBank's layout.")]
Split = Annotated[str, typer.Option(help="The split of --data, and of the qrels.")]


class Sign(StrEnum):
    """Which pairs are wanted."""

    ALL = "all"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    SKIPPED = "skipped"


class Form(StrEnum):
    """How trees are written: lines of JSON, drawn for a terminal, or one Graphviz or picture file a tree."""

    JSONL = "jsonl"
    TEXT = "text"
    DOT = "dot"
    SVG = "svg"


_SIGNS = {
    Sign.ALL: types_pb2.PAIR_SIGN_UNSPECIFIED,
    Sign.POSITIVE: types_pb2.PAIR_SIGN_POSITIVE,
    Sign.NEGATIVE: types_pb2.PAIR_SIGN_NEGATIVE,
    Sign.SKIPPED: types_pb2.PAIR_SIGN_SKIPPED,
}
_PICTURES: dict[Form, Callable[[Tree], str]] = {Form.DOT: to_dot, Form.SVG: to_svg}


def export_pairs(
    context: typer.Context,
    runs: Runs,
    to: Annotated[Path, typer.Option(help="The file.")],
    sign: Annotated[Sign, typer.Option(help="Which pairs.")] = Sign.ALL,
    overruled: Annotated[bool, typer.Option("--overruled", help="Also those that were amended since.")] = False,
) -> None:
    """Writes the pairs of runs with all that is known of them, one JSON object a line.

    Of a verdict that was amended only the last word is written.
    """
    wanted = _SIGNS[sign]
    with client(context) as connected:
        found = _pairs(connected, runs) if overruled else last_words(_pairs(connected, runs))
        count = write_pairs(to, (pair for pair in found if not wanted or pair.sign == wanted))
    output_of(context).result({"to": str(to), "pairs": count})


def export_triplets(
    context: typer.Context,
    runs: Runs,
    to: Annotated[Path, typer.Option(help="The file.")],
    per_query: Annotated[int, typer.Option(min=0, help="At most so many of a query, drawn; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="What is drawn.")] = 0,
) -> None:
    """Writes query, positive and negative triplets, one JSON object a line."""
    with client(context) as connected:
        written = write_triplets(to, _pairs(connected, runs), per_query=per_query, seed=seed)
    output_of(context).result({"to": str(to), **asdict(written)})


def export_beir(
    context: typer.Context,
    to: Annotated[Path, typer.Option(help="The folder; it must not exist.")],
    run: Run = None,
    data: Data = None,
    split: Split = "train",
) -> None:
    """Writes corpus, queries and qrels in BEIR's layout: what a run has judged, or what gold trees say."""
    if data is not None and run is None:
        dataset = Dataset.load(data)
        corpus = ((candidate.id, candidate.text) for candidate in dataset.candidates())
        written = write_beir(to, corpus, gold_judgements(dataset, split), split=split)
    elif run is not None and data is None:
        with client(context) as connected:
            of = connected.sampler.run(run)
            premises = connected.index.list_premises(of.config.corpus, generation=of.generation)
            texts = ((premise.id, premise.text) for premise in premises)
            written = write_pairs_as_beir(to, texts, _pairs(connected, [run]), split=split)
    else:
        raise InvalidArgument("give either a run or --data DIR")
    output_of(context).result({"to": str(to), **asdict(written)})


def export_trees(
    context: typer.Context,
    to: Annotated[Path, typer.Option(help="The file; for dot and svg a folder, which must not exist.")],
    run: Run = None,
    data: Data = None,
    split: Split = "train",
    form: Annotated[Form, typer.Option("--as", help="How they are written.")] = Form.JSONL,
    only: Annotated[list[str] | None, typer.Option(help="Only the tree of this hypothesis id; repeatable.")] = None,
) -> None:
    """Writes trees: EntailmentBank's lines of JSON, text, or a picture (DOT, SVG) of each."""
    if data is not None and run is None:
        trees = Dataset.load(data).trees(split)
    elif run is not None and data is None:
        with client(context) as connected:
            trees = [tree_from_record(json.loads(record)) for _, record in connected.sampler.export_trees(run)]
    else:
        raise InvalidArgument("give either a run or --data DIR")
    chosen = [tree for tree in trees if not only or tree.id in only]
    if only and (unknown := sorted(set(only) - {tree.id for tree in chosen})):
        raise InvalidArgument(f"there is no tree of {', '.join(unknown)}; a run has none where nothing was accepted")
    _write(to, form, chosen)
    output_of(context).result({"to": str(to), "trees": len(chosen)})


def import_pairs(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Pairs as `aeenc export pairs` writes them.")],
    corpus: Annotated[str, typer.Option(help="The corpus that the premise ids belong to.")],
    run: Annotated[str | None, typer.Option(help="An earlier import to add to.  [default: a run of their own]")] = None,
) -> None:
    """Adds pairs that were judged elsewhere, to be trained on by `aeenc train --run`.

    Importing the same file again adds nothing and prints the same run. Of a
    verdict that the file amends, the last word is imported.
    """
    pairs = list(last_words(read_pairs(file)))  # the whole file is right before anything is stored
    if not pairs:
        raise InvalidArgument(f"{file}:1: holds no pairs; write one a line")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    request_id = f"file-{digest}-{corpus}-{run or ''}"
    with client(context) as connected:
        answer = connected.sampler.import_pairs(corpus, pairs, run_id=run or "", request_id=request_id)
    output_of(context).result({"run": answer.run_id, "corpus": corpus, "pairs": len(pairs)})


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    export = typer.Typer(help="What runs have recorded, as files.", no_args_is_help=True)
    export.command("pairs")(export_pairs)
    export.command("triplets")(export_triplets)
    export.command("beir")(export_beir)
    export.command("trees")(export_trees)
    app.add_typer(export, name="export")
    importing = typer.Typer(help="Judgements made elsewhere.", no_args_is_help=True)
    importing.callback()(lambda: None)  # or its only command would be the group itself
    importing.command("pairs")(import_pairs)
    app.add_typer(importing, name="import")


def _pairs(connected: Client, runs: list[str]) -> Iterator[types_pb2.Pair]:
    for run in runs:
        yield from connected.sampler.pairs(run)


def _write(to: Path, form: Form, trees: list[Tree]) -> None:
    if form is Form.JSONL:
        to.parent.mkdir(parents=True, exist_ok=True)
        write_trees(to, trees)
    elif form is Form.TEXT:
        with whole_file(to) as file:
            file.write("".join(f"{draw(tree)}\n\n" for tree in trees))
    else:
        with whole_folder(to) as folder:
            for name, tree in zip(_file_names(trees), trees, strict=True):
                (folder / f"{name}.{form.value}").write_text(_PICTURES[form](tree), encoding="utf-8")


def _file_names(trees: list[Tree]) -> Iterator[str]:
    """A file name for each tree, from its id; what would stand twice is numbered."""
    used: set[str] = set()
    for tree in trees:
        name = plain = re.sub(r"[^\w.-]", "_", tree.id).strip(".")[:100] or "tree"
        number = 1
        while name in used:
            number += 1
            name = f"{plain}-{number}"
        used.add(name)
        yield name
