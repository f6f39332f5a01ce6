"""BM25 over the premises of a generation: stored with the generation, read through memory maps.

A text is normalised (NFKC, lower case) and split into words: letters with their marks, digits, and numbers like 3.14,
single ones too. Scripts without blanks give single characters and pairs of neighbours. Stop words, stems and lemmas are
English; words of other languages are matched as they stand. A premise's weight for a term is Lucene's variant:

    weight of a term in a premise = idf · tf / (tf + k1 (1 - b + b · length / mean length))
    idf = ln(1 + (N - df + .5) / (df + .5))

The first pass over blocks of texts counts terms and lengths, the second puts each weight in its place: neither the
texts nor all words are in memory at once. Terms and premises rise, float64 until stored. A query's score is the sum
over its terms in the order of the vocabulary, so that equal queries give equal bits whatever runs beside them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import regex
import Stemmer
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.arrays import map_array
from services.index.values import STANDARD_WORDS, LexicalSettings, QueueLimit, SearchHits, Timings
from services.store.artifacts import Artifact
from services.store.formats import check_format, damage_is_data_loss, made_of

T = TypeVar("T")
SLICE = 32  # texts at most
SLICE_S = 0.05  # a slice ends with the text that exceeds it
COVERED = 0.2  # weight of a word that a query shares with a premise accepted for it (docs/experiments/retrieval.md)
WORDS = "lexical.words.txt"
SETTINGS = "lexical.settings.json"
BLOCK_TEXTS = 65_536
ARRAYS = (
    *("lexical.weights.npy", "lexical.ordinals.npy", "lexical.terms.npy"),  # by term
    *("lexical.premise-terms.npy", "lexical.premise-weights.npy", "lexical.premises.npy", "lexical.norms.npy"),
)
FORMAT_VERSION = 1  # of the settings' file
_END = b"\n"  # of each word; no word contains one

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

Allocate = Callable[[str, tuple[int, ...], Any], NDArray[Any]]  # of a name, a shape, a type


@dataclass(frozen=True)
class Terms:
    """The terms of a query (ids in rising order) and the weight of each."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


class Tables(NamedTuple):
    """The weights of n premises for m pairs of a term and a premise, by term and by premise.

    Those of term t are `weights[starts[t]:starts[t + 1]]`, for the premises `ordinals[...]`; those of premise p are
    `premise_weights[places[p]:places[p + 1]]`, for the terms `premise_terms[...]`, which rise. `norms` (n,) are the
    Euclidean ones of each premise's weights, 1 for a premise without words.
    """

    weights: NDArray[np.float32]
    ordinals: NDArray[np.int32]
    starts: NDArray[np.int64]
    premise_terms: NDArray[np.int32]
    premise_weights: NDArray[np.float32]
    places: NDArray[np.int64]
    norms: NDArray[np.float32]

    def fit(self, terms: int, rows: int) -> bool:
        """Whether the tables fit each other, a vocabulary and premises. Reads each that names others once."""
        pairs = {len(of) for of in (self.weights, self.ordinals, self.premise_terms, self.premise_weights)}
        ends = {int(self.starts[-1]), int(self.places[-1])}
        sizes = (len(self.starts), len(self.places), len(self.norms))
        named = ((self.ordinals, rows), (self.premise_terms, terms))
        return (
            pairs == ends
            and sizes == (terms + 1, rows + 1, rows)
            and all(not len(of) or 0 <= int(of.min()) <= int(of.max()) < most for of, most in named)
        )


@dataclass(frozen=True, eq=False)
class LexicalIndex:
    """The words of premises, by number, and their weights."""

    vocabulary: Mapping[str, int] = field(repr=False)
    tables: Tables
    settings: LexicalSettings = STANDARD_WORDS

    @classmethod
    def of(cls, texts: Sequence[str], settings: LexicalSettings = STANDARD_WORDS) -> LexicalIndex:
        """Indexes texts in memory."""
        words, tables = weights_of(_blocks(texts, settings), settings, lambda _, shape, kind: np.zeros(shape, kind))
        return cls({word: number for number, word in enumerate(words)}, tables, settings)

    @classmethod
    def open(cls, artifact: Artifact, rows: int) -> LexicalIndex | None:
        """Opens a generation's lexical index; None if it was built without one. Raises DataLoss for a damaged one."""
        if not artifact.files.keys() >= {WORDS, *ARRAYS}:
            return None
        with damage_is_data_loss(artifact.path / SETTINGS, "build again"):
            record = json.loads(artifact.file(SETTINGS).read_bytes())
            check_format(record, FORMAT_VERSION, str(artifact.path / SETTINGS))
            settings = made_of(LexicalSettings, record)
        with damage_is_data_loss(f"{artifact.path}: the lexical index", "build again"):
            vocabulary = Vocabulary(artifact.file(WORDS))
            checked, served = (Tables(*(map_array(artifact.file(name)) for name in ARRAYS)) for _ in range(2))
            if not checked.fit(len(vocabulary), rows):  # what only the check reads leaves the memory with its maps
                raise ValueError("it does not fit its premises")
        return cls(vocabulary, served, settings)

    def terms(self, text: str, accepted: Sequence[str] = ()) -> Terms:
        """The known terms of a text and of the premises accepted for it, weighted by how often each occurs.

        A word in two of them is explained already and counts less; a word in one still needs an explanation.
        """
        counts, texts = Counter[str](), Counter[str]()
        for words in words_of([text, *accepted], self.settings):
            counts.update(words)
            texts.update(set(words))
        weighted = {word: count * (COVERED if texts[word] > 1 else 1.0) for word, count in counts.items()}
        known = sorted(
            (term, weight) for word, weight in weighted.items() if (term := self.vocabulary.get(word)) is not None
        )
        return Terms(np.array([term for term, _ in known], np.int64), np.array([one for _, one in known], np.float32))

    def scores(self, terms: Terms) -> NDArray[np.float32]:
        """Scores every premise: (premises,)."""
        scores = np.zeros(len(self.tables.norms), np.float32)
        for term, weight in zip(terms.ids.tolist(), terms.weights, strict=True):
            part = slice(self.tables.starts[term], self.tables.starts[term + 1])
            scores[self.tables.ordinals[part]] += weight * self.tables.weights[part]  # a term names a premise once
        return scores

    def similarities(self, text: str) -> NDArray[np.float32]:
        """The cosine of every text's weights with those of `text`, weighted as if it were in the index: (rows,)."""
        own = self._as_document(self.terms(text))
        length = float(np.linalg.norm(own.weights)) or 1.0
        return self.scores(own) / (self.tables.norms * np.float32(length))

    def iterate(self, terms: Terms, k: int, allowed: NDArray[np.bool_] | None) -> SearchHits:
        """Finds the k best by iterative BM25 (Chia et al. 2020), scored by cosine with the query of their round.

        Each round takes the closest premises, `growth` times as many as before, and adds their words to the query. Each
        word keeps the larger weight; new ones are divided by `first_scale`, and by `downscale` more each round. A first
        scale of 1 takes the first premise's words in full, which costs quality (MAP .467, not .474, without stems).
        """
        terms = self._as_document(terms)
        query = dict(zip(terms.ids.tolist(), terms.weights.tolist(), strict=True))
        left = np.ones(len(self.tables.norms), dtype=bool) if allowed is None else allowed.copy()
        hits, size, scale = SearchHits(np.empty(0, np.int64), np.empty(0, np.float32)), 1.0, self.settings.first_scale
        while count := min(int(size), k - len(hits.ordinals)):
            known = sorted(query)
            grown = Terms(np.array(known, np.int64), np.array([query[term] for term in known], np.float32))
            found = best(self.scores(grown) / self.tables.norms, count, left)
            if not len(found.ordinals):
                break
            left[found.ordinals] = False
            hits = hits.followed_by(found)
            for ordinal in found.ordinals.tolist():
                ids, weights = self.row(ordinal)
                for term, weight in zip(ids.tolist(), (weights / scale).tolist(), strict=True):
                    query[term] = max(query.get(term, 0.0), weight)
            size, scale = size * self.settings.growth, scale * self.settings.downscale
        return hits

    def _as_document(self, terms: Terms) -> Terms:
        """Gives terms the weights that they would have in a text of average length."""
        weights = self.rarity[terms.ids] * terms.weights / (terms.weights + np.float32(self.settings.k1))
        return Terms(terms.ids, weights)

    def row(self, ordinal: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The terms of a premise in rising order, and their weights."""
        part = slice(self.tables.places[ordinal], self.tables.places[ordinal + 1])
        return self.tables.premise_terms[part], self.tables.premise_weights[part]

    @cached_property
    def rarity(self) -> NDArray[np.float32]:
        """The inverse document frequency of each term."""
        return _rarity(np.diff(self.tables.starts), len(self.tables.norms))


def write_lexical(path: Path, texts: Iterable[str], settings: LexicalSettings = STANDARD_WORDS) -> dict[str, int]:
    """Indexes texts and writes the files into the directory `path`. Equal texts and settings give equal bytes.

    Texts are read as a stream; the weights are written through a memory map. Returns what the manifest says of it: how
    many texts have no words, and how many are mostly words with letters beyond ASCII.
    """

    def mapped(name: str, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        if not math.prod(shape):  # nothing to map
            np.save(path / name, np.zeros(shape, kind), allow_pickle=False)
            return np.zeros(shape, kind)
        made: NDArray[Any] = np.lib.format.open_memmap(path / name, "w+", kind, shape, version=(1, 0))
        return made

    blocks = _blocks(texts, settings)
    words, _ = weights_of(blocks, settings, mapped)
    (path / SETTINGS).write_text(json.dumps({"format_version": FORMAT_VERSION, **asdict(settings)}) + "\n")
    Vocabulary.write(path / WORDS, words)
    return {
        "wordless": sum(int(np.count_nonzero(block.lengths == 0)) for block in blocks),
        "foreign": sum(block.foreign for block in blocks),
    }


def _blocks(texts: Iterable[str], settings: LexicalSettings) -> list[WordCounts]:
    """Counts the words of texts, a block at a time: the texts themselves may be too many for the memory."""
    left, found = iter(texts), list[WordCounts]()
    while block := list(islice(left, BLOCK_TEXTS)):
        found.append(WordCounts.of(block, settings))
    return found


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


def words_of(texts: Sequence[str], settings: LexicalSettings = STANDARD_WORDS) -> list[list[str]]:
    """Splits texts into their words in lower case: their stems, their lemmas, or the words themselves.

    Raises FailedPrecondition for lemmas where simplemma is not installed.
    """
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


def weights_of(blocks: Sequence[WordCounts], settings: LexicalSettings, allocate: Allocate) -> tuple[list[str], Tables]:
    """Computes the words and the weights of all blocks, gone through twice, into arrays that `allocate` makes."""
    words = sorted({word for block in blocks for word in block.words}) or [""]
    numbers = {word: number for number, word in enumerate(words)}
    containing = np.zeros(len(words), np.int64)
    for block in blocks:
        containing[_own(block, numbers)] += np.bincount(block.terms, minlength=len(block.words))
    rows, pairs = sum(len(block.lengths) for block in blocks), int(containing.sum())
    mean = sum(int(block.lengths.sum()) for block in blocks) / max(rows, 1)
    kinds = (np.float32, np.int32, np.int64, np.int32, np.float32, np.int64, np.float32)
    sizes = (pairs, pairs, len(words) + 1, pairs, pairs, rows + 1, rows)
    tables = Tables(*(allocate(name, (size,), kind) for name, size, kind in zip(ARRAYS, sizes, kinds, strict=True)))
    tables.starts[1:] = np.cumsum(containing)
    rarity, free = _rarity(containing, rows), np.array(tables.starts[:-1], np.int64)
    first = place = 0
    for block in blocks:
        count, terms = len(block.lengths), _own(block, numbers)[block.terms]
        tf = block.counts.astype(np.float64)
        norm = settings.k1 * ((1 - settings.b) + settings.b * block.lengths / mean) if mean else block.lengths * 0.0
        weights = (rarity[terms] * (tf / (norm[block.rows] + tf))).astype(np.float32)
        order = np.argsort(terms, kind="stable")
        found, starts, counts = np.unique(terms[order], return_index=True, return_counts=True)
        places = np.arange(len(order)) + np.repeat(free[found] - starts, counts)
        tables.weights[places], tables.ordinals[places] = weights[order], first + block.rows[order]
        free[found] += counts
        part = slice(place, place + len(terms))
        tables.premise_terms[part], tables.premise_weights[part] = terms, weights
        ends = np.cumsum(np.bincount(block.rows, minlength=count))
        tables.places[first + 1 : first + 1 + count] = place + ends
        squares = np.bincount(block.rows, weights.astype(np.float64) ** 2, minlength=count)
        tables.norms[first : first + count] = np.where(squares > 0, np.sqrt(squares), 1.0)
        first, place = first + count, place + len(terms)
    return words, tables


def _own(block: WordCounts, numbers: dict[str, int]) -> NDArray[np.int64]:
    """The numbers of a block's words among all."""
    return np.fromiter((numbers[word] for word in block.words), np.int64, len(block.words))


def _rarity(containing: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    """Lucene's idf of each term, by how many of the rows contain it; few such numbers differ."""
    distinct, which = np.unique(containing, return_inverse=True)
    idf = [math.log(1 + (rows - df + 0.5) / (df + 0.5)) if df else 0.0 for df in distinct.tolist()]
    return np.array(idf, np.float32)[which]


class LexicalExecutor:
    """The thread that ranks by words. Its work holds the interpreter's lock most of the time, so there is only one.

    It computes large calls in slices, so that they cannot hold up small ones. At most `max_queued` texts wait; beyond
    that, it refuses calls.
    """

    def __init__(self, max_queued: int = 4096) -> None:
        self._queue = QueueLimit(max_queued, "texts wait already")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index-words")

    async def each(
        self, rows: Sequence[int], work: Callable[[int], T], deadline: float | None, timings: Timings
    ) -> list[T]:
        """Runs `work` for each row. Returns the results in order; adds to `timings` how long they waited and took.

        `deadline` is a time of time.monotonic(). Raises Overloaded when the queue is full, DeadlineExceeded when the
        time runs out first.
        """
        with self._queue.admitted(len(rows)):
            started = time.perf_counter()
            done: list[T] = []
            compute_s = 0.0
            while len(done) < len(rows):
                if deadline is not None and time.monotonic() > deadline:
                    raise errors.DeadlineExceeded("the call's time was over before it was ranked; allow more time")
                part = rows[len(done) : len(done) + SLICE]
                found, took_s = await asyncio.get_running_loop().run_in_executor(self._thread, _timed, part, work)
                done += found
                compute_s += took_s
            timings.add(time.perf_counter() - started - compute_s, compute_s)
            return done

    def close(self) -> None:
        """Stops the thread after its current slice."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _timed(rows: Sequence[int], work: Callable[[int], T]) -> tuple[list[T], float]:
    """Works on a slice, and returns what it has done of it and the seconds that this took."""
    started, found = time.perf_counter(), list[T]()
    for row in rows:
        found.append(work(row))
        if time.perf_counter() - started > SLICE_S:
            break
    return found, time.perf_counter() - started
