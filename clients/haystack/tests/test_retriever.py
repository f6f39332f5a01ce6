"""The component against a running index, at AEENC_INDEX, that holds the corpus `science`."""

from __future__ import annotations

import asyncio
import inspect
import os

import haystack
import pytest
from haystack import Pipeline
from haystack.components.builders import PromptBuilder
from haystack.utils import Secret
from haystack_integrations.components.retrievers.aeenc import AeencRetriever

import aeenc
from aeenc.adapters.premises import OPTIONS

AwaitedPipeline = getattr(haystack, "AsyncPipeline", Pipeline)  # from 3.0 on one class does both
QUERY = "a magnet attracts an iron nail"


@pytest.fixture
def retriever():
    made = AeencRetriever("science", k=3)
    yield made
    made.close()


def test_a_document_is_a_premise_with_its_origin(retriever):
    with aeenc.connect(index=os.environ["AEENC_INDEX"]) as client:
        expected = client.index.retrieve("science", [QUERY], k=3)
    documents = retriever.run(QUERY)["documents"]
    assert [(one.id, one.content, one.score) for one in documents] == [
        (hit.id, hit.text, hit.score) for hit in expected[0]
    ]
    assert [one.meta for one in documents] == [
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


def pipeline_of(kind, retriever):
    pipeline = kind()
    pipeline.add_component("retriever", retriever)
    template = "{% for one in documents %}{{ one.content }};{% endfor %}"
    pipeline.add_component("prompt", PromptBuilder(template=template, required_variables=["documents"]))
    pipeline.connect("retriever.documents", "prompt.documents")
    return pipeline


async def test_it_is_a_part_of_pipelines_blocking_and_awaited(retriever):
    texts = [one.content for one in (await retriever.run_async(QUERY))["documents"]]
    prompt = "".join(f"{text};" for text in texts)
    given = {"retriever": {"query": QUERY}}
    answer = await asyncio.to_thread(pipeline_of(Pipeline, AeencRetriever("science", k=3)).run, given)
    assert answer["prompt"]["prompt"] == prompt
    assert (await pipeline_of(AwaitedPipeline, retriever).run_async(given))["prompt"]["prompt"] == prompt


def test_a_pipeline_is_written_and_read_again(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret-word")
    token, fusion = Secret.from_env_var("MY_TOKEN"), aeenc.Fusion("reciprocal_rank", 0.9, {"first": 1.0})
    written = pipeline_of(Pipeline, AeencRetriever("science", token=token, k=2, mode="hybrid", fusion=fusion)).dumps()
    assert "secret-word" not in written
    answer = Pipeline.loads(written).run({"retriever": {"query": "heat melts"}}, include_outputs_from={"retriever"})
    best, _ = answer["retriever"]["documents"]
    assert best.content == "heat melts ice"
    given = AeencRetriever("science", fusion=fusion).to_dict()["init_parameters"]["fusion"]
    assert aeenc.Fusion(**given) == fusion


def test_a_token_in_plain_text_is_never_written():
    with pytest.raises(ValueError, match="serialize"):
        AeencRetriever("science", token=Secret.from_token("secret-word")).to_dict()


def test_accepted_premises_are_not_found_again(retriever):
    first = retriever.run(QUERY)["documents"][0].id
    found = [one.id for one in retriever.run(QUERY, accepted=[first], k=10)["documents"]]
    assert (len(found), first in found) == (9, False)


def test_words_alone_need_no_encoder():
    [document] = AeencRetriever("science", k=1, mode="lexical").run("heat melts")["documents"]
    assert (document.content, document.meta["model_version"]) == ("heat melts ice", "")


def test_no_option_has_the_name_of_a_parameter():
    assert not OPTIONS & inspect.signature(AeencRetriever.__init__).parameters.keys()


def test_what_is_wrong_is_named():
    with pytest.raises(aeenc.errors.InvalidArgument, match="top_k: is not an option of retrieve"):
        AeencRetriever("science", top_k=3)
    with pytest.raises(aeenc.errors.InvalidArgument, match="mode: is 'sparse'"):
        AeencRetriever("science", mode="sparse").run(QUERY)
    with pytest.raises(aeenc.errors.NotFound, match="nowhere"):
        AeencRetriever("nowhere").run(QUERY)


@pytest.mark.parametrize("name", [*sorted(OPTIONS), "corpus", "index", "token", "ca", "tls"])
def test_what_is_set_later_is_refused_where_it_would_be_ignored(name):
    made = AeencRetriever("science", index="127.0.0.1:1")
    with pytest.raises(aeenc.errors.InvalidArgument, match=f"^{name}: .*make another"):
        setattr(made, name, "other")
