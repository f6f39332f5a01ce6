"""What comes before and after matching: premises accepted before, the prior, the cross-encoder; all over the wire."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from aeenc import errors, values
from aeenc.calls.encoding import Scored
from services.index.dense.exact import FlatIndex
from services.index.lexical.bm25 import LexicalIndex
from services.index.ranking import alone, stages
from services.index.ranking.encoding import TOGETHER, WINDOW, Reranker
from services.index.ranking.fusion import Prior
from services.index.values import ALL as ANY
from services.index.values import DEFAULT_PARAMS, Scope, SearchHits, TextQuery, Timings
from support.worlds.index_world import FACTS, facts, raises, vector_of

EXPLAINED = [
    ("magnets pull iron nails", ["f0", "f1", "gone"]),
    ("a nail of iron sticks to a magnet", ["f1", "f2"]),
    ("frogs hunt insects", ["f8"]),
]
ALL = np.arange(10)


async def test_a_prior_is_made_once_for_all_who_wait_and_not_kept_if_explanations_changed_meanwhile(built, monkeypatch):
    await built.client.put_explanations("science", EXPLAINED)
    explanations = built.catalogue.explanations
    loop, make, made = asyncio.get_running_loop(), Prior.over, []

    def slow(*arguments):
        made.append(arguments)
        if len(made) == 1:
            loop.call_soon_threadsafe(explanations.forget, "science")
        time.sleep(0.05)  # in a thread
        return make(*arguments)

    monkeypatch.setattr(Prior, "over", staticmethod(slow))
    for _ in range(2):
        await asyncio.gather(*(built.client.retrieve("science", ["ice"], prior=0.5) for _ in range(8)))
    assert len(made) == 2


async def test_the_priors_that_were_wanted_last_are_kept(index, monkeypatch):
    made, make = [], Prior.over
    monkeypatch.setattr(Prior, "over", staticmethod(lambda told, known: made.append(told[0].text) or make(told, known)))
    monkeypatch.setattr(stages, "OPEN_PRIORS", 2)
    for corpus in "abc":
        await index.client.build(corpus, facts())
        await index.client.put_explanations(corpus, [(corpus, ["f1"])])
    for corpus in "abacab":
        await index.client.retrieve(corpus, ["ice"], prior=0.5)
    assert made == ["a", "b", "c", "b"]


async def test_texts_beyond_the_limit_do_not_wait_for_the_cross_encoder():
    class Scores:
        answer = asyncio.Event()

        async def score(self, _text, premises, **_options):
            await self.answer.wait()
            return Scored(np.ones(len(premises), np.float32), "x", values.Timings(), 0)

    reranker = Reranker(Scores(), timeout_s=10, max_queued=2)  # type: ignore[arg-type]
    hits, premises = [SearchHits(np.array([1, 2]), np.ones(2, np.float32))] * 2, [["ice", "iron"]] * 2
    query = TextQuery(("a", "b"), Scope("science", 2), rerank=2)
    first = asyncio.create_task(reranker.rerank(query, hits, premises, left_s=None))
    await asyncio.sleep(0)
    late = reranker.rerank(replace(query, texts=("c",)), hits[:1], premises[:1], left_s=None)
    await raises(errors.Overloaded, late, "cross-encoder", "limit is 2")
    Scores.answer.set()
    assert (await first)[1] == ("x",)


TIMES = [(10.0, None, 10.0), (10.0, 2.0, 1.8), (1.0, 2.0, 1.0)]  # the limit, what is left, what the encoder is told


@pytest.mark.parametrize(("limit_s", "left_s", "told_s"), [*TIMES, (10.0, -1.0, 0.001)])
async def test_the_cross_encoder_has_the_time_that_is_left_and_never_more_than_the_limit(limit_s, left_s, told_s):
    asked = []

    class Scores:
        async def score(self, _text, premises, **options):
            asked.append(options)
            return Scored(np.ones(len(premises), np.float32), options["version"] or "x", values.Timings(), 0)

    reranker = Reranker(Scores(), timeout_s=limit_s, max_queued=10)  # type: ignore[arg-type]
    query = TextQuery(("a",), Scope("science", 2), rerank=2)
    hits = [SearchHits(np.array([1, 2]), np.ones(2, np.float32))]
    for versions in ((), ("x",)):
        await reranker.rerank(replace(query, rerank_versions=versions), hits, [["ice", "iron"]], left_s=left_s)
    assert [one.pop("timeout_s") for one in asked] == [pytest.approx(told_s, abs=0.3 if left_s else 0)] * 2
    same = {"truncate": True, "precision": None}
    assert asked == [
        {"version": None, "first_of_ensemble": True, **same},
        {"version": "x", "first_of_ensemble": False, **same},
    ]


SLOW = [
    ({"mode": "lexical", "rerank": 5}, "re-rank fewer premises"),
    ({"mode": "dense"}, "send fewer texts"),
]


@pytest.mark.parametrize(("options", "fewer"), SLOW, ids=["scores", "vectors"])
async def test_an_encoder_that_is_too_slow_is_named_with_its_limit_and_the_setting(serve, encoder, options, fewer):
    async with serve(encode_timeout_s=0.3, retry=False) as index:
        await index.client.build("science", facts())
        encoder.servicer.may_answer.clear()
        late = index.client.retrieve("science", ["ice"], k=3, **options)
        told = encoder.target, "than the 0.3 s", "raise AEENC_INDEX_ENCODE_TIMEOUT_S", fewer
        await raises(errors.DeadlineExceeded, late, *told)
        encoder.servicer.may_answer.set()


async def test_a_cross_encoder_orders_the_first_premises_anew(built, encoder):
    text = "a star that heats the ice"
    first = (await built.client.retrieve("science", [text], k=5))[0]
    started = time.perf_counter()
    found = await built.client.retrieve("science", [text], k=3, rerank=5)
    expected = sorted(first, key=lambda hit: (-hit.text.count("e"), int(hit.id[1:])))[:3]
    assert [hit.id for hit in found[0]] == [hit.id for hit in expected]
    assert [hit.score for hit in found[0]] == [hit.text.count("e") for hit in expected]
    assert found.rerank_versions == (encoder.servicer.cross_version,)
    assert timedelta() < found.timings.encode < found.timings.total < timedelta(seconds=time.perf_counter() - started)
    assert [list(request.premises) for request in encoder.servicer.score_requests] == [[hit.text for hit in first]]


async def test_a_text_that_finds_nothing_is_not_re_ranked_and_the_others_are(built, encoder):
    found = await built.client.retrieve("science", ["zebra", "heat"], k=2, mode="lexical", rerank=5)
    assert [[hit.id for hit in hits] for hits in found] == [[], ["f6", "f4"]], "by their letters e"
    assert len(encoder.servicer.score_requests) == 1


async def test_failures_of_the_cross_encoder_reach_the_caller_by_name(serve, encoder):
    async with serve(encode_timeout_s=1.0) as index:
        await index.client.build("science", facts())
        encoder.servicer.fail = (grpc.StatusCode.UNIMPLEMENTED, "no cross-encoder is published")
        ask = index.client.retrieve("science", ["ice"], k=2, mode="lexical", rerank=5)
        await raises(errors.Unimplemented, ask, "no cross-encoder")
        encoder.servicer.fail = None
        await encoder.stop()
        once = index.aeenc.with_options(retry=False).index
        ask = once.retrieve("science", ["ice"], k=2, mode="lexical", rerank=5, timeout_s=20)
        await raises(errors.Unavailable, ask, encoder.target, "rerank to 0")


async def test_texts_of_concurrent_calls_go_to_the_encoder_together_and_come_back_to_their_callers(built, encoder):
    encoder.servicer.requests.clear()
    encoder.servicer.pause_s = 0.2
    texts = [f"{FACTS[n % 10]} {n}" for n in range(64)]
    found = await asyncio.gather(*(built.client.retrieve("science", [text], k=1) for text in texts))
    assert [one[0][0].text for one in found] == [FACTS[n % 10] for n in range(64)]
    assert len(encoder.servicer.requests) < 32  # a dozen on an idle machine
    assert sum(len(request.texts) for request in encoder.servicer.requests) == 64


@pytest.mark.parametrize("texts", [2, TOGETHER + 1])
async def test_a_call_of_one_text_waits_for_none_of_several_at_the_encoder(built, encoder, texts):
    several, held = [f"fact {n}" for n in range(texts)], asyncio.Event()
    original = encoder.servicer._encode

    async def encode(request, context):
        if len(request.texts) > 1:
            await held.wait()
        return await original(request, context)

    encoder.servicer._encode = encode
    calls = [asyncio.ensure_future(built.client.retrieve("science", several, k=1)) for _ in range(WINDOW + 1)]
    await asyncio.sleep(0.1)
    assert len((await built.client.retrieve("science", ["ice"], k=1, timeout_s=5))[0]) == 1
    assert not any(call.done() for call in calls)
    held.set()
    assert {len(found.results) for found in await asyncio.gather(*calls)} == {texts}


async def test_texts_whose_vectors_no_answer_of_the_encoder_holds_go_out_in_parts_to_one_version(built, encoder):
    def refuse(request):
        return errors.TooLarge.field("texts", "send fewer") if len(request.texts) > 240 else None

    texts = [FACTS[n % 10] for n in range(500)]
    encoder.servicer.requests.clear()
    whole = await built.client.retrieve("science", texts, k=1)
    encoder.servicer.refuse = refuse
    encoder.servicer.requests.clear()
    found = await built.client.retrieve("science", texts, k=1)
    assert [hits[0].id for hits in found.results] == [hits[0].id for hits in whole.results]
    versions = [request.model.version for request in encoder.servicer.requests if len(request.texts) <= 240]
    assert versions[0] == ""
    assert set(versions[1:]) == {found.model_version}


@pytest.mark.parametrize("kept", [10**6, 0])
async def test_two_rankings_of_a_text_share_what_no_vector_changes(
    index, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    await index.client.build("science", facts())
    await index.client.put_explanations("science", [(FACTS[0], ["f1"])])
    counted: list[str] = []
    for kind, name in ((LexicalIndex, "scores"), (Prior, "nearest")):
        call = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, call=call, name=name: counted.append(name) or call(*given))
    monkeypatch.setattr(stages, "KEPT_SCORES", kept)
    await index.client.retrieve("science", ["iron", "ice"], mode="hybrid", prior=0.2, negative_feedback=0.3)
    # the hypotheses nearest to a text are found by words, too
    assert (counted.count("nearest"), counted.count("scores") - 2) == (2, 2 if kept else 4)


class Slices(FlatIndex):
    """An index that searches three rows at a time, as a large one does on request."""

    def steps(self, queries, k, allowed=None, params=None):
        return self.scan(queries, k, allowed, 3)


def test_alone_a_search_takes_all_slices_and_its_time_is_computing():
    vectors = np.array([vector_of(fact) for fact in FACTS])
    served, timings = SimpleNamespace(index=Slices(vectors), allowed=lambda _: None), Timings()
    found = alone.finished(alone.search(served, vectors[:2], 4, ANY, DEFAULT_PARAMS, None, timings))
    expected = FlatIndex(vectors).nearest(vectors[:2], 4)
    assert [one.ordinals.tolist() for one in found] == [one.ordinals.tolist() for one in expected]
    assert alone.finished(alone.each([1, 2], lambda row: time.sleep(0.01) or row, None, timings)) == [1, 2]
    assert timings.queue_s == 0
    assert 0.02 < timings.compute_s < 60
