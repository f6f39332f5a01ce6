"""OpenAI's embeddings as OpenAI's client and LangChain call them, before the running fleet."""

from __future__ import annotations

import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from aeenc import connect_async
from aeenc.transport.targets import Targets
from aeenc.v1 import types_pb2

TEXTS = ["a magnet attracts an iron nail", "iron is a kind of metal"]


@pytest.fixture
async def client(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made:
        yield made


async def vectors_of(**options):
    async with connect_async(**Targets.find().options()) as direct:
        return (await direct.encoder.encode(TEXTS, **options)).vectors


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}])  # the client asks for base64 by itself
async def test_openais_client_gets_the_encoders_vectors(client, encoding):
    answer = await client.embeddings.create(model="stable", input=TEXTS, **encoding)
    np.testing.assert_allclose([one.embedding for one in answer.data], await vectors_of(), rtol=1e-6)
    assert [one.index for one in answer.data] == [0, 1]


async def test_usage_counts_the_tokens_of_all_texts(client):
    usage = (await client.embeddings.create(model="stable", input=["the sun is a star", "moon"])).usage
    assert usage.prompt_tokens == usage.total_tokens == 7 + 3  # two special tokens each


async def test_a_model_is_a_label_a_version_or_premise(client):
    labelled = await client.embeddings.create(model="stable", input=TEXTS)
    pinned = await client.embeddings.create(model=labelled.model, input=TEXTS)
    assert pinned.model == labelled.model != "stable"
    assert pinned.data[0].embedding == labelled.data[0].embedding
    premises = await client.embeddings.create(model="premise", input=TEXTS)
    np.testing.assert_allclose(premises.data[0].embedding, (await vectors_of(role="premise"))[0], rtol=1e-6)


async def test_the_models_listed_are_those_that_can_be_asked_for(client):
    names = [one.id async for one in client.models.list()]
    assert names[:2] == ["stable", "premise"]
    for name in names:
        assert (await client.embeddings.create(model=name, input="sun")).data


async def test_an_unknown_model_is_refused_with_those_that_there_are(client):
    with pytest.raises(openai.APIStatusError, match=r"text-embedding-3-small.*stable") as caught:
        await client.embeddings.create(model="text-embedding-3-small", input="sun")
    assert (caught.value.status_code, caught.value.code) == (412, "VERSION_NOT_LOADED")


async def test_models_of_other_spaces_are_not_listed(before):
    listed = (await before.get("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == ["stable", "premise", "q1"]


async def test_space_and_precision_reach_the_encoder_and_what_clients_send_besides_is_ignored(before, double):
    body = {"input": "sun", "precision": "float32", "space_id": "s2", "metadata": {"team": "lab"}}
    assert (await before.post("/v1/embeddings", json=body)).status_code == 200
    (asked,) = double.requests
    assert (asked.precision, asked.space_id) == (types_pb2.PRECISION_FLOAT32, "s2")


@pytest.mark.parametrize(("model", "selectors"), [("", ["", "q1"]), ("premise", ["", ""])])
async def test_as_many_inputs_as_openai_takes_go_in_batches_to_one_version(before, double, model, selectors):
    answer = (await before.post("/v1/embeddings", json={"input": ["sun"] * 2048, "model": model})).json()
    assert [one["index"] for one in answer["data"]] == list(range(2048))
    assert (answer["model"], answer["usage"]["total_tokens"]) == ("q1", 3 * 2048)
    assert [len(one.texts) for one in double.requests] == [1024, 1024]
    assert [one.model.version for one in double.requests] == selectors
    refused = await before.post("/v1/embeddings", json={"input": ["sun"] * 2049})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert "2048" in refused.json()["detail"]


@pytest.mark.parametrize("name", ["label", "version", "role"])
async def test_another_name_for_the_model_is_refused(before, double, name):
    refused = await before.post("/v1/embeddings", json={"input": "sun", name: "q7"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert "put the label, the version or `premise` into `model`" in refused.json()["detail"]
    assert not double.requests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dimensions": 8}, "dimensions: is 8; leave it out"),
        ({"input": [[1, 2], [3]]}, "check_embedding_ctx_length=False"),
        ({"input": [1, 2]}, "send texts"),
        ({"input": []}, "input: is empty"),
        ({"input": ["sun", ""]}, r"input\[1\]: is empty"),
        ({"input": "sun " * 100}, "tokens are over the model's 64"),
    ],
)
async def test_openais_client_shows_what_was_wrong(client, options, words):
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        await client.embeddings.create(**{"model": "stable", "input": "sun", **options})
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


@pytest.mark.parametrize(("path", "name"), [("/v1/embeddings", "input"), ("/embed", "inputs")])
async def test_the_full_length_is_a_length(http, path, name):
    dimensions = (await vectors_of()).shape[1]
    assert (await http.post(path, json={name: "sun", "dimensions": dimensions})).status_code == 200


async def test_texts_too_long_are_cut_when_asked_for(client):
    answer = await client.embeddings.create(model="stable", input="sun " * 100, extra_body={"truncate": True})
    assert answer.usage.prompt_tokens == 64


async def test_langchains_embeddings_find_premises_for_a_query(url):
    def embeddings(model):
        return OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key="any", check_embedding_ctx_length=False)

    query = await embeddings("stable").aembed_query(TEXTS[0])
    premises = await embeddings("premise").aembed_documents(TEXTS)
    assert np.linalg.norm(query) == pytest.approx(1, abs=1e-5)
    expected = await vectors_of() @ (await vectors_of(role="premise")).T
    np.testing.assert_allclose(np.array(premises) @ query, expected[0], atol=1e-5)
