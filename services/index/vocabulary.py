"""The words of a lexical index, in a file that is read through a memory map: a million of them take no memory of ours.

A word's id is its place in rising order of code points, which is also the order of the bytes of UTF-8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

_END = b"\n"  # of each word; no word holds one


class Vocabulary(Mapping[str, int]):
    """Words to their ids, by bisection."""

    def __init__(self, path: Path) -> None:
        """Opens what `write` wrote. Raises ValueError for a file that does not end as one of these."""
        self._bytes = np.memmap(path, np.uint8, mode="r")
        self._ends = np.flatnonzero(self._bytes == _END[0])
        if not len(self._ends) or self._ends[-1] != len(self._bytes) - 1:
            raise ValueError(f"{path.name} does not end with the end of a word")

    @staticmethod
    def write(path: Path, words: Sequence[str]) -> None:
        """Writes distinct words in rising order."""
        path.write_bytes(b"".join(_encoded(word) + _END for word in words))

    def __getitem__(self, word: str) -> int:
        wanted = _encoded(word)
        place = bisect_left(range(len(self)), wanted, key=self._word)
        if place == len(self) or self._word(place) != wanted:
            raise KeyError(word)
        return place

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        return (self._word(place).decode("utf-8", "surrogatepass") for place in range(len(self)))

    def _word(self, place: int) -> bytes:
        start = int(self._ends[place - 1]) + 1 if place else 0
        return self._bytes[start : int(self._ends[place])].tobytes()


def _encoded(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")
