"""`aeenc runs`, `jobs`, `follow`, `resume`, `cancel`: long work, by the id that `sample` and `train` have printed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aeenc import Client
from aeenc.cli.output import Output, output_of, table
from aeenc.cli.sample import follow_run, run_dict, show_run
from aeenc.cli.targets import client
from aeenc.cli.train import follow_job, job_dict, show_job
from aeenc.errors import NotFound
from aeenc.v1 import sampler_pb2, trainer_pb2

Work = sampler_pb2.Run | trainer_pb2.Job
Id = Annotated[str, typer.Argument(help="A run or a job.", metavar="ID")]


def find(client: Client, work_id: str) -> Work:
    """The run or the job of this id. Raises NotFound when it is neither."""
    found: Work
    for get in (client.sampler.run, client.trainer.job):
        try:
            found = get(work_id)
        except NotFound:
            continue
        return found
    raise NotFound(f"{work_id!r} is neither a run nor a job; `aeenc runs` and `aeenc jobs` list them")


def _follow(client: Client, work: Work, out: Output) -> None:
    if isinstance(work, sampler_pb2.Run):
        show_run(follow_run(client, work, out), out)
    else:
        show_job(follow_job(client, work, out), out)


def follow(context: typer.Context, work_id: Id) -> None:
    """Follows a run or a job to its end."""
    with client(context) as connected:
        _follow(connected, find(connected, work_id), output_of(context))


def resume(context: typer.Context, work_id: Id) -> None:
    """Continues a run or a job that failed or was cancelled, and follows it. What is done is not done again."""
    with client(context) as connected:
        work = find(connected, work_id)
        service = connected.sampler if isinstance(work, sampler_pb2.Run) else connected.trainer
        _follow(connected, service.resume(work_id), output_of(context))


def cancel(context: typer.Context, work_id: Id) -> None:
    """Stops a run or a job. What it has recorded stays."""
    with client(context) as connected:
        work = find(connected, work_id)
        is_run = isinstance(work, sampler_pb2.Run)
        stopped = (connected.sampler if is_run else connected.trainer).cancel(work_id)
    output_of(context).result(run_dict(stopped) if is_run else job_dict(stopped))


def runs(context: typer.Context) -> None:
    """Lists sampling runs, newest first."""
    with client(context) as connected:
        found = [run_dict(run) for run in connected.sampler.runs()]
    _list(context, "runs", found, "run", "trees_done", "positives")


def jobs(context: typer.Context) -> None:
    """Lists training jobs, newest first."""
    with client(context) as connected:
        found = [job_dict(job) for job in connected.trainer.jobs()]
    _list(context, "jobs", found, "job", "epochs", "version")


def _list(context: typer.Context, name: str, found: list[dict[str, Any]], *columns: str) -> None:
    shown = [columns[0], "state", *columns[1:], "error"]
    rows = [[values[column] for column in shown] for values in found]
    output_of(context).result({name: found}, table([column.replace("_", " ") for column in shown], rows))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (runs, jobs, follow, resume, cancel):
        app.command(command.__name__)(command)
