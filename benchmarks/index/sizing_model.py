"""The resources that a corpus of some size needs, computed from measured constants.

Arithmetic only; `sizing.py` measures, `index-large.py` at a million, and the part `large` of `scale.py` at ten.
A machine has 16 cores and 64 GiB, of which three quarters are planned with. On files an index process searches as
`AEENC_INDEX_ENGINE=auto` chooses: exactly up to 250,000 premises, else by IVF, whose cost between and beyond the sizes
measured is taken to grow by a power of the rows. Building and searching a graph in Milvus are taken to slow
down with the logarithm of its rows beyond those measured. Milvus has a graph for each segment and asks all of them; a
segment is of 1 GiB, which is its default and was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

DIM = 384
CORES, USABLE_BYTES = 16, 0.75 * 64 * 2**30
SEGMENT_ROWS = 2**30 / (DIM * 4)
SIZES = {"16 k": 16_000, "1 M": 10**6, "10 M": 10**7, "100 M": 10**8, "1 B": 10**9}
FLAT_UP_TO = 250_000  # premises; above, IVF
ONE_PROCESS_UP_TO = 20_000_000  # premises whose vectors, in float32, fit into the memory of one machine

COLUMNS = (
    "premises",
    "back end",
    "index",
    "memory to search",
    "disk",
    "memory of the building process",
    "encoding, core-hours",
    "indexing, core-hours",
    "making rows for Milvus, core-hours",
    "machines",
    "calls a second",
)


@dataclass(frozen=True)
class Constants:
    """Bytes a premise, and rows or queries a second of one core."""

    encoded_per_s: float  # premises, fp32
    flat_bytes: float
    flat_rows_scanned_per_s: float  # of one core, in batches of 64
    flat_calls_per_s: float  # over gRPC, 64 callers, at `flat_rows`
    flat_rows: int
    ivf_bytes: float  # resident, vectors, words and ids included
    ivf_disk_bytes: float
    ivf_rows_built_per_s: Mapping[int, float]  # of one core, by rows: read, folded, indexed, hashed
    ivf_calls_per_s: Mapping[int, float]  # over gRPC, 64 callers, by rows
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
    if rows <= FLAT_UP_TO:
        engine, search, disk = "flat", constants.flat_bytes + constants.served_bytes, constants.flat_bytes
        index_core_s = 0.0
    elif rows <= ONE_PROCESS_UP_TO:
        engine, search, disk = "ivf", constants.ivf_bytes, constants.ivf_disk_bytes
        index_core_s = rows / _at(rows, constants.ivf_rows_built_per_s)
    else:
        engine, search, disk = "hnsw", constants.graph_bytes, constants.graph_bytes + DIM * 4
        index_core_s = rows / constants.graph_rows_built_per_s * _slower(constants)
    machines = max(1, math.ceil(rows * search / USABLE_BYTES))
    return Plan(
        name,
        rows,
        "milvus" if engine == "hnsw" else "files",
        engine,
        rows * search,
        rows * (disk + constants.stored_bytes),
        rows * constants.folding_bytes,
        rows / constants.encoded_per_s,
        index_core_s,
        rows / constants.upserted_per_s if engine == "hnsw" else 0.0,
        machines,
        _calls_per_s(rows, machines, engine, constants),
    )


def _calls_per_s(rows: int, machines: int, engine: str, constants: Constants) -> float:
    """Over gRPC, of an index process on files; of Milvus itself, where a query goes to all segments of all machines."""
    scanned_s = 1 / constants.flat_rows_scanned_per_s
    if engine == "flat":
        return 1 / (1 / constants.flat_calls_per_s + (rows - constants.flat_rows) * scanned_s)
    if engine == "ivf":
        return _at(rows, constants.ivf_calls_per_s)
    one_graph = constants.graph_queries_per_s / _slower(constants)
    return one_graph * CORES / math.ceil(rows / machines / SEGMENT_ROWS)


def _at(rows: int, measured: Mapping[int, float]) -> float:
    """Estimates a figure at `rows` from those measured at two sizes, as a power of the rows."""
    (small, first), (large, second) = sorted(measured.items())
    return first * (rows / small) ** (math.log(second / first) / math.log(large / small))


def _slower(constants: Constants) -> float:
    return math.log(SEGMENT_ROWS) / math.log(constants.graph_rows)


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
