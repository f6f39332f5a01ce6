"""`aeenc oracle …`: serves gold trees, a model, or a composite of oracles; writes control items for people."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc.cli.corpus import LAYOUTS
from aeenc.cli.options import collected, taking
from aeenc.cli.output import Output, output_of
from aeenc.cli.targets import targets_of
from aeenc.errors import InvalidArgument, Unavailable
from aeenc.evaluation import load_data
from aeenc.files.whole import write_json_lines
from aeenc.oracle import Oracle, serve_until_signal
from aeenc.oracles.composite import CompositeOracle
from aeenc.oracles.controls import control_items
from aeenc.oracles.gold import GoldOracle, Mode
from aeenc.oracles.model import ModelOracle
from aeenc.oracles.remote import TIMEOUT_S, RemoteOracle
from aeenc.trees import Dataset


def serve(oracle: Oracle, place: dict[str, Any], out: Output) -> None:
    """Serves at a place until SIGINT or SIGTERM; prints the address once it listens, so that port 0 works."""

    def listens(bound: str) -> None:
        out.result({"oracle": oracle.name, "address": bound}, f"oracle {oracle.name} listens on {bound}")

    try:
        asyncio.run(serve_until_signal(oracle, listens, **place))
    except Unavailable as error:
        raise Unavailable(f"{error.message} If so, give another address: --address HOST:PORT") from None


@collected
def place_of(
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:50055",
    token: Annotated[
        str | None, typer.Option(envvar="AEENC_ORACLE_TOKEN", help="Credential that callers need.")
    ] = None,
    cert: Annotated[Path | None, typer.Option(help="Certificate (PEM) of this oracle; makes connections TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="Private key (PEM) of --cert.")] = None,
) -> None:
    """Collects where an oracle listens and for whom, as arguments of `serve_until_signal`."""


@taking(place=place_of)
def gold(
    context: typer.Context,
    trees: Annotated[Path, typer.Option("--trees", "--data", help=f"Gold trees, or rated facts. {LAYOUTS}")],
    place: dict[str, Any],
    split: Annotated[str, typer.Option(help="The split that answers.")] = "train",
    mode: Annotated[Mode, typer.Option(help="Accept a query's own premises, or all below it.")] = "direct",
    steps: Annotated[
        bool,
        typer.Option("--steps", help="Say of a node, too, whether all its premises are accepted: `sample --step`."),
    ] = False,
) -> None:
    """Serves an oracle that answers from gold trees, until SIGTERM or Ctrl-C."""
    serve(GoldOracle(load_data(trees), split, mode=mode, steps=steps), place, output_of(context))


Trees = Annotated[Path | None, typer.Option(help="Gold trees: a directory in EntailmentBank's layout.")]
Split = Annotated[str, typer.Option(help="The split whose trees answer.")]
Remote = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Another oracle that is running; by TLS with --ca.")
]
RemoteToken = Annotated[
    str | None, typer.Option(envvar="AEENC_REMOTE_ORACLE_TOKEN", help="Credential of the other oracle.")
]
RemoteTimeout = Annotated[float, typer.Option(min=0.1, help="Seconds that the other oracle may take for a task.")]


def remote_oracle(
    context: typer.Context, target: str, token: str | None, *, timeout_s: float = TIMEOUT_S
) -> RemoteOracle:
    """Makes an oracle of one that runs elsewhere, reached as the services of this invocation are."""
    found = targets_of(context)
    return RemoteOracle(
        target, token=token, ca=found.ca, tls=found.tls, plain_token=found.plain_token, timeout_s=timeout_s
    )


@collected
def model_of(
    accept: Annotated[float, typer.Option(min=0, max=1, help="Probability from which on a premise explains.")] = 0.8,
    refuse: Annotated[
        float, typer.Option(min=0, max=1, help="Probability up to which it is refused; between: abstain.")
    ] = 0.2,
    label: Annotated[str | None, typer.Option(show_default="entail…", help="The model's label that means yes.")] = None,
    premise_first: Annotated[
        bool | None,
        typer.Option(
            "--premise-first/--query-first",
            show_default="premise first where the model has labels",
            help="The order of the model's two texts.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, show_default="CPU cores", help="Threads of the model.")] = None,
    complete: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Probability of all accepted premises together that completes a node."),
    ] = None,
) -> None:
    """Collects how a model judges, as arguments of `ModelOracle`."""


@taking(place=place_of, options=model_of)
def model(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Directory with model.onnx, tokenizer.json and config.json.")],
    place: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Serves a cross-encoder or an NLI model in ONNX as an oracle.

    Needs `pip install './clients/python[oracle-model]'` (in a checkout).
    """
    serve(ModelOracle(directory, **options), place, output_of(context))


@taking(place=place_of, options=model_of)
def composite(
    context: typer.Context,
    place: dict[str, Any],
    options: dict[str, Any],
    trees: Trees = None,
    split: Split = "train",
    model: Annotated[Path | None, typer.Option(help="A model's directory, as of `aeenc oracle model`.")] = None,
    remote: Remote = None,
    remote_token: RemoteToken = None,
    remote_timeout: RemoteTimeout = TIMEOUT_S,
    audit: Annotated[float, typer.Option(min=0, max=1, help="Share of decided candidates that the last checks.")] = 0.0,
    audit_log: Annotated[Path | None, typer.Option(help="File that audited verdicts are appended to.")] = None,
    seed: Annotated[int, typer.Option(help="Which are audited.")] = 0,
) -> None:
    """Serves gold trees, then a model, then another oracle (a person's), each asked what those before left open."""
    stages: list[Oracle] = []
    if trees is not None:
        stages.append(GoldOracle(load_data(trees), split))
    if model is not None:
        stages.append(ModelOracle(model, **options))
    if remote is not None:
        stages.append(remote_oracle(context, remote, remote_token, timeout_s=remote_timeout))
    if len(stages) < 2:
        raise InvalidArgument("give at least two of --trees, --model and --remote")
    oracle = CompositeOracle(stages, audit=audit, seed=seed, audit_log=audit_log)
    out = output_of(context)
    serve(oracle, place, out)
    for name, audited in oracle.audited.items():
        if audited.agreed or audited.disagreed:
            out.note(f"{name}: {audited.agreed} of {audited.agreed + audited.disagreed} audited verdicts confirmed")


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
    output_of(context).result({"to": str(to), "items": write_json_lines(to, map(asdict, items))})
