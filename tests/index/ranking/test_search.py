"""Search and Retrieve, by words and by both, over a socket: right answers, a message that helps for wrong questions."""

import asyncio
import time
from datetime import timedelta

import numpy as np
import pytest

from aeenc import Fusion, IndexClient, errors, vectors
from aeenc.v1 import encoder_pb2, index_pb2, index_pb2_grpc, types_pb2
from services.corpus.generation import Premises, open_generation
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.ranking.fusion import fuse
from support.worlds.index_world import FACTS, SPACE, facts, premise, raises, vector_of


def query(text: str) -> np.ndarray:
    return vector_of(text)[None, :]


async def test_a_search_tells_its_times_where_it_is_asked_to(index):
    await index.client.build("science", facts())
    silent = await index.client.search("science", query(FACTS[6]), space_id=SPACE, k=3)
    started = time.perf_counter()
    timed = await index.client.search("science", query(FACTS[6]), space_id=SPACE, k=3, timings=True)
    elapsed_s = time.perf_counter() - started
    assert silent.timings is None
    request = index_pb2.SearchRequest(
        corpus="science", vectors=vectors.to_proto(query(FACTS[6])), space_id=SPACE, k=3, timings=False
    )
    sent = await index_pb2_grpc.IndexServiceStub(index.client.channel.grpc).Search(request)
    assert not sent.HasField("timings"), "what nobody asked for costs time"
    assert timed.timings is not None
    assert timed.timings.queue + timed.timings.compute <= timed.timings.total <= timedelta(seconds=elapsed_s)
    assert timed.timings.compute.total_seconds() > 0
    assert timed.ids == silent.ids


async def test_what_a_retrieve_chooses_reaches_the_encoder_in_the_space_of_the_corpus(index, encoder):
    await index.client.build("science", facts())
    await index.client.retrieve("science", ["ice"], label="canary", truncate=True)
    await index.client.retrieve("science", ["ice"], version="q1", precision="int8", routing_key="user 7")
    request = index_pb2.RetrieveRequest(corpus="science", texts=["ice"], k=3)
    await index.client.channel.unary(index.client._stub.Retrieve, request, request_id="of-the-caller")
    label, version, default = encoder.servicer.requests[-3:]
    assert encoder.servicer.request_ids[-1] == "of-the-caller"
    assert (version.precision, version.routing_key) == (types_pb2.PRECISION_INT8, "user 7")
    assert (default.precision, default.routing_key) == (0, "")
    assert {request.space_id for request in (default, label, version)} == {SPACE}
    assert {request.role for request in (default, label, version)} == {encoder_pb2.ROLE_QUERY}
    assert (default.model.WhichOneof("selector"), label.model.label, version.model.version) == (None, "canary", "q1")


async def test_vectors_of_another_space_are_refused_and_both_are_named(index, encoder):
    await index.client.build("science", facts())
    encoder.servicer.space_id = "sother"
    await raises(errors.SpaceMismatch, index.client.retrieve("science", ["ice"]), "sother", SPACE)


async def test_a_build_asks_the_encoder_for_the_space_that_it_was_given(index, encoder):
    other = "s00000000000000bb"
    encoder.servicer.other_spaces = {other}
    here = await index.client.build("science", facts())
    there = await index.client.build("science", facts(), space_id=other, activate=False, request_id="once")
    assert (here.space_id, there.space_id) == (SPACE, other)
    assert (await index.client.retrieve("science", ["ice"])).generation == here.id
    await index.client.activate("science", there.id, expected=here.id)
    found = await index.client.retrieve("science", ["ice"])
    assert (found.generation, found.space_id) == (there.id, other)
    assert encoder.servicer.requests[-1].space_id == other, "the text is encoded where the premises are"
    copied = [one async for one in index.client.list_premises("science", generation=here.id)]
    again = await index.client.build("science", copied, space_id=other, activate=False)
    assert again.id == there.id, "a listing builds the same generation again"


@pytest.mark.parametrize("field", ["mode", "truncate", "precision", "fusion.method"])
async def test_a_value_of_a_newer_proto_is_refused_by_name_instead_of_passed_over(index, field):
    await index.client.build("science", facts())
    request = index_pb2.RetrieveRequest(corpus="science", texts=["ice"], k=1)
    within = {"mode": request.options, "fusion.method": request.options.fusion}.get(field, request)
    setattr(within, field.rpartition(".")[2], 99)
    call = index.client.channel.unary(index.client._stub.Retrieve, request)
    await raises(errors.InvalidArgument, call, f"{field}: 99 is unknown to this service")


async def test_an_answer_over_the_size_of_a_call_is_refused(serve):
    async with serve() as index:
        await index.client.build("science", [premise(f"p{n}", f"fact {n} {'x' * 900}") for n in range(60)])
    async with serve(message_bytes=20_000) as index:
        await raises(errors.TooLarge, index.client.retrieve("science", ["fact"], k=60), "20,000", "smaller k")
        listed = [one.id async for one in index.client.list_premises("science")]
        assert listed == [f"p{n}" for n in range(60)], "a page is cut to what fits"


async def test_premises_are_not_collected_beyond_what_an_answer_holds(index, monkeypatch):
    await index.client.build("science", [premise(f"p{n}", f"{n} {'x' * 9000}") for n in range(3)])
    read = []
    sound = Premises.__getitem__

    def counted(self, ordinal):
        read.append(ordinal)
        return sound(self, ordinal)

    monkeypatch.setattr(Premises, "__getitem__", counted)
    await raises(errors.TooLarge, index.client.get_premises("science", ["p1"] * 1024), "4,194,304", "fewer")
    # once to find the ordinal by its id, once to collect it, until the answer is full
    assert len(read) < 1024 + 4_194_304 // 9000 + 2
    listed = [one.id async for one in index.client.list_premises("science")]
    assert listed == ["p0", "p1", "p2"]


async def test_search_and_retrieve_by_words_work_without_an_encoder_and_by_meaning_it_is_named(serve, encoder):
    async with serve(encode_timeout_s=1.0) as index:
        await index.client.build("science", facts())
        await encoder.stop()
        once = index.aeenc.with_options(retry=False).index
        call = once.retrieve("science", ["ice"], timeout_s=20)
        await raises(errors.Unavailable, call, encoder.target, "Search")
        info = await index.client.info()
        assert encoder.target in info.service.state_reason
        assert (await index.client.search("science", query("ice"), space_id=SPACE)).ids[0]
        for mode in ("lexical", "iterative_lexical"):
            found = await index.client.retrieve("science", ["which magnet attracts it", "zzz"], k=3, mode=mode)
            assert (found[0][0].text, found[0][0].score > 0) == ("a magnet attracts iron", True)
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
