"""What the index is asked and what it answers, as values. No connection is opened here; `aeenc.index` calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aeenc.v1 import index_pb2, types_pb2

FusionMethod = Literal["min_max", "reciprocal_rank"]
Mode = Literal["dense", "lexical", "hybrid", "iterative_lexical"]
MODES = {
    "dense": index_pb2.RETRIEVE_MODE_DENSE,
    "lexical": index_pb2.RETRIEVE_MODE_LEXICAL,
    "hybrid": index_pb2.RETRIEVE_MODE_HYBRID,
    "iterative_lexical": index_pb2.RETRIEVE_MODE_ITERATIVE_LEXICAL,
}
_METHODS = {
    "min_max": index_pb2.FUSION_METHOD_MIN_MAX,
    "reciprocal_rank": index_pb2.FUSION_METHOD_RECIPROCAL_RANK,
}


@dataclass(frozen=True)
class Fusion:
    """How mode hybrid puts both rankings together. `lexical_weight` is BM25's share, from 0 to 1; None: the index's."""

    method: FusionMethod = "min_max"
    lexical_weight: float | None = None

    def to_proto(self) -> index_pb2.Fusion:
        """As it travels."""
        return index_pb2.Fusion(method=_METHODS[self.method], lexical_weight=self.lexical_weight)


@dataclass(frozen=True)
class Hit:
    """One premise found: its id, its text and its score, a cosine in mode dense."""

    id: str
    text: str
    score: float


@dataclass(frozen=True)
class SearchResult:
    """The premises found for each vector, best first: `ids[i]` with `scores[i]` (float32)."""

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]
    generation: str
    space_id: str
    exact: bool


@dataclass(frozen=True)
class Retrieved:
    """The premises found for each text, best first, and what they came from: encoder, generation, cross-encoder.

    `model_version` and `rerank_version` are empty where no such model was asked.
    """

    results: list[list[Hit]]
    model_version: str
    space_id: str
    generation: str
    timings: types_pb2.Timings
    rerank_version: str = ""

    def __iter__(self) -> Iterator[list[Hit]]:
        return iter(self.results)

    def __getitem__(self, position: int) -> list[Hit]:
        return self.results[position]

    def __len__(self) -> int:
        return len(self.results)
