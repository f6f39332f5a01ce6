"""The cost of the back end on Milvus to the index itself, and the speed of milvus-lite. `make bench NAME=milvus`.

milvus-lite runs as a server of its own, so processor time here is the index's alone: it is the same before a cluster.
Times of answers are milvus-lite's and say nothing of a cluster. A minute; needs milvus-lite.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness.rows import Rows
from benchmarks.index.sizing import clustered
from services.corpus.generation import PremiseRecord, generation_meta
from services.index.lexical.bm25 import weighted_words
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.ledger.records import Records, artifact_of
from services.index.milvus.link import MilvusAddress, MilvusLink
from services.index.milvus.searching import AskedText, search_collection, search_in_rounds, search_words
from services.index.milvus.writer import GenerationWriter
from services.index.values import Scope
from support.servers.milvus_server import MilvusServer

ROUNDS = 10
K = 10
SIZES = (2_000, 16_000)
POOL = 1_000  # premises by words that HYBRID fuses
VOCABULARY, WORDS = 8_000, (4, 16)  # words of the corpus; the fewest and, exclusive, the most of a premise
PATIENCE_S = 600.0  # of Milvus, while it indexes


def main() -> None:
    """Builds each size and searches it."""
    rows = Rows("milvus")
    with tempfile.TemporaryDirectory() as directory:
        server = MilvusServer(Path(directory) / "data")
        server.start()
        try:
            for size in SIZES:
                measure(rows, server.uri, size)
        finally:
            server.stop()
    rows.finish()


def measure(rows: Rows, uri: str, size: int) -> None:
    """One corpus of `size` premises."""
    link = MilvusLink(MilvusAddress(uri), timeout_s=60.0)
    writer = GenerationWriter(link, Records(link, f"bench{size}"), "bench", "flat")
    vectors, queries = clustered(size, seed=3), clustered(64, seed=4)
    texts = worded(size, seed=3)
    premises = [PremiseRecord(f"p{n}", text, (), ("facts",)) for n, text in enumerate(texts)]
    started, own = time.perf_counter(), time.process_time()
    for start in range(0, size, 1024):
        writer.append(premises[start : start + 1024], vectors[start : start + 1024])
    rows.note(f"{size:,}: writing", size / (time.perf_counter() - started), "1/s")
    rows.note(f"{size:,}: writing, of one core of the index", size / (time.process_time() - own), "1/s")
    started, own = time.perf_counter(), time.process_time()
    engine = writer.seal(premises, PATIENCE_S)
    meta = generation_meta(
        corpus="bench", space_id="s", premise_version="q", dim=vectors.shape[1], premises=size, **engine
    )
    stored = writer.commit(artifact_of("bench", meta, {}, datetime.now(UTC)), PATIENCE_S)
    rows.note(f"{size:,}: the commit, with the words", time.perf_counter() - started, "s")
    rows.note(f"{size:,}: the commit, processor time of the index", time.process_time() - own, "s")
    served = MilvusGeneration.of(stored, link)
    excluded = tuple(f"p{n}" for n in range(100))
    for name, scope, batch in (
        ("one query", Scope("bench", K), 1),
        ("one query, a split", Scope("bench", K, splits=("facts",)), 1),
        ("one query, 100 excluded", Scope("bench", K, exclude_ids=excluded), 1),
        ("64 queries", Scope("bench", K), 64),
    ):
        asked = [queries[turn : turn + batch] for turn in range(ROUNDS)] if batch == 1 else [queries] * ROUNDS
        calls = [partial(search_collection, served, scope, one, K, None) for one in asked]
        note(rows, f"{size:,}: {name}", calls, batch)
    words = [weighted_words(text) for text in worded(64, seed=4)]
    for name, scope, k, batch in (
        ("one query by words", Scope("bench", K), K, 1),
        ("one query by words, a split", Scope("bench", K, splits=("facts",)), K, 1),
        ("one query by words, the pool of HYBRID", Scope("bench", K), POOL, 1),
        ("64 queries by words", Scope("bench", K), K, 64),
    ):
        asked_words = [words[turn : turn + batch] for turn in range(ROUNDS)] if batch == 1 else [words] * ROUNDS
        calls = [partial(search_words, served, scope, each, k, None) for each in asked_words]
        note(rows, f"{size:,}: {name}", calls, batch)
    texts_asked = [AskedText(each) for each in words]
    singly = [texts_asked[turn : turn + 1] for turn in range(ROUNDS)]
    for name, asked_texts, batch in (
        ("one query in rounds", singly, 1),
        ("64 queries in rounds", [texts_asked] * ROUNDS, 64),
    ):
        calls = [partial(search_in_rounds, served, Scope("bench", K), each, K, None) for each in asked_texts]
        note(rows, f"{size:,}: {name}", calls, batch)


def note(rows: Rows, name: str, calls: Sequence[Callable[[], object]], batch: int) -> None:
    """Makes the calls, and notes the time of a query at milvus-lite and in the index."""
    seconds, own = [], time.process_time()
    for call in calls:
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    own_ms = 1000 * (time.process_time() - own) / len(calls) / batch
    rows.note(f"{name}, milvus-lite", 1000 * statistics.median(seconds) / batch, "ms")
    rows.note(f"{name}, processor time of the index", own_ms, "ms")


def worded(count: int, *, seed: int) -> list[str]:
    """Texts of made-up words, few of which are frequent, as in any language."""
    ranks = np.arange(1, VOCABULARY + 1)
    shares = 1 / ranks / (1 / ranks).sum()
    rng = np.random.default_rng(seed)
    lengths = rng.integers(*WORDS, count)
    return [" ".join(f"w{rank}" for rank in rng.choice(ranks, size=length, p=shares)) for length in lengths.tolist()]


if __name__ == "__main__":
    main()
