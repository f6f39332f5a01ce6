"""BM25 weights (Lucene's variant) from the words that blocks of texts count: what `bm25s` computes, in bounded memory.

    weight of a term in a premise = idf · tf / (tf + k1 (1 - b + b · length / mean length))
    idf = ln(1 + (N - df + .5) / (df + .5))

The first pass over the blocks counts terms and lengths, the second puts each weight in its place. So neither the texts
nor all words are in memory at once. The bits are those of `bm25s`: terms and premises rise, float64 until stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.index.lexical.words import WordCounts
from services.index.values import LexicalSettings

Allocate = Callable[[str, tuple[int, ...], Any], NDArray[Any]]  # of a name, a shape, a type


class Weights(NamedTuple):
    """Weights by term: those of term t are `data[indptr[t]:indptr[t + 1]]`, for the premises `indices[...]`."""

    words: list[str]
    data: NDArray[np.float32]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]


def weights_of(blocks: Sequence[WordCounts], settings: LexicalSettings, allocate: Allocate) -> Weights:
    """Computes the weights of all blocks, gone through twice, into arrays that `allocate` makes."""
    words = sorted({word for block in blocks for word in block.words}) or [""]
    numbers = {word: number for number, word in enumerate(words)}
    containing = np.zeros(len(words), np.int64)
    lengths = rows = 0
    for block in blocks:
        containing[_own(block, numbers)] += np.bincount(block.terms, minlength=len(block.words))
        lengths, rows = lengths + int(block.lengths.sum()), rows + len(block.lengths)
    indptr = allocate("indptr", (len(words) + 1,), np.int64)
    indptr[1:] = np.cumsum(containing)
    total = int(indptr[-1])
    data, indices = allocate("data", (total,), np.float32), allocate("indices", (total,), np.int32)
    rarity, mean = _rarity(containing, rows), lengths / max(rows, 1)
    free, first = np.array(indptr[:-1], np.int64), 0
    for block in blocks:
        terms = _own(block, numbers)[block.terms]
        tf = block.counts.astype(np.float64)
        norm = settings.k1 * ((1 - settings.b) + settings.b * block.lengths / mean) if mean else block.lengths * 0.0
        weights = rarity[terms] * (tf / (norm[block.rows] + tf))
        order = np.argsort(terms, kind="stable")
        found, starts, counts = np.unique(terms[order], return_index=True, return_counts=True)
        places = np.arange(len(order)) + np.repeat(free[found] - starts, counts)
        data[places], indices[places] = weights[order], first + block.rows[order]
        free[found] += counts
        first += len(block.lengths)
    return Weights(words, data, indices, indptr)


def _own(block: WordCounts, numbers: dict[str, int]) -> NDArray[np.int64]:
    """The numbers of a block's words among all."""
    return np.fromiter((numbers[word] for word in block.words), np.int64, len(block.words))


def _rarity(containing: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    """The idf of each term; few numbers of premises differ."""
    distinct, which = np.unique(containing, return_inverse=True)
    idf = [math.log(1 + (rows - df + 0.5) / (df + 0.5)) if df else 0.0 for df in distinct.tolist()]
    return np.array(idf, np.float32)[which]
