"""BM25 by itself: the textbook's figures, equal bytes, damaged files; a large call holds up no small one."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import bm25s
import numpy as np
import pytest

from aeenc.errors import DataLoss
from services.index.lexical.bm25 import (
    ARRAYS,
    SETTINGS,
    SLICE_S,
    WORDS,
    LexicalExecutor,
    LexicalIndex,
    Vocabulary,
    words_of,
    write_lexical,
)
from services.index.values import LexicalSettings, Timings
from services.store.artifacts import ArtifactStore

# An .npy header of Python objects, whose content numpy would unpickle where that is allowed.
OBJECTS = b"\x93NUMPY\x01\x00\x39\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"

K1, B = LexicalSettings.k1, LexicalSettings.b
TEXTS = [
    "iron is a kind of metal",
    "a magnet attracts iron",
    "heat melts ice and heat melts butter",
    "Ice is a solid",
    "…",
]


@pytest.fixture
def opened(artifact_store: ArtifactStore):
    def make(texts=TEXTS, damage=lambda path: None):
        with artifact_store.writer("generation", "generations/x") as writer:
            write_lexical(writer.path, texts)
            damage(writer.path)
            artifact = writer.commit({}, id_prefix="g")
        return LexicalIndex.open(artifact, len(texts))

    return make


@pytest.mark.parametrize("settings", [LexicalSettings(), LexicalSettings(k1=0.9, b=0.4), LexicalSettings(k1=0, b=1)])
@pytest.mark.parametrize("texts", [TEXTS, [*TEXTS, *TEXTS[::-1], "ice " * 40], ["", "…"]])
def test_weights_are_those_of_bm25s_to_the_bit_however_the_texts_are_cut_into_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], settings: LexicalSettings
):
    documents = words_of(texts)
    vocabulary = {word: n for n, word in enumerate(sorted({word for line in documents for word in line}))} or {"": 0}
    theirs = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene")
    ids = [[vocabulary[word] for word in line] for line in documents]
    with np.errstate(invalid="ignore"):
        theirs.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    written: list[list[bytes]] = []
    for number, size in enumerate((2, 3, 1000)):
        monkeypatch.setattr("services.index.lexical.bm25.BLOCK_TEXTS", size)
        path = tmp_path / str(number)
        path.mkdir()
        write_lexical(path, iter(texts), settings)
        for name, file in zip(("data", "indices", "indptr"), ARRAYS, strict=False):
            ours = np.load(path / file)
            assert ours.tobytes() == theirs.scores[name].astype(ours.dtype).tobytes()
        written.append([np.load(path / file).tobytes() for file in ARRAYS])
    assert written[0] == written[1] == written[2]


def test_the_words_of_a_premise_are_those_whose_lists_have_it_in_rising_order_with_their_weights(opened):
    index = opened([*TEXTS, *TEXTS[::-1]])
    tables = index.tables
    terms = np.repeat(np.arange(len(tables.starts) - 1), np.diff(tables.starts))
    for ordinal in range(10):
        ids, weights = index.row(ordinal)
        assert ids.tolist() == terms[tables.ordinals == ordinal].tolist() == sorted(ids.tolist())
        assert weights.tolist() == tables.weights[tables.ordinals == ordinal].tolist()
        length = np.sqrt((weights.astype(np.float64) ** 2).sum()) or 1.0
        assert tables.norms[ordinal] == np.float32(length)


def test_a_generation_of_a_release_without_all_tables_counts_as_built_without_words(opened):
    assert opened(damage=lambda path: (path / ARRAYS[-1]).unlink()) is None


def by_the_book(query: str, texts: list[str]) -> np.ndarray:
    """Lucene's BM25, term by term and premise by premise."""
    documents = words_of(texts)
    average = sum(map(len, documents)) / len(documents)
    scores = np.zeros(len(texts))
    for word in words_of([query])[0]:
        containing = sum(word in document for document in documents)
        idf = math.log(1 + (len(texts) - containing + 0.5) / (containing + 0.5))
        for n, document in enumerate(documents):
            count = document.count(word)
            scores[n] += idf * count / (count + K1 * (1 - B + B * len(document) / average))
    return scores


@pytest.mark.parametrize("query", ["iron", "Heat melts iron", "heat heat", "unknown words", "", "the ICE, the ice"])
def test_scores_are_lucenes(opened, query):
    index = opened()
    np.testing.assert_allclose(index.scores(index.terms(query)), by_the_book(query, TEXTS), rtol=1e-5)


def test_a_word_that_a_query_and_an_accepted_premise_share_counts_a_fifth(opened):
    index = opened()
    terms = index.terms("heat heat melts iron", ["iron ice"])
    weight = dict(zip(terms.ids.tolist(), terms.weights.tolist(), strict=True))
    words = {word: weight.get(index.vocabulary[word]) for word in ("heat", "melt", "iron", "ice", "butter")}
    assert words == {"heat": 2, "melt": 1, "iron": pytest.approx(0.4), "ice": 1, "butter": None}


def test_equal_texts_give_equal_bytes_in_any_process(tmp_path: Path):
    root = Path(__file__).parents[3]
    code = "import sys, pathlib; from services.index.lexical.bm25 import write_lexical; "
    code += "write_lexical(pathlib.Path(sys.argv[1]), sys.argv[2:])"
    written = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}:{root / 'clients/python'}"}
        subprocess.run([sys.executable, "-c", code, folder, *TEXTS], env=environment, cwd=root, check=True)
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == {WORDS, SETTINGS, *ARRAYS}


@pytest.mark.parametrize("texts", [["…"], ["", "!"], ["one"]])
def test_a_corpus_without_words_can_be_asked(opened, texts):
    index = opened(texts)
    assert not index.scores(index.terms("anything else")).any()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / WORDS).write_bytes(b""),
        lambda path: (path / WORDS).write_bytes((path / WORDS).read_bytes()[:-1]),
        lambda path: (path / WORDS).write_bytes((path / WORDS).read_bytes() + b"zinc\n"),
        lambda path: (path / WORDS).write_bytes((path / WORDS).read_bytes() + b"zinc"),
        lambda path: (path / ARRAYS[0]).write_bytes(b"no array"),
        *(lambda path, name=name: np.save(path / name, np.zeros(3, np.float32)) for name in ARRAYS),
        *(lambda path, name=ARRAYS[n]: np.save(path / name, np.load(path / name) + 9) for n in (1, 3)),
        *(lambda path, name=ARRAYS[n]: np.save(path / name, np.load(path / name)[::-1]) for n in (2, 5)),
        lambda path: (path / ARRAYS[2]).write_bytes(OBJECTS),
    ],
)
def test_a_damaged_index_is_named(opened, damage):
    with pytest.raises(DataLoss, match="lexical index"):
        opened(damage=damage)


def test_a_vocabulary_knows_each_of_its_words_and_no_other(tmp_path):
    words = sorted(
        {f"{kind}{n}" for kind in ("iron", "é", "中", "\U0001f9f2", "\udc80", "Z") for n in range(40)} | {""}
    )
    Vocabulary.write(tmp_path / WORDS, words)
    vocabulary = Vocabulary(tmp_path / WORDS)
    assert dict(vocabulary) == {word: n for n, word in enumerate(words)}
    assert [vocabulary[word] for word in words] == list(range(len(words)))
    assert not any(word in vocabulary for word in ("iron", "iron400", "\x00", "zzz", "iron1\niron10", "é\n"))


async def test_a_slice_of_slow_texts_ends_early_so_that_another_call_has_its_turn():
    executor, is_submitted = LexicalExecutor(), threading.Event()
    order, timings = list[str](), Timings()
    slow_s = 1.2 * SLICE_S

    def slow(row: int) -> int:
        if row == 0:
            assert is_submitted.wait(timeout=20)
        time.sleep(slow_s)
        order.append("large")
        return row

    large = asyncio.create_task(executor.each(range(8), slow, None, timings))
    small = asyncio.create_task(executor.each([0], lambda _: order.append("small"), None, Timings()))
    await asyncio.sleep(0)  # both calls are with the thread now, in this order
    is_submitted.set()
    await small
    assert await large == [*range(8)]
    assert timings.compute_s >= 8 * slow_s
    assert order == ["large", "small", *["large"] * 7]
    executor.close()
