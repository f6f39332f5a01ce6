"""Ranks held-out queries as Retrieve would with given weights, by models and a prior that have not seen them.

Their vectors go through the stages of Retrieve itself: what is tuned is what is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument
from aeenc.evaluation import average_precision
from services.corpus.generation import Generation, PremiseRecord, Premises
from services.index.catalogue.served import ServedGeneration
from services.index.dense.exact import FlatIndex
from services.index.lexical.bm25 import LexicalIndex
from services.index.ranking import alone, fusion
from services.index.ranking.fusion import POOL, Prior
from services.index.ranking.stages import KEPT_SCORES, Call, Stages
from services.index.values import ALL, FEATURES, VECTOR_FEATURES, Mode, Scope, SearchHits, TextQuery
from services.store.artifacts import Artifact
from services.tuning.words import drawn_of, ranks_in

BLOCK = 256  # queries of a call
RIDGE, STEPS = 1e-3, 50  # of the fit of features
RERANKED = 20  # premises that a cross-encoder reads
Example = tuple[NDArray[np.float64], NDArray[np.bool_]]  # features (n, f) of the first premises, which are gold


@dataclass(frozen=True)
class Weights:
    """The options of Retrieve that are tuned, each from 0 to 1; in mode dense, only the last."""

    lexical_weight: float = 0.0
    prior: float = 0.0
    negative_feedback: float = 0.0


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Queries with their gold premises as ordinals, vectors (n, dim) of an encoder and a prior that know neither.

    Of premises that are `unjudged`, a list for each query, features learn nothing; none: all are judged.
    """

    texts: Sequence[str]
    gold: Sequence[Sequence[int]]
    vectors: NDArray[np.float32]
    prior: Prior
    unjudged: Sequence[Sequence[int]] = ()


def drawn(folds: Sequence[HeldOut], most: int, seed: int) -> list[HeldOut]:
    """Draws at most so many queries of all folds; 0: all."""
    sizes = [len(fold.texts) for fold in folds]
    chosen = drawn_of(sum(sizes), most, seed)
    found = []
    for fold, start in zip(folds, np.cumsum([0, *sizes]).tolist(), strict=False):
        rows = [n - start for n in chosen if start <= n < start + len(fold.texts)]
        texts, gold = [fold.texts[n] for n in rows], [fold.gold[n] for n in rows]
        found.append(HeldOut(texts, gold, fold.vectors[rows], fold.prior))
    return found


@dataclass(frozen=True, eq=False)
class LearnedOrder:
    """Weights by feature, and the ranking of each query by weights that its fold had no part in."""

    features: Mapping[str, float]
    rankings: Sequence[SearchHits]


class OutOfFold:
    """Ranks the premises of a corpus, with vectors (n, dim), for the held-out queries of all folds."""

    def __init__(self, texts: Sequence[str], premises: NDArray[np.float32], folds: Sequence[HeldOut]) -> None:
        records = Premises.of(PremiseRecord(str(n), text) for n, text in enumerate(texts))
        artifact = Artifact(Path(), "generation", "out-of-fold", {}, {}, "", datetime.now(UTC))
        generation = Generation(artifact, records, premises, "out-of-fold", "", "", premises.shape[1])
        served = ServedGeneration(generation, FlatIndex(premises), LexicalIndex.of(texts))
        self._folds = folds
        self._calls = [[_call_of(served, fold, at) for at in range(0, len(fold.texts), BLOCK)] for fold in folds]

    @property
    def queries(self) -> list[str]:
        """The texts of all queries, in the order of all results."""
        return [text for fold in self._folds for text in fold.texts]

    def value(self, weights: Weights) -> float:
        """Strict MAP of the rankings by weights."""
        return self.map_of(self.rankings(weights))

    def map_of(self, rankings: Iterable[SearchHits]) -> float:
        """Strict MAP of a ranking for each query: a query does not find its own text."""
        gold = [ordinals for fold in self._folds for ordinals in fold.gold]
        each = zip(gold, rankings, strict=True)
        return float(np.mean([average_precision(ranks_in(hits, ordinals)) for ordinals, hits in each]))

    def rankings(self, weights: Weights) -> Iterator[SearchHits]:
        """Yields the first POOL premises of each query, as Retrieve ranks them."""
        for call in (call for calls in self._calls for call in calls):
            yield from alone.finished(_ranked(_with(call, weights)))

    def ordered(self, weights: Weights, features: Mapping[str, float]) -> Iterator[SearchHits]:
        """Yields these rankings with their first premises ordered by features, which have weights of their own."""
        for fold in range(len(self._folds)):
            for hits, known, _ in self._examples(fold, weights, tuple(features)):
                yield fusion.order_by(hits, known, features, POOL)

    def learn(self, weights: Weights, names: Sequence[str] = FEATURES) -> LearnedOrder:
        """Fits the weights of features on all queries, and ranks those of each fold by weights fitted on the others."""
        folds = [self._examples(n, weights, names) for n in range(len(self._folds))]
        rankings = list[SearchHits]()
        for n, own in enumerate(folds):
            learned = fit([one for of in folds[:n] + folds[n + 1 :] for *_, one in of], names)
            rankings += [fusion.order_by(hits, features, learned, POOL) for hits, features, _ in own]
        return LearnedOrder(fit([one for of in folds for *_, one in of], names), rankings)

    def _examples(
        self, fold: int, weights: Weights, names: Sequence[str]
    ) -> list[tuple[SearchHits, NDArray[np.float64], Example]]:
        """Each query's ranking, the features of its first premises, and what is learned from those that are judged."""
        examples, own = list[tuple[SearchHits, NDArray[np.float64], Example]](), self._folds[fold]
        for call in self._calls[fold]:
            ranked = alone.finished(_ranked(_with(call, weights, names)))
            for row, hits in enumerate(ranked):
                features, n = call.features(row, hits, names), len(examples)
                first = hits.ordinals[: len(features)]
                judged = ~np.isin(first, own.unjudged[n] if own.unjudged else ())
                examples.append((hits, features, (features[judged], np.isin(first[judged], own.gold[n]))))
        return examples


def _call_of(served: ServedGeneration, fold: HeldOut, start: int) -> Call:
    """A call of some queries of a fold, already encoded; it keeps what no weight changes."""
    texts = tuple(fold.texts[start : start + BLOCK])
    call = Call.of(TextQuery(texts, Scope("out-of-fold", POOL)), served, ALL, None, fold.prior)
    call.encoded, call.keeps_words = fold.vectors[start : start + BLOCK], len(texts) * served.index.rows <= KEPT_SCORES
    return call


def _with(call: Call, weights: Weights, names: Sequence[str] = ()) -> Call:
    """The call with other weights; in mode HYBRID where one of them, or a feature of these names, is of words."""
    by_words = weights.lexical_weight or not set(names) <= set(VECTOR_FEATURES)
    mode: Mode = "HYBRID" if by_words else "DENSE"
    call.query = replace(call.query, mode=mode, **asdict(weights))
    call.vectors = call.encoded
    return call


async def _ranked(call: Call) -> list[SearchHits]:
    """Goes through the stages of Retrieve after the first, which encodes."""
    nobody: Any = None  # no stage asks the encoder or a cross-encoder
    hits = list[SearchHits]()
    for stage in Stages(alone.search, alone.each, nobody, nobody, alone.at_once).of(call.query)[1:]:
        hits = await stage(call, hits)
    return hits


def reranked(
    rankings: Iterable[SearchHits], scores: Iterable[NDArray[np.float32]], weight: float
) -> Iterator[SearchHits]:
    """Yields each ranking with its first premises ordered by score + `weight` x the cross-encoder's; others follow."""
    for hits, own in zip(rankings, scores, strict=True):
        n = len(own)
        rest = SearchHits(hits.ordinals[n:], hits.scores[n:])
        yield fusion.reranked(hits.first(n), [own], n, weight).followed_by(rest)


def fit(examples: Sequence[Example], names: Sequence[str] = FEATURES) -> dict[str, float]:
    """Finds the weights of some features under which the gold premises of many queries are likeliest.

    By Newton's method on a softmax over the premises of a query (ListNet with binary relevance), features at unit
    variance, a small ridge. It looks at as many premises of each query as the shortest has; queries without a gold one
    teach nothing. Raises InvalidArgument where all are such.
    """
    if not any(gold.any() for _, gold in examples):
        raise InvalidArgument(f"none of {len(examples)} queries has a gold premise among its first; name other queries")
    least = min(len(gold) for _, gold in examples)  # in corpora of fewer premises than are ordered
    rows = np.stack([features[:least] for features, _ in examples])[..., [FEATURES.index(name) for name in names]]
    wanted = np.stack([gold[:least] for _, gold in examples]).astype(np.float64)
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
