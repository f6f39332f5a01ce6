"""Answers over a Milvus are those of files to the bit, before, in and after matching; what it lacks is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aeenc import Fusion, errors
from services.index.values import FEATURES, VECTOR_FEATURES
from support.servers.milvus_server import need_milvus
from support.worlds.index_world import FACTS, SPACE, facts, premise, raises, vector_of

need_milvus()


TEXTS = [FACTS[3], "what pulls nails", "ice"]
ACCEPTED = [["f4"], ["also-f0", "f3", "f0"], []]
ORDERED = Fusion(features={name: 0.3 + 0.1 * n for n, name in enumerate(FEATURES)})
EXPLAINED = [("magnets pull iron nails", ["f0", "f1"]), ("frogs hunt insects", ["f8"])]
PREMISES = [premise("f0", FACTS[0], aliases=["also-f0"]), *facts()[1:]]


@pytest.mark.parametrize(
    ("storage", "more"),
    [
        ("float32", {}),
        ("float16", {"accepted": ACCEPTED, "rerank": 7}),
        ("float32", {"drop_self": False, "splits": ["dev"], "exclude": ["f1"], "prior": 0.3}),
        ("float32", {"only_ids": ["f1", "also-f0", "f3"]}),
        (
            "float32",
            {
                "mode": "hybrid",
                "accepted": ACCEPTED,
                "fusion": Fusion("reciprocal_rank", 0.7),
                "negative_feedback": 0.4,
            },
        ),
        (
            "float16",
            {"mode": "hybrid", "fusion": ORDERED, "accepted": ACCEPTED, "splits": ["dev"], "negative_feedback": 0.4},
        ),
        ("float32", {"fusion": Fusion(features=dict.fromkeys(VECTOR_FEATURES, 0.5)), "accepted": ACCEPTED}),
        ("float32", {"mode": "lexical", "prior": 0.3}),
        ("float32", {"mode": "iterative_lexical", "accepted": ACCEPTED, "rerank": 7}),
    ],
    ids=["plain", "re-ranked", "restricted", "only", "hybrid", "features", "features of vectors", "words", "rounds"],
)
async def test_answers_are_those_of_files_to_the_bit(
    serve: Any, storage: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.index.ranking.stages.POOL", 8)  # leaves premises out
    answers = []
    for settings in ({"backend": "faiss"}, {}):
        async with serve(storage=storage, **settings) as index:
            await index.client.build("science", PREMISES)
            await index.client.put_explanations("science", EXPLAINED, replace=True)
            found = await index.client.retrieve("science", TEXTS, k=5, **more)
            answers.append([[(hit.id, hit.text, hit.score) for hit in hits] for hits in found])
            assert found.generation.startswith("g")
    assert answers[0] == answers[1]
    assert any(answers[0])


async def test_an_approximate_index_says_so_and_still_scores_exactly(serve: Any) -> None:
    async with serve(milvus_engine="hnsw") as index:
        assert (await index.client.build("science", facts())).engine == "milvus-hnsw"
        query = vector_of("ice melts")[None, :]
        found = await index.client.search("science", query, space_id=SPACE, k=3, ef_search=64)
        assert not found.exact
        matrix = np.stack([vector_of(text) for text in FACTS]).astype(np.float64)
        exact = np.einsum("ij,j->i", matrix, query[0].astype(np.float64)).astype(np.float32)
        assert found.scores[0].tobytes() == exact[[int(name[1:]) for name in found.ids[0]]].tobytes()
        refused = index.client.search("science", query, space_id=SPACE, exact=True)
        await raises(errors.Unimplemented, refused, "params.exact", "MILVUS_ENGINE=flat")


@pytest.mark.parametrize(
    ("engine", "count", "expected"),
    [("auto", 9, "milvus-flat"), ("auto", 10, "milvus-hnsw"), ("flat", 10, "milvus-flat"), ("hnsw", 9, "milvus-hnsw")],
)
async def test_the_engine_is_chosen_by_name_or_by_size(serve: Any, engine: str, count: int, expected: str) -> None:
    async with serve(milvus_engine=engine, flat_premises=9) as index:
        built = await index.client.build("science", facts()[:count])
        assert (built.engine, built.recall_at_10) == (expected, float(expected == "milvus-flat"))
