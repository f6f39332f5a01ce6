"""`aeenc evaluate`: retrieval quality on the gold queries of a split, under both protocols.

The directory is read here; the services see texts only. Without a corpus given, the candidates of the directory become
one, named after their content, so that the next evaluation on the same data finds it built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc import Client
from aeenc.cli.corpus import build_corpus
from aeenc.cli.output import metrics_table, output_of
from aeenc.cli.retrieve import check_model
from aeenc.cli.targets import client
from aeenc.cli.train import validation_of
from aeenc.trees import Dataset
from aeenc.v1 import types_pb2


def report_dict(report: types_pb2.EvaluationReport) -> dict[str, Any]:
    """An evaluation report as plain values, metrics by the names that people print."""
    return {
        "strict": _metrics(report.strict),
        "paper": _metrics(report.paper),
        "candidates": report.candidates,
        "queries": report.queries,
        "pairs": report.pairs,
        "model_version": report.model_version,
        "generation": report.generation,
    }


def _metrics(metrics: types_pb2.RetrievalMetrics) -> dict[str, float]:
    return {
        "MAP": metrics.map,
        "NDCG": metrics.ndcg,
        "NDCG@10": metrics.ndcg_at_10,
        "NDCG@50": metrics.ndcg_at_50,
        "Hit@10": metrics.hit_at_10,
        "Hit@20": metrics.hit_at_20,
        "Hit@50": metrics.hit_at_50,
    }


def corpus_name(dataset: Dataset) -> str:
    """`eval-` and 8 hex digits over the candidates' texts in their order."""
    digest = hashlib.sha256()
    for candidate in dataset.candidates():
        digest.update(candidate.text.encode() + b"\0")
    return f"eval-{digest.hexdigest()[:8]}"


def ensure_corpus(client: Client, dataset: Dataset, on_progress: Callable[[int, int], None] | None = None) -> str:
    """The corpus of a dataset's candidates, built unless it serves in the trainer's space; returns its name."""
    name, space_id = corpus_name(dataset), client.trainer.info().default_space_id
    serving = {found.corpus for found in client.index.info().corpora if found.active.space_id == space_id}
    if name not in serving:
        build_corpus(client, name, dataset, on_progress)
    return name


def evaluate(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="Directory in EntailmentBank's layout.")],
    split: Annotated[str, typer.Option(help="The split whose queries are asked.")] = "dev",
    corpus: Annotated[
        str, typer.Option(show_default="one built from --data, or found built", help="The corpus of candidates.")
    ] = "",
    label: Annotated[str | None, typer.Option(show_default="stable", help="Query encoder by label.")] = None,
    version: Annotated[str | None, typer.Option(help="Query encoder by version; a label must name it.")] = None,
) -> None:
    """Measures how well the query encoder finds the gold premises of a split."""
    check_model(label, version)
    dataset = Dataset.load(data)
    queries = validation_of(dataset, split)
    out = output_of(context)
    with client(context) as connected:
        if not corpus:
            with out.progress("candidates", "facts") as report:
                corpus = ensure_corpus(connected, dataset, lambda encoded, total: report(encoded, total, ""))
        measured = report_dict(connected.trainer.evaluate(corpus, queries, label=label, version=version))
    counts = ", ".join(f"{measured[name]:,} {name}" for name in ("queries", "pairs", "candidates"))
    source = f"{split}: {counts}; encoder {measured['model_version']}, generation {measured['generation']}"
    out.result({"corpus": corpus, "split": split, **measured}, metrics_table(measured), source)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("evaluate")(evaluate)
