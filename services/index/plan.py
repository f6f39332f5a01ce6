"""Which search engine a generation gets, and what its manifest says about it. Pure values; knows no FAISS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from services.corpus.generation import Storage

Engine = Literal["flat", "ivf", "hnsw"]
INDEX_FILE = "index.faiss"
LEAST_ROWS = 1000  # below, an approximate engine has too little to learn from and a scan takes 0.1 ms


@dataclass(frozen=True)
class EngineOptions:
    """What an operator says about the engines of new generations.

    `auto` takes `flat` up to `flat_premises` and `ivf` beyond. `recall` is the share of the true ten nearest that an
    approximate engine must find; `threads` build it.
    """

    engine: Literal["auto", "flat", "ivf", "hnsw"] = "auto"
    flat_premises: int = 250_000
    storage: Storage = "float32"
    recall: float = 0.99
    threads: int = 1

    def choose(self, rows: int) -> Engine:
        """The engine for that many premises."""
        if rows < LEAST_ROWS:
            return "flat"
        if self.engine != "auto":
            return self.engine
        return "flat" if rows <= self.flat_premises else "ivf"


@dataclass(frozen=True)
class Plan:
    """An approximate engine as it was built and measured.

    `lists` are IVF's, `links` HNSW's (0 for the other). `breadth` is the number of lists visited or HNSW's search
    breadth that reached the `recall_at_10` over `queries` queries; for k premises 2k + `candidates` are scored.
    """

    engine: Engine
    breadth: int
    candidates: int
    recall_at_10: float
    recall_wanted: float
    queries: int
    lists: int = 0
    links: int = 0

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Plan:
        """The plan in a manifest's meta. Raises KeyError or TypeError when it is none."""
        return cls(**meta["index"])

    def to_meta(self) -> dict[str, Any]:
        """What the manifest keeps."""
        return asdict(self)
