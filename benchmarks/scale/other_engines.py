"""Other engines over the vectors of `large`, each alone: usearch's HNSW and milvus-lite. One thread, one query a call.

Both are installed by hand: `pip install usearch==2.26.6`, and milvus-lite with the extra `dev`.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.rows import Rows
from support.servers.milvus_server import MilvusServer

K = 10
WIDTHS = (32, 64, 128, 256, 512, 1024)  # of usearch's search; the first that finds enough is timed
LINKS, CONSTRUCTION = 32, 128  # of usearch's graph
QUERIES, SECONDS = 400, 30.0  # at most
BATCH = 2_000  # rows that milvus-lite takes in a call
MILVUS_ROWS = 1_000_000  # at most: it compares a query with all of them, and takes seconds for one

Search = Callable[[NDArray[np.float32]], NDArray[np.int64]]


@dataclass(frozen=True)
class Task:
    """The task of every engine: search `vectors` (rows, dim) for `queries` (n, dim). `truth` has their K nearest."""

    vectors: NDArray[np.float16]
    queries: NDArray[np.float32]
    truth: Sequence[NDArray[np.int64]]

    def recall(self, search: Search) -> float:
        """The share of the true nearest that a search finds."""
        found = zip(self.queries, self.truth, strict=True)
        return sum(len(np.intersect1d(search(query), true)) for query, true in found) / K / len(self.queries)

    def rate(self, search: Search) -> float:
        """Searches a second, one after the other. Ask for the recall first: that meets all pages."""
        started, done = time.perf_counter(), 0
        while done < QUERIES and time.perf_counter() - started < SECONDS:
            search(self.queries[done % len(self.queries)])
            done += 1
        return done / (time.perf_counter() - started)


def beside(rows: Rows, name: str, home: Path, task: Task, recall: float) -> None:
    """Measures those that are installed. usearch searches as widely as it takes to find `recall` of the truth."""
    if importlib.util.find_spec("usearch") is None:
        rows.note(f"{name}: usearch", "not installed", "")
    else:
        _usearch(rows, f"{name}: usearch", task, recall)
    if importlib.util.find_spec("milvus_lite") is None:
        rows.note(f"{name}: milvus-lite", "not installed", "")
    elif len(task.vectors) > MILVUS_ROWS:
        rows.note(f"{name}: milvus-lite", "too many rows", "")
    else:
        _milvus_lite(
            rows, f"{name}: milvus-lite", home, replace(task, queries=task.queries[:20], truth=task.truth[:20])
        )


def _usearch(rows: Rows, name: str, task: Task, recall: float) -> None:
    from usearch.index import Index

    started = time.perf_counter()
    index = Index(ndim=task.vectors.shape[1], metric="ip", dtype="f16", connectivity=LINKS, expansion_add=CONSTRUCTION)
    index.add(np.arange(len(task.vectors)), task.vectors)
    rows.note(f"{name}: built", (time.perf_counter() - started) / 60, "min", f"{index.memory_usage / 2**30:.2f} GiB")

    def search(query: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.asarray(index.search(query.astype(np.float16), K, threads=1).keys, np.int64)

    for width in WIDTHS:
        index.expansion_search = width
        found = task.recall(search)
        if found >= recall:
            break
    rows.note(f"{name}: recall@10, search width {width}", found, "", recall)
    rows.note(f"{name}: searches a second", task.rate(search), "1/s")


def _milvus_lite(rows: Rows, name: str, home: Path, task: Task) -> None:
    from pymilvus import DataType, MilvusClient

    server = MilvusServer(home / "milvus")
    server.start()
    try:
        client: Any = MilvusClient(server.uri)
        started = time.perf_counter()
        schema = client.create_schema()
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=task.vectors.shape[1])
        parameters = client.prepare_index_params()
        parameters.add_index("vector", index_type="FLAT", metric_type="IP")
        client.create_collection("premises", schema=schema, index_params=parameters)
        for start in range(0, len(task.vectors), BATCH):
            part = task.vectors[start : start + BATCH].astype(np.float32)
            client.insert("premises", [{"id": start + n, "vector": vector} for n, vector in enumerate(part)])
        client.flush("premises")
        client.load_collection("premises")
        rows.note(f"{name}: built", (time.perf_counter() - started) / 60, "min")

        def search(query: NDArray[np.float32]) -> NDArray[np.int64]:
            (hits,) = client.search("premises", [query], limit=K, anns_field="vector")
            return np.array([hit["id"] for hit in hits], np.int64)

        rows.note(f"{name}: recall@10, exact", task.recall(search), "")
        rows.note(f"{name}: searches a second", task.rate(search), "1/s")
    finally:
        server.stop()
