"""Features of the first premises of a ranking: the premises of an explanation fit together.

What one premise explains of the query, no other has to: told one premise of an explanation, BM25 finds the others twice
as well (docs/evaluation.md). Nobody tells, and the first premise is often wrong; so each of the first PARTNERS is
taken for right with a probability by its score, and a premise gets the mean of its scores given each of the others.
The weighted sum of all features orders the first DEPTH premises anew. Weights are found by `aeenc tune-retrieval`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.index.lexical.bm25 import COVERED, LexicalIndex, Terms
from services.index.ranking.fusion import EXPLAINED, scaled
from services.index.values import SearchHits

DEPTH = 100  # premises that are ordered anew
PARTNERS = 20
TEMPERATURE = 0.08  # of the partners' probabilities; their scores lie within 0 and 1
NOT_FOUND = 3 * DEPTH  # the rank of what iterative BM25 does not have among its first DEPTH

NAMES = (
    "first",  # the score of the first ranking
    "rank",  # minus the logarithm of its rank there
    "iterative",  # minus the logarithm of its rank in iterative BM25
    "query_covered",  # the share of the query's words that it has, by their rarity
    "premise_covered",  # the share of its words that the query has, by their rarity
    "length",  # the number of its distinct words
    "words_given_others",  # the share of the best BM25 score for the query less what another premise says
    "left_by_others",  # the share of the query's words that it has and another premise does not, by their rarity
    "vectors_given_others",  # the cosine with the query less half of another premise's vector
)

# Those that need no words: mode DENSE has them too.
VECTOR_NAMES = ("first", "rank", "vectors_given_others")


@dataclass(frozen=True, eq=False)
class FirstWords:
    """The words of a query and of the n first premises of its ranking, as terms: numbers that rise with the words.

    `rows` are the terms of each premise with BM25's weights, `rarity` is by term, `iterative` the first DEPTH ordinals
    of iterative BM25.
    """

    query: Terms
    rows: Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]
    rarity: NDArray[np.float32]
    iterative: Sequence[int]

    @classmethod
    def of(
        cls, terms: Terms, first: SearchHits, lexical: LexicalIndex, allowed: NDArray[np.bool_] | None
    ) -> FirstWords:
        """Reads them from an index; iterative BM25 finds only what is `allowed`."""
        rows = [lexical.row(ordinal) for ordinal in first.ordinals.tolist()]
        return cls(terms, rows, lexical.rarity, lexical.iterate(terms, DEPTH, allowed).ordinals.tolist())


def features_of(
    first: SearchHits, words: FirstWords | None, vector: NDArray[np.float32], vectors: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Computes the features (n, len(NAMES)) of the n first premises of a ranking, whose scores lie within 0 and 1.

    `vector` (dim,) is the query's and `vectors` (n, dim) theirs. Without `words`, features of words are 0.
    """
    n = len(first.ordinals)
    probability = np.exp((first.scores[:PARTNERS].astype(np.float64) - first.scores[:1]) / TEMPERATURE)
    columns = {
        "first": first.scores,
        "rank": -np.log(np.arange(1, n + 1)),
        "vectors_given_others": _mean_given_others(_cosines_given(vector, vectors, PARTNERS), probability),
    }
    if words is not None:
        columns |= _of_words(first, words, probability)
    return np.stack([np.asarray(columns.get(name, np.zeros(n)), np.float64) for name in NAMES], axis=1)


def _of_words(first: SearchHits, words: FirstWords, probability: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    shared = _SharedWords(words)
    iterative = dict.fromkeys(first.ordinals.tolist(), NOT_FOUND)
    iterative |= {one: at for at, one in enumerate(words.iterative, start=1)}
    covered = shared.has @ shared.wanted
    return {
        "iterative": -np.log([iterative[one] for one in first.ordinals.tolist()]),
        "query_covered": covered / (shared.wanted.sum() or 1.0),
        "premise_covered": covered / np.maximum(shared.rarity, 1e-6),
        "length": shared.lengths,
        "words_given_others": _mean_given_others(shared.given(PARTNERS), probability, share_of_best=True),
        "left_by_others": _mean_given_others(shared.left(PARTNERS) / (shared.wanted.sum() or 1.0), probability),
    }


def order_by(first: SearchHits, features: NDArray[np.float64], weights: Mapping[str, float], k: int) -> SearchHits:
    """Orders the first hits anew by the weighted sum of their features (n, …); the k best of all.

    Their scores then lie between 1 and the least that one of them had, so that the others follow.
    """
    n = len(features)
    sums = features @ np.array([weights.get(name, 0.0) for name in NAMES])
    least = float(first.scores[n - 1]) if n else 0.0
    ordered = SearchHits.best(first.ordinals[:n], least + (1.0 - least) * scaled(sums.astype(np.float32)), n)
    ordinals = np.concatenate([ordered.ordinals, first.ordinals[n:]])
    return SearchHits(ordinals, np.concatenate([ordered.scores, first.scores[n:]]), first.exact).first(k)


class _SharedWords:
    """The words of premises, over those that the query or one of the first PARTNERS has, in columns.

    `weights` (n, words) are BM25's, `has` (n, words) says which they have; `query` (words,) are the query's own, 1 or
    less where something accepted has them, and `wanted` (words,) the same by rarity. `rarity` and `lengths` (n,) sum up
    all words of a premise.
    """

    def __init__(self, words: FirstWords) -> None:
        terms, rows = words.query, words.rows
        known = np.unique(np.concatenate([terms.ids, *(ids for ids, _ in rows[:PARTNERS])]))
        self.weights = np.zeros((len(rows), len(known)))
        for at, (ids, weights) in enumerate(rows):
            places = np.searchsorted(known, ids)
            shared = known[np.minimum(places, len(known) - 1)] == ids if len(known) else np.zeros(len(ids), bool)
            self.weights[at, places[shared]] = weights[shared]
        self.has = (self.weights > 0).astype(np.float64)
        self.query = np.zeros(len(known))
        self.query[np.searchsorted(known, terms.ids)] = np.minimum(terms.weights, 1.0)
        self.wanted = self.query * words.rarity[known]
        self.rarity = np.array([float(words.rarity[ids].sum()) for ids, _ in rows])
        self.lengths = np.array([len(ids) for ids, _ in rows])

    def given(self, partners: int) -> NDArray[np.float64]:
        """The BM25 score of each premise for the query and each of the first premises (n, partners).

        A word that query and premise share counts less, as one that was accepted.
        """
        other = self.has[:partners]
        joined = np.where((self.query > 0) & (other > 0), 2 * COVERED, np.maximum(self.query, other))
        return np.asarray(self.weights @ joined.T, np.float64)

    def left(self, partners: int) -> NDArray[np.float64]:
        """The rarity of the query's words that each premise has and each of the first does not (n, partners)."""
        return np.asarray((self.has * self.wanted) @ (1.0 - self.has[:partners]).T, np.float64)


def _cosines_given(vector: NDArray[np.float32], vectors: NDArray[np.float32], partners: int) -> NDArray[np.float64]:
    """The cosine of each premise with the query less what each of the first premises explains (n, partners)."""
    rows = vectors.astype(np.float64)
    left = vector.astype(np.float64) - EXPLAINED * rows[:partners]
    lengths = np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)
    return np.asarray(rows @ (left / lengths).T, np.float64)


def _mean_given_others(
    scores: NDArray[np.float64], probability: NDArray[np.float64], *, share_of_best: bool = False
) -> NDArray[np.float64]:
    """The mean of each row over its partners by their probability, without itself: (n,)."""
    itself = np.eye(*scores.shape) > 0
    others = np.where(itself, 0.0, scores)
    if share_of_best:
        others = others / np.maximum(others.max(axis=0, keepdims=True), 1e-6)
    weights = np.where(itself, 0.0, probability)
    return np.asarray((weights * others).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9))
