"""The index's vocabulary: the values that its rooms pass to each other.

This module imports no other module of the index, which keeps the rooms free of import circles.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import (
    Collection,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import Generation, Storage
from services.corpus.premises import Clause
from services.store.artifacts import Artifact
from services.store.formats import known_fields

Precision = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class SearchHits:
    """The nearest rows of one query, best first: `ordinals` (int64) and `scores` (float32).

    `exact` means that no row was overlooked. The scores are exact in any case. Equal scores stand in the order of their
    ordinals.
    """

    ordinals: NDArray[np.int64]
    scores: NDArray[np.float32]
    exact: bool = True

    @classmethod
    def best(
        cls, ordinals: NDArray[np.int64], scores: NDArray[np.floating], k: int, *, exact: bool = True
    ) -> SearchHits:
        """Ranks rows by score and keeps the first k. Ties go to the lower ordinal, the premise inserted first."""
        rounded = scores.astype(np.float32, copy=False)  # first: what is told as equal is equal
        order = np.lexsort((ordinals, -rounded))[:k]
        return cls(ordinals[order], rounded[order], exact)

    def first(self, k: int) -> SearchHits:
        """Keeps the first k hits."""
        if len(self.ordinals) <= k:
            return self
        return SearchHits(self.ordinals[:k], self.scores[:k], self.exact)

    def without(self, ordinals: Collection[int], k: int) -> SearchHits:
        """Keeps the first k of the hits that are not among `ordinals`."""
        if not ordinals:
            return self.first(k)
        return self.where(~np.isin(self.ordinals, list(ordinals)), k)

    def where(self, mask: NDArray[np.bool_], k: int) -> SearchHits:
        """Keeps the first k of the hits that `mask` (n,) marks."""
        return SearchHits(self.ordinals[mask][:k], self.scores[mask][:k], self.exact)


@dataclass(frozen=True)
class Effort:
    """How hard an approximate engine tries: the lists IVF visits, the breadth of HNSW; 0 takes what its build measured.

    `exact` searches exactly, whatever the engine. Exact engines ignore the rest.
    """

    nprobe: int = 0
    ef_search: int = 0
    exact: bool = False


DEFAULT_EFFORT = Effort()

FusionMethod = Literal["min_max", "reciprocal_rank"]
LEXICAL_WEIGHT = 0.2
Mode = Literal["DENSE", "LEXICAL", "ITERATIVE_LEXICAL", "HYBRID"]
WITHOUT_ENCODER = {"LEXICAL", "ITERATIVE_LEXICAL"}


@dataclass(frozen=True)
class Scope:
    """Which premises a call may return, and how many for each query."""

    corpus: str
    k: int
    exclude_ids: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    generation: str = ""
    only_ids: tuple[str, ...] = ()
    before_id: str = ""
    clauses: frozenset[Clause] = frozenset()

    @property
    def tags(self) -> frozenset[str]:
        """All tags that it names."""
        return frozenset[str]().union(*(names for clause in self.clauses for names in clause))


@dataclass(frozen=True)
class Selection:
    """The premises that a search may return, by ordinal: `only` these (None: all), `before` this, less `excluded`.

    And of them those with one of `splits` or with no split, that fit one of `clauses`; empty ones allow all. Searches
    with equal selections share a scan.
    """

    splits: frozenset[str] = frozenset()
    excluded: frozenset[int] = frozenset()
    clauses: frozenset[Clause] = frozenset()
    only: frozenset[int] | None = None
    before: int | None = None


ALL = Selection()


@dataclass(frozen=True, eq=False)
class VectorQuery:
    """Vectors (n, dim) of the space `space_id` to find premises for."""

    vectors: NDArray[np.float32]
    space_id: str
    scope: Scope
    effort: Effort = DEFAULT_EFFORT


@dataclass(frozen=True)
class TextQuery:
    """Texts to find premises for, and how. `version` or `label` names the query encoder; None: the label `stable`.

    `accepted` lists premise ids for each text, or is empty. The cross-encoder re-ranks the first `rerank` premises (0:
    none), those of `rerank_versions` do together; `rerank_weight` is the weight of its score beside that of the first
    ranking (0: its score alone decides).
    `prior` and `negative_feedback`, both from 0 to 1, weigh the explanatory-power prior and what the best premises of a
    first ranking have in common. `features` are weights by name, whose sum orders the best anew.
    `precision`, `routing_key` and `request_id` go to the encoder; empty ones leave it the choice.
    """

    texts: tuple[str, ...]
    scope: Scope
    label: str | None = None
    version: str | None = None
    drop_self: bool = True
    truncate: bool = False
    mode: Mode = "DENSE"
    accepted: tuple[tuple[str, ...], ...] = ()
    rerank: int = 0
    rerank_weight: float = 0.0
    rerank_versions: tuple[str, ...] = ()
    prior: float = 0.0
    negative_feedback: float = 0.0
    lexical_weight: float = LEXICAL_WEIGHT
    fusion: FusionMethod = "min_max"
    features: Mapping[str, float] = field(default_factory=dict)
    effort: Effort = DEFAULT_EFFORT
    precision: Precision | None = None
    routing_key: str = ""
    request_id: str = ""

    @property
    def depth(self) -> int:
        """How many premises the first ranking finds for each text."""
        return self.rerank or self.scope.k


@dataclass
class Timings:
    """The seconds of an answer: in all, waiting in queues, computing, and at the encoder."""

    total_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    encode_s: float = 0.0

    def add(self, queue_s: float, compute_s: float) -> None:
        """Adds those of a part."""
        self.queue_s += queue_s
        self.compute_s += compute_s


@dataclass(frozen=True)
class RetrievalResult:
    """The hits of each query in the generation searched, by an encoder's `version` in `precision`.

    `unknown_splits` and `unknown_tags` are those of the scope that no premise has.
    """

    hits: list[SearchHits]
    served: GenerationView
    timings: Timings
    unknown_splits: tuple[str, ...] = ()
    unknown_tags: tuple[str, ...] = ()
    version: str = ""
    precision: str = ""
    reranked_by: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the lists of all queries are exact."""
        return all(one.exact for one in self.hits)


Sameness = Literal["EXACT", "NORMALIZED"]
BuildStage = Literal["RECEIVING", "INDEXING"]
AckLevel = Literal["RECEIVED", "DURABLE", "SEARCHABLE"]


@dataclass(frozen=True)
class BuildSpec:
    """The header of a build call: what to build. The caller waits `timeout_s` for it (None: for ever)."""

    corpus: str
    request_id: str = ""
    base_generation: str = ""
    delete_ids: tuple[str, ...] = ()
    activate: bool = False
    resume_from: int = 0
    sameness: Sameness = "EXACT"
    space_id: str = ""
    timeout_s: float | None = None

    def fingerprint(self) -> dict[str, str]:
        """Everything a retry must repeat, besides the premises. Not `activate`, which a caller may add at any time."""
        deleted = json.dumps(sorted(self.delete_ids)).encode()
        return {
            "base_generation": self.base_generation,
            "deleted_sha256": hashlib.sha256(deleted).hexdigest(),
            "sameness": self.sameness,
            "space_id": self.space_id,
        }


@dataclass(frozen=True)
class BuildProgress:
    """The progress of a build; the last one names the generation. `ack_level` holds for what `encoded` counts.

    `durable` counts the streamed premises that a retry need not stream again.
    """

    received: int
    encoded: int
    ack_level: AckLevel = "RECEIVED"
    durable: int = 0
    generation: Artifact | None = None
    activated: bool = False
    is_last: bool = False
    stage: BuildStage = "RECEIVING"


Engine = Literal["flat", "ivf", "hnsw", "milvus-flat", "milvus-hnsw"]
REMOTE_ENGINES = {"milvus-flat", "milvus-hnsw"}
RETRY_AFTER_S = 0.05  # after which a refused call may come back
LEAST_ROWS = 1000  # below it, an approximate engine has too little to learn from and a scan takes 0.1 ms


@dataclass(frozen=True)
class EngineOptions:
    """The operator's choice of search engine for new generations.

    `auto` takes `flat` up to `flat_premises` and `ivf` beyond. `recall` is the share of the true ten nearest that an
    approximate engine must find; `threads` build it. With `milvus`, a Milvus searches: `flat` compares with all
    premises, `hnsw` is approximate, `auto` decides by `flat_premises`.
    """

    engine: Literal["auto", "flat", "ivf", "hnsw"] = "auto"
    flat_premises: int = 250_000
    storage: Storage = "float32"
    recall: float = 0.99
    threads: int = 1
    milvus: Literal["auto", "flat", "hnsw"] | None = None

    def choose(self, rows: int) -> Engine:
        """Chooses the engine for a number of premises."""
        if self.milvus is not None:
            is_flat = self.milvus == "flat" or (self.milvus == "auto" and rows <= self.flat_premises)
            return "milvus-flat" if is_flat else "milvus-hnsw"
        if rows < LEAST_ROWS:
            return "flat"
        if self.engine != "auto":
            return self.engine
        return "flat" if rows <= self.flat_premises else "ivf"


@dataclass(frozen=True)
class LexicalSettings:
    """How new generations rank by words: BM25's k1 and b, what counts as a word, and the rounds of iterative BM25.

    A round takes `growth` times as many premises as the one before, from 1. The weights of the words that it adds are
    divided by `first_scale`, and by `downscale` more in each further round (Chia et al. 2020).
    """

    k1: float = 1.5
    b: float = 0.75
    words: Literal["stems", "lemmas", "words"] = "stems"
    first_scale: float = 1.25
    downscale: float = 1.25
    growth: float = 2.0

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> LexicalSettings:
        """Reads what a generation records."""
        return cls(**known_fields(cls, record))


@dataclass(frozen=True)
class BuildOptions:
    """How a build uses the encoders: texts per batch, batches in flight at each, seconds to wait without an answer.

    With a request id, a build syncs to disk every `sync_s` seconds, and an unfinished one is removed after `keep_s`.
    `engines` search the generation, by words as `lexical` says. What a build has done is known for `request_keep_s`.
    """

    batch: int = 128
    window: int = 4
    patience_s: float = 120.0
    sync_s: float = 1.0
    keep_s: float = 24 * 3600.0
    engines: EngineOptions = field(default_factory=EngineOptions)
    request_keep_s: float = 7 * 24 * 3600.0
    lexical: LexicalSettings = field(default_factory=LexicalSettings)


@dataclass(frozen=True)
class ReplicaState:
    """An index process: the generation of a corpus that it serves, and why it is behind others, if it is."""

    instance: str
    generation: str
    space_id: str
    is_behind: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Activation:
    """The active generation, the id of the one before it (None: there is or was none), and the live replicas."""

    active: Artifact | None
    previous: str | None
    replicas: tuple[ReplicaState, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """A hypothesis and the ids of the premises that explain it."""

    text: str
    premise_ids: tuple[str, ...]


class GenerationView(Protocol):
    """A generation as an answer names it, with its premises."""

    @property
    def id(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def generation(self) -> Generation: ...


class QueueLimit:
    """The one rule of admission: at most `limit` items of a kind wait, and calls beyond are refused.

    A call that finds the queue empty is admitted whatever its size, so that a large one can always run. Queues share no
    limit. `waiting` says in the error what the items are and where they wait.
    """

    def __init__(self, limit: int, waiting: str = "queries wait already") -> None:
        self.size = 0
        self._limit, self._waiting = limit, waiting

    def add(self, count: int, *, always: bool = False) -> None:
        """Admits `count` items. Raises Overloaded when the queue is full, unless they are `always` admitted."""
        is_over = self.size + count > self._limit
        if self.size and is_over and not always:
            raise errors.Overloaded(
                f"{self.size:,} {self._waiting}, the limit is {self._limit:,}; come back later",
                retry_after_s=RETRY_AFTER_S,
            )
        self.size += count

    def remove(self, count: int) -> None:
        """Takes off items that wait no longer."""
        self.size -= count

    @contextmanager
    def admitted(self, count: int) -> Iterator[None]:
        """Admits `count` items for the time of a block. Raises Overloaded when the queue is full."""
        self.add(count)
        try:
            yield
        finally:
            self.remove(count)
