"""`make bench NAME=hostile`: twenty callers who ask for all they can get, and one person who asks for little.

    callers   a process at the lowest priority, each caller with a credential of their own: calls of 1,024 long texts
              through both lanes, streams in both, floods of single texts, the four largest Retrieves, 1,000 watches
    person    one short text at a time, encoded and retrieved in turns, with the SDK's own retries
    spinner   instead of the callers, as much processor time as they took, at the services' priority and at theirs

An encoder with the base model and an index, both with a file of credentials. Loopback only; about two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path

import grpc
import numpy as np
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aeenc import AsyncClient, errors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, index_pb2, index_pb2_grpc, types_pb2
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.rows import ROOT, Rows, run
from benchmarks.harness.services import running_encoder, running_index
from benchmarks.house.scan_rpcs import LOST
from services.encoder.runtime.thread_priority import WORKER
from services.kit.credentials.credential_file import Credential, HashedToken, hash_of, new_token, render
from services.store.artifacts import ArtifactStore
from support.service_process import ServiceProcess

CORPUS, PREMISES = "science", 2000
LEAST_ANSWERED, MOST_TIMES = 0.99, 5.0
WATCHES, LOWEST = 1000, 19
PAUSE_S, CALL_S = 0.02, 10.0  # the person's between calls; the longest of any call
REFUSED_S = 0.05  # a refused caller comes back after so long, whatever the service asks for
SPIN_S = 0.01
TEXT = "the light of a star heats ice and water while a plant needs energy from its food"
SHORT = "what heats the ice"
LONG = " ".join([TEXT] * 3)[:200]
INTERACTIVE, BULK = encoder_pb2.LANE_INTERACTIVE, encoder_pb2.LANE_BULK
Work = Callable[["Caller"], Awaitable[object]]


@dataclass
class Caller:
    """A hostile caller: stubs on connections of their own, and the metadata of their credential."""

    encoder: encoder_pb2_grpc.EncoderServiceStub
    index: index_pb2_grpc.IndexServiceStub
    metadata: tuple[tuple[str, str], ...]


def encode(texts: Sequence[str], lane: encoder_pb2.Lane) -> Work:
    """A call of Encode through a lane."""
    request = encoder_pb2.EncodeRequest(texts=texts, role=encoder_pb2.ROLE_QUERY, lane=lane)
    return lambda caller: caller.encoder.Encode(request, metadata=caller.metadata, timeout=CALL_S)


def stream(lane: encoder_pb2.Lane) -> Work:
    """A stream of Encode through a lane, for as long as a call may take."""
    batch = encoder_pb2.EncodeRequest(texts=[LONG] * 128, role=encoder_pb2.ROLE_QUERY, lane=lane)

    async def work(caller: Caller) -> None:
        requests = (encoder_pb2.EncodeStreamRequest(batch=batch, batch_seq=n) for n in count(1))
        async for _ in caller.encoder.EncodeStream(requests, metadata=caller.metadata, timeout=CALL_S):
            pass

    return work


def retrieve(texts: int) -> Work:
    """A call of Retrieve for as many premises as a call may ask for."""
    request = index_pb2.RetrieveRequest(corpus=CORPUS, texts=[LONG] * texts, k=1000)
    return lambda caller: caller.index.Retrieve(request, metadata=caller.metadata, timeout=CALL_S)


# What each caller does, how many of them do it, and how many of their calls are under way at once.
KINDS: dict[str, tuple[Work, int, int]] = {
    "1,024 texts, interactive": (encode([LONG] * 1024, INTERACTIVE), 4, 4),
    "1,024 texts, bulk": (encode([LONG] * 1024, BULK), 3, 4),
    "stream, interactive": (stream(INTERACTIVE), 3, 2),
    "stream, bulk": (stream(BULK), 3, 2),
    "single texts": (encode([LONG], INTERACTIVE), 3, 64),
    "Retrieve 1,024 x 1,000": (retrieve(1024), 2, 2),
    "Retrieve 16 x 1,000": (retrieve(16), 2, 2),
}
CALLERS = sum(callers for _, callers, _ in KINDS.values())


async def hostile(targets: dict[str, str], tokens: Sequence[str], seconds: float) -> dict[str, dict[str, int]]:
    """Runs all hostile callers for a time; returns the outcomes of their calls by what they do."""
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in [*KINDS, "watch"]}
    ends = time.monotonic() + seconds
    mine = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]

    async def repeat(kind: str, work: Work, caller: Caller) -> None:
        while time.monotonic() < ends:
            try:
                await work(caller)
                outcomes[kind]["OK"] += 1
            except grpc.aio.AioRpcError as error:
                hidden = error.code() is grpc.StatusCode.INTERNAL and error.details() == LOST
                outcomes[kind]["ended while it sent" if hidden else error.code().name] += 1
                await asyncio.sleep(REFUSED_S)

    async def watch(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        try:
            request = health_pb2.HealthCheckRequest()
            watching = health_pb2_grpc.HealthStub(channel).Watch(request, metadata=metadata, timeout=seconds)
            async for _ in watching:
                outcomes["watch"]["opened"] += 1
        except grpc.aio.AioRpcError as error:
            outcomes["watch"][error.code().name] += 1

    tasks, unused = [], iter(tokens)
    for kind, (work, callers, at_once) in KINDS.items():
        for _ in range(callers):
            metadata = (("authorization", f"Bearer {next(unused)}"),)
            channels = {name: grpc.aio.insecure_channel(target, options=mine) for name, target in targets.items()}
            caller = Caller(
                encoder_pb2_grpc.EncoderServiceStub(channels["encoder"]),
                index_pb2_grpc.IndexServiceStub(channels["index"]),
                metadata,
            )
            tasks += [repeat(kind, work, caller) for _ in range(at_once)]
            both = cycle(channels.values())
            tasks += [watch(next(both), metadata) for _ in range(WATCHES // CALLERS)]
    await asyncio.wait([asyncio.ensure_future(task) for task in tasks], timeout=seconds + CALL_S)
    return {kind: dict(found) for kind, found in outcomes.items()}


def spin(share: float, niceness: int, seconds: float) -> None:
    """Burns a share of one processor."""
    os.nice(niceness)
    ends = time.monotonic() + seconds
    while (now := time.monotonic()) < ends:
        while time.monotonic() - now < SPIN_S * share:
            pass
        time.sleep(SPIN_S * (1 - share))


@contextmanager
def spinners(loads: dict[int, float], seconds: float) -> Iterator[None]:
    """Burns so many processors at each niceness for the block, which lasts `seconds`."""
    processors = os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=spin, args=(min(load / processors, 1.0), niceness, seconds))
        for niceness, load in loads.items()
        for _ in range(processors)
    ]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.terminate()
        process.join()


@dataclass
class Answers:
    """What became of the person's calls: their seconds by RPC, and the errors."""

    seconds: dict[str, list[float]]
    failures: Counter[str]

    @property
    def share(self) -> float:
        """The part of the calls that were answered."""
        answered = sum(map(len, self.seconds.values()))
        return answered / max(answered + self.failures.total(), 1)

    def p99_ms(self, *rpcs: str) -> float:
        """In milliseconds; of those that failed as well, each of which counts as the longest call."""
        seconds = [one for rpc in rpcs or self.seconds for one in self.seconds[rpc]]
        return float(np.quantile([*seconds, *[CALL_S] * self.failures.total()], 0.99)) * 1000

    def by_rpc(self) -> dict[str, float]:
        """The p99 of each RPC in milliseconds."""
        return {rpc: round(self.p99_ms(rpc), 1) for rpc in self.seconds}


async def person(client: AsyncClient, seconds: float) -> Answers:
    """Encodes and retrieves one short text, in turns, and waits for each answer."""
    answers, ends = Answers({"Encode": [], "Retrieve": []}, Counter()), time.monotonic() + seconds
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "Encode": lambda: client.encoder.encode([SHORT]),
        "Retrieve": lambda: client.index.retrieve(CORPUS, [SHORT], k=10),
    }
    turns = cycle(calls.items())
    while (started := time.monotonic()) < ends:
        rpc, call = next(turns)
        try:
            await call()
            answers.seconds[rpc].append(time.monotonic() - started)
        except errors.AeencError as error:
            answers.failures[f"{rpc} {type(error).__name__}"] += 1
        await asyncio.sleep(PAUSE_S)
    return answers


@asynccontextmanager
async def running(tokens: Sequence[str]) -> AsyncIterator[tuple[ServiceProcess, ServiceProcess]]:
    """Starts an encoder and an index that know these tokens, the first of them an administrator's."""
    store = ArtifactStore(STORE)
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        file = Path(scratch, "tokens.toml")
        named = [(f"caller-{n}", "read" if n else "admin", one) for n, one in enumerate(tokens)]
        credentials = (
            Credential(name=name, role=role, hashes=(HashedToken(sha256=hash_of(one)),)) for name, role, one in named
        )
        await asyncio.to_thread(file.write_text, "".join(map(render, credentials)))
        own = {"tokens_file": file, "token": new_token()}
        async with (
            running_encoder(store, base_checkpoint(store), **own) as encoder,
            running_index(encoder_target=encoder.process.target, peer_token=own["token"], **own) as index,
        ):
            yield encoder.process, index.process


def callers_process(told: dict[str, object]) -> subprocess.Popen[str]:
    """Starts the hostile callers at the lowest priority."""
    command = ["nice", "-n", str(LOWEST), sys.executable, "-m", "benchmarks.encoder.hostile", "--callers"]
    return subprocess.Popen([*command, json.dumps(told)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def processor_s(processes: Sequence[ServiceProcess]) -> float:
    """Processor seconds that services have used."""
    return sum(sum(psutil.Process(one.pid).cpu_times()[:2]) for one in processes)


async def measure(rows: Rows, seconds: float) -> None:
    """Measures the person alone, beside the hostile callers, and beside a spinner."""
    tokens = [new_token() for _ in range(CALLERS + 2)]
    async with running(tokens) as services:
        targets = dict(zip(("encoder", "index"), (one.target for one in services), strict=True))
        async with AsyncClient(**targets, token=tokens[0], timeout_s=60) as admin:
            facts = [types_pb2.Premise(id=f"p{n}", text=f"{n}: {LONG}") for n in range(PREMISES)]
            await admin.index.build(CORPUS, facts)
        async with AsyncClient(**targets, token=tokens[1], timeout_s=CALL_S) as client:
            await person(client, 1.0)
            alone = await person(client, min(seconds, 5.0))
            callers = callers_process({"targets": targets, "tokens": tokens[2:], "seconds": seconds + 2})
            try:
                await asyncio.sleep(2.0)  # all of them have begun
                used, of_callers, begun = processor_s(services), psutil.Process(callers.pid), time.monotonic()
                by_callers = sum(of_callers.cpu_times()[:2])
                beside = await person(client, seconds - 1)
                took_s = time.monotonic() - begun
                loads = {
                    WORKER: (processor_s(services) - used) / took_s,
                    LOWEST: (sum(of_callers.cpu_times()[:2]) - by_callers) / took_s,
                }
                output, _ = await asyncio.to_thread(callers.communicate, timeout=60)
            finally:
                callers.kill()
            resident = [round(one.resident_mb()) for one in services]
            with spinners(loads, seconds + 1):
                await asyncio.sleep(1.0)
                spun = await person(client, seconds - 1)
    for kind, outcomes in json.loads(output).items():
        print(f"      {kind}: {outcomes}")
    rows.note("a person alone: p99", alone.p99_ms(), "ms", alone.by_rpc())
    rows.note("processors that services, callers took", round(sum(loads.values()), 2), "", list(loads.values()))
    rows.note("resident after it: encoder, index", resident, "MB")
    failed = dict(beside.failures)
    rows.at_least("beside 20 hostile callers: a person's calls answered", beside.share, "", LEAST_ANSWERED, failed)
    by_rpc = {"hostile": beside.by_rpc(), "spinner": spun.by_rpc()}
    rows.at_most("their p99 over that beside a spinner", beside.p99_ms() / spun.p99_ms(), "x", MOST_TIMES, by_rpc)


async def main() -> None:
    """Measures, or is the hostile callers' process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--callers", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.callers:
        print(json.dumps(await hostile(**json.loads(arguments.callers))))
        return
    rows = Rows("hostile")
    await measure(rows, arguments.seconds)
    rows.finish()


if __name__ == "__main__":
    run(main())
