"""The resources that a corpus of some size needs, computed from measured constants.

Arithmetic only; `sizing.py` measures.
A machine has 16 cores and 64 GiB, of which three quarters are planned with. Building and searching a graph are taken to
slow down with the logarithm of its rows beyond those measured. Milvus has a graph for each segment and asks all of
them; a segment is of 1 GiB, which is its default and was not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DIM = 384
CORES, USABLE_BYTES = 16, 0.75 * 64 * 2**30
SEGMENT_BYTES = 2**30
SIZES = {"16 k": 16_000, "1 M": 10**6, "10 M": 10**7, "100 M": 10**8, "1 B": 10**9}
FLAT_UP_TO = 250_000  # premises; above, a graph
ONE_PROCESS_UP_TO = 5_000_000  # premises in the Python objects of one index process

COLUMNS = (
    "premises",
    "back end",
    "index",
    "memory to search",
    "disk",
    "memory of the building process",
    "encoding, core-hours",
    "indexing, core-hours",
    "sending, core-hours",
    "machines",
    "queries a second",
)


@dataclass(frozen=True)
class Constants:
    """Bytes a premise, and rows or queries a second of one core."""

    encoded_per_s: float  # premises, fp32
    flat_bytes: float
    flat_rows_scanned_per_s: float  # of one core, in batches of 64
    graph_bytes: float
    graph_rows_built_per_s: float
    graph_queries_per_s: float  # at `graph_rows`
    graph_rows: int
    stored_bytes: float  # text, ids and splits as the premise's line
    served_bytes: float  # Python objects of an index process on files
    folding_bytes: float  # Python objects of a build, whatever the back end
    upserted_per_s: float  # premises that one core of the index turns into rows and sends to Milvus


@dataclass(frozen=True)
class Plan:
    """The resources for one size: bytes, seconds of one core, machines."""

    name: str
    rows: int
    backend: str
    engine: str
    search_bytes: float
    disk_bytes: float
    build_process_bytes: float
    encode_core_s: float
    index_core_s: float
    send_core_s: float
    machines: int
    queries_per_s: float  # of all machines together


def plan(name: str, rows: int, constants: Constants) -> Plan:
    """The plan of a size."""
    is_flat = rows <= FLAT_UP_TO
    on_files = rows <= ONE_PROCESS_UP_TO
    vector_bytes = constants.flat_bytes if is_flat else constants.graph_bytes
    search_bytes = rows * (vector_bytes + (constants.served_bytes if on_files else 0.0))
    machines = max(1, math.ceil(search_bytes / USABLE_BYTES))
    return Plan(
        name,
        rows,
        "faiss" if on_files else "milvus",
        "flat" if is_flat else "hnsw",
        search_bytes,
        rows * (vector_bytes + (0 if is_flat else DIM * 4) + constants.stored_bytes),
        rows * constants.folding_bytes,
        rows / constants.encoded_per_s,
        0.0 if is_flat else rows / constants.graph_rows_built_per_s * _slower(_graph_rows(rows, on_files), constants),
        0.0 if on_files else rows / constants.upserted_per_s,
        machines,
        _queries_per_s(rows, machines, on_files, constants),
    )


def _queries_per_s(rows: int, machines: int, on_files: bool, constants: Constants) -> float:
    """One search thread on files; all cores in Milvus, where every query goes to every segment of every machine."""
    if rows <= FLAT_UP_TO:
        return constants.flat_rows_scanned_per_s / rows
    graph_rows = _graph_rows(rows, on_files)
    one_graph = constants.graph_queries_per_s / _slower(graph_rows, constants)
    return one_graph if on_files else one_graph * CORES / math.ceil(rows / machines / graph_rows)


def _graph_rows(rows: int, on_files: bool) -> float:
    return rows if on_files else min(rows, SEGMENT_BYTES / (DIM * 4))


def _slower(graph_rows: float, constants: Constants) -> float:
    return math.log(graph_rows) / math.log(constants.graph_rows)


def table(constants: Constants) -> str:
    """The plans as a Markdown table."""
    plans = [plan(name, rows, constants) for name, rows in SIZES.items()]
    return "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *map(_line, plans)])


def _line(one: Plan) -> str:
    cells = [
        one.name,
        one.backend,
        one.engine,
        _size(one.search_bytes),
        _size(one.disk_bytes),
        _size(one.build_process_bytes),
        _hours(one.encode_core_s),
        _hours(one.index_core_s),
        _hours(one.send_core_s),
        f"{one.machines:,}",
        _rounded(one.queries_per_s),
    ]
    return "| " + " | ".join(cells) + " |"


def _size(size_bytes: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9)):
        if size_bytes >= factor:
            return f"{_rounded(size_bytes / factor)} {unit}"
    return f"{_rounded(size_bytes / 1e6)} MB"


def _hours(seconds: float) -> str:
    return "0" if seconds == 0 else _rounded(seconds / 3600)


def _rounded(value: float) -> str:
    """Two digits: more would claim more than such an estimate knows."""
    if value == 0:
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.{max(digits, 0)}f}".rstrip("0").rstrip(".") if digits > 0 else f"{rounded:,.0f}"
