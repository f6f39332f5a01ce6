"""The part `gateway` of the SDK's benchmark: embeddings over HTTP against the same over gRPC, one encoder behind both.

    64 callers ─┬─ AsyncClient ──────────────────────── encoder (base model, a process of its own)
                └─ HTTP/1.1, JSON ── aeenc-gateway ─────┘

Load generator, gateway and encoder share the machine. The callers of both ways live in one loop of this process and end
with a numpy matrix. HTTP goes over 64 kept connections of a bare asyncio protocol, as base64, which OpenAI's client
asks for. The gateway runs in an environment of its own, installed on first use (needs a package index).
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import numpy as np
import psutil

from aeenc import AsyncClient
from aeenc.trees import Dataset
from benchmarks.encoder.fleet import running_encoder
from benchmarks.harness.baselines import run
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.load import without_collector
from benchmarks.harness.rows import ROOT, Rows
from services.store.artifacts import ArtifactStore
from tools.pinned_venv import PinnedVenv, key_of

CALLERS = 64
ROUNDS = 7
TEXTS = {1: 1536, 16: 4096}  # of a round, by the texts of a request: two seconds or more
BAR = 0.80
CLIENTS = ROOT / "clients"

Encode = Callable[[list[str]], Awaitable[np.ndarray]]


def gateway(rows: Rows) -> None:
    """Embeddings a second of 64 callers, with 1 and with 16 texts in a request."""
    run(_measured(rows))


async def _measured(rows: Rows) -> None:
    store = ArtifactStore(STORE)
    async with running_encoder(store, base_checkpoint(store)) as fleet:
        target = fleet.process.target
        with _gateway(target) as (url, process):
            async with AsyncClient(encoder=target) as client, _callers(url) as callers:

                async def over_grpc(part: list[str]) -> np.ndarray:
                    return (await client.encoder.encode(part)).vectors

                ways = {"gRPC": [over_grpc] * CALLERS, "HTTP": [one.encode for one in callers]}
                for size, count in TEXTS.items():
                    await _compared(rows, ways, process, size, count)


async def _compared(rows: Rows, ways: dict[str, list[Encode]], gateway_process: Any, size: int, count: int) -> None:
    """Lets both ways take turns, and adds the row of `size` texts in a request."""
    facts = [candidate.text for candidate in Dataset.load(ROOT / "data" / "sample").candidates()]
    texts = random.Random(0).choices(facts, k=count)
    grpc, http = ways.values()
    # The same vectors, or the comparison means nothing.
    np.testing.assert_allclose(await http[0](texts[:8]), await grpc[0](texts[:8]), atol=1e-6)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + ROUNDS):
        for name, encoders in ways.items():
            begun_s = sum(gateway_process.cpu_times()[:2])
            with without_collector():
                rates[name].append(await _rate(encoders, texts, size))
    spent_ms = (sum(gateway_process.cpu_times()[:2]) - begun_s) / count * size * 1e3  # by the last round of HTTP
    measured = {name: values[1:] for name, values in rates.items()}  # the first round warms up
    ratio = statistics.median(b / a for a, b in zip(*measured.values(), strict=True))
    medians = ", ".join(f"{name} {statistics.median(values):.0f}/s" for name, values in measured.items())
    rows.at_least(f"HTTP gateway, {CALLERS} callers x {size}: embeddings/s over gRPC's", ratio, "x", BAR, medians)
    rows.note("the same: processor time of the gateway", spent_ms, "ms/call")


async def _rate(encoders: Sequence[Encode], texts: list[str], size: int) -> float:
    """Texts a second of callers that share `texts`, each sending `size` and waiting for the answer."""
    waiting = iter([texts[start : start + size] for start in range(0, len(texts), size)])

    async def caller(encode: Encode) -> None:
        for part in waiting:
            await encode(part)

    started = time.monotonic()
    await asyncio.gather(*(caller(encode) for encode in encoders))
    return len(texts) / (time.monotonic() - started)


@contextmanager
def _gateway(encoder: str) -> Iterator[tuple[str, psutil.Process]]:
    """Installs the distribution, starts its command on a free port; yields host:port and the process."""
    venv = PinnedVenv(ROOT / ".aeenc" / "bench" / "gateway")
    key = key_of([CLIENTS / name / "pyproject.toml" for name in ("python", "gateway")])
    if not venv.is_current(key):
        venv.create()
        venv.install("-e", str(CLIENTS / "python"), "-e", str(CLIENTS / "gateway"))
        venv.mark_current(key)
    command = [venv.python.with_name("aeenc-gateway"), "--port", "0", "--encoder", encoder]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split("http://")[1].split()[0], psutil.Process(process.pid)
        finally:
            process.terminate()


@asynccontextmanager
async def _callers(address: str) -> AsyncIterator[list[HttpCaller]]:
    """Opens a connection for each caller."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    callers = [(await loop.create_connection(HttpCaller, host, int(port)))[1] for _ in range(CALLERS)]
    yield callers
    for caller in callers:
        caller.transport.close()


class HttpCaller(asyncio.Protocol):
    """One kept connection of HTTP/1.1: as little as a client can do."""

    transport: asyncio.Transport
    _answer: asyncio.Future[bytes]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class is none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if separator:
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            if len(body) == size:
                assert head.startswith(b"HTTP/1.1 200 "), body
                self._answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the gateway closed the connection"))

    async def encode(self, texts: list[str]) -> np.ndarray:
        """Embeds texts as OpenAI's client does."""
        body = json.dumps({"input": texts, "model": "", "encoding_format": "base64"}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {self.transport.get_extra_info('peername')[0]}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()
        self.transport.write(head.encode() + body)
        rows = json.loads(await self._answer)["data"]
        return np.frombuffer(base64.b64decode("".join(row["embedding"] for row in rows)), "<f4").reshape(len(rows), -1)
