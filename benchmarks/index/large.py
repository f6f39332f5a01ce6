"""A large corpus, built, opened and searched as it is in operation: recall, build time, throughput, memory, opening.

Its vectors are those of real facts, over and over, each time with other noise; its queries are real hypotheses. An
index in a process of its own gets it through BuildGeneration from an encoder that makes the vectors up, so that what is
measured is the index.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import grpc
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from aeenc import AsyncClient, errors, vectors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc, types_pb2
from benchmarks.encoder.int8 import embedded
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import ROOT, Rows
from services.corpus.generation import VECTORS, folder_of
from services.index.dense.exact import FlatIndex
from services.launcher.processes import free_port
from services.store.artifacts import ArtifactStore

CORPUS = "large"
MILLION = 1_000_000  # premises from which on all bars hold
NOISE = 0.5  # length of a row's noise beside its fact's 1: a row and its fact have a cosine of .89, two of one fact .8
K = 10
CALLERS = 64
LOAD_S = 10.0
SCANS = 20
BUILD_TIMEOUT_S = 3600.0
SPACE, VERSION = "s0000000000001000", "q0000000000001000"
Matrix = NDArray[np.float32]


def sources() -> tuple[Matrix, Matrix]:
    """Vectors of EntailmentBank's facts and of its dev queries; encoded once and kept."""
    kept = STORE.parent / "sources.npz"
    if not kept.is_file():
        base, dataset = base_checkpoint(ArtifactStore(STORE)), entailmentbank()
        tokenizer = Tokenizer.from_file(str(base.file("tokenizer.json")))
        tokenizer.no_padding()
        facts = embedded(base, tokenizer, [candidate.text for candidate in dataset.candidates()])
        np.savez(kept, facts=facts, queries=embedded(base, tokenizer, [one.text for one in dataset.queries("dev")]))
    with np.load(kept, allow_pickle=False) as arrays:
        return arrays["facts"], arrays["queries"]


def cloud(facts: Matrix, ordinals: list[int]) -> Matrix:
    """Rows of the corpus: fact `ordinal` modulo their number, plus the noise of that ordinal; unit length."""
    noise = np.stack([np.random.default_rng(n).standard_normal(facts.shape[1], np.float32) for n in ordinals])
    rows = facts[np.array(ordinals) % len(facts)] + NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def premises(count: int) -> Iterator[types_pb2.Premise]:
    """The corpus; the encoder finds a text's ordinal in it."""
    for n in range(count):
        yield types_pb2.Premise(id=f"p{n}", text=f"premise of about the length that facts have, number {n}")


class CloudEncoder(encoder_pb2_grpc.EncoderServiceServicer):
    """Answers the batches of a build with rows of the cloud."""

    def __init__(self, facts: Matrix) -> None:
        self._facts = facts

    async def EncodeStream(self, request_iterator: Any, _context: Any) -> Any:
        """Encodes one batch after the other."""
        async for request in request_iterator:
            rows = cloud(self._facts, [int(text.rpartition(" ")[2]) for text in request.batch.texts])
            answer = encoder_pb2.EncodeResponse(
                embeddings=vectors.to_proto(rows), model_version=VERSION, space_id=SPACE
            )
            yield encoder_pb2.EncodeStreamResponse(batch=answer, batch_seq=request.batch_seq)


@dataclass(frozen=True)
class RunningIndex:
    """An index in a process of its own. `starting_s` is the time from its start to SERVING."""

    process: subprocess.Popen[bytes]
    target: str
    starting_s: float

    def resident_bytes(self) -> int:
        """Resident memory, anonymous and of files."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssFile:"))) * 1024


@asynccontextmanager
async def running_index(root: Path, encoder: str) -> AsyncIterator[RunningIndex]:
    """Starts an index over the artifacts in `root` and ends it with the block."""
    port = free_port(set())
    settings = {"port": port, "artifacts_dir": root, "encoder_target": encoder, "engine": "ivf", "log_level": "warning"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment |= {f"AEENC_INDEX_{name.upper()}": str(value) for name, value in settings.items()}
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "services.index"], cwd=ROOT, env=environment)  # noqa: ASYNC220
    target = f"127.0.0.1:{port}"
    try:
        async with AsyncClient(index=target) as client:
            while (await _state(client)) != types_pb2.SERVICE_STATE_SERVING:
                if process.poll() is not None:
                    sys.exit("the index ended")
                await asyncio.sleep(0.02)
        yield RunningIndex(process, target, time.monotonic() - started)
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)


async def _state(client: AsyncClient) -> int:
    try:
        return (await client.index.info()).service.state
    except errors.Unavailable:
        return types_pb2.SERVICE_STATE_UNSPECIFIED


async def large(rows: Rows, count: int) -> None:
    """Prints the rows of a corpus of `count` premises."""
    facts, queries = await asyncio.to_thread(sources)
    encoder = grpc.aio.server()
    encoder_pb2_grpc.add_EncoderServiceServicer_to_server(CloudEncoder(facts), encoder)
    encoder_target = f"127.0.0.1:{encoder.add_insecure_port('127.0.0.1:0')}"
    await encoder.start()
    name = f"{count:,} x {facts.shape[1]}"
    with tempfile.TemporaryDirectory(prefix="aeenc-large-", dir=STORE.parent) as scratch:
        root = Path(scratch)
        async with running_index(root, encoder_target) as index, AsyncClient(index=index.target) as client:
            started = time.monotonic()
            built = await client.index.build(CORPUS, premises(count), timeout_s=BUILD_TIMEOUT_S)
            rows.at_most(f"{name}: built", (time.monotonic() - started) / 60, "min", 20)
        plan = ArtifactStore(root).open(folder_of(CORPUS), built.id, verify="size").meta["index"]
        rows.note(f"{name}: {built.engine}, {plan['lists']} lists, {plan['breadth']} visited", plan["recall_at_10"], "")
        flat = FlatIndex(np.load(root / folder_of(CORPUS) / built.id / VECTORS, mmap_mode="r"), largest_norm=1.001)
        truth = await asyncio.to_thread(lambda: [one.ordinals for one in flat.nearest(queries, K)])
        scans = await asyncio.to_thread(_scan_rate, flat.vectors, queries)
        async with running_index(root, encoder_target) as index, AsyncClient(index=index.target) as client:
            rows.at_most(f"{name}: start to SERVING", index.starting_s, "s", 3)
            rows.at_least(f"{name}: recall@10, real queries", await _recall(client, queries, truth), "", 0.98)
            rate = await _rate(client, queries)
            bar = 20 if count >= MILLION else 0  # a short scan is hard to beat
            rows.at_least(f"{name}: {CALLERS} callers over a single exact scan", rate / scans, "x", bar, scans)
            rows.note(f"{name}: queries a second, {CALLERS} callers", rate, "1/s")
            await client.index.search(CORPUS, queries[:1], space_id=SPACE, k=K, exact=True)  # touches every vector
            async for _ in client.index.list_premises(CORPUS):  # and every premise
                pass
            ratio = index.resident_bytes() / flat.vectors.nbytes
            bar = 1.3 if count >= MILLION else 10  # the process itself takes 150 MB
            rows.at_most(f"{name}: resident over raw, all touched", ratio, "x", bar, flat.vectors.nbytes)
    await encoder.stop(0)


def _scan_rate(matrix: Matrix, queries: Matrix) -> float:
    """Queries a second of bare FAISS, one at a time in one thread; the matrix has been read before."""
    faiss.omp_set_num_threads(1)
    started = time.perf_counter()
    for n in range(SCANS):
        faiss.knn(queries[n : n + 1], matrix, K, metric=faiss.METRIC_INNER_PRODUCT)
    return SCANS / (time.perf_counter() - started)


async def _recall(client: AsyncClient, queries: Matrix, truth: list[NDArray[np.int64]]) -> float:
    hits = 0
    for start in range(0, len(queries), CALLERS):
        part = slice(start, start + CALLERS)
        answer = await client.index.search(CORPUS, queries[part], space_id=SPACE, k=K)
        for ids, true in zip(answer.ids, truth[part], strict=True):
            hits += len({f"p{n}" for n in true.tolist()} & set(ids))
    return hits / K / len(queries)


async def _rate(client: AsyncClient, queries: Matrix) -> float:
    """Queries a second of callers that wait for their answers."""
    begun, done = time.monotonic(), 0

    async def caller(number: int) -> None:
        nonlocal done
        while time.monotonic() - begun < LOAD_S:
            number = (number + CALLERS) % len(queries)
            await client.index.search(CORPUS, queries[number : number + 1], space_id=SPACE, k=K)
            done += 1

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return done / (time.monotonic() - begun)
