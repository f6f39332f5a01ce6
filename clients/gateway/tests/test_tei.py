"""TEI's routes before the running fleet."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import serving

from aeenc import connect_async
from aeenc.transport.targets import Targets

TEXTS = ["a nail is made of iron", "moon", "a rabbit can eat the leaf of a plant"]
QUERY = "a magnet attracts iron"


@pytest.fixture
async def direct():
    async with connect_async(**Targets.find().options()) as client:
        yield client


async def test_embed_answers_one_vector_for_each_text(http, direct):
    vectors = (await http.post("/embed", json={"inputs": TEXTS})).raise_for_status().json()
    np.testing.assert_allclose(vectors, (await direct.encoder.encode(TEXTS)).vectors, rtol=1e-6)
    alone = (await http.post("/embed", json={"inputs": TEXTS[0]})).json()
    np.testing.assert_allclose(alone, vectors[:1], atol=1e-6)


async def test_prompt_names_choose_the_side_of_the_space(http, direct):
    documents = (await http.post("/embed", json={"inputs": TEXTS, "prompt_name": "document"})).json()
    np.testing.assert_allclose(documents, (await direct.encoder.encode(TEXTS, role="premise")).vectors, rtol=1e-6)
    refused = await http.post("/embed", json={"inputs": TEXTS, "prompt_name": "code"})
    assert (refused.status_code, refused.json()["error_type"]) == (400, "Validation")
    assert "'code'" in refused.json()["error"]


async def test_rerank_puts_texts_in_order_with_scores_between_0_and_1(http, direct):
    body = {"query": QUERY, "texts": TEXTS, "return_text": True}
    ranks = (await http.post("/rerank", json=body)).raise_for_status().json()
    raw = (await direct.encoder.score(QUERY, TEXTS)).scores
    assert [one["index"] for one in ranks] == list(np.argsort(-raw))
    assert [one["text"] for one in ranks] == [TEXTS[one["index"]] for one in ranks]
    np.testing.assert_allclose([one["score"] for one in ranks], 1 / (1 + np.exp(-np.sort(raw)[::-1])), rtol=1e-5)


async def test_raw_scores_are_the_cross_encoders(http, direct):
    ranks = (await http.post("/rerank", json={"query": QUERY, "texts": TEXTS, "raw_scores": True})).json()
    raw = (await direct.encoder.score(QUERY, TEXTS)).scores
    np.testing.assert_allclose([one["score"] for one in ranks], np.sort(raw)[::-1], rtol=1e-6)
    assert set(ranks[0]) == {"index", "score"}


async def test_several_cross_encoders_rank_by_the_sum_of_their_ranks(before, double):
    double.scores = {"x1": [9.0, 8.0, 1.0], "x2": [0.2, 0.3, 0.1], "x3": [0.2, 0.3, 0.1]}
    body = {"query": QUERY, "texts": TEXTS}
    ranks = (await before.post("/rerank", json=body)).raise_for_status().json()
    assert [one["index"] for one in ranks] == [1, 0, 2]
    assert [one["score"] for one in ranks] == pytest.approx([8 / 9, 7 / 9, 1 / 3])
    raw = (await before.post("/rerank", json={**body, "raw_scores": True})).json()
    assert [(one["index"], one["score"]) for one in raw] == [(1, -4), (0, -5), (2, -9)]


async def test_texts_too_long_are_refused_unless_they_may_be_cut(http):
    refused = await http.post("/embed", json={"inputs": "sun " * 100})
    assert refused.status_code == 400
    assert "over the model's 64" in refused.json()["error"]
    cut = await http.post("/embed", json={"inputs": "sun " * 100, "truncate": True})
    assert len(cut.raise_for_status().json()[0]) == 32


async def test_info_describes_the_encoder(http, direct):
    info = (await http.get("/info")).raise_for_status().json()
    assert info["model_id"] == (await direct.encoder.encode(["sun"])).model_version
    assert (info["max_input_length"], info["max_client_batch_size"]) == (64, 1024)
    assert info["model_dtype"] == "float32"


async def test_health_is_the_encoders(http):
    assert (await http.get("/health")).status_code == 200


async def test_health_fails_while_the_encoder_is_away():
    import httpx

    async with serving(Targets(encoder="127.0.0.1:1")) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get("/health")
    assert (answer.status_code, answer.json()["error_type"]) == (503, "Unhealthy")
    assert "no service answers at 127.0.0.1:1" in answer.json()["detail"]
