"""The index: search, retrieval and builds against what they rest on, sameness, quality. `make bench NAME=index`.

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
from collections.abc import Sequence
from typing import Any

import faiss
import grpc
import numpy as np
import psutil

from aeenc import EncoderClient, Fusion, IndexClient, vectors
from aeenc.trees import Dataset
from aeenc.v1 import index_pb2, types_pb2
from benchmarks.harness.baselines import Echo, run
from benchmarks.harness.checkpoints import STORE, base_checkpoint
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.load import closed_loop
from benchmarks.harness.rows import Rows
from benchmarks.harness.services import EncoderFleet, IndexFleet, premises_of, running_encoder, running_index
from benchmarks.index.quality import Queries, ask_for_the_others
from services.corpus.generation import open_generation
from services.index.dense.exact import FlatIndex
from services.index.dense.int8 import Int8Proposer
from services.store.artifacts import ArtifactStore

ROUNDS = 5
CALLERS = 64
CONNECTIONS = 4
SECONDS = 4.0
CORPUS = "entailmentbank"
FEEDBACK = 0.1
SEARCH = "/aeenc.v1.IndexService/Search"
Matrix = np.ndarray[Any, np.dtype[np.float32]]


def kernels(rows: Rows, matrix: Matrix, queries: Matrix) -> None:
    """Processor time of an exact search, re-scoring included: FAISS alone proposes, or integers do, in turn."""
    faiss.omp_set_num_threads(1)
    alone, coarse = FlatIndex(matrix), FlatIndex(matrix, coarse=Int8Proposer(matrix))
    usual = faiss.cvar.distance_compute_blas_threshold
    for size in (1, 8, 64):
        milliseconds: dict[str, list[float]] = {"FAISS": [], "integers": []}
        for start in range(0, 40 * size, size):
            part = np.take(queries, range(start, start + size), axis=0, mode="wrap")
            for name, index in (("FAISS", alone), ("integers", coarse)):
                begun = time.thread_time()
                index.nearest(part, 10)
                milliseconds[name].append((time.thread_time() - begun) * 1e3 / size)
        medians = {name: statistics.median(values) for name, values in milliseconds.items()}
        told = ", ".join(f"{name} {value:.3f} ms" for name, value in medians.items())
        rows.note(
            f"exact search of {size} at once, FAISS over integers", medians["FAISS"] / medians["integers"], "x", told
        )
    faiss.cvar.distance_compute_blas_threshold = usual  # of the whole process: FAISS alone is measured next


async def calls_per_second(target: str, method: str, requests: Sequence[bytes]) -> float:
    """Calls a second of CALLERS that wait for their answers, with messages made ready beforehand."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(CONNECTIONS)]
    done, begun = 0, time.monotonic()

    async def caller(number: int) -> None:
        nonlocal done
        call, position = channels[number % CONNECTIONS].unary_unary(method), number
        while time.monotonic() - begun < SECONDS:
            await call(requests[position % len(requests)])
            position += CALLERS
            done += 1

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    rate = done / (time.monotonic() - begun)
    await asyncio.gather(*(channel.close() for channel in channels))
    return rate


def core_s(pid: int) -> float:
    """Processor seconds of a process, its threads and the kernel's work for it included."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def search_core_s(index: IndexFleet) -> tuple[float, float]:
    """Processor seconds of the search thread, and how many queries it has searched for."""
    with urllib.request.urlopen(f"http://127.0.0.1:{index.metrics_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    read = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
    return read["aeenc_index_search_core_seconds_total"], read["aeenc_index_search_batch_queries_sum"]


def bare_core_s(matrix: Matrix, queries: Matrix, k: int) -> float:
    """Processor seconds a query of FAISS alone, one query at a time in one thread."""
    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(matrix.shape[1])
    flat.add(matrix)
    flat.search(queries[:1], k)
    begun = time.thread_time()
    for row in range(len(queries)):
        flat.search(queries[row : row + 1], k)
    return (time.thread_time() - begun) / len(queries)


def search_requests(queries: Matrix, space_id: str, k: int) -> list[bytes]:
    """One Search call a query vector."""
    return [
        index_pb2.SearchRequest(
            corpus=CORPUS, vectors=vectors.to_proto(queries[row : row + 1]), space_id=space_id, k=k
        ).SerializeToString()
        for row in range(len(queries))
    ]


async def throughput(rows: Rows, index: IndexFleet, matrix: Matrix, queries: Matrix, space_id: str) -> None:
    """Search at 64 callers against an echo of messages of the same sizes, and the processor time of a query."""
    requests = search_requests(queries, space_id, 10)
    async with grpc.aio.insecure_channel(index.process.target) as channel:
        answer_bytes = len(await channel.unary_unary(SEARCH)(requests[0]))
    ratios, rates, cores = [], [], []
    per_core: dict[str, list[float]] = {"search": [], "echo": []}  # calls for each second of the server's processors
    async with Echo(answer_bytes) as echo:
        for _ in range(ROUNDS):
            begun_s = core_s(echo.pid)
            empty = await calls_per_second(echo.target, Echo.METHOD, requests)
            per_core["echo"].append(empty * SECONDS / (core_s(echo.pid) - begun_s))
            before_s, before = search_core_s(index)
            begun_s = core_s(index.process.pid)
            rates.append(await calls_per_second(index.process.target, SEARCH, requests))
            per_core["search"].append(rates[-1] * SECONDS / (core_s(index.process.pid) - begun_s))
            after_s, after = search_core_s(index)
            ratios.append(rates[-1] / empty)
            cores.append((after_s - before_s) / (after - before) / bare_core_s(matrix, queries[:512], 10))
    told = f"{statistics.median(rates):.0f}/s, {len(requests[0])} B asked, {answer_bytes} B answered"
    rows.at_least("search, 64 callers, over an echo", statistics.median(ratios), "share", 0.60, told)
    share = statistics.median(a / b for a, b in zip(per_core["search"], per_core["echo"], strict=True))
    medians = {name: round(statistics.median(found)) for name, found in per_core.items()}
    rows.at_least("search, 64 callers, calls a core-second over an echo's", share, "share", 0.60, medians)
    rows.at_most("search, 64 callers, core time over FAISS one at a time", statistics.median(cores), "x", 0.4)


async def latency(rows: Rows, index: IndexFleet, matrix: Matrix, queries: Matrix, space_id: str) -> None:
    """One caller: what the service adds to FAISS and to an empty call of the same sizes. The three take turns."""
    flat = faiss.IndexFlatIP(matrix.shape[1])
    flat.add(matrix)
    faiss.omp_set_num_threads(1)
    requests = search_requests(queries, space_id, 10)
    seconds: dict[str, list[float]] = {"search": [], "faiss": [], "echo": []}
    async with grpc.aio.insecure_channel(index.process.target) as channel:
        search = channel.unary_unary(SEARCH)
        async with Echo(len(await search(requests[0]))) as echo, grpc.aio.insecure_channel(echo.target) as other:
            empty = other.unary_unary(Echo.METHOD)
            for row, request in enumerate(requests):
                for name, call in (("search", search), ("echo", empty)):
                    begun = time.perf_counter()
                    await call(request)
                    seconds[name].append(time.perf_counter() - begun)
                begun = time.perf_counter()
                flat.search(queries[row : row + 1], 10)
                seconds["faiss"].append(time.perf_counter() - begun)
    medians = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    added = medians["search"] - medians["faiss"] - medians["echo"]
    baseline = ", ".join(f"{name} {value:.3f}" for name, value in medians.items())
    rows.at_most("search, one caller: p50 over FAISS and an echo", added, "ms", 1.0, baseline)


async def sameness(rows: Rows, client: IndexClient, matrix: Matrix, queries: Matrix, space_id: str) -> None:
    """10,000 queries in calls of all sizes at once: ids, order and scores against each query's answer alone."""
    flat, rng = FlatIndex(matrix), random.Random(11)
    noisy = np.concatenate([queries, queries[rng.choices(range(len(queries)), k=10_000 - len(queries))]])
    noise = np.random.default_rng(11).normal(scale=0.02, size=noisy[len(queries) :].shape)
    noisy[len(queries) :] += noise.astype(np.float32)
    noisy /= np.linalg.norm(noisy, axis=1, keepdims=True)
    parts, start = [], 0
    while start < len(noisy):
        size = rng.choice((1, 1, 1, 2, 5, 13, 32, 64, 200))
        parts.append(noisy[start : start + size])
        start += size
    turn = asyncio.Semaphore(32)

    async def ask(part: Matrix) -> list[tuple[list[str], bytes]]:
        async with turn:
            found = await client.search(CORPUS, part, space_id=space_id, k=25)
        return [(ids, scores.tobytes()) for ids, scores in zip(found.ids, found.scores, strict=True)]

    answers = [one for answer in await asyncio.gather(*map(ask, parts)) for one in answer]
    ids = [premise.id async for premise in client.list_premises(CORPUS)]
    different = 0
    for row in range(len(noisy)):
        (alone,) = flat.nearest(noisy[row : row + 1], 25)
        different += answers[row] != ([ids[n] for n in alone.ordinals.tolist()], alone.scores.tobytes())
    rows.at_most("10,000 queries in mixed batches: other ids, order or scores", different, "queries", 0, len(parts))


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
        await client.build(CORPUS, premises, on_progress=lambda _, encoded: steps.add(encoded))
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

    async def retrieve_all() -> float:
        waiting = iter(texts)

        async def caller(client: IndexClient) -> None:
            for text in waiting:
                await client.retrieve(CORPUS, [text], k=10)

        begun = time.monotonic()
        await asyncio.gather(*(caller(indexes[n % CONNECTIONS]) for n in range(CALLERS)))
        return len(texts) / (time.monotonic() - begun)

    ratios, rates = [], []
    for _ in range(ROUNDS):
        alone = await closed_loop(encoders, texts, callers=CALLERS, size=1, role="query")
        rates.append(await retrieve_all())
        ratios.append(rates[-1] / alone)
    told = f"{statistics.median(rates):.0f}/s"
    rows.at_least("retrieve, 64 callers, over the encoder alone", statistics.median(ratios), "share", 0.70, told)
    await asyncio.gather(
        *(client.channel.close() for client in indexes), *(client.channel.close() for client in encoders)
    )


async def quality(rows: Rows, client: IndexClient, dataset: Dataset) -> None:
    """Strict MAP of the untrained encoder: by mode, conditioned on a premise accepted, with the prior of train."""
    dev, train = Queries(dataset, "dev"), Queries(dataset, "train")
    ids = {one.text: one.id for one in dataset.candidates()}
    found = {mode: (await dev.ask(client, CORPUS, mode=mode)).map for mode in ("dense", "lexical", "hybrid")}
    iterative = (await dev.ask(client, CORPUS, mode="iterative_lexical")).map
    rows.at_least("dev MAP strict, hybrid", found["hybrid"], "MAP", 0.503, f"dense {found['dense']:.4f}")
    rows.at_least("dev MAP strict, iterative BM25", iterative, "MAP", 0.460, f"BM25 {found['lexical']:.4f}")
    rows.at_least("dev MAP strict, BM25", found["lexical"], "MAP", 0.445)
    ranked = (await dev.ask(client, CORPUS, mode="hybrid", fusion=Fusion("reciprocal_rank", 0.2))).map
    rows.note("dev MAP strict, hybrid by reciprocal ranks", ranked, "MAP", round(found["hybrid"], 4))
    for split, queries in (("dev", dev.queries), ("train", random.Random(0).sample(train.queries, 600))):
        for mode in ("dense", "lexical", "hybrid"):
            alone, told = await ask_for_the_others(client, CORPUS, queries, ids, mode=mode)
            name = f"{split} MAP of the other premises, one accepted, {mode}"
            rows.at_least(name, told, "MAP", alone, round(alone, 4))
    explained = [(one.text, [ids[text] for text in one.gold]) for one in train.queries]
    await client.put_explanations(CORPUS, explained, replace=True)
    for share in (0.05, 0.15):
        with_prior = await dev.ask(client, CORPUS, prior=share)
        told_hit = f"Hit@10 {with_prior.hit_at_10:.4f}, MAP without {found['dense']:.4f}"
        rows.note(f"dev MAP strict, dense with the prior at {share:g}", with_prior.map, "MAP", told_hit)
    for mode in ("dense", "hybrid"):
        again = await dev.ask(client, CORPUS, mode=mode, negative_feedback=FEEDBACK)
        told_hit = f"Hit@10 {again.hit_at_10:.4f}, MAP without {found[mode]:.4f}"
        rows.at_least(f"dev MAP strict, {mode}, negative feedback", again.map, "MAP", found[mode], told_hit)


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
            kernels(rows, matrix, queries)
            await throughput(rows, index, matrix, queries, space_id)
            await latency(rows, index, matrix, queries, space_id)
        if name in {None, "retrieve"}:
            await retrieval(rows, index, encoder, texts[:2048])
        if name in {None, "sameness"}:
            await sameness(rows, client, matrix, queries, space_id)
        if name in {None, "quality"}:
            await quality(rows, client, dataset)
        rows.note("resident memory, 16 k premises", index.process.resident_mb(), "MB", round(matrix.nbytes / 1e6))
        await asyncio.gather(client.channel.close(), direct.channel.close())
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ["build", "search", "retrieve", "sameness", "quality"]
    parser.add_argument("--only", choices=parts, help="one part; its results get a name of their own")
    run(main(parser.parse_args()))
