"""The cost of a Milvus to the index that asks it, and the speed of milvus-lite. `make bench NAME=milvus`.

milvus-lite runs as a server of its own, so processor time here is the index's alone: it is the same before a cluster.
Times of answers are milvus-lite's and say nothing of a cluster. The same corpus is then asked through a process of the
service. A minute; needs milvus-lite.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from aeenc import AsyncClient, IndexClient, values
from benchmarks.harness.load import times_ms
from benchmarks.harness.rows import Rows
from benchmarks.harness.services import running_index
from benchmarks.index.stand_in_encoder import StandInEncoder
from services.corpus.generation import (
    KIND,
    VECTORS,
    Generation,
    PremiseRecord,
    folder_of,
    open_generation,
    write_premises,
)
from services.index.dense.approximate import RemoteIndex
from services.index.dense.exact import FlatIndex
from services.index.milvus.collections import Collections
from services.index.milvus.link import MilvusLink
from services.index.values import ALL, Selection
from services.store.artifacts import ArtifactStore
from support.servers.milvus_server import MilvusServer

ROUNDS = 10
K, DIM, CLUSTERS = 10, 384, 2_000
SIZES = (2_000, 16_000)
VOCABULARY, WORDS = 8_000, (4, 16)  # words of a corpus; the fewest and, exclusive, the most of a premise
PATIENCE_S = 600.0  # of Milvus, while it indexes


def main() -> None:
    """Sends each size and searches it."""
    rows = Rows("milvus")
    with tempfile.TemporaryDirectory() as directory:
        server, store = MilvusServer(Path(directory) / "data"), ArtifactStore(Path(directory) / "artifacts")
        server.start()
        try:
            for size in SIZES:
                asyncio.run(measure(rows, server.uri, store, size))
            asyncio.run(serve(rows, server.uri, SIZES[-1]))
        finally:
            server.stop()
    rows.finish()


async def measure(rows: Rows, uri: str, store: ArtifactStore, size: int) -> None:
    """One corpus of `size` premises."""
    link = MilvusLink(uri, timeout_s=60.0)
    collections = Collections(store, link, "bench", lease_s=60.0, patience_s=PATIENCE_S)
    generation, queries = written(store, size), clustered(64, seed=4)
    index = RemoteIndex(FlatIndex(generation.vectors, largest_norm=1.0), collections.of(generation))
    started, spent = time.perf_counter(), time.process_time()
    searched(index, queries[:1], ALL)
    rows.note(f"{size:,}: sent by the first search", size / (time.perf_counter() - started), "1/s")
    rows.note(f"{size:,}: sent, of one core of the index", size / (time.process_time() - spent), "1/s")
    for name, selection, batch in (
        ("one query", ALL, 1),
        ("one query, a split", Selection(splits=frozenset({"facts"})), 1),
        ("one query, 100 excluded", Selection(excluded=frozenset(range(100))), 1),
        ("64 queries", ALL, 64),
    ):
        asked = [queries[turn : turn + 1] if batch == 1 else queries for turn in range(ROUNDS)]
        spent, search = time.process_time(), partial(searched, index, selection=selection)
        laps = (await times_ms({"": search}, asked))[""]
        spent_ms = 1000 * (time.process_time() - spent) / ROUNDS / batch
        rows.note(f"{size:,}: {name}, milvus-lite", statistics.median(laps) / batch, "ms")
        rows.note(f"{size:,}: {name}, processor time of the index", spent_ms, "ms")
    await collections.close()


async def serve(rows: Rows, uri: str, size: int) -> None:
    """Builds a corpus of made-up words through the service, and asks another process, first with nothing read yet."""
    facts, queries = worded(size, seed=3), worded(ROUNDS + 1, seed=4)
    name = f"{size:,}, through the service"
    with tempfile.TemporaryDirectory() as scratch:
        async with StandInEncoder() as encoder:
            settings = {"encoder_target": encoder.target, "backend": "milvus", "milvus_uri": uri}
            async with (
                running_index(Path(scratch), **settings) as index,
                AsyncClient(index=index.process.target) as client,
            ):
                premises = [values.Premise(id=f"p{n}", text=text) for n, text in enumerate(facts)]
                await client.index.build("bench", premises, timeout_s=PATIENCE_S)
            async with (
                running_index(Path(scratch), **settings) as index,
                AsyncClient(index=index.process.target) as client,
            ):
                asked = client.index
                laps = (await times_ms({"": lambda _: listed(asked)}, range(ROUNDS)))[""]
                rows.note(f"{name}: all pages, cold", laps[0], "ms", f"then {statistics.median(laps[1:]):.0f}")
                for mode in ("dense", "lexical", "hybrid"):
                    retrieve = partial(asked.retrieve, "bench", k=K, mode=mode)
                    laps = (await times_ms({"": lambda query, call=retrieve: call([query])}, queries))[""]
                    rows.note(f"{name}: {mode}, one query", statistics.median(laps[1:]), "ms", f"first {laps[0]:.0f}")


async def listed(index: IndexClient) -> int:
    """Reads all premises, and counts them."""
    return len([premise async for premise in index.list_premises("bench")])


def worded(count: int, *, seed: int) -> list[str]:
    """Distinct texts of made-up words, few of which are frequent, as in any language."""
    ranks = np.arange(1, VOCABULARY + 1)
    shares = 1 / ranks / (1 / ranks).sum()
    rng = np.random.default_rng(seed)
    texts = dict[str, None]()
    while len(texts) < count:
        texts[" ".join(f"w{rank}" for rank in rng.choice(ranks, size=rng.integers(*WORDS), p=shares))] = None
    return list(texts)


def clustered(count: int, *, seed: int) -> np.ndarray:
    """Unit vectors (count, DIM) around the same centres for every seed; graphs behave unlike themselves on noise."""
    centres = np.random.default_rng(1).normal(size=(CLUSTERS, DIM))
    rng = np.random.default_rng(seed)
    matrix = centres[rng.integers(0, CLUSTERS, count)] + 0.8 * rng.normal(size=(count, DIM))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def searched(index: RemoteIndex, queries: np.ndarray, selection: Selection) -> None:
    """Searches to the end."""
    *_, hits = index.steps(queries, K, selection)
    assert hits is not None
    assert len(hits[0].ordinals) == K


def written(store: ArtifactStore, size: int) -> Generation:
    """A generation of made-up vectors."""
    with store.writer(KIND, folder_of("bench")) as writer:
        write_premises(writer.path, (PremiseRecord(f"p{n}", f"fact {n}", (), ("facts",)) for n in range(size)))
        np.save(writer.path / VECTORS, clustered(size, seed=3), allow_pickle=False)
        stamp = {"corpus": "bench", "space_id": "s", "premise_version": "q"}
        meta = {**stamp, "dim": DIM, "premises": size, "storage": "float32", "engine": "milvus-flat"}
        written = writer.commit(meta, id_prefix="g")
    return open_generation(store, "bench", written.id)


if __name__ == "__main__":
    main()
