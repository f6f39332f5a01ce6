"""A re-ranking by the sum of both scores, over the wire: in every mode whose scores compare, and refused elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aeenc import Fusion, Retrieval, errors
from aeenc.v1 import types_pb2
from services.index.ranking import encoding
from support.worlds.index_world import raises

TEXT = "a star that heats the ice"
WEIGHT = 0.25


@pytest.fixture
async def built(built):
    await built.client.put_explanations("science", [("the heat of a star", ["f2", "f5"]), ("ice melts", ["f6"])])
    return built


def by_sum(hits, weight=WEIGHT):
    """Ids and scores of a first ranking re-ranked by hand: the cross-encoder of the tests counts the letter "e"."""
    sums = {hit.id: float(np.float32(hit.score + weight * hit.text.count("e"))) for hit in hits}
    return sorted(sums.items(), key=lambda one: (-one[1], int(one[0][1:])))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "hybrid", "fusion": Fusion("reciprocal_rank")},
        {"mode": "lexical", "prior": 0.5},
        {"mode": "hybrid", "prior": 0.5, "negative_feedback": 0.4},
        {"mode": "dense", "accepted": [["f1"]]},
    ],
    ids=["reciprocal", "lexical-prior", "feedback", "accepted"],
)
async def test_a_weighted_re_ranking_adds_the_cross_encoders_score_to_the_one_before(built, encoder, options):
    first = (await built.client.retrieve("science", [TEXT], k=5, **options))[0]
    found = await built.client.retrieve("science", [TEXT], k=3, rerank=5, rerank_weight=WEIGHT, **options)
    assert [(hit.id, hit.score) for hit in found[0]] == by_sum(first)[:3]
    assert found.rerank_versions == (encoder.servicer.cross_version,)


@pytest.mark.parametrize(("asked", "told"), [(None, 0), ("float32", 1), ("int8", 0)])
async def test_single_precision_holds_for_pairs_too_and_a_lower_one_for_texts_alone(built, encoder, asked, told):
    await built.client.retrieve("science", [TEXT], k=3, rerank=5, precision=asked)
    assert {request.precision for request in encoder.servicer.score_requests} == {told}


@pytest.mark.parametrize("versions", [(), ("x-a", "x-e")], ids=["label", "ensemble"])
async def test_no_ranking_mixes_the_scores_of_encoders_that_compute_in_other_precisions(
    built, encoder, monkeypatch, versions
):
    ask = {"k": 10, "rerank": 10, "rerank_versions": versions}
    expected = [(hit.id, hit.score) for hit in (await built.client.retrieve("science", [TEXT], **ask))[0]]
    monkeypatch.setattr(encoding, "PAIRS_A_CALL", 3)
    encoder.servicer.score_requests.clear()
    encoder.servicer.cross_precisions = itertools.cycle([types_pb2.PRECISION_INT8, types_pb2.PRECISION_FLOAT32])
    found = (await built.client.retrieve("science", [TEXT], **ask))[0]
    assert [(hit.id, hit.score) for hit in found] == expected
    told = [request.precision for request in encoder.servicer.score_requests]
    assert told == sorted(told), "single precision is asked for once they differ"
    encoder.servicer.score_requests.clear()
    encoder.servicer.cross_precisions = itertools.repeat(types_pb2.PRECISION_INT8)
    await built.client.retrieve("science", [TEXT], **ask)
    assert {request.precision for request in encoder.servicer.score_requests} == {0}, "where all agree, once is enough"


async def test_equal_sums_stand_in_the_order_of_insertion(built):
    first = (await built.client.retrieve("science", [TEXT], k=10))[0]
    found = (await built.client.retrieve("science", [TEXT], k=10, rerank=10, rerank_weight=2.0**40))[0]
    assert len({hit.score for hit in found}) < 10, "beside so large a weight cosines are rounded away"
    assert [(hit.id, hit.score) for hit in found] == by_sum(first, 2.0**40)


VERSIONS = ("x-a", "x-e", "x-t")


@pytest.mark.parametrize("mode", ["dense", "iterative_lexical"])
async def test_an_ensemble_ranks_by_the_sum_of_ranks_and_ties_by_insertion(built, mode):
    first = (await built.client.retrieve("science", [TEXT, "ice"], k=10, mode=mode)).results
    found = await built.client.retrieve("science", [TEXT, "ice"], k=4, rerank=10, rerank_versions=VERSIONS, mode=mode)
    assert found.rerank_versions == ("x-a", "x-e", "x-t")
    for hits, anew in zip(first, found.results, strict=True):
        total = dict.fromkeys([hit.id for hit in hits], 0)
        for letter in "aet":
            order = sorted(hits, key=lambda hit: (-hit.text.count(letter), int(hit.id[1:])))
            for rank, hit in enumerate(order, start=1):
                total[hit.id] += rank
        expected = sorted(total, key=lambda one: (total[one], int(one[1:])))[:4]
        assert [(hit.id, hit.score) for hit in anew] == [(one, -total[one]) for one in expected]


async def test_a_label_that_names_an_ensemble_ranks_as_its_versions_do(built, encoder):
    by_versions = await built.client.retrieve("science", [TEXT, "ice"], k=4, rerank=10, rerank_versions=VERSIONS)
    encoder.servicer.cross_ensemble = VERSIONS
    by_label = await built.client.retrieve("science", [TEXT, "ice"], k=4, rerank=10)
    assert by_label.rerank_versions == ("x-a", "x-e", "x-t")
    assert [[(hit.id, hit.score) for hit in hits] for hits in by_label.results] == [
        [(hit.id, hit.score) for hit in hits] for hits in by_versions.results
    ]
    alone = await built.client.retrieve("science", [TEXT], k=4, rerank=10, rerank_versions=["x-a"])
    assert alone.rerank_versions == ("x-a",)
    weighted = built.client.retrieve("science", [TEXT], k=4, rerank=10, rerank_weight=0.5)
    await raises(errors.FailedPrecondition, weighted, "x-a, x-e, x-t", "rerank_weight to 0")


async def test_rankings_and_evaluations_take_an_ensemble_too(built):
    retrieval = Retrieval(rerank=4, rerank_versions=VERSIONS)
    found = await built.client.rankings("science", [TEXT], k=10, retrieval=retrieval)
    head = (await built.client.retrieve("science", [TEXT], k=4, rerank=4, rerank_versions=VERSIONS))[0]
    assert [hit.id for hit in found.results[0][:4]] == [hit.id for hit in head]
    assert found.rerank_versions == ("x-a", "x-e", "x-t")
    assert list(retrieval.to_proto().rerank_versions) == list(VERSIONS)
