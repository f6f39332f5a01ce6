"""BM25 over the premises of a generation: stored with the generation, read through memory maps.

Stop words are left out, the others stemmed, or as the settings say (`words`). A premise's weight for a term is its
share of the BM25 score (Lucene's variant). A query's score is the sum over its terms in the order of the
vocabulary, so that equal queries give equal bits whatever runs beside them. This module has no threads; the executor
runs it in one.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import map_array
from services.index.lexical.weights import weights_of
from services.index.lexical.words import WordCounts, words_of
from services.index.values import LexicalSettings, SearchHits
from services.store.artifacts import Artifact
from services.store.formats import check_format

COVERED = 0.2  # weight of a word that a query shares with a premise accepted for it (docs/experiments/retrieval.md)
WORDS = "lexical.words.txt"
SETTINGS = "lexical.settings.json"
BLOCK_TEXTS = 65_536
ARRAYS = {"data": "lexical.weights.npy", "indices": "lexical.ordinals.npy", "indptr": "lexical.terms.npy"}
FORMAT_VERSION = 1  # of the settings' file
_END = b"\n"  # of each word; no word contains one


@dataclass(frozen=True)
class Terms:
    """The terms of a query (ids in rising order) and the weight of each."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LexicalIndex:
    """Weights by term: those of term t are `weights[starts[t]:starts[t + 1]]`, for the premises `ordinals[...]`."""

    vocabulary: Mapping[str, int] = field(repr=False)
    weights: NDArray[np.float32]
    ordinals: NDArray[np.int32]
    starts: NDArray[np.int64]
    rows: int
    settings: LexicalSettings = field(default_factory=LexicalSettings)

    @classmethod
    def of(cls, texts: Sequence[str], settings: LexicalSettings | None = None) -> LexicalIndex:
        """Indexes texts in memory."""
        settings = settings or LexicalSettings()
        blocks = _blocks(texts, settings)
        found = weights_of(blocks, settings, lambda _, shape, kind: np.zeros(shape, kind))
        vocabulary = {word: number for number, word in enumerate(found.words)}
        return cls(vocabulary, found.data, found.indices, found.indptr, len(texts), settings)

    @classmethod
    def open(cls, artifact: Artifact, rows: int) -> LexicalIndex | None:
        """Opens a generation's lexical index; None if it was built without one. Raises DataLoss for a damaged one."""
        if WORDS not in artifact.files:
            return None
        settings = _read_settings(artifact)
        try:
            vocabulary = Vocabulary(artifact.file(WORDS))
            weights, ordinals, starts = (map_array(artifact.file(name)) for name in ARRAYS.values())
            whole = len(weights) == len(ordinals) == starts[-1] and len(starts) == len(vocabulary) + 1
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise errors.DataLoss(
                f"{artifact.path}: the lexical index cannot be read ({error}); build again"
            ) from error
        if not whole or (len(ordinals) and not 0 <= int(ordinals.min()) <= int(ordinals.max()) < rows):
            raise errors.DataLoss(f"{artifact.path}: the lexical index does not fit its premises; build again")
        return cls(vocabulary, weights, ordinals, starts, rows, settings)

    def terms(self, text: str, accepted: Sequence[str] = ()) -> Terms:
        """The known terms of a text and of the premises accepted for it, with their weights."""
        weighted = weighted_words(text, accepted, self.settings)
        known = sorted(
            (term, weight) for word, weight in weighted.items() if (term := self.vocabulary.get(word)) is not None
        )
        return Terms(np.array([term for term, _ in known], np.int64), np.array([one for _, one in known], np.float32))

    def scores(self, terms: Terms) -> NDArray[np.float32]:
        """Scores every premise: (rows,)."""
        scores = np.zeros(self.rows, np.float32)
        for term, weight in zip(terms.ids.tolist(), terms.weights, strict=True):
            part = slice(self.starts[term], self.starts[term + 1])
            scores[self.ordinals[part]] += weight * self.weights[part]  # a term names a premise once
        return scores

    def similarities(self, text: str) -> NDArray[np.float32]:
        """The cosine of every text's weights with those of `text`, weighted as if it were in the index: (rows,)."""
        own = self._as_document(self.terms(text))
        length = float(np.linalg.norm(own.weights)) or 1.0
        return self.scores(own) / (self._lengths * np.float32(length))

    def iterate(self, terms: Terms, k: int, allowed: NDArray[np.bool_] | None) -> SearchHits:
        """Finds the k best by iterative BM25, scored by cosine with the query of their round (see GrowingQuery)."""
        terms = self._as_document(terms)
        query = GrowingQuery(dict(zip(terms.ids.tolist(), terms.weights.tolist(), strict=True)), k, self.settings)
        open_ = np.ones(self.rows, dtype=bool) if allowed is None else allowed.copy()
        while query.size:
            known = sorted(query.weights)
            grown = Terms(np.array(known, np.int64), np.array([query.weights[term] for term in known], np.float32))
            found = best(self.scores(grown) / self._lengths, query.size, open_)
            open_[found.ordinals] = False
            rows = map(self.row, found.ordinals.tolist())
            query.take(found, ((ids.tolist(), weights) for ids, weights in rows))
        return query.hits

    def _as_document(self, terms: Terms) -> Terms:
        """Gives terms the weights that they would have in a text of average length."""
        weights = self.rarity[terms.ids] * terms.weights / (terms.weights + np.float32(self.settings.k1))
        return Terms(terms.ids, weights)

    def row(self, ordinal: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The terms of a premise in rising order, and their weights."""
        order, starts = self._by_premise
        part = order[starts[ordinal] : starts[ordinal + 1]]
        return np.searchsorted(self.starts, part, side="right") - 1, self.weights[part]

    @cached_property
    def _by_premise(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of all weights sorted by premise, and where those of each premise begin."""
        starts = np.zeros(self.rows + 1, np.int64)
        np.cumsum(np.bincount(self.ordinals, minlength=self.rows), out=starts[1:])
        return np.argsort(self.ordinals, kind="stable"), starts

    @cached_property
    def _lengths(self) -> NDArray[np.float32]:
        """The Euclidean length of each premise's weights, 1 for a premise without words."""
        squares = np.bincount(self.ordinals, np.asarray(self.weights, np.float64) ** 2, minlength=self.rows)
        return np.where(squares > 0, np.sqrt(squares), 1.0).astype(np.float32)

    @cached_property
    def rarity(self) -> NDArray[np.float32]:
        """Lucene's inverse document frequency of each term."""
        containing = np.diff(self.starts)
        return np.log1p((self.rows - containing + 0.5) / (containing + 0.5)).astype(np.float32)


class GrowingQuery:
    """The query of iterative BM25 (Chia et al. 2020), and the premises that its rounds have taken.

    Each round takes the closest premises, `growth` times as many as before, and adds their words to the query. Each
    word keeps the larger weight; new ones are divided by `first_scale`, and by `downscale` more each round. A first
    scale of 1 takes the first premise's words in full, which costs quality (MAP .467, not .474, without stems).
    """

    def __init__(self, weights: dict[int, float], k: int, settings: LexicalSettings) -> None:
        self.weights = weights
        self._k, self._settings = k, settings
        self._size, self._scale = 1.0, settings.first_scale
        self._ordinals = np.empty(0, np.int64)
        self._scores = np.empty(0, np.float32)
        self._is_over = False

    @property
    def size(self) -> int:
        """How many premises the next round takes; 0 after the last."""
        return 0 if self._is_over else min(int(self._size), self._k - len(self._ordinals))

    @property
    def hits(self) -> SearchHits:
        """The premises taken so far, in the order of the rounds."""
        return SearchHits(self._ordinals, self._scores)

    def take(self, found: SearchHits, premises: Iterable[tuple[Iterable[int], NDArray[np.float32]]]) -> None:
        """Takes a round's premises: the best ones, and the words of each with their weights."""
        self._is_over = not len(found.ordinals)
        self._ordinals = np.concatenate([self._ordinals, found.ordinals])
        self._scores = np.concatenate([self._scores, found.scores])
        for words, weights in premises:
            for word, weight in zip(words, (weights / self._scale).tolist(), strict=True):
                self.weights[word] = max(self.weights.get(word, 0.0), weight)
        self._size *= self._settings.growth
        self._scale *= self._settings.downscale


def write_lexical(path: Path, texts: Iterable[str], settings: LexicalSettings | None = None) -> dict[str, int]:
    """Indexes texts and writes the files into the directory `path`. Equal texts and settings give equal bytes.

    Texts are read as a stream; the weights are written through a memory map. Returns what the manifest says of it: how
    many texts have no words, and how many are mostly words with letters beyond ASCII.
    """
    settings = settings or LexicalSettings()

    def mapped(name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        if not math.prod(shape):  # nothing to map
            np.save(path / ARRAYS[name], np.zeros(shape, kind), allow_pickle=False)
            return np.zeros(shape, kind)
        made: NDArray[Any] = np.lib.format.open_memmap(path / ARRAYS[name], "w+", kind, shape, version=(1, 0))
        return made

    blocks = _blocks(texts, settings)
    written = weights_of(blocks, settings, mapped)
    (path / SETTINGS).write_text(json.dumps({"format_version": FORMAT_VERSION, **asdict(settings)}) + "\n")
    Vocabulary.write(path / WORDS, written.words)
    return {
        "wordless": sum(int(np.count_nonzero(block.lengths == 0)) for block in blocks),
        "foreign": sum(block.foreign for block in blocks),
    }


def _read_settings(artifact: Artifact) -> LexicalSettings:
    try:
        record = json.loads(artifact.file(SETTINGS).read_bytes())
        check_format(record, FORMAT_VERSION, str(artifact.path / SETTINGS))
        return LexicalSettings.of_record(record)
    except (ValueError, TypeError, KeyError) as error:
        raise errors.DataLoss(f"{artifact.path / SETTINGS} cannot be read ({error}); build again") from error


def _blocks(texts: Iterable[str], settings: LexicalSettings) -> list[WordCounts]:
    """Counts the words of texts, a block at a time: the texts themselves may be too many for the memory."""
    left, found = iter(texts), list[WordCounts]()
    while block := list(islice(left, BLOCK_TEXTS)):
        found.append(WordCounts.of(block, settings))
    return found


def weighted_words(
    text: str, accepted: Sequence[str] = (), settings: LexicalSettings | None = None
) -> dict[str, float]:
    """The words of a text and of the premises accepted for it, weighted by how often each occurs.

    A word in two of them is explained already and counts less; a word in one still needs an explanation.
    """
    counts, texts = Counter[str](), Counter[str]()
    for words in words_of([text, *accepted], settings):
        counts.update(words)
        texts.update(set(words))
    return {word: count * (COVERED if texts[word] > 1 else 1.0) for word, count in counts.items()}


def best(scores: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None) -> SearchHits:
    """Finds the k highest positive scores among those allowed; ties go to the lower ordinal."""
    candidates = np.flatnonzero(scores > 0 if allowed is None else (scores > 0) & allowed)
    if len(candidates) > k:
        bound = np.partition(scores[candidates], -k)[-k]
        candidates = candidates[scores[candidates] >= bound]
    return SearchHits.best(candidates.astype(np.int64), scores[candidates], k)


class Vocabulary(Mapping[str, int]):
    """Words to their ids, by bisection in a memory-mapped file: a million words take no memory of the process.

    A word's id is its place in rising order of code points, which is also the order of its bytes in UTF-8.
    """

    def __init__(self, path: Path) -> None:
        """Opens a file that `write` wrote. Raises ValueError for a file that ends in the middle of a word."""
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
