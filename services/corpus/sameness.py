"""Decides which texts count as the same, by two rules:

- equal texts are one premise: the identity of premises everywhere;
- texts of one `same_key` say the same: people judge them together, a refusal of one is no negative, and they are one
  premise of a build that asks for it (`folding: NORMALIZED`), whose gold is found by it, too.

Pure functions; a generation's files depend on `same_key`, so it must not change.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np

MEANINGFUL = frozenset("%‰&@#/*")  # punctuation by its Unicode category, but with a meaning
_SAYS_NOTHING = frozenset({"a", "an", "the", "is", "are", "be"})
_SIBILANT_PLURAL = ("sses", "xes", "ches", "shes")


def normalized(text: str) -> str:
    """Removes differences without meaning from a text: Unicode form (NFKC), case, white space, punctuation.

    Punctuation before a digit stays, so that 3.5 is not 35 and -5 is not 5; symbols stay. A text of punctuation alone
    stays as it is.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    kept = [" " if _is_noise(char, folded[at : at + 1]) else char for at, char in enumerate(folded, start=1)]
    return " ".join("".join(kept).split()) or text


def same_key(text: str) -> str:
    """A key of what a text says: its words and symbols in order, without case, articles, "is", "are", "be", plurals.

    Dashes, and punctuation before a symbol, stay: "-x" is not "x", "x != y" is not
    "x = y". A capital amid a sentence is a name, not an article: "vitamin A". Order matters.
    """
    plain = unicodedata.normalize("NFKC", text)
    kept = [" " if _says_nothing(char, plain[at : at + 1]) else char for at, char in enumerate(plain, start=1)]
    words = "".join(kept).split()
    said = [_singular(word.casefold()) for at, word in enumerate(words) if not _is_filler(word, at)]
    key = unicodedata.normalize("NFKC", " ".join(said)) or normalized(text)
    return hashlib.sha256(key.encode()).hexdigest()[:32]  # as long for every text


def repeats(texts: Iterable[str]) -> int:
    """Counts the texts that say the same as an earlier one."""
    keys = np.fromiter((int(same_key(text)[:16], 16) for text in texts), np.uint64)
    return len(keys) - len(np.unique(keys))


def _is_noise(char: str, following: str) -> bool:
    category = unicodedata.category(char)[0]
    return category in "ZC" or (category == "P" and char not in MEANINGFUL and not following.isdigit())


def _says_nothing(char: str, following: str) -> bool:
    symbol_follows = following != "" and unicodedata.category(following)[0] == "S"
    return _is_noise(char, following) and unicodedata.category(char) != "Pd" and not symbol_follows


def _is_filler(word: str, at: int) -> bool:
    lower = word.lower()
    return lower in _SAYS_NOTHING and (at == 0 or word == lower)


def _singular(word: str) -> str:
    if len(word) <= 3 or not word.endswith("s") or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(_SIBILANT_PLURAL) else word[:-1]
