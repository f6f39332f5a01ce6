"""Search over gRPC in processor time: calls for each core-second of the index beside those of an echo, in turn.

    load process ──► 64 callers, 4 connections ──► index (16 k x 384, exact) │ echo, bare │ echo behind the kit

Each server is a process of its own, and so is the load. Only the server's processor time counts, its threads' and the
kernel's for it included, so a machine that is busy with other work disturbs little.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import psutil
from numpy.typing import NDArray

from aeenc.v1 import index_pb2, types_pb2
from aeenc.vectors import to_proto
from benchmarks.fleet.index_workers import Callers
from benchmarks.fleet.search_caller import SEARCH
from benchmarks.harness.checkpoints import STORE, base_checkpoint, embedded
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows
from benchmarks.index.fleet import running_index
from benchmarks.index.stand_in_encoder import SPACE, StandInEncoder
from services.launcher.processes import free_port
from services.store.artifacts import ArtifactStore
from support.service_process import ServiceProcess

Matrix = NDArray[np.float32]
CORPUS, K = "entailmentbank", 10
CALLERS, CONNECTIONS = 64, 4
ROUNDS, SECONDS = 6, 3.0
SERVERS = ("index", "bare", "kit")


async def search(rows: Rows, home: Path, rounds: int = ROUNDS) -> None:
    """Measures all servers by turns."""
    async with _servers(home) as servers:
        callers = {
            name: Callers(server.target, home / "requests.json", processes=1, callers=CALLERS, connections=CONNECTIONS)
            for name, server in servers.items()
        }
        try:
            found = await _measure(servers, callers, rounds)
        finally:
            for one in callers.values():
                one.close()
    told = {name: round(statistics.median(each)) for name, each in found.items()}
    for echo, what in (("bare", "an echo's"), ("kit", "those of an echo behind the same interceptor")):
        share = statistics.median(one / other for one, other in zip(found["index"], found[echo], strict=True))
        name = f"search, {CALLERS} callers, calls a core-second over {what}"
        if echo == "bare":
            rows.at_least(name, share, "share", 0.60, told)
        else:
            rows.note(name, share, "share", told)


async def _measure(
    servers: dict[str, ServiceProcess], callers: dict[str, Callers], rounds: int
) -> dict[str, list[float]]:
    """Calls for each core-second of each server, by round."""
    found: dict[str, list[float]] = {name: [] for name in SERVERS}
    for number in range(-1, rounds):  # the first one warms
        for name in SERVERS if number % 2 else reversed(SERVERS):
            before = core_s(servers[name].pid)
            rate = await callers[name].rate(SECONDS)
            found[name].append(rate * SECONDS / (core_s(servers[name].pid) - before))
    return {name: each[1:] for name, each in found.items()}


def core_s(pid: int) -> float:
    """Processor seconds of a process, its threads and the kernel's work for it included, to a hundredth."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def _servers(home: Path) -> AsyncIterator[dict[str, ServiceProcess]]:
    """Starts the index over the corpus, and both echoes of one of its answers; writes the requests."""
    base, dataset = base_checkpoint(ArtifactStore(STORE)), entailmentbank()
    texts = [candidate.text for candidate in dataset.candidates()]
    vectors = dict(zip(texts, await asyncio.to_thread(embedded, base, texts), strict=True))
    queries = await asyncio.to_thread(embedded, base, [one.text for one in dataset.queries("dev")])
    requests = [_request(query) for query in queries]
    (home / "requests.json").write_text(json.dumps([request.hex() for request in requests]))
    async with AsyncExitStack() as stack:
        encoder = await stack.enter_async_context(StandInEncoder(lambda batch: np.stack([vectors[t] for t in batch])))
        index = await stack.enter_async_context(running_index(encoder_target=encoder.target, engine="flat"))
        premises = [types_pb2.Premise(id=one.id, text=one.text) for one in dataset.candidates()]
        async with grpc.aio.insecure_channel(index.process.target) as channel:
            await index.client(timeout_s=300).build(CORPUS, premises)
            answer: bytes = await channel.unary_unary(SEARCH)(requests[0])
        (home / "answer").write_bytes(answer)
        servers = {"index": index.process}
        for kind in ("bare", "kit"):
            port = free_port(set())
            command = ["-m", "benchmarks.scale.echo", kind, str(port), str(home / "answer")]
            echo = ServiceProcess(f"echo-{kind}", command, home, port=port, has_health=kind == "kit")
            servers[kind] = await stack.enter_async_context(echo.running())
        yield servers


def _request(query: Matrix) -> bytes:
    vectors = to_proto(query[None])
    return index_pb2.SearchRequest(corpus=CORPUS, vectors=vectors, space_id=SPACE, k=K).SerializeToString()
