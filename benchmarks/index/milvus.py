"""What the back end on Milvus costs the index itself, and what milvus-lite is good for. `make bench NAME=milvus`.

milvus-lite runs as a server of its own, so processor time here is the index's alone: it is the same before a cluster.
Times of answers are milvus-lite's and say nothing of a cluster. A minute; needs milvus-lite.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.rows import Rows
from benchmarks.index.sizing_vectors import clustered
from services.index.building.folding import Draft
from services.index.milvus.generation import MilvusGeneration
from services.index.milvus.link import MilvusAddress, MilvusLink
from services.index.milvus.records import Records
from services.index.milvus.retrieval import search_collection
from services.index.milvus.writer import GenerationWriter
from services.index.values import Scope

ROUNDS = 10
K = 10
SIZES = (2_000, 16_000)


def main() -> None:
    """Builds each size and searches it."""
    rows = Rows("milvus")
    with tempfile.TemporaryDirectory() as directory, milvus_lite(Path(directory)) as uri:
        for size in SIZES:
            measure(rows, uri, size)
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
    stored, _ = writer.commit(drafts, "s", "q", 600.0)
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


@contextmanager
def milvus_lite(directory: Path) -> Iterator[str]:
    """A milvus-lite server over `directory`; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(directory / "data")]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (directory / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.terminate()


if __name__ == "__main__":
    main()
