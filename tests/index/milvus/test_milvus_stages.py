"""What comes before and after matching in a Milvus: the answers of files to the bit, or a refusal by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aeenc import Fusion, errors
from services.index.ranking.features import NAMES, VECTOR_NAMES
from support.worlds.index_world import FACTS, SPACE, facts, premise, raises, vector_of

TEXTS = [FACTS[3], "what pulls nails", "ice"]
ACCEPTED = [["f4"], ["also-f0", "f3", "f0"], []]
ORDERED = Fusion(features={name: 0.3 + 0.1 * n for n, name in enumerate(NAMES)})


def named() -> list[Any]:
    return [premise("f0", FACTS[0], aliases=["also-f0"]), *facts()[1:]]


@pytest.mark.parametrize(
    "more",
    [
        {"accepted": ACCEPTED},
        {"rerank": 6},
        {"rerank": 6, "rerank_weight": 0.25},
        {"accepted": ACCEPTED, "rerank": 7},
        {"accepted": ACCEPTED, "drop_self": False, "splits": ["dev"], "exclude": ["f1"]},
        {
            "mode": "hybrid",
            "accepted": ACCEPTED,
            "fusion": Fusion("reciprocal_rank", 0.7),
            "negative_feedback": 0.4,
            "rerank": 7,
        },
        {"mode": "iterative_lexical", "accepted": ACCEPTED, "rerank": 7},
        {"mode": "hybrid", "fusion": ORDERED},
        {"fusion": Fusion(features=dict.fromkeys(VECTOR_NAMES, 0.5)), "accepted": ACCEPTED},
        {"mode": "hybrid", "fusion": ORDERED, "accepted": ACCEPTED, "splits": ["dev"], "negative_feedback": 0.4},
    ],
    ids=[
        "accepted",
        "rerank",
        "weighted",
        "both",
        "restricted",
        "hybrid",
        "rounds",
        "features",
        "features of vectors",
        "features of some",
    ],
)
async def test_conditioned_and_re_ranked_answers_are_those_of_files_to_the_bit(start, serve, encoder, more):
    answers = []
    async with serve() as files, start() as milvus:
        for index in (files, milvus):
            await index.client.build("science", named())
            answers.append(await index.client.retrieve("science", TEXTS, k=5, **more))
    expected, found = [[[(hit.id, hit.text, hit.score) for hit in hits] for hits in answer] for answer in answers]
    assert found == expected
    assert all(len(hits) == 5 for hits in found) or "iterative_lexical" in more.values(), "words find fewer"
    if "accepted" in more:
        assert not {"f0", "f3"} & {one for one, _, _ in found[1]}
    assert bool(encoder.servicer.score_requests) == ("rerank" in more)
    plain = {"drop_self", "splits", "exclude"} & set(more)
    assert plain or found != await unconditioned(serve), "nothing was changed by it"


async def unconditioned(serve) -> list[Any]:
    async with serve() as files:
        answer = await files.client.retrieve("science", TEXTS, k=5)
    return [[(hit.id, hit.text, hit.score) for hit in hits] for hits in answer]


async def test_an_accepted_premise_that_is_not_there_is_refused_by_name(start):
    async with start() as index:
        await index.client.build("science", named())
        call = index.client.retrieve("science", ["ice", "light"], accepted=[["f1"], ["f2", "gone"]])
        await raises(errors.InvalidArgument, call, "accepted[1].premise_ids", "gone")


async def test_what_a_milvus_does_not_have_is_refused_by_name(start):
    async with start(milvus_engine="hnsw") as index:
        await index.client.build("science", named())
        query = np.stack([vector_of("ice")])
        exact = index.client.search("science", query, space_id=SPACE, exact=True)
        await raises(errors.Unimplemented, exact, "params.exact", "MILVUS_ENGINE=flat")
        found = await index.client.search("science", query, space_id=SPACE, ef_search=64)
        assert (len(found.ids[0]), found.exact) == (10, False)


async def test_builds_fold_similar_texts(start):
    async with start() as index:
        similar = [premise("a", "Ice is cold."), premise("b", "ice is  cold"), premise("c", "fire is hot")]
        assert (await index.client.build("science", similar, fold_similar=True)).premises == 2
        [found] = await index.client.get_premises("science", ["b"])
        assert (found.id, list(found.aliases)) == ("a", ["b"])
