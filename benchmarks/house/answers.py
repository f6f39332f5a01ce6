"""`make bench NAME=answers`: the memory that the largest reads take, of each service.

Of each read call the largest request that is not refused, found by halving, over stores that hold more than an answer;
once to warm up, then eight at once. A row is the most anonymous memory (RssAnon) meanwhile over what was held before,
less the answers' own bytes; of a stream, less its largest message. Tiny models; loopback only; three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message

from aeenc import AsyncClient, vectors
from aeenc.oracle import Answer
from aeenc.v1 import (
    encoder_pb2,
    encoder_pb2_grpc,
    index_pb2,
    index_pb2_grpc,
    oracle_pb2,
    people_pb2,
    people_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    sampler_pb2,
    sampler_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    types_pb2,
)
from benchmarks.harness.fleet import NAMESPACE, SERVICES, Fleet, running_fleet
from benchmarks.harness.rows import Rows, run
from benchmarks.scale.distributed import anonymous_bytes
from services.store.registry import CheckpointRow, Registry
from services.trainer.evaluation.evaluator import MAX_GOLD, MAX_QUERIES
from services.trainer.jobs.job import Job, JobConfig, JobStore

AT_ONCE, MOST_MIB, MIB = 8, 64.0, 2**20
DIM, CALL_S, LOOK_S, AGAIN_S = 32, 120.0, 0.002, 0.1
ITEMS, K, QUERIES = 1024, 1000, 2000
SHORT, LONG, LONG_CHARS = 8000, 600, 4000  # premises of the two corpora, and letters of the long ones
ROWS, LABELS, TASKS, CANDIDATES = 1100, 300, 120, 20
TREES, TREE_K = 4, 27  # of a tree that an answer just holds
PEOPLE = ("ann", "bob")
TOO_LARGE = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
OVERLOADED = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}  # of eight at once
WITHOUT_LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
SETTINGS = {
    "sampler": {"queues": {"team": {"overlap": len(PEOPLE), "undo_s": 0.0}}},
    "trainer": {"poll_s": 3600.0},  # jobs are to be listed
}
Call = Callable[[int], Awaitable[int]]  # asks for so many items; returns the bytes of the answer
Reads = Iterator[tuple[str, int, Call]]
Request = Message | Callable[[int], Message]
TEXTS = [f"{n} what heats the ice of this place" for n in range(ITEMS)]


def long_text(number: int) -> str:
    """A text of LONG_CHARS letters that no tokenizer cuts into many."""
    return f"{number} {'wärme' * LONG_CHARS}"[:LONG_CHARS]


def unary(method: Any, request: Request) -> Call:
    """A call with one answer."""

    async def call(items: int) -> int:
        return int((await method(_message(request, items), timeout=CALL_S)).ByteSize())

    return call


def streamed(method: Any, request: Request, most: int = 0) -> Call:
    """A call whose answer is a stream: its largest message, of the first `most` (0: of all)."""

    async def call(items: int) -> int:
        largest, count, stream = 0, 0, method(_message(request, items), timeout=CALL_S)
        async for message in stream:
            largest, count = max(largest, message.ByteSize()), count + 1
            if count == most:
                stream.cancel()
                break
        return largest

    return call


def _message(request: Request, items: int) -> Message:
    return request if isinstance(request, Message) else request(items)


def evaluated(method: Any, golds: int, field: str = "queries", **config: Any) -> Call:
    """An evaluation of so many queries, training queries or trees with `golds` premises each."""

    async def requests(items: int) -> AsyncIterator[trainer_pb2.EvaluateRequest]:
        message = trainer_pb2.EvaluateRequest(config={"corpus": "short", **config})
        if field != "queries":
            message.queries.add(text="q", premises=[short_text(0)])
        for n in range(items):
            premises = [short_text((n + i) % SHORT) for i in range(golds)]
            named = {"hypothesis": f"q{n}", "leaves": premises} if field == "trees" else {"text": f"q{n}"}
            getattr(message, field).add(**named, **({} if field == "trees" else {"premises": premises}))
            if (n + 1) * golds % SHORT == 0:
                yield message
                message = trainer_pb2.EvaluateRequest()
        yield message

    async def call(items: int) -> int:
        return int((await method(requests(items), timeout=CALL_S)).ByteSize())

    return call


def encoder_reads(channel: Any) -> Reads:
    """Those of the encoder, as each of the next has its service's: name, most items, call."""
    stub = encoder_pb2_grpc.EncoderServiceStub(channel)
    options = {"role": encoder_pb2.ROLE_QUERY, "lane": encoder_pb2.LANE_BULK}
    yield "Encode", ITEMS, unary(stub.Encode, lambda n: encoder_pb2.EncodeRequest(texts=TEXTS[:n], **options))


def index_reads(channel: Any, space_id: str) -> Reads:
    """Those of the index."""
    stub = index_pb2_grpc.IndexServiceStub(channel)
    rows = np.random.default_rng(0).normal(size=(ITEMS, DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    asked = {"corpus": "short", "space_id": space_id, "k": K}
    request = lambda n: index_pb2.SearchRequest(vectors=vectors.to_proto(rows[:n]), **asked)  # noqa: E731
    yield "Search", ITEMS, unary(stub.Search, request)
    for corpus in ("short", "long"):
        for mode in ("DENSE", "LEXICAL", "HYBRID", "ITERATIVE_LEXICAL"):
            retrieve = partial(index_pb2.RetrieveRequest, corpus=corpus, k=K, options={"mode": f"RETRIEVE_MODE_{mode}"})
            call = unary(stub.Retrieve, lambda n, retrieve=retrieve: retrieve(texts=TEXTS[:n]))
            yield f"Retrieve {mode}, {corpus} premises", ITEMS, call
    ids = [f"p{n}" for n in range(ITEMS)]
    get = partial(index_pb2.GetPremisesRequest, corpus="long")
    yield "GetPremises", LONG, unary(stub.GetPremises, lambda n: get(ids=ids[:n]))
    yield "ListPremises", ITEMS, paged(stub.ListPremises, index_pb2.ListPremisesRequest, corpus="long")


def paged(method: Any, request: Any, **fields: Any) -> Call:
    """A call of a page of so many items."""
    return unary(method, lambda n: request(page_size=n, **fields))


def sampler_reads(channel: Any, made: dict[str, str]) -> Reads:
    """Those of the sampler: runs and pairs, then people's."""
    stub, people = sampler_pb2_grpc.SamplerServiceStub(channel), people_pb2_grpc.PeopleServiceStub(channel)
    pairs, team, trees = ({"run_id": made[name]} for name in ("pairs", "team", "trees"))
    tree = {**trees, "hypothesis_id": "h0"}
    yield "ListPairs", ITEMS, paged(stub.ListPairs, sampler_pb2.ListPairsRequest, **pairs)
    signed = {**pairs, "sign": types_pb2.PAIR_SIGN_POSITIVE}
    yield "ListPairs of a sign", ITEMS, paged(stub.ListPairs, sampler_pb2.ListPairsRequest, **signed)
    yield "ListRuns", ITEMS, paged(stub.ListRuns, sampler_pb2.ListRunsRequest)
    yield "WatchRun", 1, streamed(stub.WatchRun, sampler_pb2.WatchRunRequest(**trees))
    yield "ExportTrees", 1, streamed(stub.ExportTrees, sampler_pb2.ExportTreesRequest(**trees))
    yield "GetTree", 1, unary(people.GetTree, people_pb2.GetTreeRequest(**tree))
    yield "WatchTree", 1, streamed(people.WatchTree, people_pb2.WatchTreeRequest(**tree), 1)
    yield "ListTasks", 500, paged(people.ListTasks, people_pb2.ListTasksRequest, annotator="cyd", **team)
    yield "ListTasks answered_by", 500, paged(people.ListTasks, people_pb2.ListTasksRequest, answered_by="ann", **team)
    yield "ListChanges", 500, paged(people.ListChanges, people_pb2.ListChangesRequest, **team)
    yield "WatchTasks", 1, streamed(people.WatchTasks, people_pb2.WatchTasksRequest(**team), TASKS)
    yield "GetAgreement", 1, unary(people.GetAgreement, people_pb2.GetAgreementRequest(**team))
    yield "ListQueues", 1, unary(people.ListQueues, people_pb2.ListQueuesRequest(annotator="ann"))
    lease = partial(people_pb2.LeaseTaskRequest, run_id=made["open"])
    yield "LeaseTask", 64, unary(people.LeaseTask, lambda n: lease(annotator=uuid.uuid4().hex, max_tasks=n))


def trainer_reads(channel: Any, job_id: str) -> Reads:
    """Those of the trainer: jobs, checkpoints and labels, then evaluations."""
    stub, registry = trainer_pb2_grpc.TrainerServiceStub(channel), registry_pb2_grpc.RegistryAdminServiceStub(channel)
    yield "ListJobs", ITEMS, paged(stub.ListJobs, trainer_pb2.ListJobsRequest)
    yield "GetJob", 1, unary(stub.GetJob, trainer_pb2.GetJobRequest(job_id=job_id))
    yield "WatchJob", 1, streamed(stub.WatchJob, trainer_pb2.WatchJobRequest(job_id=job_id))
    yield "ListCheckpoints", ITEMS, paged(stub.ListCheckpoints, trainer_pb2.ListCheckpointsRequest)
    yield "ListLabels", 1, unary(registry.ListLabels, registry_pb2.ListLabelsRequest())
    for queries, golds in ((MAX_QUERIES, 1), (MAX_GOLD // SHORT, SHORT)):
        title = f"Evaluate of {queries:,} queries with {golds:,} premises each"
        yield title, queries, evaluated(stub.Evaluate, golds)
    yield f"Evaluate with {MAX_QUERIES:,} training queries", MAX_QUERIES, evaluated(stub.Evaluate, 1, "training")
    yield f"Evaluate with {MAX_QUERIES:,} trees", MAX_QUERIES, evaluated(stub.Evaluate, 1, "trees")
    lexical = {"mode": index_pb2.RETRIEVE_MODE_LEXICAL}
    yield "Evaluate of 500 queries by words", QUERIES // 4, evaluated(stub.Evaluate, 1, retrieval=lexical)


def short_text(number: int) -> str:
    """The text of a premise of the corpus `short`."""
    return f"{number} heats ice"


async def build(client: AsyncClient) -> None:
    """Builds the two corpora."""
    for corpus, facts in (("short", map(short_text, range(SHORT))), ("long", map(long_text, range(LONG)))):
        await client.index.build(corpus, [types_pb2.Premise(id=f"p{n}", text=text) for n, text in enumerate(facts)])


async def runs(fleet: Fleet, client: AsyncClient) -> dict[str, str]:
    """Makes runs of each kind: imported pairs, grown trees, answered tasks and open ones."""
    made = {"pairs": await imported(client, ITEMS, 2)}
    for _ in range(ROWS):
        await imported(client, 1, 1)
    fleet.oracle.behaviour = accept_all
    roots = [(f"h{n}", f"hypothesis {n}") for n in range(TASKS)]
    asked = {"trees": ("gold", TREE_K, 1), "team": ("team", CANDIDATES, 0), "open": ("team", CANDIDATES, 0)}
    for name, (oracle, k, depth) in asked.items():
        run = await client.sampler.start_run(
            roots[: TASKS if depth == 0 else TREES], oracle=oracle, corpus="long", k=k, max_depth=depth
        )
        made[name] = run.id
    await client.sampler.wait(made["trees"])
    await asyncio.gather(*(answer_all(client, made["team"], annotator) for annotator in PEOPLE))
    return made


async def imported(client: AsyncClient, pairs: int, texts: int) -> str:
    """Imports so many pairs, each side so many long texts; returns the run."""
    long = [texts * long_text(n) for n in range(pairs)]
    judged = [
        types_pb2.Pair(query=f"q {text}", premise_id=f"p{n}", premise=text, sign=types_pb2.PAIR_SIGN_POSITIVE)
        for n, text in enumerate(long)
    ]
    return (await client.sampler.import_pairs("long", judged)).run_id


def accept_all(task: oracle_pb2.OracleTask) -> list[oracle_pb2.Verdict]:
    """Says that all candidates explain the query; of a root, that each has explanations of its own."""
    explains, leaf = oracle_pb2.JUDGEMENT_EXPLAINS, bool(task.path)
    return [oracle_pb2.Verdict(premise_id=one.premise.id, judgement=explains, leaf=leaf) for one in task.candidates]


async def answer_all(client: AsyncClient, run_id: str, annotator: str) -> None:
    """Has a person answer all tasks of a run, with a remark."""
    done = 0
    while done < TASKS:
        await asyncio.sleep(AGAIN_S)
        for lease in await client.people.lease(annotator, run_id=run_id, max_tasks=16):
            accepted = {one.premise.id: oracle_pb2.JUDGEMENT_EXPLAINS for one in lease.task.candidates[:3]}
            await client.people.submit(lease, Answer(accepted, note=long_text(done)[:1000]))
            done += 1


async def jobs(fleet: Fleet) -> str:
    """Registers checkpoints, labels and ended jobs; returns a job with many events."""
    base, now, job_id = fleet.space.version, datetime.now(UTC), ""
    row = CheckpointRow("", fleet.space.space_id, False, base, "", 0.5, "0" * 64, now, 1, DIM)
    async with fleet.store() as redis:
        registry, store = Registry(redis, NAMESPACE), JobStore(redis, NAMESPACE)
        for n in range(ROWS):
            await registry.checkpoints.add(replace(row, version=f"q{n:064}"))
            config = JobConfig("short", ("run",), note=2 * long_text(n), base_version=base)
            job_id = await store.create(Job(f"{n:016}", config, "g", "PENDING", now), [])
            await store.transition(job_id, ("PENDING",), "CANCELLED")
        for n in range(LABELS):
            await registry.set_label(fleet.space.space_id, f"label-{n}", base)
            await store.transition(job_id, ("CANCELLED",), "PENDING")
            await store.transition(job_id, ("PENDING",), "CANCELLED")
    return job_id


async def largest(call: Call, items: int) -> tuple[int, int]:
    """Returns the most items, halved as often as need be, that the call is not refused for, and the answer's bytes."""
    while True:
        try:
            return items, await call(items)
        except grpc.aio.AioRpcError as error:
            if error.code() not in TOO_LARGE or items == 1:
                raise
            items //= 2


async def answered(call: Call, items: int) -> int:
    """Calls until the answer is there, since one of eight may be told to wait."""
    while True:
        try:
            return await call(items)
        except grpc.aio.AioRpcError as error:
            if error.code() not in OVERLOADED:
                raise
            await asyncio.sleep(AGAIN_S)


async def grown_by(pid: int, work: Awaitable[Any]) -> tuple[int, Any]:
    """Returns by how many bytes a process grew at most while the work was done, and its result."""
    before = peak = anonymous_bytes(pid)
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=LOOK_S)
        peak = max(peak, anonymous_bytes(pid))
    return peak - before, task.result()


async def measure(rows: Rows, only: Sequence[str]) -> None:
    """Measures the calls of each service."""
    async with running_fleet(settings=SETTINGS) as fleet, AsyncExitStack() as stack:
        channels = {
            name: await stack.enter_async_context(
                grpc.aio.insecure_channel(fleet.processes[name][0].target, options=WITHOUT_LIMITS)
            )
            for name in SERVICES
        }
        async with fleet.client(timeout_s=CALL_S) as client:
            await build(client)
            reads = {"encoder": encoder_reads(channels["encoder"])}
            reads["index"] = index_reads(channels["index"], fleet.space.space_id)
            if "sampler" in only:
                reads["sampler"] = sampler_reads(channels["sampler"], await runs(fleet, client))
            if "trainer" in only:
                reads["trainer"] = trainer_reads(channels["trainer"], await jobs(fleet))
        for service, (name, most, call) in ((one, read) for one in only for read in reads[one]):
            pid = fleet.processes[service][0].pid
            first, (items, answer) = await grown_by(pid, largest(call, most))
            grown, sizes = await grown_by(pid, asyncio.gather(*(answered(call, items) for _ in range(AT_ONCE))))
            told = {"items": items, "answer_mib": round(answer / MIB, 2)}
            told |= {"grown_mib": round(grown / MIB, 1), "first_call_mib": round(first / MIB, 1)}
            over = (grown - sum(sizes)) / MIB
            rows.at_most(f"{service}: {name}, over the answers of eight", over, "MiB", MOST_MIB, told)


async def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SERVICES, default=list(SERVICES))
    only = parser.parse_args().only
    rows = Rows.of("answers", only, SERVICES)
    await measure(rows, only)
    rows.finish()


if __name__ == "__main__":
    run(main())
