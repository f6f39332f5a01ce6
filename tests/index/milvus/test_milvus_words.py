"""BM25 in a Milvus: the answers of files to the bit, whatever words share a dimension and scores are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aeenc import errors
from support.servers.milvus_server import need_milvus
from support.worlds.index_world import premise, raises

need_milvus()

from services.corpus.generation import PremiseRecord  # noqa: E402
from services.index.lexical.bm25 import LexicalIndex, best, weighted_words  # noqa: E402
from services.index.milvus import words  # noqa: E402
from services.index.milvus.generation import Candidates  # noqa: E402
from services.index.milvus.searching import (  # noqa: E402
    rescore,
    take_rounds,
)
from services.index.milvus.words import (  # noqa: E402
    RoundsOfText,
    best_by_words,
    growing_query,
    sparse_query,
    sparse_vectors,
)
from services.index.values import LexicalSettings  # noqa: E402

NOUNS = ["ice", "magnet", "iron", "water", "heat", "plant", "sun", "moon", "stone", "bird"]
QUERIES = ["a magnet attracts iron and iron", "sun water zebra", "the", "ice"]


def some_texts(count: int) -> list[str]:
    rng = np.random.default_rng(11)
    return [" ".join(rng.choice(NOUNS, size=int(size))) for size in rng.integers(1, 9, count)] + ["the of", "?!"]


class SparseMilvus:
    """A Milvus that scores sparse vectors in float32 and returns only premises with a dimension of the query."""

    def __init__(self, index: LexicalIndex, texts: list[str]) -> None:
        made = list(sparse_vectors(index))
        self.texts, self.vectors, self.units = texts, [one.weights for one in made], [one.unit for one in made]

    def __call__(self, queries: Any, width: int) -> list[Candidates]:
        return [self._of(sparse_query(query), width, self.vectors) for query in queries]

    def in_rounds(self, rounds: Any, width: int) -> list[Candidates]:
        return [self._of(sparse_query(one.query.weights), width, self.units) for one in rounds]

    def _of(self, query: dict[int, float], width: int, compared: list[dict[int, float]]) -> Candidates:
        raw = np.array([sum(np.float32(w) * one.get(d, 0.0) for d, w in query.items()) for one in compared])
        order = np.argsort(-raw, kind="stable")[:width]
        order = order[raw[order] > 0]
        records = [PremiseRecord(f"p{n}", self.texts[n]) for n in order]
        vectors = [self.vectors[n] for n in order]
        return Candidates(order.astype(np.int64), raw[order].astype(np.float32), vectors, records)


@pytest.mark.parametrize("dimensions", [words.DIMENSIONS, 23, 12])
def test_lists_are_those_of_files_however_many_words_share_a_dimension(monkeypatch, dimensions):
    monkeypatch.setattr(words, "DIMENSIONS", dimensions)
    texts = some_texts(400)
    index = LexicalIndex.of(texts)
    milvus = SparseMilvus(index, texts)
    assert [not one for one in milvus.vectors] == [False] * 400 + [True] * 2
    for k in (1, 7, 500):
        asked = [weighted_words(text, ["iron is a stone"]) for text in QUERIES]
        found = rescore(asked, k, milvus, is_exact=True, rank=best_by_words)
        assert found.exact
        for text, hits in zip(QUERIES, found.hits, strict=True):
            expected = best(index.scores(index.terms(text, ["iron is a stone"])), k, None)
            assert hits.ordinals.tolist() == expected.ordinals.tolist()
            assert hits.scores.tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("dimensions", [words.DIMENSIONS, 23, 12])
def test_rounds_are_those_of_files_however_many_words_share_a_dimension(monkeypatch, dimensions):
    monkeypatch.setattr(words, "DIMENSIONS", dimensions)
    texts = list(dict.fromkeys(some_texts(120)))
    index = LexicalIndex.of(texts)
    milvus, containing = SparseMilvus(index, texts), dict(index.frequencies())
    asked = [weighted_words(text, ["iron is a stone"]) for text in [*QUERIES, texts[3]]]
    closed = [(None, frozenset[str]())] * 3 + [(None, frozenset({"p1", "p7"})), (texts[3], frozenset({"p9"}))]
    for k in (1, 12, 200):
        rounds = [
            RoundsOfText(growing_query(one, containing, len(texts), k, LexicalSettings()), *out)
            for one, out in zip(asked, closed, strict=True)
        ]
        found = take_rounds(rounds, milvus.in_rounds)
        assert found.exact
        for text, hits, (own, ids) in zip([*QUERIES, texts[3]], found.hits, closed, strict=True):
            open_ = np.array([one != own and f"p{n}" not in ids for n, one in enumerate(texts)])
            expected = index.iterate(index.terms(text, ["iron is a stone"]), k, open_)
            assert hits.ordinals.tolist() == expected.ordinals.tolist()
            assert hits.scores.tobytes() == expected.scores.tobytes()
            assert {*found.premises} >= {*hits.ordinals.tolist()}


async def test_words_and_both_find_what_files_find_also_beyond_the_pool(serve, start):
    texts = list(dict.fromkeys(some_texts(120)))
    premises = [premise(f"p{n}", text, ["dev"] if n % 3 else ["train"]) for n, text in enumerate(texts)]
    async with serve(k_max=20) as files, start(k_max=20) as milvus:
        for index in (files, milvus):
            await index.client.build("science", premises)
        for more in ({}, {"splits": ["dev"], "exclude": ["p4"]}, {"accepted": [["p1"], ["p2", "p5"], [], []]}):
            for mode in ("lexical", "iterative_lexical", "hybrid"):
                answers = [
                    await index.client.retrieve("science", [texts[0], *QUERIES[:3]], k=9, mode=mode, **more)
                    for index in (files, milvus)
                ]
                expected, found = [[[(hit.id, hit.score) for hit in hits] for hits in one] for one in answers]
                assert found == expected, (mode, more)
                assert found[0]


async def test_a_generation_without_any_word_is_built_and_found_by_vectors_alone(start, named):
    async with start() as index:
        await index.client.build("signs", [premise("a", "?!"), premise("b", "the")])
        assert len((await index.client.retrieve("signs", ["ice"], k=2))[0]) == 2
        for mode in ("lexical", "iterative_lexical"):
            worded = await index.client.retrieve("signs", ["ice", "the"], k=2, mode=mode)
            assert [len(hits) for hits in worded] == [0, 0]
        [[hit, _]] = await index.client.retrieve("signs", ["?!"], k=2, mode="hybrid", drop_self=False)
        assert hit.id == "a"
    assert not named("w") + named("f")


@pytest.mark.slow
async def test_a_generation_whose_words_are_lost_is_not_activated_and_goes_with_its_words(start, raw, named):
    async with start() as index:
        first = await index.client.build("science", [premise("a", "ice is cold")])
        second = await index.client.build("science", [premise("b", "fire is hot")], activate=False)
        mine = named("w")
        assert len(mine) == 2
        [lost] = [
            name for name in mine if raw.query(name, filter="ordinal >= 0", output_fields=["text"])[0]["text"][0] == "f"
        ]
        raw.delete(lost, filter="ordinal >= 0")
        await raises(errors.DataLoss, index.client.activate("science", second.id), "the words of 0 premises")
        third = await index.client.build("science", [premise("c", "fire is not hot")], activate=False)
        for counted in named("f"):
            raw.delete(counted, filter="count == 1")
        await raises(errors.DataLoss, index.client.activate("science", third.id), "the frequencies of 0 words")
        await index.client.delete("science", third.id)
        assert [one.active.id for one in (await index.client.info()).corpora] == [first.id]
        await index.client.delete("science", second.id)
        assert named("w") == [name for name in mine if name != lost]
