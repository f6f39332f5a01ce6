"""Measures promises to operators: full batches on a GPU, new encoders found, workers, cheap traces, a working chart.

    python -m benchmarks.fleet.operators [--only batches|dns|tracing|workers|chart] [--rounds 40] [--seconds 1]

For tracing, two indexes and two encoders over one space and one corpus differ in tracing alone. Rounds take turns
between them, so that a busy machine slows both. The receiver of the spans reads nothing: in operation it has its own
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np

from aeenc import Channel, IndexClient
from aeenc.v1 import index_pb2, types_pb2
from aeenc.vectors import to_proto
from benchmarks.fleet.index_workers import workers
from benchmarks.fleet.name_lookups import dns
from benchmarks.harness.baselines import run
from benchmarks.harness.checkpoints import STORE, base_checkpoint, row_of
from benchmarks.harness.load import without_collector
from benchmarks.harness.rows import Rows
from services.encoder.batching.queues import CPU_BATCH_ITEMS, GPU_BATCH_TOKENS, Item, Queues
from services.encoder.runtime.runners import Tokens
from services.store.artifacts import ArtifactStore
from services.store.redis import connect
from services.store.registry import Registry
from support.service_process import RedisProcess, ServiceProcess

SHORT_TEXTS, SHORT, WORKERS = 1024, 12, 16
CORPUS = "science"
PREMISES = 2000
CALLERS = 8
TEXTS = [f"a magnet attracts {thing} number {n}" for n, thing in enumerate(("iron", "nails", "paper", "wood") * 16)]
RETRIEVE, SEARCH = "/aeenc.v1.IndexService/Retrieve", "/aeenc.v1.IndexService/Search"
RECEIVER = """
import sys, time
from concurrent import futures
import grpc

received = 0
def export(request, context):
    global received
    received += len(request)
    return b""

handler = grpc.unary_unary_rpc_method_handler(export)
service = grpc.method_handlers_generic_handler(
    "opentelemetry.proto.collector.trace.v1.TraceService", {"Export": handler}
)
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((service,))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
print(received, flush=True)
"""


class Receiver:
    """A receiver of spans in a process of its own, which counts bytes and reads none."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"

    def stop(self) -> int:
        """Ends it; returns the bytes it has received."""
        out, _ = self.process.communicate("", timeout=10)
        return int(out)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that ends with the block."""
    made = Receiver()
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.stop()


@asynccontextmanager
async def pair(home: Path, redis: RedisProcess, **index: dict[str, object]) -> AsyncIterator[dict[str, str]]:
    """Starts an encoder and an index for each set of tracing settings; yields the targets of the indexes."""
    store = ArtifactStore(STORE)
    base = base_checkpoint(store)
    async with _registry(redis) as registry:
        row = row_of(base)
        await registry.add_checkpoint(row)
        await registry.set_space(row.space_id, row.version, default=True)
        await registry.set_label(row.space_id, "stable", row.version)
    (home / "artifacts").mkdir()
    started: list[ServiceProcess] = []
    targets = {}
    try:
        for name, settings in index.items():
            encoder = ServiceProcess.of(
                "encoder",
                home,
                name=f"encoder-{name}",
                redis_url=redis.url,
                namespace="operators",
                artifacts_dir=STORE,
                state_dir=home / f"state-{name}",
                workers=1,
                **settings,
            )
            served = ServiceProcess.of(
                "index",
                home,
                name=f"index-{name}",
                artifacts_dir=home / "artifacts",
                encoder_target=encoder.target,
                **settings,
            )
            for process in (encoder, served):
                process.start()
                started.append(process)
                await process.ready()
            targets[name] = served.target
        yield targets
    finally:
        await asyncio.gather(*(process.stop() for process in started))


@asynccontextmanager
async def _registry(redis: RedisProcess) -> AsyncIterator[Registry]:
    client = connect(redis.url)
    try:
        yield Registry(client, "operators")
    finally:
        await client.aclose()


class Load:
    """Callers of one method of one index, each waiting for its answer. The calls are bytes, made beforehand."""

    def __init__(self, target: str, method: str, requests: Sequence[bytes]) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(2)]
        self._methods = [channel.unary_unary(method) for channel in self._channels]
        self._requests = requests

    async def rate(self, seconds: float) -> float:
        """Calls a second."""
        begun, calls = time.monotonic(), 0

        async def caller(number: int) -> None:
            nonlocal calls
            turn = number
            while time.monotonic() - begun < seconds:
                await self._methods[turn % len(self._methods)](self._requests[turn % len(self._requests)])
                turn += 1
                calls += 1

        with without_collector():
            await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        return calls / (time.monotonic() - begun)

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(channel.close() for channel in self._channels))


async def compared(off: Load, on: Load, *, rounds: int, seconds: float) -> tuple[float, float]:
    """Returns the median of on over off, by pairs of rounds, each first in every other one; and the rate of off."""
    rates: dict[Load, list[float]] = {off: [], on: []}
    for load in (off, on):
        await load.rate(seconds)
    for number in range(rounds):
        for load in (off, on) if number % 2 else (on, off):
            rates[load].append(await load.rate(seconds))
    ratios = [ours / without for ours, without in zip(rates[on], rates[off], strict=True)]
    return statistics.median(ratios), statistics.median(rates[off])


async def tracing(rows: Rows, rounds: int, seconds: float) -> None:
    """Tracing on over off: Retrieve with every call recorded, Search with one in a hundred."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch, receiver() as of_spans:
        home = Path(scratch)
        redis = RedisProcess(home / "redis")
        sets: dict[str, dict[str, object]] = {
            "off": {},
            "all": {"trace_endpoint": of_spans.endpoint},
            "some": {"trace_endpoint": of_spans.endpoint, "trace_share": 0.01},
        }
        try:
            async with pair(home, redis, **sets) as targets:
                await _measure(rows, targets, rounds, seconds)
            received = of_spans.stop()
            rows.at_least("spans received", received / 1e6, "MB", 0.1)
        finally:
            redis.stop()


async def _measure(rows: Rows, targets: dict[str, str], rounds: int, seconds: float) -> None:
    index = IndexClient(Channel(targets["off"]))
    premises = [
        types_pb2.Premise(id=f"p{n}", text=f"{TEXTS[n % len(TEXTS)]} in experiment {n}") for n in range(PREMISES)
    ]
    generation = await index.build(CORPUS, premises)
    await index.channel.close()
    query = np.random.default_rng(0).standard_normal((len(TEXTS), generation.dim)).astype(np.float32)
    texts = [index_pb2.RetrieveRequest(corpus=CORPUS, texts=[text], k=10).SerializeToString() for text in TEXTS]
    searched = {"corpus": CORPUS, "space_id": generation.space_id, "k": 10}
    vectors = [
        index_pb2.SearchRequest(**searched, vectors=to_proto(row[None])).SerializeToString()
        for row in query / np.linalg.norm(query, axis=1, keepdims=True)
    ]
    for name, method, requests, on, least in (
        ("Retrieve, all recorded", RETRIEVE, texts, "all", 0.95),
        ("Search, 1 % recorded", SEARCH, vectors, "some", 0.97),
    ):
        loads = [Load(targets["off"], method, requests), Load(targets[on], method, requests)]
        ratio, off_rate = await compared(*loads, rounds=rounds, seconds=seconds)
        await asyncio.gather(*(load.close() for load in loads))
        rows.at_least(f"{name}: tracing on over off", ratio, "x", least, f"{off_rate:.0f} calls/s")


class PaddingRunner:
    """All that a queue asks of a runner."""

    width, pads = 1, True


async def batches(rows: Rows, rounds: int, seconds: float) -> None:
    """The batches of many short texts as an encoder makes them on a GPU, and by texts and workers, as on a CPU."""
    del rounds, seconds

    def made(batch_items: int) -> int:
        queues = Queues(batch_items=batch_items, batch_tokens=GPU_BATCH_TOKENS, workers=WORKERS)
        runner = PaddingRunner()
        call = SimpleNamespace(dead=False)
        short = [Item(Tokens([1] * SHORT), row, SHORT, call, math.inf) for row in range(SHORT_TEXTS)]  # type: ignore[arg-type]
        queues.put("bulk", runner, short)  # type: ignore[arg-type]
        return sum(1 for _ in iter(lambda: queues.take(0.0), None))

    name = f"batches on a GPU, {SHORT_TEXTS:,} texts of {SHORT} tokens, {WORKERS} workers"
    rows.at_most(name, made(0), "batches", 2, made(CPU_BATCH_ITEMS))


async def chart(rows: Rows, rounds: int, seconds: float) -> None:
    """The Helm chart for its sets of values, by its tests: rendered, checked, and each pod's command started."""
    del rounds, seconds
    from support.chart_pods import SETS, rendered, workloads

    pods = sum(len(workloads(rendered(name))) for name in SETS)
    command = ["make", "--no-print-directory", "test-chart"]
    done = await asyncio.to_thread(subprocess.run, command, check=False)
    name = f"chart renders for {len(SETS)} value sets, validates, and each of {pods} pods' commands answers healthy"
    rows.add(name, "no" if done.returncode else "yes", "", "yes", not done.returncode)


# The chart is measured by its name alone: it installs 390 MB.
PARTS: dict[str, Callable[..., object]] = {
    "batches": batches,
    "dns": dns,
    "tracing": tracing,
    "workers": workers,
    "chart": chart,
}
BY_NAME = {"chart"}


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(PARTS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    rows = Rows("operators")
    for name, part in PARTS.items():
        if given.only == name or (given.only is None and name not in BY_NAME):
            run(part(rows, given.rounds, given.seconds))
    rows.finish()


if __name__ == "__main__":
    main()
