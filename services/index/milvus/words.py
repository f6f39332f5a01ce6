"""BM25 in a Milvus: the weights that files keep, as sparse vectors of each premise.

    query words ──► Milvus: k + slack candidates, scored a little too high ──► weights added up as files add them

Iterative BM25 ranks by cosine: Milvus proposes by weights that are scaled to length 1. A word's dimension is a hash, so
that no vocabulary has to be read. Words that share a dimension make Milvus's score too high, never too low: it
proposes, and the final score counts a weight only where the premise's text has the word. Milvus's own BM25 splits words
in another way. This module has no connection to Milvus.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.index.dense.exact import UNIT_ROUNDOFF
from services.index.lexical.bm25 import GrowingQuery, LexicalIndex, document_weights
from services.index.lexical.words import words_of
from services.index.milvus.generation import Candidates
from services.index.values import LexicalSettings, SearchHits

DIMENSIONS = 2**32 - 1  # of a sparse vector in Milvus


class PremiseVectors(NamedTuple):
    """The weights of a premise's words by dimension, and the same scaled to length 1; empty for one without words."""

    weights: dict[int, float]
    unit: dict[int, float]


@dataclass(frozen=True, eq=False)
class PremiseWords:
    """The words of a premise, and the weight of each, which is a float32."""

    weights: Mapping[str, float]

    def score(self, query: Mapping[str, float]) -> np.float32:
        """Scores the premise by the weighted words of a query, to the bit as `LexicalIndex.scores` does."""
        total = np.float32(0)
        for word in sorted(self.weights.keys() & query.keys()):
            total += np.float32(query[word]) * np.float32(self.weights[word])
        return total

    def cosine(self, query: Mapping[str, float]) -> np.float32:
        """The same over the length of the premise's weights, as `LexicalIndex.iterate` does."""
        return self.score(query) / self._length

    @cached_property
    def _length(self) -> np.float32:
        return length_of([self.weights[word] for word in sorted(self.weights)])


def length_of(weights: Sequence[float]) -> np.float32:
    """The Euclidean length of the weights of words in rising order; 1 where there are none."""
    return np.float32(math.sqrt(sum(one * one for one in weights)) or 1.0)


def sparse_vectors(index: LexicalIndex) -> Iterator[PremiseVectors]:
    """Makes the vectors of each premise of an index."""
    vocabulary = list(index.vocabulary)
    for ordinal in range(index.rows):
        terms, weights = index.row(ordinal)
        words, unit = [vocabulary[term] for term in terms], weights / length_of(weights.tolist())
        yield PremiseVectors(*(_vector(dict(zip(words, one.tolist(), strict=True))) for one in (weights, unit)))


def sparse_query(weighted: Mapping[str, float]) -> dict[int, float]:
    """Makes the vector of a query from the weights of its words."""
    vector: defaultdict[int, float] = defaultdict(float)
    for word, weight in weighted.items():
        vector[_dimension(word)] += weight
    return dict(vector)


def premise_words(texts: Sequence[str], vectors: Sequence[Mapping[int, float]]) -> list[PremiseWords]:
    """Reads the words of premises from their texts, and the weights from their vectors."""
    return [
        PremiseWords({word: vector[place] for word, place in _places(words).items()})
        for words, vector in zip(words_of(texts), vectors, strict=True)
    ]


def lexical_scores(
    weighted: Mapping[str, float], texts: Sequence[str], vectors: Sequence[Mapping[int, float]]
) -> NDArray[np.float32]:
    """Scores premises (n,) by their texts and vectors."""
    return np.array([one.score(weighted) for one in premise_words(texts, vectors)], np.float32)


def best_by_words(weighted: Mapping[str, float], candidates: Candidates, k: int, width: int) -> tuple[SearchHits, bool]:
    """Ranks the candidates, and says whether nothing outside them can be among the best k."""
    scores = lexical_scores(weighted, [one.text for one in candidates.records], candidates.vectors)
    return best_of(candidates, scores, scores > 0, k, width, len(weighted))


def best_of(
    candidates: Candidates, scores: NDArray[np.float32], open_: NDArray[np.bool_], k: int, width: int, words: int
) -> tuple[SearchHits, bool]:
    """Ranks those candidates that are open, whose `scores` (n,) add up the weights of at most `words` words.

    It says whether nothing outside the candidates can be among the best k.
    """
    hits = SearchHits.best(candidates.ordinals[open_], scores[open_], k)
    if len(scores) < width:  # no more premises have a word of the query
        return hits, True
    # all products are positive: each of the two float32 sums is off by at most this share
    ceiling = float(candidates.raw.min()) * (1.0 + 4 * (words + 4) * UNIT_ROUNDOFF)
    last = float(np.nextafter(hits.scores[-1], np.float32(-np.inf))) if len(hits.scores) == k else 0.0
    return hits, ceiling < last


class RoundsOfText:
    """The rounds of iterative BM25 for one text: what its query has grown to, and the premises that are closed to it.

    Closed are those that a round took, the premise that is the text itself (`own_text`), and those of `closed_ids`.
    """

    def __init__(self, query: GrowingQuery[str], own_text: str | None, closed_ids: frozenset[str]) -> None:
        self.query = query
        self._own_text, self._closed_ids = own_text, closed_ids
        self._taken: set[int] = set()
        self._words: dict[int, PremiseWords] = {}  # of all candidates so far

    @property
    def width(self) -> int:
        """How many premises to ask for, so that those of the next round are among them."""
        return self.query.size + len(self._taken) + len(self._closed_ids) + (self._own_text is not None)

    def rank(self, candidates: Candidates, width: int) -> tuple[SearchHits, bool]:
        """Ranks a round's candidates, and says whether nothing outside them can be among its premises."""
        ordinals = candidates.ordinals.tolist()
        new = [place for place, ordinal in enumerate(ordinals) if ordinal not in self._words]
        read = premise_words([candidates.records[n].text for n in new], [candidates.vectors[n] for n in new])
        self._words |= {ordinals[n]: one for n, one in zip(new, read, strict=True)}
        query = self.query.weights
        scores = np.array([self._words[ordinal].cosine(query) for ordinal in ordinals], np.float32)
        open_ = [
            ordinal not in self._taken and one.text != self._own_text and one.id not in self._closed_ids
            for ordinal, one in zip(ordinals, candidates.records, strict=True)
        ]
        return best_of(candidates, scores, (scores > 0) & np.array(open_, bool), self.query.size, width, len(query))

    def take(self, found: SearchHits) -> None:
        """Takes a round's premises."""
        taken = found.ordinals.tolist()
        self._taken.update(taken)
        weights = [self._words[one].weights for one in taken]
        self.query.take(found, ((one.keys(), np.fromiter(one.values(), np.float32)) for one in weights))


def growing_query(
    weighted: Mapping[str, float], containing: Mapping[str, int], rows: int, k: int, settings: LexicalSettings
) -> GrowingQuery[str]:
    """Begins the rounds of a text by those of its weighted words that premises contain; `containing` counts them."""
    words = [word for word in weighted if word in containing]
    counts = np.array([weighted[word] for word in words], np.float32)
    weights = document_weights(counts, np.array([containing[word] for word in words], np.int64), rows, settings)
    return GrowingQuery(dict(zip(words, weights.tolist(), strict=True)), k, settings)


def _vector(weights: Mapping[str, float]) -> dict[int, float]:
    """Makes the vector of a premise. A dimension that its words share holds the largest of their weights."""
    vector: dict[int, float] = {}
    for word, place in _places(weights).items():
        vector[place] = weights[word]
        shared = _dimension(word)
        vector[shared] = max(vector.get(shared, 0.0), weights[word])
    return vector


def _places(words: Iterable[str]) -> dict[str, int]:
    """The dimension of each word of a premise: its hash, or the next free one for words that share a hash."""
    by_hash: defaultdict[int, list[str]] = defaultdict(list)
    for word in sorted(set(words)):
        by_hash[_dimension(word)].append(word)
    places = {shared[0]: dimension for dimension, shared in by_hash.items() if len(shared) == 1}
    taken = set(by_hash)
    for dimension, shared in by_hash.items():
        for word in shared if len(shared) > 1 else []:
            places[word] = next(free for n in count(1) if (free := (dimension + n) % DIMENSIONS) not in taken)
            taken.add(places[word])
    return places


def _dimension(word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % DIMENSIONS
