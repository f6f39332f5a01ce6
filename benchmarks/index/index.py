"""The index: search, retrieval and builds against what they rest on. `make bench NAME=index`.

Every baseline is measured in turn with what it is a baseline of, in the same run; ratios are medians over rounds. Needs
EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import faiss
import grpc
import numpy as np
import psutil

from aeenc import EncoderClient, vectors
from aeenc.v1 import index_pb2, types_pb2
from benchmarks.harness.baselines import Echo
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.load import closed_loop, rate_of, times_ms
from benchmarks.harness.rows import Rows, run
from benchmarks.harness.services import EncoderFleet, IndexFleet, premises_of, running_encoder, running_index
from services.corpus.generation import open_generation
from services.store.artifacts import ArtifactStore

ROUNDS = 5
CALLERS = 64
CONNECTIONS = 4
SECONDS = 4.0
CORPUS = "entailmentbank"
SEARCH = "/aeenc.v1.IndexService/Search"
K = 10
Matrix = np.ndarray[Any, np.dtype[np.float32]]
Search = Callable[[Matrix], object]


async def calls_per_second(target: str, method: str, requests: Sequence[bytes]) -> float:
    """Calls a second of CALLERS that wait for their answers, with messages made ready beforehand."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(CONNECTIONS)]
    calls = [channel.unary_unary(method) for channel in channels]
    rate = await rate_of(lambda n: calls[n % CONNECTIONS](requests[n % len(requests)]), CALLERS, SECONDS)
    await asyncio.gather(*(channel.close() for channel in channels))
    return rate


def core_s(pid: int) -> float:
    """Processor seconds of a process, its threads and the kernel's work for it included."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def searched(index: IndexFleet) -> Matrix:
    """Processor seconds of the search thread, how many queries it has searched for, and in how many batches."""
    with urllib.request.urlopen(f"http://127.0.0.1:{index.metrics_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    read = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
    names = "core_seconds_total", "batch_queries_sum", "batch_queries_count"
    return np.array([read[f"aeenc_index_search_{name}"] for name in names])


def faiss_flat(matrix: Matrix) -> Search:
    """The exact search of FAISS in one thread."""
    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(matrix.shape[1])
    flat.add(matrix)
    return lambda queries: flat.search(queries, K)


def matrix_product(matrix: Matrix) -> Search:
    """An exact search by a product of matrices, which finds the best K in no order."""
    return lambda queries: np.argpartition(-(queries @ matrix.T), K, axis=1)[:, :K]


def search_s(search: Search, queries: Matrix, batch: int) -> float:
    """Processor seconds a query, those of all threads, so many queries at a time."""
    search(queries[:batch])
    begun = time.process_time()
    for row in range(0, len(queries), batch):
        search(queries[row : row + batch])
    return (time.process_time() - begun) / len(queries)


def search_requests(queries: Matrix, space_id: str, k: int) -> list[bytes]:
    """One Search call a query vector."""
    return [
        index_pb2.SearchRequest(
            corpus=CORPUS, vectors=vectors.to_proto(queries[row : row + 1]), space_id=space_id, k=k
        ).SerializeToString()
        for row in range(len(queries))
    ]


async def throughput(rows: Rows, index: IndexFleet, matrix: Matrix, queries: Matrix, space_id: str) -> None:
    """Search at 64 callers against an echo of messages of the same sizes, and the processor time of a query.

    Time a query is one over the rate. A caller's process has one core; the index's loop and search thread share the
    other, as the echo and the exact product would: what lies over their sum is the index's own. The product is of
    batches as large as the index's were, by whichever is quicker, FAISS or numpy, in processor time: on a busy machine
    the ratio is too high.
    """
    requests = search_requests(queries, space_id, K)
    async with grpc.aio.insecure_channel(index.process.target) as channel:
        answer_bytes = len(await channel.unary_unary(SEARCH)(requests[0]))
    ratios, rates, cores = [], [], []
    over, products = [], []
    exact = faiss_flat(matrix), matrix_product(matrix)
    per_core: dict[str, list[float]] = {"search": [], "echo": []}  # calls for each second of the server's processors
    async with Echo(answer_bytes) as echo:
        for _ in range(ROUNDS):
            begun_s = core_s(echo.pid)
            empty = await calls_per_second(echo.target, Echo.METHOD, requests)
            per_core["echo"].append(empty * SECONDS / (core_s(echo.pid) - begun_s))
            before = searched(index)
            begun_s = core_s(index.process.pid)
            rates.append(await calls_per_second(index.process.target, SEARCH, requests))
            per_core["search"].append(rates[-1] * SECONDS / (core_s(index.process.pid) - begun_s))
            spent_s, count, batches = (searched(index) - before).tolist()
            ratios.append(rates[-1] / empty)
            cores.append(spent_s / count / search_s(exact[0], queries[:512], 1))
            size = max(1, round(count / batches))
            products.append((min(search_s(one, queries[:1024], size) for one in exact), size))
            over.append(1 / rates[-1] / (1 / empty + products[-1][0]))
    told = f"{statistics.median(rates):.0f}/s, {len(requests[0])} B asked, {answer_bytes} B answered"
    rows.at_least("search, 64 callers, over an echo", statistics.median(ratios), "share", 0.60, told)
    product, size = (float(value) for value in np.median(products, axis=0))
    told = f"product {product * 1e3:.3f} ms of a processor, in batches of {size:.0f}"
    rows.at_most("search, 64 callers: time over an echo's + the product's", statistics.median(over), "x", 1.15, told)
    share = statistics.median(a / b for a, b in zip(per_core["search"], per_core["echo"], strict=True))
    medians = {name: round(statistics.median(found)) for name, found in per_core.items()}
    rows.at_least("search, 64 callers, calls a core-second over an echo's", share, "share", 0.60, medians)
    rows.at_most("search, 64 callers, core time over FAISS one at a time", statistics.median(cores), "x", 0.4)


async def latency(rows: Rows, index: IndexFleet, matrix: Matrix, queries: Matrix, space_id: str) -> None:
    """One caller: what the service adds to FAISS and to an empty call of the same sizes. The three take turns."""
    flat = faiss_flat(matrix)
    requests = search_requests(queries, space_id, K)
    async with grpc.aio.insecure_channel(index.process.target) as channel:
        search = channel.unary_unary(SEARCH)
        async with Echo(len(await search(requests[0]))) as echo, grpc.aio.insecure_channel(echo.target) as other:
            empty = other.unary_unary(Echo.METHOD)
            calls: dict[str, Callable[[int], object]] = {
                "search": lambda row: search(requests[row]),
                "echo": lambda row: empty(requests[row]),
                "faiss": lambda row: flat(queries[row : row + 1]),
            }
            took = await times_ms(calls, range(len(requests)))
    medians = {name: statistics.median(found) for name, found in took.items()}
    added = medians["search"] - medians["faiss"] - medians["echo"]
    baseline = ", ".join(f"{name} {value:.3f}" for name, value in medians.items())
    rows.at_most("search, one caller: p50 over FAISS and an echo", added, "ms", 1.0, baseline)
    share = medians["search"] / (medians["faiss"] + medians["echo"])
    rows.note("search, one caller: time over an echo's + the product's", share, "x", baseline)


async def building(rows: Rows, index: IndexFleet, encoder: EncoderFleet, premises: Sequence[types_pb2.Premise]) -> None:
    """A build's texts a second against those of the encoder's own bulk stream, in turn."""
    ratios, rates, steps = [], [], set[int]()
    client, direct = index.client(), encoder.client(retry=True)
    texts = [premise.text for premise in premises]
    for _ in range(3):
        begun = time.monotonic()
        async for _ in direct.encode_all(texts, role="premise"):
            pass
        bulk = len(texts) / (time.monotonic() - begun)
        begun = time.monotonic()
        await client.build(CORPUS, premises, on_progress=lambda _, encoded, _stage: steps.add(encoded))
        rates.append(len(texts) / (time.monotonic() - begun))
        ratios.append(rates[-1] / bulk)
    told = f"{statistics.median(rates):.0f}/s"
    rows.at_least("build over the encoder's bulk stream", statistics.median(ratios), "share", 0.90, told)
    rows.at_least("build: steps of progress seen", len(steps), "steps", 50, f"{len(texts)} texts")
    await asyncio.gather(client.channel.close(), direct.channel.close())


async def retrieval(rows: Rows, index: IndexFleet, encoder: EncoderFleet, texts: Sequence[str]) -> None:
    """Text to premises in one call, 64 callers, against the same texts at the encoder alone."""
    indexes = [index.client() for _ in range(CONNECTIONS)]
    encoders = [encoder.client(retry=True) for _ in range(CONNECTIONS)]
    retrieve = [partial(client.retrieve, CORPUS, k=K) for client in indexes]
    ratios, rates = [], []
    for _ in range(ROUNDS):
        alone = await closed_loop([client.encode for client in encoders], texts, callers=CALLERS, size=1)
        rates.append(await closed_loop(retrieve, texts, callers=CALLERS, size=1))
        ratios.append(rates[-1] / alone)
    told = f"{statistics.median(rates):.0f}/s"
    rows.at_least("retrieve, 64 callers, over the encoder alone", statistics.median(ratios), "share", 0.70, told)
    await asyncio.gather(
        *(client.channel.close() for client in indexes), *(client.channel.close() for client in encoders)
    )


async def encoded(client: EncoderClient, texts: Sequence[str]) -> tuple[Matrix, str]:
    """Query vectors of texts, and their space."""
    answers = [answer async for answer in client.encode_all(texts, role="query", lane="interactive")]
    return np.concatenate([answer.vectors for answer in answers]), answers[0].space_id


async def main(options: argparse.Namespace) -> None:
    """Runs all parts, or the one that was asked for, on a corpus that is built first."""
    name, dataset = options.only, entailmentbank()
    rows = Rows(f"index-{name}" if name else "index")
    store = ArtifactStore(STORE)
    premises = premises_of(dataset)
    texts = [one.text for one in premises]
    random.Random(0).shuffle(texts)
    async with (
        running_encoder(store, base_checkpoint(store)) as encoder,
        running_index(encoder_target=encoder.process.target) as index,
    ):
        client, direct = index.client(), encoder.client(retry=True)
        if name in {None, "build"}:
            await building(rows, index, encoder, premises)
        else:
            await client.build(CORPUS, premises)
        queries, space_id = await encoded(direct, texts[:2048])
        active = (await anext(client.list_corpora())).active.id
        matrix = np.array(open_generation(ArtifactStore(index.artifacts_dir), CORPUS, active).vectors)
        if name in {None, "search"}:
            await throughput(rows, index, matrix, queries, space_id)
            await latency(rows, index, matrix, queries, space_id)
        if name in {None, "retrieve"}:
            await retrieval(rows, index, encoder, texts[:2048])
        rows.note("resident memory, 16 k premises", index.process.resident_mb(), "MB", round(matrix.nbytes / 1e6))
        await asyncio.gather(client.channel.close(), direct.channel.close())
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=["build", "search", "retrieve"], help="one part; its results get a name of their own"
    )
    run(main(parser.parse_args()))
