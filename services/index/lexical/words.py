"""The words of texts, and how often each occurs in the texts of a block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import Stemmer
from numpy.typing import NDArray

from aeenc import errors


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Has imports of a module fail in the block, unless it was imported before."""
    hides = sys.modules.setdefault(module, None) is None  # type: ignore[arg-type]  # as the import system documents
    try:
        yield
    finally:
        if hides:
            del sys.modules[module]


with _without("jax"):  # bm25s would start it, and with it take three quarters of a GPU's memory in each process
    import bm25s

STOP_WORDS = "en"
STEMS = "english"  # Snowball's; on EntailmentBank they lift MAP from .445 to .463


@dataclass(frozen=True, eq=False)
class WordCounts:
    """The m pairs of a text and a word of a block of n texts, by rising text and word.

    `words` are the block's, in rising order; `rows` and `terms` (m,) name a text and a word, `counts` (m,) how often it
    occurs there, `lengths` (n,) how many words a text has.
    """

    words: list[str]
    rows: NDArray[np.int32]
    terms: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str], kind: str) -> WordCounts:
        """Counts the words of texts."""
        split = words_of(texts, kind)
        words = sorted({word for line in split for word in line})
        numbers = {word: number for number, word in enumerate(words)}
        lengths = np.array([len(line) for line in split], np.int64)
        terms = np.fromiter((numbers[word] for line in split for word in line), np.int64, int(lengths.sum()))
        keys = np.repeat(np.arange(len(split)), lengths) * max(len(words), 1) + terms
        pairs, counts = np.unique(keys, return_counts=True)
        rows, terms = np.divmod(pairs, max(len(words), 1))
        return cls(words, rows.astype(np.int32), terms.astype(np.int32), counts.astype(np.int32), lengths)


def words_of(texts: Sequence[str], kind: str = "stems") -> list[list[str]]:
    """Splits texts into their words in lower case: their stems, their lemmas, or the words themselves.

    Raises FailedPrecondition for lemmas where simplemma is not installed.
    """
    stemmer = Stemmer.Stemmer(STEMS) if kind == "stems" else None  # a new one: two threads must not share it
    found: list[list[str]] = bm25s.tokenize(
        list(texts), stopwords=STOP_WORDS, stemmer=stemmer, return_ids=False, show_progress=False
    )
    if kind != "lemmas":
        return found
    lemmatize = lemmatizer()
    return [[lemmatize(word) for word in line] for line in found]


@cache
def lemmatizer() -> Callable[[str], str]:
    """Returns what turns a word into its lemma. Raises FailedPrecondition where simplemma is not installed."""
    try:
        from simplemma import lemmatize
    except ModuleNotFoundError as error:
        raise errors.FailedPrecondition(
            "lemmas need simplemma; install aeenc-services with the extra index-lemmas"
        ) from error
    return lru_cache(maxsize=100_000)(lambda word: str(lemmatize(word, lang="en")).lower())
