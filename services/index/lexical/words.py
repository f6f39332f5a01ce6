"""The words of texts, and how often each occurs in the texts of a block.

A text is normalised (NFKC, lower case) and split into words: letters with their marks, digits, and numbers like 3.14,
single ones too. Scripts without blanks give single characters and pairs of neighbours. Stop words, stems and lemmas are
English; words of other languages are matched as they stand.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import regex
import Stemmer
from numpy.typing import NDArray

from aeenc import errors
from services.index.values import LexicalSettings

# Lucene's stop words for English.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with",
    )
)
STEMS = "english"  # Snowball's; on EntailmentBank they lift MAP from .445 to .463
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_ENDINGS = re.compile(r"(?<=\w)['\u2019](?:s|t|d|m|ll|re|ve)\b")  # of "animal's", "don't"
_WORDS = regex.compile(rf"\d+(?:[.,]\d+)+|[{_UNSPACED}][\p{{M}}{_UNSPACED}]*|(?:(?![{_UNSPACED}])[\w\p{{M}}])+")
_CHARACTERS = regex.compile(r"\w\p{M}*")
_UNSPACED_FIRST = regex.compile(rf"[{_UNSPACED}]")
_ASCII_WORDS = re.compile(r"\d+(?:[.,]\d+)+|\w+")  # what _WORDS finds in ASCII, in a third of the time


@dataclass(frozen=True, eq=False)
class WordCounts:
    """The m pairs of a text and a word of a block of n texts, by rising text and word.

    `words` are the block's, in rising order; `rows` and `terms` (m,) name a text and a word, `counts` (m,) how often it
    occurs there, `lengths` (n,) how many words a text has. More than half of the words of `foreign` texts have a letter
    beyond ASCII.
    """

    words: list[str]
    rows: NDArray[np.int32]
    terms: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int64]
    foreign: int

    @classmethod
    def of(cls, texts: Sequence[str], settings: LexicalSettings) -> WordCounts:
        """Counts the words of texts."""
        split = words_of(texts, settings)
        words = sorted({word for line in split for word in line})
        numbers = {word: number for number, word in enumerate(words)}
        lengths = np.array([len(line) for line in split], np.int64)
        terms = np.fromiter((numbers[word] for line in split for word in line), np.int64, int(lengths.sum()))
        keys = np.repeat(np.arange(len(split)), lengths) * max(len(words), 1) + terms
        pairs, counts = np.unique(keys, return_counts=True)
        rows, terms = np.divmod(pairs, max(len(words), 1))
        foreign = sum(2 * sum(not word.isascii() for word in line) > len(line) for line in split)
        return cls(words, rows.astype(np.int32), terms.astype(np.int32), counts.astype(np.int32), lengths, foreign)


def words_of(texts: Sequence[str], settings: LexicalSettings | None = None) -> list[list[str]]:
    """Splits texts into their words in lower case: their stems, their lemmas, or the words themselves.

    Raises FailedPrecondition for lemmas where simplemma is not installed.
    """
    settings = settings or LexicalSettings()
    found = [[word for word in _split(text) if word not in STOP_WORDS] for text in texts]
    if settings.words == "words":
        return found
    if settings.words == "stems":
        stem = Stemmer.Stemmer(STEMS).stemWords  # a new one: two threads must not share it
        return [stem(line) for line in found]
    lemmatize = lemmatizer()
    return [[lemmatize(word) for word in line] for line in found]


def _split(text: str) -> list[str]:
    text = _ENDINGS.sub("", unicodedata.normalize("NFKC", text).lower())
    if text.isascii():
        return _ASCII_WORDS.findall(text)
    words = list[str]()
    for word in _WORDS.findall(text):
        if _UNSPACED_FIRST.match(word):
            characters = _CHARACTERS.findall(word)
            words += characters
            words += map("".join, pairwise(characters))
        else:
            words.append(word)
    return words


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
