"""Options of Retrieve that cannot be, alone or together, are refused by name before anything is ranked."""

from __future__ import annotations

from typing import Any

from aeenc import Fusion, errors
from aeenc.calls.retrieval import Retrieval
from support.worlds.index_world import facts, raises

NAN, INFINITY = float("nan"), float("inf")
THREE = ["x-a", "x-e", "x-t"]
OTHERS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"rerank": 2}, ("rerank", "3", "1,000")),
    ({"rerank": 1001}, ("rerank", "1001")),
    ({"rerank": 5, "rerank_versions": ["x-a", "x-a"]}, ("x-a, x-a", "different")),
    ({"rerank": 5, "rerank_versions": [f"x-{n}" for n in range(9)]}, ("at most 8",)),
    ({"rerank_versions": THREE}, ("rerank is 0",)),
    ({"rerank": 5, "rerank_versions": THREE, "rerank_weight": 0.5}, ("sum of ranks alone",)),
    ({"accepted": [["f1"]]}, ("accepted", "1 lists for 2 texts")),
    ({"accepted": [["f1"], ["f99"]]}, ("accepted[1].premise_ids", "f99")),
    ({"accepted": [["f1"] * 1025, []]}, ("accepted", "1,024")),
    *(({"prior": share}, ("prior", f"{share} is not", "0 and 1")) for share in (-0.1, 1.5, 1.0000001, NAN)),
    ({"prior": 0.5, "mode": "iterative_lexical"}, ("prior", "rounds")),
    *(({"negative_feedback": share}, ("negative_feedback", "0 and 1")) for share in (-0.1, 1.1, NAN)),
    ({"negative_feedback": 0.1, "mode": "lexical"}, ("negative_feedback", "mode LEXICAL")),
    *(
        ({"mode": "hybrid", "fusion": Fusion(lexical_weight=share)}, ("lexical_weight", "0 and 1"))
        for share in (-0.1, 1.1, NAN)
    ),
    ({"mode": "hybrid", "fusion": Fusion(features={"wrods": 1.0})}, ("'wrods'; mode HYBRID has first, rank, iter",)),
    ({"mode": "hybrid", "fusion": Fusion(features={"rank": NAN})}, ("rank is nan",)),
    ({"mode": "hybrid", "fusion": Fusion(features={"length": -3e38})}, ("length is -3e+38", "-1e+30 to 1e+30")),
    (
        {"fusion": Fusion(features={"length": 1.0})},
        ("'length'; mode DENSE has first, rank, vectors_given_others, vectors_given_many",),
    ),
    ({"mode": "lexical", "fusion": Fusion(features={"rank": 1.0})}, ("DENSE and HYBRID",)),
]
WEIGHTS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"rerank": 5, "rerank_weight": -0.1}, ("-0.1", "positive")),
    ({"rerank": 5, "rerank_weight": NAN}, ("nan", "positive")),
    ({"rerank": 5, "rerank_weight": INFINITY}, ("inf", "positive")),
    ({"rerank": 5, "rerank_weight": 3e38}, ("3e+38", "positive", "1e+30")),
    ({"rerank_weight": 0.2}, ("0.2", "rerank is 0")),
    ({"rerank": 5, "rerank_weight": 0.2, "mode": "iterative_lexical"}, ("0.2", "rounds", "mode LEXICAL")),
]


async def test_options_that_cannot_be_are_refused_by_name_and_nothing_is_scored(index, encoder):
    await index.client.build("science", facts())
    for options, words in OTHERS:
        await raises(errors.InvalidArgument, index.client.retrieve("science", ["ice", "sun"], k=3, **options), *words)
    for options, words in WEIGHTS:
        asked = index.client.retrieve("science", ["ice"], k=3, **options)
        await raises(errors.InvalidArgument, asked, "rerank_weight", "set it to 0", *words)
        rankings = index.client.rankings("science", ["ice"], k=3, retrieval=Retrieval(**options))
        await raises(errors.InvalidArgument, rankings, "rerank_weight")
    assert not encoder.servicer.score_requests
