"""`aeenc train` and `jobs`; and `runs`, `follow`, `resume`, `cancel`, which take the id of a run or of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from aeenc import Client, values
from aeenc.calls.retrieval import Mode as RetrieveMode
from aeenc.cli.corpus import LAYOUTS
from aeenc.cli.learning.runs import check_end, follow_run, run_dict, show_run, work_dict
from aeenc.cli.options import collected, taking
from aeenc.cli.output import (
    Output,
    comparison_dict,
    fields_of,
    fields_table,
    outcome_words,
    output_of,
    shown_time,
    table,
)
from aeenc.cli.targets import client
from aeenc.errors import AeencError, FailedPrecondition, InvalidArgument, NotFound
from aeenc.evaluation import gold_of, load_data
from aeenc.values.trainer import BatchingName, LossName, NegativesName, TargetsName
from aeenc.values.types import OwnTextName

TRAINING_SPLIT = "train"
PUBLISH_WAIT_S = 60.0
if TYPE_CHECKING:
    Loss = LossName
else:
    Loss = Literal[*(name.replace("_", "-") for name in get_args(LossName))]  # as people type them


@collected
def recipe_of(
    loss: Annotated[
        Loss | None,
        typer.Option(show_default="full-corpus-softmax; regression with --mode cross-encoder", help="The objective."),
    ] = None,
    data_sets: Annotated[
        list[str] | None,
        typer.Option("--data-set", help="Learn from this data set of the trainer's settings, too; may be repeated."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100,
            show_default="0",
            help="0: by the size of the data, as many as give 1,000 steps, but 3 to 12. Small data need many passes.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=0, max=1024, show_default="0", help="Queries or items a step; 0: 32, with --mode cross-encoder 8."
        ),
    ] = None,
    batching: Annotated[
        BatchingName | None,
        typer.Option(
            show_default="queries; items with --mode siamese and dual",
            help="A step takes so many queries with all they have, or single triplets and pairs.",
        ),
    ] = None,
    items_per_epoch: Annotated[
        int | None, typer.Option(min=0, show_default="0", help="A new random part each epoch; 0: all.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(min=0, show_default="0", help="0: 1e-4; 2e-5 over single items, and with nli-classification."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, show_default="0", help="Of a softmax; 0: .03 over the full corpus, .05 over a batch."),
    ] = None,
    margin: Annotated[float | None, typer.Option(help="Of the losses that have one.")] = None,
    regularization: Annotated[float | None, typer.Option(help="Weight towards the pre-trained encoder.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, show_default="0", help="Seed of everything random.")] = None,
) -> None:
    """Collects the options of a training job that `aeenc loop` has, too, as arguments of `start_job`."""


@collected
def job_of(
    mode: Annotated[
        Literal["single", "siamese", "dual", "cross-encoder"],
        typer.Option(
            help="Train the query encoder alone, one encoder for both sides, or two: the last two need another "
            "loss than full-corpus-softmax and build a generation in a new space. Or a cross-encoder that re-ranks."
        ),
    ] = "single",
    accumulation: Annotated[int, typer.Option(min=0, help="Compute a batch in so many parts; 0: one.")] = 0,
    initial_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the weights it begins with in those it keeps.")
    ] = 0.0,
    own_text: Annotated[
        OwnTextName | None,
        typer.Option(show_default="excluded", help="A query's own text is left out, or one of its refused premises."),
    ] = None,
    refused_weight: Annotated[
        float, typer.Option(min=0, help="Of a refused premise in the full-corpus softmax; 0: 1, as any other.")
    ] = 0.0,
    hard_negatives: Annotated[
        int | None, typer.Option(min=0, help="Refused premises for each positive, of the ranking losses.")
    ] = None,
    guide_version: Annotated[
        str, typer.Option(show_default="the pre-trained", help="The encoder that guides GIST.")
    ] = "",
    guide_margin: Annotated[float | None, typer.Option(help="How far below the positive GIST's negatives are.")] = None,
    targets: Annotated[
        TargetsName | None,
        typer.Option(show_default="binary", help="What a cross-encoder learns: 1, a grade, or shares of all grades."),
    ] = None,
    candidates: Annotated[
        RetrieveMode | None,
        typer.Option(show_default="what encoders rank first", help="A cross-encoder re-ranks the first 200 of these."),
    ] = None,
    negatives: Annotated[
        NegativesName | None,
        typer.Option(show_default="retrieved", help="What a cross-encoder draws besides refused premises."),
    ] = None,
    custom_loss: Annotated[str, typer.Option(help="A loss of the trainer's settings, in place of --loss.")] = "",
    base_model: Annotated[
        str,
        typer.Option(show_default="the pre-trained", help="A cross-encoder starts from this model of the settings."),
    ] = "",
    prototypes: Annotated[
        int, typer.Option(min=0, help="Correct pairs of a class that loss analogy compares with; 0: 30.")
    ] = 0,
    base_version: Annotated[str, typer.Option(show_default="the pre-trained", help="Start from this checkpoint.")] = "",
) -> None:
    """Collects the further options of `aeenc train`, as arguments of `start_job`."""


def job_dict(job: values.Job) -> dict[str, Any]:
    """Converts a job to plain values: id, state, checkpoint, and counts."""
    progress = job.progress
    fields = {
        **fields_of(job, "runs=config.run_ids", "data_sets=config.data_sets", "version"),
        **fields_of(progress, "epochs=epochs_done", "steps=steps_done", "loss"),
        "validation_map": progress.best_validation_map or None,  # 0: no epoch was measured
        "gain": comparison_dict(progress.gain) if progress.gain.outcome else None,
        **fields_of(progress, "queries", "positives", "negatives", "dropped", "skipped", "outside"),
    }
    return work_dict("job", job, fields)


def describe(job: values.Job) -> str:
    """Describes the progress of a job in a few words."""
    progress = job.progress
    words = [f"job {job.id}", progress.phase]
    if progress.epochs:
        words.append(f"epoch {min(progress.epochs_done + 1, progress.epochs)} of {progress.epochs}")
    if progress.loss:
        words.append(f"loss {progress.loss:.3f}")
    if progress.validation_map:
        words.append(f"MAP {progress.validation_map:.3f}")
    return " ".join(words)


def follow_job(client: Client, job: values.Job, out: Output) -> values.Job:
    """Waits for the end of a job behind a progress bar."""
    with out.progress(f"job {job.id}", "steps") as report:
        return client.trainer.wait(
            job.id, on_progress=lambda now: report(now.progress.steps_done, now.progress.steps, describe(now))
        )


def show_job(job: values.Job, out: Output, *, published: bool | None = None) -> None:
    """Writes a job as a result. Raises EndedBadly for one that has failed or was cancelled.

    `published`: whether its version serves now; None if nobody asked for that.
    """
    result = job_dict(job) | ({} if published is None else {"published": published})
    words = {name: text.format(result[name]) for name, text in _WORDS.items()}
    shown = fields_table(result | words | {"gain": _gain_words(result)})
    out.result(result, shown, *(_next_words(job) if job.version and not published else []))
    check_end("job", result)


_WORDS = {
    "dropped": "{:,} pairs not to be learned from: of other splits, held back or contradicted",
    "skipped": "{:,} queries that the loss cannot use: nothing explains them, or nothing was refused",
    "outside": "{:,} premises that are not in the corpus",
}


def _gain_words(job: Mapping[str, Any]) -> str:
    """Says what a job has gained; empty before its end, and where a data set had no queries to measure it by."""
    if not (gain := job["gain"]):
        return "none measured" if job["version"] else ""
    if not gain["queries"]:
        return f"{outcome_words(gain)} trees to hold any back and measure it by"
    change = f"MAP {gain['version_map']:.3f} to {gain['candidate_map']:.3f}".replace("0.", ".")
    return f"{outcome_words(gain)}: {change} on {gain['queries']:,} queries that it did not learn from"


def _next_words(job: values.Job) -> list[str]:
    command = f"aeenc publish {job.version}"
    better = job.progress.gain.outcome == values.Outcome.BETTER
    serve = f"serve it, if it is better than what serves, too: {command}"
    return [serve if better else f"serve it nevertheless: {command} --anyway", f"only try it: {command} --label trial"]


def _published(client: Client, job: values.Job, out: Output) -> bool:
    """Publishes the version of a job that has gained. Says why where it does not."""
    gain = comparison_dict(job.progress.gain)
    if job.state != values.WorkState.SUCCEEDED or gain["outcome"] != "better":
        out.note(f"{job.version or job.id} is not published: it was not shown to be better")
        return False
    try:
        client.registry.publish(job.version, wait_s=PUBLISH_WAIT_S, only_better=True)
    except FailedPrecondition as error:
        if error.reason != "QUALITY_GATE":
            raise
        out.note(f"not published: {error.message}")
        return False
    return True


@taking(recipe=recipe_of, job=job_of)
def train(
    context: typer.Context,
    recipe: dict[str, Any],
    job: dict[str, Any],
    corpus: Annotated[str, typer.Argument(help="The corpus whose premise vectors it trains against.")],
    runs: Annotated[
        list[str] | None, typer.Option("--run", help="Learn from this run's pairs; may be repeated.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help=f"Validate on gold queries. {LAYOUTS}")] = None,
    split: Annotated[str, typer.Option(help="The split of --data to validate on.")] = "dev",
    wait: Annotated[bool, typer.Option(help="Follow the job to its end.")] = True,
    publish: Annotated[bool, typer.Option("--publish", help="Publish the result if it is better.")] = False,
) -> None:
    """Starts a training job; a finished one leaves a checkpoint to publish.

    A run over a split of a data set must be one over `train`; of a run over hypotheses of your own all is learnt from.

    Without --data, a job over runs holds back a fifth of their trees, and says whether it is better on them.
    """
    if publish and not wait:
        raise InvalidArgument("--publish needs the end of the job; leave --no-wait out")
    validation = gold_of(load_data(data), split) if data is not None else []
    out = output_of(context)
    connected = client(context)
    begun = connected.trainer.start_job(
        corpus=corpus, run_ids=runs, validation=validation, split=TRAINING_SPLIT, **recipe, **job
    )
    out.note(f"job {begun.id} has started; when this command is interrupted it goes on: aeenc follow {begun.id}")
    ended = follow_job(connected, begun, out) if wait else begun
    show_job(ended, out, published=_published(connected, ended, out) if publish else None)


Id = Annotated[str, typer.Argument(help="A run or a job.", metavar="ID")]


def find(client: Client, work_id: str) -> values.Run | values.Job:
    """Finds the run or the job of this id. Raises NotFound when it is neither, else as a service does."""
    gets: tuple[Callable[[str], values.Run | values.Job], ...] = (client.sampler.get_run, client.trainer.get_job)
    failure: AeencError = NotFound(f"{work_id!r} is neither a run nor a job; `aeenc runs` and `aeenc jobs` list them")
    for get in gets:
        try:
            return get(work_id)
        except AeencError as error:
            failure = failure if isinstance(error, NotFound) else error
    raise failure


def _follow(client: Client, work: values.Run | values.Job, out: Output) -> None:
    if isinstance(work, values.Run):
        show_run(follow_run(client, work, out), out)
    else:
        show_job(follow_job(client, work, out), out)


def _followed_again(work_id: str) -> str:
    return f"this ends no run and no job; to follow it again: aeenc follow {work_id}"


def follow(context: typer.Context, work_id: Id) -> None:
    """Follows a run or a job to its end."""
    out = output_of(context)
    with out.on_interrupt(_followed_again(work_id)):
        connected = client(context)
        _follow(connected, find(connected, work_id), out)


def resume(context: typer.Context, work_id: Id) -> None:
    """Continues a run or a job that failed or was cancelled, and follows it. What is done is not done again."""
    connected = client(context)
    work = find(connected, work_id)
    service = connected.sampler if isinstance(work, values.Run) else connected.trainer
    resumed, out = service.resume(work_id), output_of(context)
    with out.on_interrupt(_followed_again(work_id)):
        _follow(connected, resumed, out)


def cancel(context: typer.Context, work_id: Id) -> None:
    """Stops a run or a job. What it has recorded stays."""
    connected = client(context)
    if isinstance(find(connected, work_id), values.Run):
        stopped = run_dict(connected.sampler.cancel(work_id))
    else:
        stopped = job_dict(connected.trainer.cancel(work_id))
    output_of(context).result(stopped)


def delete_run(context: typer.Context, run: Annotated[str, typer.Argument(help="The run.")]) -> None:
    """Deletes a run that has ended, with its pairs, trees and tasks. They cannot be had back."""
    client(context).sampler.delete(run)
    output_of(context).result({"run": run, "deleted": True})


def runs(context: typer.Context) -> None:
    """Lists sampling runs, newest first; `delete` removes one."""
    found = [run_dict(run) for run in client(context).sampler.list_runs()]
    _list(context, "run", found, _about_run)


def _about_run(run: dict[str, Any]) -> list[str]:
    split = f"split {run['split']}" if run["split"] else ""
    oracle = f"oracle {run['oracle']}" if run["oracle"] else "imported pairs"
    return [
        ", ".join(part for part in (run["corpus"], oracle, split) if part),
        f"{run['trees_done']:,} of {run['trees']:,} trees, {run['positives']:,} positives",
    ]


def delete_job(context: typer.Context, job: Annotated[str, typer.Argument(help="The job.")]) -> None:
    """Deletes a job that has ended, with its files. Its checkpoint stays."""
    client(context).trainer.delete(job)
    output_of(context).result({"job": job, "deleted": True})


def jobs(context: typer.Context) -> None:
    """Lists training jobs, newest first; `delete` removes one."""
    found = [job_dict(job) for job in client(context).trainer.list_jobs()]
    _list(context, "job", found, _about_job)


def _about_job(job: dict[str, Any]) -> list[str]:
    sources = [f"run {run}" for run in job["runs"]] + [f"data set {name}" for name in job["data_sets"]]
    made = [f"version {job['version']}"] if job["version"] else []
    made += [outcome_words(job["gain"])] if job["gain"] else []
    return [", ".join([job["corpus"], *sources]), f"{job['epochs']} epochs", *made]


def _list(
    context: typer.Context, kind: str, found: list[dict[str, Any]], about: Callable[[dict[str, Any]], list[str]]
) -> None:
    """Shows what each is about in one column, a line for each part: as columns of their own they fill no terminal."""
    rows = [
        [
            *(row[kind], row["state"], shown_time(datetime.fromisoformat(row["started_at"]))),
            "\n".join([*about(row), *([row["error"]] if row["error"] else [])]),
        ]
        for row in found
    ]
    shown = table([kind, "state", "started", "about"], rows, whole=(kind, "state", "started"))
    output_of(context).result({f"{kind}s": found}, shown)
