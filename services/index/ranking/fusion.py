"""The arithmetic of ranking: two rankings into one, feedback on query vectors, the prior, features. It reads no disk.

Weighted min-max scores are the default fusion. Reciprocal ranks (Cormack et al. 2009) ignore how far apart scores are,
which costs quality here (docs/evaluation.md).

The premises of an explanation fit together: what one explains of the query, no other has to, and told one of them, BM25
finds the others twice as well. A query does not say which one is right, and the first one is often wrong. So each of
the first PARTNERS counts as right with a probability by its score, and a premise gets its mean score given each of the
others. The weighted sum of all features orders the first DEPTH premises anew, or WIDE_DEPTH, by features given many;
`aeenc tune-retrieval` finds weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.index.lexical.bm25 import COVERED, LexicalIndex, Terms
from services.index.values import FEATURES, WIDE_FEATURES, Explanation, FusionMethod, SearchHits

POOL = 1000  # premises of each first ranking that are fused, and scored by the prior
FEEDBACK = 5  # premises of a first ranking that negative feedback looks at
EXPLAINED = 0.5  # share of the premises' mean that a query loses to what is accepted (docs/experiments/retrieval.md)
LEAST_LEFT = 1e-3  # length of what feedback leaves of a query
RANK_OFFSET = 60  # of reciprocal ranks, as in the paper
DEPTH, WIDE_DEPTH = 100, 200  # premises that are ordered anew
PARTNERS = {"others": (20, 0.08), "many": (40, 0.3)}  # with a temperature; their scores lie within 0 and 1
NOT_FOUND = 3  # the rank of what iterative BM25 does not have among the first premises, times their number at most
NEAREST = 40  # hypotheses that count for the prior
NearHypotheses = Sequence[tuple[int, np.float32]]  # hypotheses, nearest first, each with its similarity


def fuse(
    dense: NDArray[np.float32], lexical: NDArray[np.float32], lexical_weight: float, method: FusionMethod = "min_max"
) -> NDArray[np.float32]:
    """Combines the `dense` and `lexical` scores of the same candidates (n,); `lexical_weight` lies in [0, 1]."""
    normalise = scaled if method == "min_max" else _by_rank
    return ((1.0 - lexical_weight) * normalise(dense) + lexical_weight * normalise(lexical)).astype(np.float32)


def reranked(hits: SearchHits, scores: Sequence[NDArray[np.float32]], k: int, weight: float) -> SearchHits:
    """Keeps the best k of hits (n,) by the scores (n,) of a cross-encoder, or by the sum of ranks of several.

    With a weight, the score is the hit's own plus so much of the cross-encoder's.
    """
    if not len(hits.ordinals):
        return hits
    total = scores[0] if len(scores) == 1 else -_sum_of_ranks(hits.ordinals, scores)
    if weight:
        total = (hits.scores + weight * total.astype(np.float64)).astype(np.float32)
    return SearchHits.best(hits.ordinals, total, k, exact=hits.exact)


def _sum_of_ranks(ordinals: NDArray[np.int64], scores: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Adds up the ranks, from 1, that several scores (n,) give; equal scores rank by ordinal."""
    total = np.zeros(len(ordinals), np.float32)
    for own in scores:
        total[np.lexsort((ordinals, -own))] += np.arange(1, len(ordinals) + 1, dtype=np.float32)
    return total


def fuse_hits(
    near: SearchHits,
    by_words: SearchHits,
    lexical: NDArray[np.float32],
    cosines_of: Callable[[NDArray[np.int64]], NDArray[np.float32]],
    lexical_weight: float,
    method: FusionMethod,
    k: int,
) -> SearchHits:
    """Combines the best premises by vectors and by words; `lexical` are the word scores of all premises (rows,).

    `cosines_of` scores the premises that only the words have found.
    """
    added = np.setdiff1d(by_words.ordinals, near.ordinals)
    ordinals = np.concatenate([near.ordinals, added])
    cosines = np.concatenate([near.scores, cosines_of(added)])
    fused = fuse(cosines, lexical[ordinals], lexical_weight, method)
    return SearchHits.best(ordinals, fused, k, exact=near.exact)


def scaled(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scales scores (n,) from 0 for the least to 1 for the best; all become 0 where all are equal."""
    exact = scores.astype(np.float64)
    span = float(np.ptp(exact)) if len(exact) else 0.0
    return (exact - exact.min()) / span if span else np.zeros(len(exact))


def _by_rank(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Reciprocal ranks; equal scores share the best of their ranks."""
    ordered = np.sort(-scores)
    ranks = np.searchsorted(ordered, -scores, side="left") + 1
    return 1.0 / (RANK_OFFSET + ranks)


def rocchio_feedback(
    vectors: NDArray[np.float32], premises: Sequence[NDArray[Any]], share: float
) -> NDArray[np.float32]:
    """Takes a share of the mean of some premises' vectors off each query; the result has unit length.

    A query of which nothing would be left but the rounding keeps its vector.

    `premises` has one array (premises, dim) for each query: the premises accepted for it, whose words its text holds as
    well, or the best of a first ranking. This is Rocchio's feedback (1971) with a negative weight.
    """
    changed = vectors.copy()
    for row, own in enumerate(premises):
        if len(own):
            left = changed[row] - np.float32(share) * own.mean(axis=0, dtype=np.float32)
            length = np.linalg.norm(left)
            if length > LEAST_LEFT:
                changed[row] = left / length
    return changed


@dataclass(frozen=True, eq=False)
class Prior:
    """The explanatory-power prior (Valentino et al. 2022): what explained similar hypotheses may explain this one.

    It compares hypotheses by their words, so that it needs no encoder, outlives every checkpoint, and is up to date as
    soon as an explanation is put. A hypothesis with exactly the query's words (in any case) is left out: its
    explanation is the answer, not a prior. The premises of hypothesis n of `index` are the ordinals `explained[n]`.
    """

    explained: Sequence[Sequence[int]]
    index: LexicalIndex
    by_text: Mapping[str, list[int]]

    @classmethod
    def over(cls, explanations: Sequence[Explanation], known: Mapping[str, int]) -> Prior:
        """Prepares explanations over the premises whose ordinals `known` has by id; skips others. It takes a while."""
        explained = [sorted({known[one] for one in each.premise_ids if one in known}) for each in explanations]
        by_text: dict[str, list[int]] = {}
        for n, each in enumerate(explanations):
            by_text.setdefault(_folded(each.text), []).append(n)
        return cls(explained, LexicalIndex.of([each.text for each in explanations]), by_text)

    def nearest(self, text: str) -> NearHypotheses:
        """The hypotheses nearest to a text, nearest first, each with its similarity."""
        near = self.index.similarities(text)
        near[self.by_text.get(_folded(text), [])] = 0
        nearest = np.argsort(-near, kind="stable")[:NEAREST]
        return [(n, near[n]) for n in nearest[near[nearest] > 0].tolist()]

    def bonus(self, near: NearHypotheses, ordinals: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores premises (n,): the sum of the similarities of the near hypotheses that each has explained.

        It is divided by the largest sum of all premises, also of those that are none of `ordinals`.
        """
        total: dict[int, np.float32] = {}
        for n, similarity in near:
            for ordinal in self.explained[n]:
                total[ordinal] = total.get(ordinal, np.float32(0)) + similarity
        most = max(total.values(), default=np.float32(1))
        return np.array([total.get(ordinal, np.float32(0)) / most for ordinal in ordinals.tolist()], np.float32)


def with_bonus(pool: SearchHits, bonus: NDArray[np.float32], share: float, k: int) -> SearchHits:
    """Ranks a pool again by the weighted sum of its scores, scaled to 0 to 1, and the prior's bonus (n,)."""
    weight = np.float32(share)
    scores = (1 - weight) * scaled(pool.scores) + weight * bonus
    return SearchHits.best(pool.ordinals, scores, k, exact=pool.exact)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def depth_of(features: Collection[str]) -> int:
    """The number of first premises that features of these names order anew."""
    return DEPTH if set(WIDE_FEATURES).isdisjoint(features) else WIDE_DEPTH


def features_of(
    first: SearchHits, words: FirstWords | None, vector: NDArray[np.float32], vectors: NDArray[np.float32], depth: int
) -> NDArray[np.float64]:
    """Computes the features (n, len(FEATURES)) of the n first premises of a ranking, whose scores lie within 0 and 1.

    `vector` (dim,) is the query's and `vectors` (n, dim) theirs. Without `words`, features of words are 0, and for a
    `depth` of DEPTH those given many.
    """
    n = len(first.ordinals)
    columns = {"first": first.scores, "rank": -np.log(np.arange(1, n + 1))}
    if words is not None:
        covered = words.has @ words.wanted
        columns |= {
            "iterative": -np.log(words.iterative),
            "query_covered": covered / words.total,
            "premise_covered": covered / np.maximum(words.rarity, 1e-6),
            "length": words.lengths,
        }
    for name, (partners, temperature) in PARTNERS.items():
        if name == "many" and depth == DEPTH:
            continue
        probability = np.exp((first.scores[:partners].astype(np.float64) - first.scores[:1]) / temperature)
        columns[f"vectors_given_{name}"] = _mean_given_others(_cosines_given(vector, vectors, partners), probability)
        if words is not None:
            given, left = words.given(partners), words.left(partners) / words.total
            columns[f"words_given_{name}"] = _mean_given_others(given, probability, share_of_best=True)
            columns[f"left_by_{name}"] = _mean_given_others(left, probability)
    return np.stack([np.asarray(columns.get(name, np.zeros(n)), np.float64) for name in FEATURES], axis=1)


def order_by(first: SearchHits, features: NDArray[np.float64], weights: Mapping[str, float], k: int) -> SearchHits:
    """Orders the first hits anew by the weighted sum of their features (n, …); the k best of all.

    Their scores then lie between 1 and the least that one of them had, so that the others follow.
    """
    n = len(features)
    sums = features @ np.array([weights.get(name, 0.0) for name in FEATURES])
    least = float(first.scores[n - 1]) if n else 0.0
    scores = least + (1.0 - least) * scaled(sums.astype(np.float32))
    ordered = SearchHits.best(first.ordinals[:n], scores, n, exact=first.exact)
    return ordered.followed_by(SearchHits(first.ordinals[n:], first.scores[n:])).first(k)


class FirstWords:
    """The words of a query and of the n first premises of its ranking: in columns, those of it and of the partners.

    `weights` (n, words) are BM25's, `has` (n, words) says which they have; `query` (words,) are the query's own, 1 or
    less where something accepted has them, `wanted` (words,) the same by rarity, and `total` its sum. `rarity` and
    `lengths` (n,) sum up all words of a premise; `iterative` (n,) are the ranks in iterative BM25 of those `allowed`.
    """

    def __init__(
        self, terms: Terms, first: SearchHits, lexical: LexicalIndex, allowed: NDArray[np.bool_] | None, depth: int
    ) -> None:
        partners, _ = PARTNERS["others" if depth == DEPTH else "many"]
        rows = [lexical.row(ordinal) for ordinal in first.ordinals.tolist()]
        known = np.unique(np.concatenate([terms.ids, *(ids for ids, _ in rows[:partners])]))
        self.weights = np.zeros((len(rows), len(known)))
        for at, (ids, weights) in enumerate(rows):
            places = np.searchsorted(known, ids)
            shared = known[np.minimum(places, len(known) - 1)] == ids if len(known) else np.zeros(len(ids), bool)
            self.weights[at, places[shared]] = weights[shared]
        self.has = (self.weights > 0).astype(np.float64)
        self.query = np.zeros(len(known))
        self.query[np.searchsorted(known, terms.ids)] = np.minimum(terms.weights, 1.0)
        self.wanted = self.query * lexical.rarity[known]
        self.total = float(self.wanted.sum()) or 1.0
        self.rarity = np.array([float(lexical.rarity[ids].sum()) for ids, _ in rows])
        self.lengths = np.array([len(ids) for ids, _ in rows])
        ranked = lexical.iterate(terms, depth, allowed).ordinals.tolist()
        found = {one: rank for rank, one in enumerate(ranked, start=1)}
        self.iterative = [found.get(one, NOT_FOUND * depth) for one in first.ordinals.tolist()]

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
        others = others / others.max(axis=0, keepdims=True, initial=1e-6)
    weights = np.where(itself, 0.0, probability)
    return np.asarray((weights * others).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9))
