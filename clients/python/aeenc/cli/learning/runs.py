"""`aeenc sample`: a sampling run over the hypotheses of a split, followed to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc import Client, values
from aeenc.cli.corpus import ensure_corpus
from aeenc.cli.output import EndedBadly, Output, lasted_s, output_of
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument
from aeenc.trees import Dataset


def hypotheses_of(dataset: Dataset, split: str) -> list[tuple[str, str]]:
    """Lists (id, text) of each distinct hypothesis, with ids made unique for a run.

    Trees that share an id but not the hypothesis all stay: the second id gets `-2`, and so on.
    """
    named: dict[str, str] = {}
    for tree_id, text in dataset.hypotheses(split):
        name, number = tree_id, 1
        while name in named:
            number += 1
            name = f"{tree_id}-{number}"
        named[name] = text
    return list(named.items())


def work_dict(kind: str, work: values.Run | values.Job, told: dict[str, Any]) -> dict[str, Any]:
    """Puts what is `told` of a run or a job between its id, state and error and the seconds that it took."""
    seconds = lasted_s(work.created_at, work.ended_at)
    return {kind: work.id, "state": work.state.name, "error": work.error, **told, "seconds": seconds}


def check_end(kind: str, result: dict[str, Any]) -> None:
    """Raises EndedBadly for a run or job that has failed or was cancelled."""
    if result["state"] in {"FAILED", "CANCELLED"}:
        reason = result["error"] or "no reason given"
        raise EndedBadly(f"{kind} {result[kind]} has {result['state'].lower()}: {reason}")


def run_dict(run: values.Run) -> dict[str, Any]:
    """Converts a run to plain values: id, state, model and generation, and counts."""
    progress = run.progress
    told = {
        "model_version": run.model_version,
        "generation": run.generation,
        "trees": progress.trees,
        "trees_done": progress.trees_done,
        "nodes_judged": progress.nodes_judged,
        "nodes_failed": progress.nodes_failed,
        "filtered": progress.filtered,
        "judgements": progress.judgements,
        "positives": progress.positives,
        "negatives": progress.negatives,
        "skipped": progress.skipped,
    }
    return work_dict("run", run, told)


def follow_run(client: Client, run: values.Run, out: Output) -> values.Run:
    """Waits for the end of a run behind a progress bar."""
    with out.progress(f"run {run.id}", "trees") as report:
        return client.sampler.wait(
            run.id, on_progress=lambda now: report(now.progress.trees_done, now.progress.trees, "")
        )


def show_run(run: values.Run, out: Output) -> None:
    """Writes a run as a result. Raises EndedBadly for one that has failed or was cancelled."""
    result = run_dict(run)
    out.result(result)
    if result["judgements"] and result["skipped"] == result["judgements"]:
        out.note(f"oracle {run.config.oracle!r} has decided nothing; does it know the queries of {run.config.split!r}?")
    check_end("run", result)


def sample(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="Directory in EntailmentBank's layout.")],
    corpus: Annotated[
        str,
        typer.Argument(help="The corpus to retrieve from.", show_default="one of the data, built if it is not there"),
    ] = "",
    oracle: Annotated[str, typer.Option(help="Who judges: a name from the sampler's settings.")] = "gold",
    split: Annotated[str, typer.Option(help="The split whose hypotheses are explained.")] = "train",
    k: Annotated[int, typer.Option("-k", min=1, help="Candidates a node.")] = 20,
    max_depth: Annotated[int | None, typer.Option(min=0, show_default="8", help="How deep nodes are expanded.")] = None,
    max_judgements: Annotated[int, typer.Option(min=0, help="Most verdicts to ask for; 0: no limit.")] = 0,
    max_negatives: Annotated[int, typer.Option(min=0, help="Most negatives kept a query; 0: all.")] = 0,
    margin: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Keep negatives that score this share below the best positive only."),
    ] = None,
    rewordings: Annotated[
        bool, typer.Option(help="Keep as negatives what says the same as the query or a positive.")
    ] = True,
    conditioned: Annotated[
        bool, typer.Option("--conditioned", help="Ask again with what was accepted, until nothing new is.")
    ] = False,
    label: Annotated[str | None, typer.Option(show_default="stable", help="Query encoder by label.")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Follow the label: retrieve open nodes again by each version it moves to.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Follow the run to its end.")] = True,
) -> None:
    """Starts a sampling run: retrieves for each node, asks the oracle, keeps the answers as pairs."""
    dataset = Dataset.load(data)
    hypotheses = hypotheses_of(dataset, split)
    if not hypotheses:
        raise InvalidArgument(f"split {split!r} of {data} holds no trees; choose another split")
    behind = {tree.hypothesis: (tree.question, tree.answer) for tree in dataset.trees(split)}
    out = output_of(context)
    with client(context) as connected:
        if not corpus:
            with out.progress("corpus", "premises") as progress:
                corpus = ensure_corpus(connected, dataset, lambda done, total: progress(done, total, ""))
        run = connected.sampler.start_run(
            [(name, text, *behind[text]) for name, text in hypotheses],
            corpus=corpus,
            oracle=oracle,
            k=k,
            max_depth=max_depth,
            max_judgements=max_judgements,
            max_negatives_per_query=max_negatives,
            negative_filter=values.NegativeFilter(relative_margin=margin, rewordings=not rewordings),
            conditioned=conditioned,
            live=live,
            split=split,
            label=label,
        )
        out.note(f"run {run.id} has started; when this command is interrupted it goes on: aeenc follow {run.id}")
        show_run(follow_run(connected, run, out) if wait else run, out)
