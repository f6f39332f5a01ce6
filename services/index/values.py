"""The index's vocabulary: the values that its rooms pass to each other.

A question checks itself, and refuses with the field, the value and the remedy. This module imports no other module of
the index, which keeps the rooms free of import circles.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import Clause, Storage
from services.kit.limits import Limits, check_count, check_k, check_texts
from services.store.artifacts import Artifact

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

    def followed_by(self, others: SearchHits) -> SearchHits:
        """Joins two lists, one behind the other."""
        joined = np.concatenate([self.ordinals, others.ordinals]), np.concatenate([self.scores, others.scores])
        return SearchHits(*joined, self.exact)

    def without(self, ordinals: Collection[int], k: int) -> SearchHits:
        """Keeps the first k of the hits that are not among `ordinals`."""
        if not ordinals:
            return self.first(k)
        kept = ~np.isin(self.ordinals, list(ordinals))
        return SearchHits(self.ordinals[kept][:k], self.scores[kept][:k], self.exact)


@dataclass(frozen=True)
class SearchParams:
    """How hard an approximate engine tries: the lists IVF visits, the breadth of HNSW; 0 takes what its build measured.

    `exact` searches exactly, whatever the engine. Exact engines ignore the rest.
    """

    nprobe: int = 0
    ef_search: int = 0
    exact: bool = False


DEFAULT_PARAMS = SearchParams()

FusionMethod = Literal["min_max", "reciprocal_rank"]
LEXICAL_WEIGHT = 0.2
Mode = Literal["DENSE", "LEXICAL", "ITERATIVE_LEXICAL", "HYBRID"]
WITHOUT_ENCODER = {"LEXICAL", "ITERATIVE_LEXICAL"}
LEAST_SQUARE, LARGEST_SQUARE = 0.99**2, 1.01**2  # of a unit vector; one in half precision stays well within them
ENSEMBLE = 8  # cross-encoders at most
HEAVIEST = 1e30  # weight of a feature or of a cross-encoder: sums of what they weigh stay far within float32
CLAUSES = 64  # of a filter, and tags of a clause, at most

FEATURES = (
    "first",  # the score of the first ranking
    "rank",  # minus the logarithm of its rank there
    "iterative",  # minus the logarithm of its rank in iterative BM25
    "query_covered",  # the share of the query's words that it has, by their rarity
    "premise_covered",  # the share of its words that the query has, by their rarity
    "length",  # the number of its distinct words
    "words_given_others",  # the share of the best BM25 score for the query less what another premise says
    "left_by_others",  # the share of the query's words that it has and another premise does not, by their rarity
    "vectors_given_others",  # the cosine with the query less half of another premise's vector
    "words_given_many",  # these three are those given others, where more premises count as given, and more alike
    "left_by_many",
    "vectors_given_many",
)
VECTOR_FEATURES = ("first", "rank", "vectors_given_others", "vectors_given_many")  # they need no words: DENSE has them
WIDE_FEATURES = FEATURES[-3:]  # with one of them, more of the first premises are ordered
_refuse = errors.InvalidArgument.field


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

    def check(self, limits: Limits) -> None:
        """Refuses a k, a list of ids or splits, or clauses of tags beyond the limits."""
        check_k(self.k, limits)
        lists = {
            "exclude_ids": self.exclude_ids,
            "filter.only_ids": self.only_ids,
            "filter.any_split": self.splits,
        }
        for name, names in lists.items():
            if names:
                check_count(len(names), limits, name)
        sizes = [len(wanted) + len(unwanted) for wanted, unwanted in self.clauses]
        if len(sizes) > CLAUSES or not all(1 <= size <= CLAUSES for size in sizes):
            raise _refuse(
                "filter.any_clause",
                f"has {len(sizes):,} clauses with {', '.join(map(str, sizes[:8]))} tags; give up to {CLAUSES} clauses "
                f"of 1 to {CLAUSES} tags, or store a tag for what they select",
            )


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
    params: SearchParams = DEFAULT_PARAMS

    def check(self, limits: Limits) -> None:
        """Refuses no vectors, too many, or a scope beyond the limits."""
        check_count(len(self.vectors), limits, "vectors")
        self.scope.check(limits)

    def check_unit(self) -> None:
        """Refuses vectors that are not finite or not of unit length: their inner products would not be cosines."""
        squares = [float(np.vdot(row, row)) for row in self.vectors]  # float32 is exact enough for a tolerance of 1e-2
        for number, square in enumerate(squares):
            if LEAST_SQUARE <= square <= LARGEST_SQUARE:
                continue
            length = float(np.linalg.norm(self.vectors[number].astype(np.float64)))
            if not math.isfinite(length):
                raise _refuse(f"vectors[{number}]", "holds NaN or infinity; send finite numbers")
            raise _refuse(f"vectors[{number}]", f"has length {length:.4g}; scale it to 1, as Encode returns it")


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
    params: SearchParams = DEFAULT_PARAMS
    precision: Precision | None = None
    routing_key: str = ""
    request_id: str = ""

    @property
    def depth(self) -> int:
        """How many premises the first ranking finds for each text."""
        return self.rerank or self.scope.k

    def check(self, limits: Limits) -> None:
        """Refuses texts, a scope, shares, a re-ranking or accepted premises beyond the limits or of no use together."""
        check_texts(self.texts, limits)
        self.scope.check(limits)
        shares = {
            "fusion.lexical_weight": self.lexical_weight,
            "prior": self.prior,
            "negative_feedback": self.negative_feedback,
        }
        for name, share in shares.items():
            if not 0.0 <= share <= 1.0:
                raise _refuse(name, f"{share:.8g} is not within 0 and 1; give its share")
        if self.prior and self.mode == "ITERATIVE_LEXICAL":
            raise _refuse("prior", "cannot be added to scores of different rounds; use mode LEXICAL, or set it to 0")
        if self.negative_feedback and self.mode in WITHOUT_ENCODER:
            raise _refuse(
                "negative_feedback", f"changes vectors, and mode {self.mode} has none; use DENSE or HYBRID, or 0"
            )
        self._check_features()
        self._check_reranking(limits)
        if self.accepted and len(self.accepted) != len(self.texts):
            raise _refuse(
                "accepted",
                f"has {len(self.accepted)} lists for {len(self.texts)} texts; give one for each text, or none",
            )
        if any(len(ids) > limits.items for ids in self.accepted):
            raise _refuse("accepted", f"has over {limits.items:,} ids for a text; give fewer")

    def _check_features(self) -> None:
        known = VECTOR_FEATURES if self.mode == "DENSE" else FEATURES
        for name, weight in self.features.items():
            if name not in known:
                raise _refuse("fusion.features", f"has {name!r}; mode {self.mode} has {', '.join(known)}")
            if not abs(weight) <= HEAVIEST:
                raise _refuse("fusion.features", f"{name} is {weight:g}; give one from {-HEAVIEST:g} to {HEAVIEST:g}")
        if self.features and self.mode in WITHOUT_ENCODER:
            raise _refuse(
                "fusion.features", f"order what DENSE and HYBRID find, and the mode is {self.mode}; use those, or none"
            )

    def _check_reranking(self, limits: Limits) -> None:
        if self.rerank and not self.scope.k <= self.rerank <= limits.k:
            raise _refuse("rerank", f"is {self.rerank}; give k ({self.scope.k}) to {limits.k:,}, or 0 for none")
        if self.rerank_weight:
            self._check_rerank_weight()
        if self.rerank_versions:
            self._check_ensemble()

    def _check_ensemble(self) -> None:
        versions = self.rerank_versions
        if not len(set(versions)) == len(versions) <= ENSEMBLE:
            raise _refuse("rerank_versions", f"has {', '.join(versions)}; give at most {ENSEMBLE} different versions")
        if not self.rerank:
            raise _refuse(
                "rerank_versions", "are given and rerank is 0; say how many premises to re-rank, or leave them out"
            )
        if self.rerank_weight and len(versions) > 1:
            raise _refuse(
                "rerank_weight", f"is {self.rerank_weight:g}; an ensemble ranks by its sum of ranks alone, set it to 0"
            )

    def _check_rerank_weight(self) -> None:
        weight = self.rerank_weight
        if not 0.0 < weight <= HEAVIEST:
            raise _refuse(
                "rerank_weight",
                f"is {weight:g}; give a positive number up to {HEAVIEST:g}, or set it to 0 for its score alone",
            )
        if not self.rerank:
            raise _refuse(
                "rerank_weight", f"is {weight:g} and rerank is 0; say how many premises to re-rank, or set it to 0"
            )
        if self.mode == "ITERATIVE_LEXICAL":
            raise _refuse(
                "rerank_weight",
                f"is {weight:g}, but cannot be added to scores of different rounds; use mode LEXICAL, or set it to 0",
            )


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


Engine = Literal["flat", "ivf", "hnsw", "milvus-flat", "milvus-hnsw"]
REMOTE_ENGINES = {"milvus-flat", "milvus-hnsw"}
RETRY_AFTER_S = 0.05  # after which a refused call may come back
LEAST_ROWS = 1000  # below it, an approximate engine has too little to learn from and a scan takes 0.1 ms


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


STANDARD_WORDS = LexicalSettings()


@dataclass(frozen=True)
class EngineOptions:
    """The operator's choice of how new generations are searched.

    `auto` takes `flat` up to `flat_premises` and `ivf` beyond. `recall` is the share of the true ten nearest that an
    approximate engine must find; `threads` build it. With `milvus`, a Milvus searches: `flat` compares with all
    premises, `hnsw` is approximate, `auto` decides by `flat_premises`. By words they are searched as `lexical` says.
    """

    engine: Literal["auto", "flat", "ivf", "hnsw"] = "auto"
    flat_premises: int = 250_000
    storage: Storage = "float32"
    recall: float = 0.99
    threads: int = 1
    milvus: Literal["auto", "flat", "hnsw"] | None = None
    lexical: LexicalSettings = STANDARD_WORDS

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
class BuildOptions:
    """How a build uses the encoders: texts per batch, batches in flight at each, seconds to wait without an answer.

    With a request id, a build syncs to disk every `sync_s` seconds, and an unfinished one is removed after `keep_s`.
    `engines` search the generation. What a build has done is known for `request_keep_s`.
    """

    batch: int = 128
    window: int = 4
    patience_s: float = 120.0
    sync_s: float = 1.0
    keep_s: float = 24 * 3600.0
    engines: EngineOptions = field(default_factory=EngineOptions)
    request_keep_s: float = 7 * 24 * 3600.0


FoldingRule = Literal["EXACT", "NORMALIZED"]
BuildStage = Literal["RECEIVING", "INDEXING"]
AckLevel = Literal["RECEIVED", "DURABLE", "SEARCHABLE"]


@dataclass(frozen=True)
class BuildSpec:
    """The header of a build call: what to build. The caller waits `timeout_s` for it (None: for ever).

    Without a rule, premises are folded as in the base generation.
    """

    corpus: str
    request_id: str = ""
    base_generation: str = ""
    delete_ids: tuple[str, ...] = ()
    activate: bool = False
    resume_from: int = 0
    folding: FoldingRule | None = None
    space_id: str = ""
    truncate: bool = False
    timeout_s: float | None = None

    def fingerprint(self) -> dict[str, str]:
        """Everything a retry must repeat, besides the premises. A caller may add `activate` and `truncate` later."""
        deleted = json.dumps(sorted(self.delete_ids)).encode()
        return {
            "base_generation": self.base_generation,
            "deleted_sha256": hashlib.sha256(deleted).hexdigest(),
            "folding": self.folding or "",
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
    is_last: bool = False
    stage: BuildStage = "RECEIVING"


@dataclass(frozen=True)
class ReplicaState:
    """An index process: the generation of a corpus that it serves, and why it is behind others, if it is."""

    instance: str
    generation: str
    space_id: str
    behind: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Explanation:
    """A hypothesis and the ids of the premises that explain it."""

    text: str
    premise_ids: tuple[str, ...]


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
