"""The retriever against a running index, at AEENC_INDEX, that holds the corpus `science`."""

from __future__ import annotations

import asyncio
import copy
import os
from typing import Any

import pytest
from langchain_aeenc import AeencRetriever
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError

import aeenc
from aeenc.adapters.premises import OPTIONS

QUERY = "a magnet attracts an iron nail"


class TestStandard(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return AeencRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"corpus": "science"}

    @property
    def retriever_query_example(self) -> str:
        return QUERY


@pytest.fixture
def retriever():
    made = AeencRetriever(corpus="science", k=3)
    yield made
    made.close()


def test_a_document_is_a_premise_with_its_origin(retriever):
    with aeenc.connect(index=os.environ["AEENC_INDEX"]) as client:
        expected = client.index.retrieve("science", [QUERY], k=3)
    documents = retriever.invoke(QUERY)
    assert [(one.id, one.page_content) for one in documents] == [(hit.id, hit.text) for hit in expected[0]]
    assert [one.metadata for one in documents] == [
        {
            "score": hit.score,
            "rank": rank,
            "model_version": expected.model_version,
            "rerank_versions": [],
            "generation": expected.generation,
            "unknown_splits": [],
            "unknown_tags": [],
        }
        for rank, hit in enumerate(expected[0], start=1)
    ]
    assert expected.model_version
    assert expected.generation


async def test_awaiting_finds_the_same_in_event_loop_after_event_loop(retriever):
    documents = await retriever.ainvoke(QUERY)
    assert documents == await asyncio.to_thread(retriever.invoke, QUERY)
    assert await asyncio.to_thread(lambda: asyncio.run(retriever.ainvoke(QUERY))) == documents
    assert await retriever.abatch([QUERY, QUERY]) == [documents, documents]


def test_accepted_premises_are_not_found_again_and_steer_the_search(retriever):
    first = retriever.invoke(QUERY)[0]
    assert first.id not in [one.id for one in retriever.invoke(QUERY, accepted=[first.id])]
    assert AeencRetriever(corpus="science", accepted=[first.id]).invoke(QUERY)[0].id != first.id


def test_words_alone_need_no_encoder():
    documents = AeencRetriever(corpus="science", k=1, mode="lexical").invoke("heat melts")
    assert [one.page_content for one in documents] == ["heat melts ice"]
    assert documents[0].metadata["model_version"] == ""
    hybrid = AeencRetriever(corpus="science", mode="hybrid", fusion=aeenc.Fusion("reciprocal_rank", 0.9))
    assert hybrid.invoke("heat melts")[0].page_content == "heat melts ice"


def test_every_option_of_the_client_is_a_field():
    assert set(AeencRetriever.model_fields) >= OPTIONS


def test_what_is_wrong_is_named(retriever):
    with pytest.raises(ValidationError, match="mode"):
        AeencRetriever(corpus="science", mode="sparse")
    with pytest.raises(ValidationError, match="top_k"):
        AeencRetriever(corpus="science", top_k=3)
    with pytest.raises(aeenc.errors.InvalidArgument, match="top_k: is not an option of retrieve"):
        retriever.invoke(QUERY, top_k=3)
    with pytest.raises(aeenc.errors.InvalidArgument, match="mode: is 'sparse'"):
        retriever.invoke(QUERY, mode="sparse")
    with pytest.raises(aeenc.errors.InvalidArgument, match="accepted: is one string"):
        retriever.invoke(QUERY, accepted="p1")
    with pytest.raises(aeenc.errors.NotFound, match="nowhere"):
        AeencRetriever(corpus="nowhere").invoke(QUERY)


def test_a_token_is_not_shown():
    assert "secret-word" not in repr(AeencRetriever(corpus="science", token="secret-word"))


def test_fields_that_are_set_anew_or_differ_in_a_copy_are_those_that_are_searched(retriever):
    first = retriever.invoke(QUERY)
    assert first
    other = retriever.model_copy(update={"corpus": "elsewhere"})
    for changed in (other, retriever):
        changed.corpus = "elsewhere"
        with pytest.raises(aeenc.errors.NotFound, match="elsewhere"):
            changed.invoke(QUERY)
    retriever.corpus = "science"
    assert retriever.invoke(QUERY) == first
    retriever.index = "127.0.0.1:1"
    with pytest.raises(aeenc.errors.Unavailable, match=r"127\.0\.0\.1:1"):
        retriever.invoke(QUERY)


def test_a_used_retriever_is_copied_and_sent_to_other_processes(retriever):
    first = retriever.invoke(QUERY)
    for copied in (copy.deepcopy(retriever), copy.copy(retriever)):
        assert copied.invoke(QUERY) == first
        copied.close()
