"""BM25 in a Milvus: the weights that files keep, as one sparse vector for each premise.

    query words ──► Milvus: k + slack candidates, scored a little too high ──► weights added up as files add them

A word's dimension is a hash, so that no vocabulary has to be read. Words that share a dimension make Milvus's score
too high, never too low: it proposes, and the final score counts a weight only where the premise's text has the word.
Milvus's own BM25 splits words in another way. This module has no connection to Milvus.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from services.index.dense.exact import UNIT_ROUNDOFF
from services.index.lexical.bm25 import LexicalIndex
from services.index.lexical.words import words_of
from services.index.milvus.generation import Candidates
from services.index.values import SearchHits

DIMENSIONS = 2**32 - 1  # of a sparse vector in Milvus


def sparse_vectors(texts: Sequence[str]) -> Iterator[dict[int, float]]:
    """Makes the vector of each text; an empty one for a text without words."""
    index = LexicalIndex.of(texts)
    vocabulary = list(index.vocabulary)
    for ordinal in range(len(texts)):
        terms, weights = index.row(ordinal)
        words = {vocabulary[term]: weight for term, weight in zip(terms.tolist(), weights.tolist(), strict=True)}
        yield _vector(words)


def sparse_query(weighted: Mapping[str, float]) -> dict[int, float]:
    """Makes the vector of a query from the weights of its words."""
    vector: defaultdict[int, float] = defaultdict(float)
    for word, weight in weighted.items():
        vector[_dimension(word)] += weight
    return dict(vector)


def lexical_scores(
    weighted: Mapping[str, float], texts: Sequence[str], vectors: Sequence[Mapping[int, float]]
) -> NDArray[np.float32]:
    """Scores premises (n,) by their texts and vectors, to the bit as `LexicalIndex.scores` does."""
    scores = np.zeros(len(texts), np.float32)
    rising = sorted(weighted)
    for row, (words, vector) in enumerate(zip(words_of(texts), vectors, strict=True)):
        places = _places(words)
        for word in rising:
            if word in places:
                scores[row] += np.float32(weighted[word]) * np.float32(vector[places[word]])
    return scores


def best_by_words(weighted: Mapping[str, float], candidates: Candidates, k: int, width: int) -> tuple[SearchHits, bool]:
    """Ranks the candidates, and says whether nothing outside them can be among the best k."""
    scores = lexical_scores(weighted, [one.text for one in candidates.records], candidates.vectors)
    found = scores > 0
    hits = SearchHits.best(candidates.ordinals[found], scores[found], k)
    if len(scores) < width:  # no more premises have a word of the query
        return hits, True
    # all products are positive: each of the two float32 sums is off by at most this share
    ceiling = float(candidates.raw.min()) * (1.0 + 4 * (len(weighted) + 4) * UNIT_ROUNDOFF)
    last = float(np.nextafter(hits.scores[-1], np.float32(-np.inf))) if len(hits.scores) == k else 0.0
    return hits, ceiling < last


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
