"""What retrievers of frameworks stand on: the options of the client, settings found, any event loop."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest

from aeenc import IndexClient, errors
from aeenc.adapters.premises import OPTIONS, PremiseRetriever
from aeenc.calls.encoding import EncodeKeywords, EncodeOptions
from aeenc.calls.retrieval import CALL_OPTIONS, RetrieveKeywords, RetrieveOptions
from aeenc.v1 import index_pb2_grpc
from support.waiting import until
from support.worlds.sampler_world import FakeIndex, serving

QUERY = "a magnet attracts an iron nail"


class Index(FakeIndex):
    """Notes credentials, and whether a call ended early."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[str] = []
        self.cancelled = asyncio.Event()

    async def Retrieve(self, request: Any, context: Any) -> Any:
        self.tokens.append(dict(context.invocation_metadata()).get("authorization", ""))
        try:
            answer = await super().Retrieve(request, context)
            answer.rerank_versions.extend(["x1"] if request.options.rerank else [])
            answer.unknown_splits[:] = [split for split in request.filter.any_split if split == "tset"]
            answer.unknown_tags[:] = [tag for clause in request.filter.any_clause for tag in clause.all_of]
            return answer
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.fixture
def index() -> Index:
    return Index()


@pytest.fixture
async def retriever(target: str) -> AsyncIterator[PremiseRetriever]:
    made = PremiseRetriever("science", index=target)
    yield made
    await asyncio.to_thread(made.close)


@pytest.fixture
async def target(index: Index) -> AsyncIterator[str]:
    async with serving(index_pb2_grpc.add_IndexServiceServicer_to_server, index) as port:
        yield f"127.0.0.1:{port}"


def test_the_options_are_those_of_the_client():
    parameters = inspect.signature(IndexClient.retrieve).parameters.values()
    named = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert named | CALL_OPTIONS == OPTIONS | {"retrieval"}


@pytest.mark.parametrize(
    ("keywords", "options"), [(RetrieveKeywords, RetrieveOptions), (EncodeKeywords, EncodeOptions)]
)
def test_the_keywords_are_the_options_with_their_types(keywords: Any, options: Any):
    named = {name: kind.__forward_arg__ for name, kind in keywords.__annotations__.items()}
    assert named == {one.name: one.type for one in fields(options)}


async def test_a_premise_has_score_rank_versions_and_generation(retriever: PremiseRetriever):
    first, second = await retriever.retrieve_async(QUERY, {"k": 2, "rerank": 2})
    assert first.metadata() == {
        "score": first.score,
        "rank": 1,
        "model_version": "version-1",
        "rerank_versions": ["x1"],
        "generation": "generation-1",
        "unknown_splits": [],
        "unknown_tags": [],
    }
    assert (second.rank, second.score <= first.score) == (2, True)


@pytest.mark.parametrize(("what", "asked"), [("splits", ["train", "tset"]), ("tags", ["tset"])])
async def test_a_split_or_tag_that_no_premise_has_is_told(retriever: PremiseRetriever, what: str, asked: list[str]):
    with pytest.warns(UserWarning, match=f"{what}: no premise of corpus 'science' has 'tset'"):
        found = await retriever.retrieve_async(QUERY, {what: asked})
    assert found[0].metadata()[f"unknown_{what}"] == ["tset"]
    with pytest.warns(UserWarning, match="'tset'"):
        await asyncio.to_thread(retriever.retrieve, QUERY, {what: asked})


async def test_blocking_and_awaiting_in_another_loop_use_one_connection(retriever: PremiseRetriever):
    awaited = await retriever.retrieve_async(QUERY)
    assert await asyncio.to_thread(retriever.retrieve, QUERY) == awaited
    assert await asyncio.to_thread(lambda: asyncio.run(retriever.retrieve_async(QUERY))) == awaited
    channel = retriever._connected().channel
    await asyncio.to_thread(retriever.close)
    assert channel._closed.is_set()
    assert await retriever.retrieve_async(QUERY) == awaited, "by another connection"


async def test_who_stops_waiting_ends_the_call(retriever: PremiseRetriever, index: Index):
    index.delay_s = 30.0
    waiting = asyncio.create_task(retriever.retrieve_async(QUERY))
    await until(lambda: bool(index.requests))
    waiting.cancel()
    await asyncio.wait_for(index.cancelled.wait(), 10)


async def test_address_and_token_are_given_or_of_the_environment(
    target: str, index: Index, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AEENC_TOKEN", "of-the-environment")
    monkeypatch.setenv("AEENC_INDEX", target)
    await PremiseRetriever("science").retrieve_async(QUERY)
    await PremiseRetriever("science", index=target, token="given").retrieve_async(QUERY)
    assert index.tokens == ["Bearer of-the-environment", "Bearer given"]


async def test_options_of_one_call_go_before_those_of_the_retriever(target: str, index: Index):
    retriever = PremiseRetriever("science", index=target, options={"k": 2, "accepted": ["p1"]})
    await retriever.retrieve_async(QUERY, {"k": 1})
    await retriever.retrieve_async(QUERY, {"accepted": []})
    changed, without = index.requests
    assert (changed.k, [list(one.premise_ids) for one in changed.accepted]) == (1, [["p1"]])
    assert not without.accepted
    retriever.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_k": 3}, "top_k: is not an option of retrieve, which takes accepted"),
        ({"accepted": "p1"}, "accepted: is one string"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], words: str):
    with pytest.raises(errors.InvalidArgument, match=words):
        PremiseRetriever("science", options=options)


async def test_a_used_retriever_is_copied_and_sent_to_other_processes_without_its_connection(
    retriever: PremiseRetriever,
):
    found = await retriever.retrieve_async(QUERY)
    for copied in (copy.deepcopy(retriever), copy.copy(retriever)):
        assert await copied.retrieve_async(QUERY) == found
        await asyncio.to_thread(copied.close)
