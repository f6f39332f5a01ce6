"""`aeenc sample`: a sampling run over the hypotheses of a split, or of your own, followed to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc import Client, values
from aeenc.adapters.facts import path_of, read_facts
from aeenc.cli.corpus import LAYOUTS, FileFormat, IdColumn, TextColumn, ensure_corpus
from aeenc.cli.options import collected, taking
from aeenc.cli.output import EndedBadly, Output, fields_of, fields_table, output_of
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument
from aeenc.evaluation import Source, accessible_of, load_data
from aeenc.sampler import Root
from aeenc.trees import Accessible, Dataset, numbered


def hypotheses_of(dataset: Source, split: str) -> list[tuple[str, str]]:
    """Lists (id, text) of each distinct hypothesis, with ids made unique for a run.

    Trees or queries that share an id but not the text all stay: the second id gets `-2`, and so on.
    """
    found = dataset.hypotheses(split)
    return list(zip(numbered(name for name, _ in found), (text for _, text in found), strict=True))


def work_dict(kind: str, work: values.Run | values.Job, fields: dict[str, Any]) -> dict[str, Any]:
    """Puts `fields` of a run or a job between its id, state, error, corpus and start and the seconds it took."""
    seconds = (work.ended_at - work.created_at).total_seconds() if work.ended_at else None
    started = work.created_at.isoformat(timespec="seconds")
    head = {kind: work.id, "state": work.state.name, "error": work.error, "corpus": work.config.corpus}
    return {**head, "started_at": started, **fields, "seconds": seconds}


def check_end(kind: str, result: dict[str, Any]) -> None:
    """Raises EndedBadly for a run or job that has failed or was cancelled."""
    if result["state"] in {"FAILED", "CANCELLED"}:
        reason = result["error"] or "no reason given"
        raise EndedBadly(f"{kind} {result[kind]} has {result['state'].lower()}: {reason}")


def run_dict(run: values.Run) -> dict[str, Any]:
    """Converts a run to plain values: id, state, what it explains by whom, model and generation, and counts."""
    fields = fields_of(run, "oracle=config.oracle", "split=config.split", "model_version", "generation")
    counts = ("trees", "trees_done", "nodes_judged", "nodes_failed", "judgements", "positives", "negatives", "skipped")
    return work_dict("run", run, fields | fields_of(run.progress, *counts))


def follow_run(client: Client, run: values.Run, out: Output) -> values.Run:
    """Waits for the end of a run behind a progress bar. Says what its budget has left out."""
    with out.progress(f"run {run.id}", "trees") as report:
        ended = client.sampler.wait(
            run.id, on_progress=lambda now: report(now.progress.trees_done, now.progress.trees, "")
        )
    budget, trees = ended.config.max_judgements, ended.progress.trees
    left = trees - ended.progress.trees_done
    if budget and left and ended.state is values.WorkState.SUCCEEDED:
        begun = {pair.provenance.node_id.partition("-")[0] for pair in client.sampler.list_pairs(run.id)}
        out.note(
            f"--max-judgements {budget} has ended the run: {left} of {trees} trees are unfinished, "
            f"{trees - len(begun)} of them not begun"
        )
    return ended


def show_run(run: values.Run, out: Output) -> None:
    """Writes a run as a result. Raises EndedBadly for one that has failed or was cancelled."""
    result = run_dict(run)
    skipped = f"{result['skipped']:,} verdicts without a decision: abstained, unseen or missing"
    shown = fields_table(result | {"skipped": skipped})
    learnt = f"learn from it: aeenc train {run.config.corpus} --run {run.id}"
    out.result(result, shown, *([learnt] if run.progress.positives else []))
    if result["judgements"] and result["skipped"] == result["judgements"]:
        out.note(f"oracle {run.config.oracle!r} has decided nothing; does it know these hypotheses?")
    check_end("run", result)


def _roots(dataset: Source, split: str) -> list[Root]:
    """Lists the hypotheses of a split, those of trees with their questions and answers."""
    trees = dataset.trees(split) if isinstance(dataset, Dataset) else ()
    behind = {tree.hypothesis: (tree.question, tree.answer) for tree in trees}
    return [(name, text, *behind.get(text, ())) for name, text in hypotheses_of(dataset, split)]


@collected
def run_of(
    oracle: Annotated[str, typer.Option(help="Who judges: a name from the sampler's settings.")] = "gold",
    k: Annotated[int, typer.Option("-k", min=1, help="Candidates a node.")] = 20,
    max_depth: Annotated[
        int | None,
        typer.Option(min=0, show_default="8", help="How deep nodes are expanded; 0: the hypotheses alone are judged."),
    ] = None,
    step: Annotated[
        int,
        typer.Option(
            min=0,
            show_default="all at once",
            help="Candidates to ask at once; the oracle says when a node is complete, or a premise is missing.",
        ),
    ] = 0,
    max_judgements: Annotated[int, typer.Option(min=0, help="Most verdicts to ask for; 0: no limit.")] = 0,
    max_negatives_per_query: Annotated[
        int, typer.Option("--max-negatives", min=0, help="Most negatives kept a query; 0: all.")
    ] = 0,
    conditioned: Annotated[
        bool, typer.Option("--conditioned", help="Ask again with what was accepted, until nothing new is.")
    ] = False,
    label: Annotated[str | None, typer.Option(show_default="stable", help="Query encoder by label.")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Follow the label: retrieve open nodes again by each version it moves to.")
    ] = False,
) -> None:
    """Collects the options of a run, as arguments of `start_run`."""


@taking(config=run_of)
def sample(
    context: typer.Context,
    corpus: Annotated[
        str,
        typer.Argument(help="The corpus to retrieve from.", show_default="one of --data, built if it is not there"),
    ] = "",
    data: Annotated[Path | None, typer.Option(help=f"Explain the hypotheses or queries of a split. {LAYOUTS}")] = None,
    hypotheses: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Explain hypotheses of your own: one a line, or as corpus build --facts."),
    ] = None,
    file_format: FileFormat = None,
    id_column: IdColumn = "",
    text_column: TextColumn = "",
    split: Annotated[
        str | None,
        typer.Option(
            show_default="train with --data, else none",
            help="The hypotheses' split; premises that only other splits have are left out.",
        ),
    ] = None,
    *,
    config: dict[str, Any],
    margin: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Keep negatives that score this share below the best positive only."),
    ] = None,
    rewordings: Annotated[
        bool, typer.Option(help="Keep as negatives what says the same as the query or a positive.")
    ] = True,
    wait: Annotated[bool, typer.Option(help="Follow the run to its end.")] = True,
) -> None:
    """Starts a sampling run: retrieves for each node, asks the oracle, keeps the answers as pairs.

    Where --data says which premises are accessible to a query, the oracle is shown no others for it.
    """
    dataset: Source | None = None
    roots: list[Root] = []
    accessible: dict[str, Accessible] = {}
    if (data is None) == (hypotheses is None):
        raise InvalidArgument("give either --data DIR or --hypotheses FILE")
    if data is not None:
        if file_format or id_column or text_column:
            raise InvalidArgument("--format, --id-column and --text-column go with --hypotheses")
        split = "train" if split is None else split
        dataset = load_data(data)
        roots, accessible = _roots(dataset, split), accessible_of(dataset, split)
    elif not corpus:
        raise InvalidArgument("name the corpus to retrieve from: `aeenc sample CORPUS --hypotheses FILE`")
    elif hypotheses is not None:
        columns = {"id_column": id_column, "text_column": text_column}
        facts = read_facts(path_of(hypotheses), file_format=file_format, **columns)
        roots.extend((one.id, one.text) for one in facts)
    out = output_of(context)
    connected = client(context)
    if dataset is not None and not corpus:
        with out.progress("corpus", "premises") as progress:
            corpus = ensure_corpus(connected, dataset, progress)
    run = connected.sampler.start_run(
        roots,
        corpus=corpus,
        negative_filter=values.NegativeFilter(relative_margin=margin, rewordings=not rewordings),
        split=split,
        accessible=accessible,
        **config,
    )
    out.note(f"run {run.id} has started; when this command is interrupted it goes on: aeenc follow {run.id}")
    show_run(follow_run(connected, run, out) if wait else run, out)
