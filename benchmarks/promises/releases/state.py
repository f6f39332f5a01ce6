"""A state that has everything in it, half-done work too; what is read of it, and how it goes on after a new start.

write ─▶ snapshot ─▶ SIGKILL ─▶ (another release opens it) ─▶ snapshot, compared ─▶ go on
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aeenc import AsyncClient, errors
from aeenc.v1 import people_pb2, sampler_pb2, trainer_pb2, types_pb2
from benchmarks.promises.fleet import CORPUS, PREMISES, Fleet, job_fields
from support.waiting import eventually
from support.worlds.index_world import PREMISES as HALF_PREMISES
from support.worlds.index_world import broken_build
from support.worlds.trainer_world import PAIRS, QUERIES, SIGNS

OTHER_CORPUS = "other"
HALF_BUILD = "half-build"
HALF_EPOCHS = 60
ENDED = (3, 4, 5)  # RunState and JobState: SUCCEEDED, FAILED, CANCELLED
TASKS = 4
ROOTS = [(f"tree-{n}", QUERIES[n]) for n in range(TASKS)]

Snapshot = dict[str, Any]  # by topic


@dataclass
class State:
    """What was written, and what its writers were told."""

    snapshot: Snapshot = field(default_factory=dict)
    gold_run: str = ""
    people_run: str = ""
    imported_run: str = ""
    job: str = ""
    half_job: str = ""
    half_epochs: int = 0
    durable: int = 0
    lease: people_pb2.Lease = field(default_factory=people_pb2.Lease)


def _pairs() -> list[types_pb2.Pair]:
    return [
        types_pb2.Pair(query=one.query, premise_id=one.premise_id, premise=one.premise, sign=SIGNS[one.sign])
        for one in PAIRS
    ]


async def write_state(fleet: Fleet) -> State:
    """Writes one of everything, takes a snapshot, and kills all while a build and a job are half done."""
    state = State()
    async with fleet.client() as client:
        for corpus in (CORPUS, OTHER_CORPUS):
            await client.index.build(corpus, PREMISES, request_id=f"built-{corpus}")
        await client.index.put_explanations(CORPUS, [(QUERIES[0], ["f0", "f1"])])
        state.imported_run = await import_again(client)
        state.gold_run = (await _gold_run(client)).id
        await client.sampler.wait(state.gold_run)
        job = await client.trainer.wait((await _job(client, state)).id)
        state.job = job.id
        if job.state != trainer_pb2.JOB_STATE_SUCCEEDED:
            raise RuntimeError(f"the job of the state failed: {job.error}")
        await client.registry.publish(job.version, force=True, wait_s=20, request_id="published")
        await client.registry.set_label("canary", job.version, share=0.25)
        await _people(client, state)
        state.durable = (await broken_build(SimpleNamespace(client=client.index), request_id=HALF_BUILD)).durable
        half = await client.trainer.start_job(**job_fields(state.imported_run, epochs=HALF_EPOCHS, seed=5))
        state.half_job = half.id

        async def is_half_done() -> bool:
            state.half_epochs = (await client.trainer.job(half.id)).progress.epochs_done
            return state.half_epochs >= 3

        await eventually(is_half_done, timeout_s=120)
        state.snapshot = await take_snapshot(client)
    await asyncio.to_thread(fleet.kill)
    return state


async def import_again(client: AsyncClient) -> str:
    """Imports the judged pairs under one request id. Returns the run."""
    return str((await client.sampler.import_pairs(CORPUS, _pairs(), request_id="imported")).run_id)


async def _gold_run(client: AsyncClient) -> sampler_pb2.Run:
    options = {"corpus": CORPUS, "oracle": "gold", "k": 4, "max_depth": 1, "idempotency_key": "gold"}
    return await client.sampler.start_run(ROOTS, **options)


async def _job(client: AsyncClient, state: State) -> trainer_pb2.Job:
    return await client.trainer.start_job(**job_fields(state.imported_run, epochs=2, seed=3, idempotency_key="job"))


async def _people(client: AsyncClient, state: State) -> None:
    """A run with a task that is answered, one that is leased, and others that wait."""
    run = await client.sampler.start_run(ROOTS, corpus=CORPUS, oracle="team", k=3, max_depth=0)
    state.people_run = run.id

    async def queued() -> bool:
        return len([one async for one in client.people.tasks(run.id)]) == TASKS

    await eventually(queued)
    [first] = await client.people.lease("ann", run_id=run.id, request_id="first")
    await client.people.submit(first, [first.task.candidates[0].premise_id], note="a remark")
    [state.lease] = await client.people.lease("ben", run_id=run.id, request_id="second")


async def take_snapshot(client: AsyncClient) -> Snapshot:
    """Everything that answers say about what has ended or stands still, by topic; an error's text where one is said."""
    found: Snapshot = {}
    for topic, read in TOPICS.items():
        try:
            found[topic] = await read(client)
        except errors.AeencError as error:
            found[topic] = f"{error.code}: {error.message}"
    return found


async def _labels(client: AsyncClient) -> Any:
    listed = await client.registry.labels()
    return {(one.space_id, one.name): (one.version, one.revision, one.previous_version, one.share) for one in listed}


async def _checkpoints(client: AsyncClient) -> Any:
    listed = await client.trainer.checkpoints()
    return {one.version: (one.space_id, one.base_version, one.dim, sorted(one.labels)) for one in listed}


async def _corpora(client: AsyncClient) -> Any:
    return {
        corpus: [(one.id, one.premises, one.active, one.space_id) for one in await client.index.generations(corpus)]
        for corpus in (CORPUS, OTHER_CORPUS)
    }


async def _premises(client: AsyncClient) -> Any:
    return [(one.id, one.text) async for one in client.index.list_premises(CORPUS)]


async def _retrieval(client: AsyncClient) -> Any:
    found = await client.index.retrieve(CORPUS, QUERIES[:6], k=10, mode="hybrid", prior=0.1, label="stable")
    return [[(hit.id, hit.score) for hit in hits] for hits in found.results]


async def _ended_runs(client: AsyncClient) -> list[sampler_pb2.Run]:
    return [run for run in await client.sampler.runs() if run.state in ENDED]


async def _runs(client: AsyncClient) -> Any:
    ended = await _ended_runs(client)
    return {run.id: (run.state, run.progress.judgements, run.model_version, run.generation) for run in ended}


async def _recorded_pairs(client: AsyncClient) -> Any:
    return {
        run.id: [(one.query, one.premise_id, one.sign, one.seq) async for one in client.sampler.pairs(run.id)]
        for run in await _ended_runs(client)
    }


async def _trees(client: AsyncClient) -> Any:
    return {run.id: [one async for one in client.sampler.export_trees(run.id)] for run in await _ended_runs(client)}


async def _jobs(client: AsyncClient) -> Any:
    ended = [job for job in await client.trainer.jobs() if job.state in ENDED]
    return {job.id: (job.state, job.version, job.progress.epochs_done) for job in ended}


async def _tasks(client: AsyncClient) -> Any:
    people = [run for run in await client.sampler.runs() if run.config.oracle == "team"]
    return {
        one.task.task_id: (one.state, [(a.annotator, a.note, _verdicts(a.verdicts)) for a in one.answers])
        for run in people
        for one in [task async for task in client.people.tasks(run.id)]
    }


TOPICS = {
    "labels": _labels,
    "checkpoints": _checkpoints,
    "corpora": _corpora,
    "premises": _premises,
    "retrieval": _retrieval,
    "runs": _runs,
    "pairs": _recorded_pairs,
    "trees": _trees,
    "jobs": _jobs,
    "tasks": _tasks,
}


def _verdicts(given: Any) -> list[tuple[str, int]]:
    return sorted((one.premise_id, one.judgement) for one in given)


async def go_on(client: AsyncClient, state: State) -> dict[str, str]:
    """Continues everything that was half done, and repeats what had an id. By topic: "" or what went wrong."""
    steps: dict[str, Callable[[AsyncClient, State], Any]] = {
        "the half-done build": _finish_build,
        "the half-done job": _finish_job,
        "the people's run": _finish_task,
        "calls that had an id, sent again": _repeat,
        "a new publication": _publish,
    }
    found = {}
    for what, step in steps.items():
        try:
            found[what] = await step(client, state) or ""
        except Exception as error:  # noqa: BLE001 -- it is what the row tells
            found[what] = f"{type(error).__name__}: {error}"
    return found


async def _finish_build(client: AsyncClient, _: State) -> str:
    made = await client.index.build(CORPUS, HALF_PREMISES, request_id=HALF_BUILD, activate=False)
    return "" if made.premises == len(HALF_PREMISES) else f"{made.premises} premises, not {len(HALF_PREMISES)}"


async def _finish_job(client: AsyncClient, state: State) -> str:
    seen = (await client.trainer.job(state.half_job)).progress.epochs_done
    ended = await client.trainer.wait(state.half_job)
    if ended.state != trainer_pb2.JOB_STATE_SUCCEEDED:
        return f"it ended as {trainer_pb2.JobState.Name(ended.state)}: {ended.error}"
    return "" if seen >= state.half_epochs - 1 else f"it went on at epoch {seen}, not {state.half_epochs}"


async def _finish_task(client: AsyncClient, state: State) -> str:
    done = await client.people.submit(state.lease, [])
    more = await client.people.lease("cid", run_id=state.people_run)
    return "" if done.answer_id and more else "no further task could be leased"


async def _repeat(client: AsyncClient, state: State) -> str:
    again = {
        "run": ((await _gold_run(client)).id, state.gold_run),
        "job": ((await _job(client, state)).id, state.job),
        "import": (await import_again(client), state.imported_run),
        "build": (
            (await client.index.build(CORPUS, PREMISES, request_id=f"built-{CORPUS}")).id,
            next(one[0] for one in state.snapshot["corpora"][CORPUS] if one[2]),
        ),
    }
    return "; ".join(f"{what}: {found}, not {told}" for what, (found, told) in again.items() if found != told)


async def _publish(client: AsyncClient, state: State) -> str:
    version = (await client.trainer.job(state.half_job)).version or (await client.trainer.job(state.job)).version
    done = await client.registry.publish(version, force=True, wait_s=20)
    if not done.complete:
        return f"not complete: {done.rollouts}"
    served = (await client.encoder.encode([QUERIES[0]], label="stable")).model_version
    return "" if served == version else f"{served} serves, not {version}"
