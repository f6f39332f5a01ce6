"""Search over gRPC by two worker processes of an index over one, by turns over the same corpus."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from aeenc import Channel, IndexClient
from aeenc.v1 import index_pb2, types_pb2
from aeenc.vectors import to_proto
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.index.stand_in_encoder import SPACE, StandInEncoder
from services.kit.settings import usable_cores
from support.service_process import ServiceProcess

PREMISES, DIM, QUERIES = 16_000, 384, 256
CORPUS = "science"
CORES = 4  # from which on a second worker has a core of its own, beside those of the callers
LEAST, NO_SLOWER = 1.7, 0.95  # no slower, but for noise
CALLING = 2  # processes of callers


def embed(texts: list[str]) -> np.ndarray:
    """Unit vectors (n, 384) by the number in each text."""
    rows = [np.random.default_rng(int(text.rsplit(maxsplit=1)[-1])).standard_normal(DIM) for text in texts]
    return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float32)


class Callers:
    """Processes that call one target, each with so many callers on so many connections."""

    def __init__(
        self, target: str, requests: Path, *, processes: int = CALLING, callers: int = 32, connections: int = 16
    ) -> None:
        numbers = [str(callers), str(connections)]
        command = [sys.executable, "-m", "benchmarks.fleet.search_caller", target, str(requests), *numbers]
        pipe = subprocess.PIPE
        self._processes = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for _ in range(processes)
        ]

    async def rate(self, seconds: float) -> float:
        """Calls a second of all together."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        answers = await asyncio.gather(
            *(asyncio.to_thread(process.stdout.readline) for process in self._processes if process.stdout)
        )
        return sum(map(int, answers)) / seconds

    def close(self) -> None:
        """Ends them."""
        for process in self._processes:
            process.communicate()


async def workers(rows: Rows, rounds: int, seconds: float) -> None:
    """Two workers over one."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        async with StandInEncoder(embed) as encoder, _running(home, encoder.target) as targets:
            requests = home / "requests.json"
            requests.write_text(json.dumps([one.SerializeToString().hex() for one in await _requests(targets[1])]))
            callers = {count: Callers(target, requests) for count, target in targets.items()}
            try:
                await _measure(rows, callers, rounds, seconds)
            finally:
                for one in callers.values():
                    one.close()


async def _measure(rows: Rows, callers: dict[int, Callers], rounds: int, seconds: float) -> None:
    rates: dict[int, list[float]] = {1: [], 2: []}
    for one in callers.values():
        await one.rate(seconds)
    for number in range(rounds):
        for count in (1, 2) if number % 2 else (2, 1):
            rates[count].append(await callers[count].rate(seconds))
    ratio = statistics.median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    cores, baseline = usable_cores(), f"{statistics.median(rates[1]):.0f} calls/s"
    name = f"Search by two workers over one, {cores} cores"
    rows.at_least(name, ratio, "x", LEAST if cores >= CORES else NO_SLOWER, baseline)
    if cores < CORES:
        rows.note(f"with {CORES} cores or more", f"not measured: {cores} cores", "", f"≥ {LEAST}")


@asynccontextmanager
async def _running(home: Path, encoder: str) -> AsyncIterator[dict[int, str]]:
    """Starts an index of one process and one of two workers over the same store; yields their targets."""
    indexes = {
        count: ServiceProcess.of(
            "index",
            home,
            name=f"index-{count}",
            serving_processes=count,
            encoder_target=encoder,
            artifacts_dir=home / "artifacts",
            environment={"OMP_NUM_THREADS": "1"},
        )
        for count in (1, 2)
    }
    async with indexes[1].running(), indexes[2].running():
        yield {count: index.target for count, index in indexes.items()}


async def _requests(target: str) -> list[index_pb2.SearchRequest]:
    """Builds the corpus, which all processes then serve, and makes requests of one query each."""
    index = IndexClient(Channel(target))
    texts = [f"premise number {n}" for n in range(PREMISES)]
    await index.build(CORPUS, [types_pb2.Premise(id=f"p{n}", text=text) for n, text in enumerate(texts)])
    await index.channel.close()
    queries = embed([f"query {PREMISES + n}" for n in range(QUERIES)])
    common = {"corpus": CORPUS, "space_id": SPACE, "k": 10}
    return [index_pb2.SearchRequest(**common, vectors=to_proto(query[None])) for query in queries]
