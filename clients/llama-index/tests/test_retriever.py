"""The retriever against a running index, at AEENC_INDEX, that holds the corpus `science`."""

from __future__ import annotations

import asyncio
import inspect
import os

import pytest
from llama_index.core import Settings
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.retrievers.aeenc import AeencRetriever

import aeenc
from aeenc.adapters.premises import OPTIONS

QUERY = "a magnet attracts an iron nail"


@pytest.fixture
def retriever():
    made = AeencRetriever("science", k=3)
    yield made
    made.close()


def test_a_node_is_a_premise_with_its_origin(retriever):
    with aeenc.connect(index=os.environ["AEENC_INDEX"]) as client:
        expected = client.index.retrieve("science", [QUERY], k=3)
    nodes = retriever.retrieve(QUERY)
    assert [(one.node_id, one.text, one.score) for one in nodes] == [
        (hit.id, hit.text, hit.score) for hit in expected[0]
    ]
    assert [one.metadata for one in nodes] == [
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


def test_a_language_model_is_shown_the_text_alone(retriever):
    node = retriever.retrieve(QueryBundle(QUERY))[0].node
    assert node.get_content(MetadataMode.LLM) == node.get_content(MetadataMode.NONE)


def test_a_query_engine_answers_from_the_premises(retriever):
    Settings.embed_model = None
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    answer = engine.query(QUERY)
    assert [one.node_id for one in answer.source_nodes] == [one.node_id for one in retriever.retrieve(QUERY)]
    assert answer.source_nodes[0].text in str(answer)


async def test_awaiting_finds_the_same_in_event_loop_after_event_loop(retriever):
    def ids(nodes):
        return [(one.node_id, one.score) for one in nodes]

    nodes = ids(await retriever.aretrieve(QUERY))
    assert nodes == ids(await asyncio.to_thread(retriever.retrieve, QUERY))
    assert nodes == ids(await asyncio.to_thread(lambda: asyncio.run(retriever.aretrieve(QUERY))))


def test_accepted_premises_are_not_found_again(retriever):
    first = retriever.retrieve(QUERY)[0].node_id
    conditioned = retriever.with_options(accepted=[first], k=10)
    assert first not in [one.node_id for one in conditioned.retrieve(QUERY)]
    assert len(conditioned.retrieve(QUERY)) == 9
    assert retriever.retrieve(QUERY)[0].node_id == first, "the first retriever keeps its options"


def test_words_alone_need_no_encoder():
    [node] = AeencRetriever("science", k=1, mode="lexical").retrieve("heat melts")
    assert (node.text, node.metadata["model_version"]) == ("heat melts ice", "")
    hybrid = AeencRetriever("science", mode="hybrid", fusion=aeenc.Fusion("reciprocal_rank", 0.9))
    assert hybrid.retrieve("heat melts")[0].text == "heat melts ice"


def test_no_option_has_the_name_of_a_parameter():
    assert not OPTIONS & inspect.signature(AeencRetriever).parameters.keys()


def test_what_is_wrong_is_named(retriever):
    with pytest.raises(aeenc.errors.InvalidArgument, match="top_k: is not an option of retrieve"):
        AeencRetriever("science", top_k=3)
    with pytest.raises(aeenc.errors.InvalidArgument, match="mode: is 'sparse'"):
        retriever.with_options(mode="sparse").retrieve(QUERY)
    with pytest.raises(aeenc.errors.NotFound, match="nowhere"):
        AeencRetriever("nowhere").retrieve(QUERY)


@pytest.mark.parametrize("name", [*sorted(OPTIONS), "corpus", "index", "token", "ca", "tls"])
def test_what_is_set_later_is_refused_where_it_would_be_ignored(name):
    made = AeencRetriever("science", index="127.0.0.1:1")
    with pytest.raises(aeenc.errors.InvalidArgument, match=f"^{name}: .*make another"):
        setattr(made, name, "other")
