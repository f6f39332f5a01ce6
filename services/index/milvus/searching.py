"""Searches of one generation in a Milvus, by vectors, by words and in rounds of growing words.

    query ──► Milvus: k + slack candidates ──► scored again ──► out of reach? ──► SearchHits
                 ▲                                                   │ no
                 └───────────────── four times as many ◄─────────────┘

Milvus proposes by float32 products. Candidates come along with vectors or words and are scored again as those of a flat
index (dense/exact.py) or of BM25 (words.py) are. All functions block on Milvus and compute: run them in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.corpus.inner_products import exact_scores
from services.index.catalogue.served import check_found
from services.index.dense.exact import is_out_of_reach, rounding_bound
from services.index.lexical.bm25 import Terms, rarity_of
from services.index.milvus import schema
from services.index.milvus.generation import NORM_TOLERANCE, Candidates, GenerationCollection, MilvusGeneration
from services.index.milvus.schema import K_MOST
from services.index.milvus.words import RoundsOfText, best_by_words, growing_query, premise_words, sparse_query
from services.index.ranking.features import FirstWords
from services.index.values import Scope, SearchHits

SLACK = 8  # candidates beyond k in the first attempt; each brings its vector along
NOTHING = SearchHits(np.empty(0, np.int64), np.empty(0, np.float32))
Propose = Callable[[Sequence[Any], int], Iterable[Candidates]]
Rank = Callable[[Any, Candidates, int, int], tuple[SearchHits, bool]]


@dataclass(frozen=True)
class RescoredHits:
    """The hits of each query, their premises by ordinal, and whether they are proven exact."""

    hits: list[SearchHits]
    premises: dict[int, PremiseRecord]
    exact: bool


@dataclass(frozen=True)
class AskedText:
    """A text to rank for in rounds: its weighted words, and the premises that none of its rounds may take.

    These are the one with its own text, if given, and those of `closed_ids`.
    """

    words: Mapping[str, float]
    own_text: str | None = None
    closed_ids: frozenset[str] = frozenset()


def search_collection(
    served: MilvusGeneration,
    scope: Scope,
    vectors: NDArray[np.float32],
    k: int,
    deadline_s: float | None,
    breadth: int = 0,
    has_left: Callable[[], bool] = lambda: False,
) -> RescoredHits:
    """Searches one collection by vectors (n, dim).

    It stops between two questions to Milvus once `has_left` says that the caller has gone.
    """
    propose = _proposer(served, served.collection, scope, deadline_s, breadth, has_left)
    return rescore(vectors, k, propose, is_exact=served.is_exact)


def search_words(
    served: MilvusGeneration,
    scope: Scope,
    words: Sequence[Mapping[str, float]],
    k: int,
    deadline_s: float | None,
    has_left: Callable[[], bool] = lambda: False,
) -> RescoredHits:
    """Searches one collection by weighted words, as `search_collection` does by vectors.

    Raises FailedPrecondition for a generation without a lexical index.
    """
    asked = [row for row, one in enumerate(words) if one] if served.worded else []
    ask = _proposer(served, served.collection.words, scope, deadline_s, 0, has_left)

    def propose(queries: Sequence[Any], width: int) -> Iterable[Candidates]:
        return ask([sparse_query(one) for one in queries], width)

    found = rescore([words[row] for row in asked], k, propose, is_exact=True, rank=best_by_words)
    hits = [NOTHING] * len(words)
    for row, one in zip(asked, found.hits, strict=True):
        hits[row] = one
    return replace(found, hits=hits)


def search_in_rounds(
    served: MilvusGeneration,
    scope: Scope,
    texts: Sequence[AskedText],
    k: int,
    deadline_s: float | None,
    has_left: Callable[[], bool] = lambda: False,
) -> RescoredHits:
    """Searches one collection by iterative BM25, all texts round by round.

    Raises FailedPrecondition for a generation without a lexical index, or without the frequencies of its words.
    """
    if not served.worded:
        return RescoredHits([NOTHING] * len(texts), {}, exact=True)
    settings = served.lexical
    containing = served.collection.containing({word for text in texts for word in text.words})
    rounds = [
        RoundsOfText(growing_query(text.words, containing, served.rows, k, settings), text.own_text, text.closed_ids)
        for text in texts
    ]
    ask = _proposer(served, served.collection.words, scope, deadline_s, 0, has_left, field=schema.UNIT)

    def propose(asked: Sequence[RoundsOfText], width: int) -> Iterable[Candidates]:
        return ask([sparse_query(one.query.weights) for one in asked], width)

    return take_rounds(rounds, propose)


def words_of_first(
    served: MilvusGeneration, weighted: Mapping[str, float], first: SearchHits, iterative: SearchHits
) -> FirstWords:
    """Reads the words of a query's first premises, by their numbers among all words of query and premises."""
    found = served.collection.words.sparse(first.ordinals.tolist()) if served.worded else {}
    read = premise_words([record.text for record, _ in found.values()], [sparse for _, sparse in found.values()])
    weights = {ordinal: one.weights for ordinal, one in zip(found, read, strict=True)}
    named = {*weighted, *(word for own in weights.values() for word in own)}
    containing = served.collection.containing(named) if served.worded else {}
    term = {word: number for number, word in enumerate(sorted(containing))}
    counts = np.array([containing[word] for word in term], np.int64)

    def numbered(own: Mapping[str, float]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        known = sorted(own.keys() & term.keys())
        return np.array([term[word] for word in known], np.int64), np.array([own[word] for word in known], np.float32)

    rows = [numbered(weights.get(ordinal, {})) for ordinal in first.ordinals.tolist()]
    rarity = rarity_of(counts, served.rows)
    return FirstWords(Terms(*numbered(weighted)), rows, rarity, iterative.ordinals.tolist())


def take_rounds(rounds: Sequence[RoundsOfText], propose: Propose) -> RescoredHits:
    """Takes the rounds of all texts, one after the other; `propose` asks Milvus as in `rescore`."""

    def rank(one: RoundsOfText, candidates: Candidates, _k: int, width: int) -> tuple[SearchHits, bool]:
        return one.rank(candidates, width)

    premises: dict[int, PremiseRecord] = {}
    exact = [True] * len(rounds)
    while under_way := [n for n, one in enumerate(rounds) if one.query.weights and one.query.size]:
        asked = [rounds[n] for n in under_way]
        found = rescore(asked, max(one.width for one in asked), propose, is_exact=True, rank=rank)
        premises |= found.premises
        for n, hits in zip(under_way, found.hits, strict=True):
            rounds[n].take(hits)
            exact[n] = exact[n] and hits.exact
    lists = [replace(one.query.hits, exact=is_exact) for one, is_exact in zip(rounds, exact, strict=True)]
    return RescoredHits(lists, premises, all(exact))


def _proposer(
    served: MilvusGeneration,
    collection: GenerationCollection,
    scope: Scope,
    deadline_s: float | None,
    breadth: int,
    has_left: Callable[[], bool],
    field: str = schema.VECTOR,
) -> Propose:
    named = [one for one in (*scope.only_ids, scope.before_id) if one]
    ordinals = collection.ordinals(named) if named else {}
    check_found(served, [one for one in named if one not in ordinals])
    expression = schema.allowed(scope, ordinals)
    timeout_s = None if deadline_s is None else max(min(deadline_s, served.link.timeout_s), 0.001)

    def propose(queries: Sequence[Any], width: int) -> Iterable[Candidates]:
        if has_left():
            raise errors.Cancelled("the caller has gone; ask again")
        return collection.candidates(queries, width, expression, field=field, breadth=breadth, timeout_s=timeout_s)

    return propose


def rescore(
    queries: Sequence[Any] | NDArray[np.float32], k: int, propose: Propose, *, is_exact: bool, rank: Rank | None = None
) -> RescoredHits:
    """Finds the best k premises of each query. `propose` asks Milvus for that many candidates of some queries.

    `rank` scores them again, by default by vectors (dim,). `is_exact` says that Milvus compares a query with every
    premise: only then do more candidates help.
    """
    results: dict[int, SearchHits] = {}
    premises: dict[int, PremiseRecord] = {}
    pending, width, exact = list(range(len(queries))), min(k + SLACK, K_MOST), is_exact
    while pending:
        proposed = propose([queries[row] for row in pending], width)
        for row, candidates in zip(pending, proposed, strict=True):
            hits, is_final = (rank or _rescored)(queries[row], candidates, k, width)
            is_last_attempt = not is_exact or width == K_MOST
            if is_final or is_last_attempt:
                exact = exact and is_final
                results[row] = replace(hits, exact=is_exact and is_final)
                wanted = set(hits.ordinals.tolist())
                pairs = zip(candidates.ordinals.tolist(), candidates.records, strict=True)
                premises |= {ordinal: record for ordinal, record in pairs if ordinal in wanted}
        pending = [row for row in pending if row not in results]
        width = min(width * 4, K_MOST)
    return RescoredHits([results[row] for row in range(len(queries))], premises, exact)


def _rescored(query: NDArray[np.float32], candidates: Candidates, k: int, width: int) -> tuple[SearchHits, bool]:
    """Ranks the candidates, and says whether nothing outside them can be among the best k."""
    scores = exact_scores(candidates.vectors, query.astype(np.float64))
    hits = SearchHits.best(candidates.ordinals, scores, k)
    if len(scores) < width:  # there are no more premises
        return hits, True
    ceiling = float(candidates.raw.min()) + rounding_bound(query[None], 1.0 + NORM_TOLERANCE)
    return hits, bool(is_out_of_reach(ceiling, hits.scores[-1:])[0])
