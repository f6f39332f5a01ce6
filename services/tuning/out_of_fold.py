"""Ranks held-out queries as Retrieve would with given weights, by models and a prior that have not seen them.

It calls the functions that Retrieve calls (fusion.py) over exact cosines: what is tuned is what is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument
from aeenc.evaluation import UNRANKED, average_precision
from aeenc.evaluation.metrics import Ranks
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.ranking.fusion import (
    DEPTH,
    FEEDBACK,
    POOL,
    FirstWords,
    Prior,
    features_of,
    fuse_hits,
    order_by,
    rocchio_feedback,
    with_bonus,
    with_pair_scores,
)
from services.index.values import FEATURES, VECTOR_FEATURES, SearchHits

BLOCK = 256  # queries whose cosines are in memory together
RIDGE, STEPS = 1e-3, 50  # of the fit of features
RERANKED = 20  # premises that a cross-encoder reads


@dataclass(frozen=True)
class Weights:
    """The options of Retrieve that are tuned, each from 0 to 1; in mode dense, only the last."""

    lexical_weight: float = 0.0
    prior: float = 0.0
    negative_feedback: float = 0.0


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Queries with their gold premises as ordinals, vectors (n, dim) of an encoder and a prior that know neither."""

    texts: Sequence[str]
    gold: Sequence[Sequence[int]]
    vectors: NDArray[np.float32]
    prior: Prior

    def __iter__(self) -> Iterator[tuple[str, Sequence[int], NDArray[np.float32]]]:
        """Yields text, gold premises and vector of each query."""
        yield from zip(self.texts, self.gold, self.vectors, strict=True)


def drawn(folds: Sequence[HeldOut], most: int, seed: int) -> list[HeldOut]:
    """Draws at most so many queries of all folds; 0: all."""
    sizes = [len(fold.texts) for fold in folds]
    if not most or sum(sizes) <= most:
        return [*folds]
    chosen = np.sort(np.random.default_rng(seed).permutation(sum(sizes))[:most])
    found = []
    for fold, start in zip(folds, np.cumsum([0, *sizes]).tolist(), strict=False):
        rows = [n - start for n in chosen.tolist() if start <= n < start + len(fold.texts)]
        texts, gold = [fold.texts[n] for n in rows], [fold.gold[n] for n in rows]
        found.append(HeldOut(texts, gold, fold.vectors[rows], fold.prior))
    return found


@dataclass(frozen=True, eq=False)
class Example:
    """A query's ranking, the features of its first premises, and its gold premises."""

    hits: SearchHits
    features: NDArray[np.float64]
    gold: Sequence[int]


@dataclass(frozen=True, eq=False)
class LearnedOrder:
    """Weights by feature, and the ranking of each query by weights that its fold had no part in."""

    features: Mapping[str, float]
    rankings: Sequence[SearchHits]


class OutOfFold:
    """Ranks the premises of a corpus, with vectors (n, dim), for the held-out queries of all folds."""

    def __init__(self, texts: Sequence[str], premises: NDArray[np.float32], folds: Sequence[HeldOut]) -> None:
        self._premises, self._folds = premises, folds
        self._lexical = LexicalIndex.of(texts)
        self._ordinal = {text: n for n, text in enumerate(texts)}

    @property
    def queries(self) -> list[str]:
        """The texts of all queries, in the order of all results."""
        return [text for fold in self._folds for text in fold.texts]

    def value(self, weights: Weights) -> float:
        """Strict MAP over all queries."""
        return float(self.average_precisions(self.rankings(weights)).mean())

    def average_precisions(self, rankings: Iterable[SearchHits]) -> NDArray[np.float64]:
        """The average precision of each query in its ranking, strict: a query does not find its own text."""
        gold = [own for fold in self._folds for own in fold.gold]
        ranks = (_ranks(own, hits) for own, hits in zip(gold, rankings, strict=True))
        return np.array([average_precision(own) for own in ranks])

    def rankings(self, weights: Weights) -> Iterator[SearchHits]:
        """Yields the first POOL premises of each query, as Retrieve ranks them."""
        at = 0
        for fold in self._folds:
            for start in range(0, len(fold.texts), BLOCK):
                vectors = fold.vectors[start : start + BLOCK]
                rows = range(at + start, at + start + len(vectors))
                if weights.negative_feedback:
                    first = [hits.ordinals[:FEEDBACK] for hits in self._ranked(rows, vectors, weights)]
                    turned = [self._premises[own] for own in first]
                    vectors = rocchio_feedback(vectors, turned, weights.negative_feedback)
                yield from self._ranked(rows, vectors, weights)
            at += len(fold.texts)

    def learn(self, weights: Weights, names: Sequence[str] = FEATURES) -> LearnedOrder:
        """Fits the weights of features on all queries, and ranks those of each fold by weights fitted on the others."""
        examples = list(self.examples(weights, with_words=not set(names) <= set(VECTOR_FEATURES)))
        least = min((len(one.features) for one in examples), default=0)  # corpora of fewer premises than DEPTH
        found = [one.features[:least] for one in examples]
        gold = [np.isin(one.hits.ordinals[:least], one.gold) for one in examples]
        folds = np.repeat(np.arange(len(self._folds)), [len(fold.texts) for fold in self._folds])
        rankings = [one.hits for one in examples]
        for fold in range(len(self._folds)):
            others = np.flatnonzero(folds != fold).tolist()
            learned = fit([found[n] for n in others], [gold[n] for n in others], names)
            for n in np.flatnonzero(folds == fold).tolist():
                rankings[n] = order_by(examples[n].hits, examples[n].features, learned, POOL)
        return LearnedOrder(fit(found, gold, names), rankings)

    def examples(self, weights: Weights, *, with_words: bool = True) -> Iterator[Example]:
        """Yields the ranking of each query with the features of its first premises."""
        asked = [(text, own, vector) for fold in self._folds for text, own, vector in fold]
        for (text, gold, vector), words, hits in zip(asked, self._by_words, self.rankings(weights), strict=True):
            first = hits.first(DEPTH)
            near = self._premises[first.ordinals]
            own_words = None
            if with_words:
                own_words = FirstWords(self._lexical.terms(text), first, self._lexical, self._all_but(words.own))
            found = features_of(first, own_words, vector, near)
            yield Example(hits, found, gold)

    def _ranked(self, rows: range, vectors: NDArray[np.float32], weights: Weights) -> Iterator[SearchHits]:
        cosines = vectors @ self._premises.T
        for n, row in enumerate(rows):
            words = self._by_words[row]
            mine = cosines[n]
            near = _nearest(mine, words.own)
            if weights.lexical_weight:
                scores = np.zeros(len(mine), np.float32)
                scores[words.hits.ordinals] = words.hits.scores
                by_words = words.hits.first(POOL)
                near = fuse_hits(near, by_words, scores, mine.__getitem__, weights.lexical_weight, "min_max", POOL)
            if weights.prior:
                bonus = np.zeros(len(mine), np.float32)
                bonus[words.explained] = words.bonus
                near = with_bonus(near, bonus[near.ordinals], weights.prior, POOL)
            yield near

    def _all_but(self, own: int) -> NDArray[np.bool_] | None:
        """Marks all premises (n,) but a query's own text; None if the query is no premise (-1)."""
        return np.arange(len(self._premises)) != own if own >= 0 else None

    @cached_property
    def _by_words(self) -> list[_Words]:
        """Computes once what stays the same for all weights."""
        found, everything = [], np.arange(len(self._premises))
        for fold in self._folds:
            for text in fold.texts:
                own = self._ordinal.get(text, -1)
                scores = self._lexical.scores(self._lexical.terms(text))
                hits = best(scores, len(self._premises), self._all_but(own))
                bonus = fold.prior.bonus(fold.prior.nearest(text), everything)
                explained = np.flatnonzero(bonus)
                found.append(_Words(own, hits, explained, bonus[explained]))
        return found


@dataclass(frozen=True, eq=False)
class _Words:
    """How words and the prior rank the premises for one query.

    `own` is the ordinal of the query's own text, -1 if it is no premise. `bonus` is the prior's for the ordinals
    `explained`.
    """

    own: int
    hits: SearchHits
    explained: NDArray[np.int64]
    bonus: NDArray[np.float32]


def _nearest(cosines: NDArray[np.float32], own: int) -> SearchHits:
    """The POOL premises of highest cosine, without the query's own text."""
    k = min(POOL + 1, len(cosines))
    found = np.argpartition(-cosines, k - 1)[:k]
    return SearchHits.best(found[found != own], cosines[found[found != own]], POOL)


def _ranks(gold: Sequence[int], hits: SearchHits) -> Ranks:
    places = {ordinal: rank for rank, ordinal in enumerate(hits.ordinals.tolist(), start=1)}
    return np.array([places.get(one, UNRANKED) for one in gold], dtype=np.int64)


def reranked(
    rankings: Iterable[SearchHits], scores: Iterable[NDArray[np.float32]], weight: float
) -> Iterator[SearchHits]:
    """Yields each ranking with its first premises ordered by score + `weight` x the cross-encoder's; others follow."""
    for hits, own in zip(rankings, scores, strict=True):
        n = len(own)
        first = with_pair_scores(hits.first(n), own, weight, n)
        ordinals, scores_of_all = (first.ordinals, hits.ordinals[n:]), (first.scores, hits.scores[n:])
        yield SearchHits(np.concatenate(ordinals), np.concatenate(scores_of_all))


def fit(
    features: Sequence[NDArray[np.float64]], gold: Sequence[NDArray[np.bool_]], names: Sequence[str] = FEATURES
) -> dict[str, float]:
    """Finds the weights of some features under which the gold premises of many queries are likeliest.

    By Newton's method on a softmax over the premises of a query (ListNet with binary relevance), features at unit
    variance, a small ridge. All queries have as many premises; those without a gold one teach nothing. Raises
    InvalidArgument where all are such.
    """
    if not any(own.any() for own in gold):
        raise InvalidArgument(f"none of {len(gold)} queries has a gold premise among its first; name other queries")
    rows = np.stack(features)[..., [FEATURES.index(name) for name in names]]
    wanted = np.stack(gold).astype(np.float64)
    rows, wanted = rows[wanted.any(axis=1)], wanted[wanted.any(axis=1)]
    rows = rows - rows.mean(axis=1, keepdims=True)
    scale = rows.std(axis=(0, 1))
    scale[scale == 0] = 1.0
    weights = _newton(rows / scale, wanted / wanted.sum(axis=1, keepdims=True)) / scale
    return dict(zip(names, weights.tolist(), strict=True))


def _newton(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Maximises the mean log likelihood of `wanted` (q, n), a distribution each, over weights of `rows` (q, n, f)."""
    queries, _, size = rows.shape
    weights = np.zeros(size)

    def likelihood(tried: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        sums = rows @ tried
        sums -= sums.max(axis=1, keepdims=True)
        exponents = np.exp(sums)
        total = exponents.sum(axis=1, keepdims=True)
        value = float((wanted * (sums - np.log(total))).sum()) / queries - RIDGE * float(tried @ tried)
        return value, exponents / total

    target = np.einsum("qn,qnf->f", wanted, rows) / queries
    value, shares = likelihood(weights)
    for _ in range(STEPS):
        mean = np.matmul(shares[:, None, :], rows)[:, 0]
        gradient = target - mean.mean(axis=0) - 2 * RIDGE * weights
        spread = (rows * np.sqrt(shares)[..., None]).reshape(-1, size)
        curvature = (spread.T @ spread - mean.T @ mean) / queries + 2 * RIDGE * np.eye(size)
        step = np.linalg.solve(curvature, gradient)
        before, share = value, 1.0
        value, shares = likelihood(weights + step)
        while value < before and share > 1e-4:  # a full step from afar goes too far
            share /= 2
            value, shares = likelihood(weights + share * step)
        weights = weights + share * step
        if value - before < 1e-9:
            break
    return weights
