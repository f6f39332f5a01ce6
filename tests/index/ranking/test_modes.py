"""Retrieve by words and by both, over the wire."""

from __future__ import annotations

import numpy as np
import pytest

from aeenc import IndexClient, errors
from aeenc.calls.retrieval import Fusion
from aeenc.v1 import encoder_pb2
from services.corpus.generation import open_generation
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.ranking.fusion import fuse
from support.worlds.index_world import FACTS, facts, raises, vector_of


@pytest.mark.parametrize("mode", ["lexical", "iterative_lexical"])
async def test_words_find_premises_with_the_encoder_away(built, encoder, mode):
    await encoder.stop()
    found = await built.client.retrieve("science", ["which magnet attracts it", "zzz"], k=3, mode=mode)
    assert found[0][0].text == "a magnet attracts iron"
    assert found[0][0].score > 0
    assert found[1] == [], "no premise shares a word with it"
    assert (found.model_version, bool(found.generation)) == ("", True)


async def test_hybrid_is_the_fusion_of_exact_scores(built):
    served = open_generation(built.store, "science", (await anext(built.client.list_corpora())).active.id)
    lexical = LexicalIndex.open(served.artifact, len(served.premises))
    text = "does a magnet melt ice"
    cosines = (served.vectors @ vector_of(text, encoder_pb2.ROLE_QUERY)).astype(np.float32)
    words = lexical.scores(lexical.terms(text))
    for fusion, weight, method in (
        (None, 0.2, "min_max"),
        (Fusion(lexical_weight=0.7), 0.7, "min_max"),
        (Fusion("reciprocal_rank", 0.5), 0.5, "reciprocal_rank"),
    ):
        expected = best(fuse(cosines, words, weight, method) + 1, 5, None)
        hits = (await built.client.retrieve("science", [text], k=5, mode="hybrid", fusion=fusion))[0]
        assert [hit.text for hit in hits] == [FACTS[n] for n in expected.ordinals]
        np.testing.assert_allclose([hit.score for hit in hits], expected.scores - 1, atol=1e-5)


async def test_a_generation_of_before_has_no_words_and_says_so(index, monkeypatch):
    monkeypatch.setattr("services.index.building.index_process.write_lexical", lambda path, texts, settings: {})
    await index.client.build("science", facts())
    assert (await index.client.retrieve("science", ["ice"], k=1))[0]
    asked = index.client.retrieve("science", ["ice"], mode="lexical")
    await raises(errors.FailedPrecondition, asked, "no lexical index", "build it again")


async def test_more_texts_than_may_wait_are_refused(serve):
    import asyncio

    async with serve(max_queued=64) as index:
        await index.client.build("science", facts())
        impatient = IndexClient(index.client.channel.with_options(retry=False))
        asked = [impatient.retrieve("science", ["ice"] * 60, mode="lexical") for _ in range(8)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [one for one in answers if isinstance(one, errors.Overloaded)]
        assert refused
        assert len(refused) < 8
        assert not [one for one in answers if isinstance(one, Exception) and one not in refused]
        assert (await index.client.retrieve("science", ["ice"], mode="lexical"))[0]
