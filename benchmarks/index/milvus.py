"""The cost of the back end on Milvus to the index itself, and the speed of milvus-lite. `make bench NAME=milvus`.

milvus-lite runs as a server of its own, so processor time here is the index's alone: it is the same before a cluster.
Times of answers are milvus-lite's and say nothing of a cluster. A minute; needs milvus-lite.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness.rows import Rows
from benchmarks.index.sizing import clustered
from services.index.building.folding import Draft
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.link import MilvusAddress, MilvusLink
from services.index.milvus.records import Records
from services.index.milvus.retrieval import search_collection
from services.index.milvus.writer import GenerationWriter
from services.index.values import Scope
from support.servers.milvus_server import MilvusServer

ROUNDS = 10
K = 10
SIZES = (2_000, 16_000)


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
    drafts = [Draft(f"p{n}", f"a magnet number {n} attracts an iron nail", [], ["facts"]) for n in range(size)]
    started, own = time.perf_counter(), time.process_time()
    for start in range(0, size, 1024):
        writer.append(drafts[start : start + 1024], vectors[start : start + 1024])
    rows.note(f"{size:,}: writing", size / (time.perf_counter() - started), "1/s")
    rows.note(f"{size:,}: writing, of one core of the index", size / (time.process_time() - own), "1/s")
    stored = writer.commit(drafts, "s", "q", 600.0)
    served = MilvusGeneration.of(stored, link)
    excluded = tuple(f"p{n}" for n in range(100))
    for name, scope, batch in (
        ("one query", Scope("bench", K), 1),
        ("one query, a split", Scope("bench", K, splits=("facts",)), 1),
        ("one query, 100 excluded", Scope("bench", K, exclude_ids=excluded), 1),
        ("64 queries", Scope("bench", K), 64),
    ):
        seconds, own = [], time.process_time()
        for turn in range(ROUNDS):
            asked = queries[turn : turn + batch] if batch == 1 else queries
            started = time.perf_counter()
            search_collection(served, scope, asked, K, None)
            seconds.append(time.perf_counter() - started)
        own_ms = 1000 * (time.process_time() - own) / ROUNDS / batch
        rows.note(f"{size:,}: {name}, milvus-lite", 1000 * statistics.median(seconds) / batch, "ms")
        rows.note(f"{size:,}: {name}, processor time of the index", own_ms, "ms")


if __name__ == "__main__":
    main()
