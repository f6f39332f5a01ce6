"""Rankings of many texts through the SDK: as of single calls, by one version, a re-ranked head before the rest."""

from __future__ import annotations

import numpy as np
import pytest

from aeenc import Retrieval, RetrieveOptions, errors
from aeenc.calls import retrieval as calls
from aeenc.trees import EVERYTHING
from support.worlds.index_world import FACTS, facts, raises


async def test_many_texts_are_ranked_as_each_alone(built, monkeypatch):
    monkeypatch.setattr(calls, "TEXTS", 3)
    texts = [f"{fact} again" for fact in FACTS]
    accepted = [[f"f{(n + 1) % 10}"] for n in range(10)]
    for retrieval in (Retrieval(), Retrieval("lexical"), Retrieval("hybrid")):
        found = await built.client.rankings("science", texts, k=6, retrieval=retrieval, accepted=accepted)
        for text, own, hits in zip(texts, accepted, found.results, strict=True):
            alone = await built.client.retrieve("science", [text], k=6, mode=retrieval.mode, accepted=[own])
            assert [hit.id for hit in hits] == [hit.id for hit in alone[0]]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("exclude", ["f1"]),
        ("only_ids", ["f1", "f2"]),
        ("splits", ["s"]),
        ("tags", ["tag"]),
        ("rerank_versions", ["x-a", "x-e"]),
    ],
)
async def test_options_that_can_be_gone_through_once_hold_for_every_call(built, monkeypatch, name, chosen):
    monkeypatch.setattr(calls, "TEXTS", 3)
    monkeypatch.setattr(calls, "PAIRS", 12)
    texts, options = [f"{fact} again" for fact in FACTS], {"k": 4, "rerank": 4 * (name == "rerank_versions")}
    found = await built.client.rankings("science", texts, **options, **{name: iter(chosen)})
    assert found.results == (await built.client.rankings("science", texts, **options, **{name: chosen})).results


async def test_options_of_one_value_are_asked_with_and_those_beside_it_go_before(built, monkeypatch):
    texts = ["a star that heats the ice"]
    named = {"mode": "hybrid", "k": 4, "exclude": ["f1"]}
    kept = RetrieveOptions(**named)
    found = await built.client.retrieve("science", texts, **named)
    assert len(found[0]) == 4
    assert (await built.client.retrieve("science", texts, retrieval=kept)).results == found.results
    assert (await built.client.rankings("science", texts, retrieval=kept)).results == found.results
    assert (await built.client.retrieve("science", texts, retrieval=kept, k=2))[0] == found[0][:2]
    by_both = await built.client.retrieve("science", texts, retrieval=Retrieval("hybrid"), k=4, exclude=["f1"])
    assert by_both.results == found.results
    for ask in (built.client.retrieve, built.client.rankings):
        await raises(errors.InvalidArgument, ask("science", texts, retrieval="hybrid"), "retrieval: is 'hybrid'")
        await raises(errors.InvalidArgument, ask("science", texts, retrieval=kept, top_k=3), "top_k: is not an option")
    for only in (["f1"], []):
        both = built.client.rankings("science", texts, only_ids=only, accessible=[EVERYTHING])
        await raises(errors.InvalidArgument, both, "accessible: says what only_ids and before_id say")
    monkeypatch.setattr(calls, "TEXTS", 3)
    for name, few in (("accepted", [["f1"]] * 3), ("accessible", [EVERYTHING] * 3)):
        ask = built.client.rankings("science", FACTS[:6], **{name: few})  # as many as the first call has texts
        await raises(errors.InvalidArgument, ask, f"{name}: has 3 entries for 6 texts")
    by_vectors = built.client.search("science", np.ones((1, 2), np.float32), space_id="s", mode="hybrid")
    await raises(errors.InvalidArgument, by_vectors, "mode: is not an option of search")


async def test_premises_too_long_for_one_answer_are_ranked_by_more_calls(index):
    await index.client.build("long", [(f"p{n}", f"fact {n} {'x' * 15_000}") for n in range(30)])
    found = await index.client.rankings("long", [f"fact {n}" for n in range(20)], k=30, retrieval=Retrieval("lexical"))
    assert [(len(hits), hits[0].id) for hits in found.results] == [(30, f"p{n}") for n in range(20)]


async def test_a_label_that_moves_meanwhile_does_not_mix_versions(built, encoder, monkeypatch):
    monkeypatch.setattr(calls, "TEXTS", 2)
    encoder.servicer.requests.clear()
    found = await built.client.rankings("science", ["ice", "sun", "iron"], k=2, label="stable")
    asked = [request.model for request in encoder.servicer.requests]
    assert [model.WhichOneof("selector") for model in asked] == ["label", "version"]
    assert asked[1].version == found.model_version


@pytest.mark.parametrize("rerank", [0, 4])
async def test_an_activation_meanwhile_does_not_mix_generations(built, monkeypatch, rerank):
    monkeypatch.setattr(calls, "TEXTS", 2)
    unary, answers = built.client.channel.unary, []

    async def answer_then_activate(*args, **options):
        answers.append(await unary(*args, **options))
        if len(answers) == 1:
            await built.client.build("science", facts()[:5])
        return answers[-1]

    monkeypatch.setattr(built.client.channel, "unary", answer_then_activate)
    retrieval = Retrieval(rerank=rerank, rerank_weight=rerank / 40)
    found = await built.client.rankings("science", ["ice", "sun", "iron"], k=8, retrieval=retrieval)
    assert {answer.generation for answer in answers} == {found.generation}
    assert [len(hits) for hits in found.results] == [8, 8, 8], "the generation activated meanwhile holds five premises"
    assert (await built.client.retrieve("science", ["ice"])).generation != found.generation


async def test_a_re_ranked_head_is_followed_by_the_others_in_their_order(built, encoder):
    text = "a star that heats the ice"
    first = (await built.client.retrieve("science", [text], k=10))[0]
    found = await built.client.rankings("science", [text, "iron"], k=10, retrieval=Retrieval(rerank=4))
    head = sorted(first[:4], key=lambda hit: (-hit.text.count("e"), int(hit.id[1:])))
    assert [hit.id for hit in found.results[0]] == [hit.id for hit in (*head, *first[4:])]
    scores = [hit.score for hit in found.results[0]]
    assert scores[4:] == [scores[3] - place for place in range(1, 7)], "below the head's, whatever they were"
    assert found.rerank_versions == (encoder.servicer.cross_version,)
    assert len((await built.client.rankings("science", [text], k=3, retrieval=Retrieval(rerank=4))).results[0]) == 3


async def test_a_cross_encoder_that_changes_meanwhile_is_refused(built, encoder, monkeypatch):
    monkeypatch.setattr(calls, "PAIRS", 4)
    versions = iter(["x1", "x2"])
    monkeypatch.setattr(type(encoder.servicer), "cross_version", property(lambda _: next(versions)), raising=False)
    ask = built.client.rankings("science", ["ice", "sun"], k=2, retrieval=Retrieval(rerank=4))
    await raises(errors.FailedPrecondition, ask, "x1", "x2")
