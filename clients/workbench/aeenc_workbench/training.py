"""What an admin does from the page: train on the pairs of runs, follow the job, measure it, publish it, take it back.

The gold queries that measure an encoder are the workbench's setting `gold`; browsers neither send nor see them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import Field
from starlette.responses import StreamingResponse
from starlette.routing import Route

from aeenc.errors import AeencError, FailedPrecondition, InvalidArgument
from aeenc_workbench.calls import MAX_LISTED, Body, Call, described, first_of, make_routes
from aeenc_workbench.events import NO_STORE, server_sent

TRAINING_SPLIT = "train"  # as `aeenc train`: no text of other splits is learned from
TRIAL = "trial"  # what is measured before it is published
MAX_JOBS = 20
ROLLOUT_S = 10.0  # how long a publication waits for the encoders; their page shows what comes later


class TrainBody(Body):
    """The runs whose pairs to learn from, all of one corpus."""

    runs: list[str] = Field(min_length=1, max_length=100)
    epochs: int = Field(0, ge=0, le=100)
    request: str


class JobBody(Body):
    """A job."""

    job: str
    request: str = ""


class MeasureBody(Body):
    """A version to measure on a corpus."""

    corpus: str
    version: str


class LabelBody(Body):
    """A label to move, as it was when the page was read: a name in a space, and its revision.

    `version` is empty for a rollback. A publication moves the label in the version's own space.
    """

    label: str = "stable"
    space: str = ""
    version: str = ""
    revision: int = Field(ge=0, lt=2**63)
    request: str


async def overview(call: Call) -> Any:
    """Runs, the latest jobs, what is known of versions, and labels; how many gold queries there are to measure with."""
    call.person.must_be("admin")
    client = call.client
    return {
        "runs": [
            {
                "id": run.id,
                "corpus": run.config.corpus,
                "positives": run.progress.positives,
                "refused": run.progress.negatives,
                **described(run),
            }
            for run in await first_of(client.sampler.list_runs(page_size=MAX_LISTED))
        ],
        "jobs": await first_of(client.trainer.list_jobs(page_size=MAX_JOBS), MAX_JOBS),
        "versions": {
            one.version: {"space_id": one.space_id, "pretrained": one.pretrained, "created_at": one.created_at}
            for one in await first_of(client.trainer.list_checkpoints(page_size=MAX_LISTED))
        },
        "labels": await first_of(client.registry.list_labels(page_size=MAX_LISTED)),
        "gold": len(call.gold),
    }


async def train(call: Call) -> Any:
    """Starts a job. The request's id makes it safe to send again."""
    call.person.must_be("admin")
    body = await call.body(TrainBody)
    corpora = {(await call.client.sampler.get_run(run)).config.corpus for run in body.runs}
    if len(corpora) > 1:
        raise InvalidArgument(f"the runs are of {len(corpora)} corpora ({', '.join(sorted(corpora))}); choose one's")
    return await call.client.trainer.start_job(
        corpus=corpora.pop(),
        run_ids=body.runs,
        validation=call.gold,
        split=TRAINING_SPLIT,
        epochs=body.epochs,
        note=f"started by {call.person.name} in the workbench",
        idempotency_key=body.request,
    )


async def cancel(call: Call) -> Any:
    """Stops a job."""
    call.person.must_be("admin")
    body = await call.body(JobBody)
    return await call.client.trainer.cancel(body.job, request_id=body.request)


async def follow(call: Call) -> Any:
    """A job's events from its start on (or from where the browser lost the stream) to its end."""
    call.person.must_be("admin")
    job_id, last = str(call.request.path_params["job"]), call.request.headers.get("last-event-id", "")
    from_seq = int(last) + 1 if re.fullmatch("[0-9]{1,18}", last) else 0
    await call.client.trainer.get_job(job_id)  # an unknown job is refused before the answer begins

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            async for seq, job in call.client.trainer.watch(job_id, from_seq=from_seq):
                yield server_sent(job, seq)
        except AeencError:
            return  # the trainer is away: the browser asks again

    stream = call.request.app.state.events.relay(events(), call.lives)
    return StreamingResponse(stream, media_type="text/event-stream", headers=NO_STORE)


async def measure(call: Call) -> Any:
    """Strict metrics of a version on the gold queries. Encoders load one without a label under the label TRIAL."""
    call.person.must_be("admin")
    body = await call.body(MeasureBody)
    if not call.gold:
        raise FailedPrecondition("there are no gold queries; start the workbench with --gold FOLDER", reason="NO_GOLD")
    labels = await first_of(call.client.registry.list_labels())
    if body.version not in {version for label in labels for version in label.versions}:
        await call.client.registry.publish(body.version, label=TRIAL, wait_s=ROLLOUT_S)
    report = await call.client.trainer.evaluate(body.corpus, call.gold, version=body.version, strict_only=True)
    return {"version": report.model_version, "queries": report.queries, "strict": report.strict}


async def publish(call: Call) -> Any:
    """Points a label at a version, unless somebody has moved it since the page was read."""
    call.person.must_be("admin")
    body = await call.body(LabelBody)
    return await call.client.registry.publish(
        body.version,
        label=body.label,
        wait_s=ROLLOUT_S,
        expected_revision=body.revision,
        request_id=body.request,
    )


async def rollback(call: Call) -> Any:
    """Points a label back at its previous version, unless somebody has moved it since the page was read."""
    call.person.must_be("admin")
    body = await call.body(LabelBody)
    return await call.client.registry.rollback(
        label=body.label,
        space_id=body.space,
        wait_s=ROLLOUT_S,
        expected_revision=body.revision,
        request_id=body.request,
    )


def routes() -> list[Route]:
    """The routes of training."""
    reads = {"/api/training": overview, "/api/jobs/{job}/events": follow}
    changes = {
        "/api/train": train,
        "/api/cancel": cancel,
        "/api/measure": measure,
        "/api/publish": publish,
        "/api/rollback": rollback,
    }
    return make_routes(reads, changes)
