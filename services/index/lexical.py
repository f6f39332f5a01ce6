"""BM25 over the premises of a generation: built by bm25s, stored with the generation, read through memory maps.

Words are English ones: stop words are left out, the others stemmed.

A premise's weight for a term is its share of the BM25 score (Lucene's variant); a query's score is the sum over its
terms, added up in the order of the vocabulary, so that equal queries give equal bits whatever is asked beside them. No
threads: see words.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import bm25s
import numpy as np
import Stemmer
from numpy.typing import NDArray

from aeenc import errors
from services.index.search import Found
from services.index.vocabulary import Vocabulary
from services.store.artifacts import Artifact

K1, B = 1.5, 0.75
STOP_WORDS = "en"
STEMS = "english"  # Snowball's; on EntailmentBank they lift MAP from .445 to .463
COVERED = 0.2  # how much less a word counts that a query and a premise accepted for it share (docs/experiments.md)
DOWNSCALE = 1.25  # of iterative BM25: how much less the words of each further round count
WORDS = "lexical.words.txt"
ARRAYS = {"data": "lexical.weights.npy", "indices": "lexical.ordinals.npy", "indptr": "lexical.terms.npy"}


@dataclass(frozen=True)
class Terms:
    """A query: its terms (ids in rising order) and the weight of each."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LexicalIndex:
    """Weights by term: those of term t are `weights[starts[t]:starts[t + 1]]`, for the premises `ordinals[...]`."""

    vocabulary: Mapping[str, int] = field(repr=False)
    weights: NDArray[np.float32]
    ordinals: NDArray[np.int32]
    starts: NDArray[np.int32]
    rows: int
    stems: str = STEMS

    @classmethod
    def of(cls, texts: Sequence[str], stems: str = STEMS) -> LexicalIndex:
        """The index of texts, in memory; `stems` "" takes words as they stand."""
        built, vocabulary = _build(texts, stems)
        weights, ordinals, starts = (built.scores[name] for name in ARRAYS)
        return cls(vocabulary, weights, ordinals, starts, len(texts), stems)

    @classmethod
    def open(cls, artifact: Artifact, rows: int) -> LexicalIndex | None:
        """The lexical index of a generation; None for one that was built without. Raises DataLoss for a damaged one."""
        if WORDS not in artifact.files:
            return None
        try:
            vocabulary = Vocabulary(artifact.file(WORDS))
            weights, ordinals, starts = (
                np.load(artifact.file(name), mmap_mode="r", allow_pickle=False) for name in ARRAYS.values()
            )
            whole = len(weights) == len(ordinals) == starts[-1] and len(starts) == len(vocabulary) + 1
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise errors.DataLoss(
                f"{artifact.path}: the lexical index cannot be read ({error}); build again"
            ) from error
        if not whole or (len(ordinals) and not 0 <= int(ordinals.min()) <= int(ordinals.max()) < rows):
            raise errors.DataLoss(f"{artifact.path}: the lexical index does not fit its premises; build again")
        return cls(vocabulary, weights, ordinals, starts, rows)

    def terms(self, text: str, accepted: Sequence[str] = ()) -> Terms:
        """The known terms of a text and of the premises accepted for it, weighted by how often each occurs.

        What stands in two of them is explained already and counts less; what stands in one is still to be explained.
        """
        counts, texts = Counter[int](), Counter[int]()
        for words in words_of([text, *accepted], self.stems):
            known = [term for word in words if (term := self.vocabulary.get(word)) is not None]
            counts.update(known)
            texts.update(set(known))
        ids = sorted(counts)
        weights = [counts[one] * (COVERED if texts[one] > 1 else 1.0) for one in ids]
        return Terms(np.array(ids, np.int64), np.array(weights, np.float32))

    def scores(self, terms: Terms) -> NDArray[np.float32]:
        """The score of every premise (rows,)."""
        scores = np.zeros(self.rows, np.float32)
        for term, weight in zip(terms.ids.tolist(), terms.weights, strict=True):
            part = slice(self.starts[term], self.starts[term + 1])
            scores[self.ordinals[part]] += weight * self.weights[part]  # a term names a premise once
        return scores

    def similarities(self, text: str) -> NDArray[np.float32]:
        """The cosine of every text's weights with those of `text` as if it stood in the index itself (rows,)."""
        own = self._as_document(self.terms(text))
        length = float(np.linalg.norm(own.weights)) or 1.0
        return self.scores(own) / (self._lengths * np.float32(length))

    def iterate(
        self, terms: Terms, k: int, allowed: NDArray[np.bool_] | None, *, first_scale: float = DOWNSCALE
    ) -> Found:
        """The k best by iterative BM25 (Chia et al. 2020), scored by cosine with the query as it was in their round.

        Each round takes the closest premises, twice as many as before, and puts their words into the query, term by
        term the larger weight, scaled down by `first_scale` and by DOWNSCALE more each round. A first scale of 1
        takes the first premise's words in full, which costs quality (MAP .467 instead of .474 without stems).
        """
        terms = self._as_document(terms)
        query = np.zeros(len(self.starts) - 1, np.float32)
        query[terms.ids] = terms.weights
        open_ = np.ones(self.rows, dtype=bool) if allowed is None else allowed.copy()
        ordinals: list[NDArray[np.int64]] = []
        scores: list[NDArray[np.float32]] = []
        taken, size, scale = 0, 1, first_scale
        while taken < k:
            known = np.flatnonzero(query)
            found = best(self.scores(Terms(known, query[known])) / self._lengths, min(size, k - taken), open_)
            if not len(found.ordinals):
                break
            ordinals.append(found.ordinals)
            scores.append(found.scores)
            open_[found.ordinals] = False
            for ordinal in found.ordinals.tolist():
                words, weights = self._row(ordinal)
                query[words] = np.maximum(query[words], weights / scale)
            taken, size, scale = taken + len(found.ordinals), size * 2, scale * DOWNSCALE
        if not ordinals:
            return Found(np.empty(0, np.int64), np.empty(0, np.float32))
        return Found(np.concatenate(ordinals), np.concatenate(scores))

    def _as_document(self, terms: Terms) -> Terms:
        """Terms with the weights that they would have in a text of average length of the index."""
        return Terms(terms.ids, self._rarity[terms.ids] * terms.weights / (terms.weights + np.float32(K1)))

    def _row(self, ordinal: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The terms of a premise and their weights."""
        order, starts = self._by_premise
        part = order[starts[ordinal] : starts[ordinal + 1]]
        return np.searchsorted(self.starts, part, side="right") - 1, self.weights[part]

    @cached_property
    def _by_premise(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of all weights sorted by premise, and where each premise's begin."""
        starts = np.zeros(self.rows + 1, np.int64)
        np.cumsum(np.bincount(self.ordinals, minlength=self.rows), out=starts[1:])
        return np.argsort(self.ordinals, kind="stable"), starts

    @cached_property
    def _lengths(self) -> NDArray[np.float32]:
        """The Euclidean length of each premise's weights, 1 for one without words."""
        squares = np.bincount(self.ordinals, np.asarray(self.weights, np.float64) ** 2, minlength=self.rows)
        return np.where(squares > 0, np.sqrt(squares), 1.0).astype(np.float32)

    @cached_property
    def _rarity(self) -> NDArray[np.float32]:
        """Lucene's inverse document frequency of each term."""
        containing = np.diff(self.starts)
        return np.log1p((self.rows - containing + 0.5) / (containing + 0.5)).astype(np.float32)


def write_lexical(path: Path, texts: Sequence[str]) -> None:
    """Indexes texts and writes the files into the directory `path`. Equal texts give equal bytes."""
    built, vocabulary = _build(texts, STEMS)
    Vocabulary.write(path / WORDS, list(vocabulary))
    for name, file in ARRAYS.items():
        np.save(path / file, built.scores[name], allow_pickle=False)


def _build(texts: Sequence[str], stems: str) -> tuple[bm25s.BM25, dict[str, int]]:
    words = words_of(texts, stems)
    vocabulary = {word: n for n, word in enumerate(sorted({word for line in words for word in line}))} or {"": 0}
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    ids = [[vocabulary[word] for word in line] for line in words]
    index.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    return index, vocabulary


def words_of(texts: Sequence[str], stems: str = STEMS) -> list[list[str]]:
    """The stems of each text's words, in lower case; with `stems` "" the words."""
    stemmer = Stemmer.Stemmer(stems) if stems else None  # its own: it may not be used from two threads
    found: list[list[str]] = bm25s.tokenize(
        list(texts), stopwords=STOP_WORDS, stemmer=stemmer, return_ids=False, show_progress=False
    )
    return found


def best(scores: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None) -> Found:
    """The k highest positive scores among those allowed, ties to the lower ordinal."""
    candidates = np.flatnonzero(scores > 0 if allowed is None else (scores > 0) & allowed)
    if len(candidates) > k:
        bound = np.partition(scores[candidates], -k)[-k]
        candidates = candidates[scores[candidates] >= bound]
    order = np.lexsort((candidates, -scores[candidates]))[:k]
    return Found(candidates[order].astype(np.int64), scores[candidates[order]])
