"""`aeenc tune-retrieval`: what is tuned is what Retrieve answers, out of fold, and never worse than where it began."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aeenc import Fusion
from aeenc.v1 import encoder_pb2
from services.index.ranking.prior import Prior
from services.index.ranking.tuning import PUBLISHED, HeldOut, OutOfFold, Weights, tune
from services.index.values import Explanation
from support.worlds.index_world import FACTS, facts, vector_of

EXPLAINED = [
    ("magnets pull iron nails", ["f0", "f1"]),
    ("a nail of iron sticks to a magnet", ["f1", "f2"]),
    ("frogs hunt insects", ["f8"]),
]
TEXTS = ["metal conducts electricity and heat", FACTS[0], "frogs"]


def _measured(folds: int = 1) -> OutOfFold:
    prior = Prior.over(
        [Explanation(text, tuple(ids)) for text, ids in EXPLAINED], {f"f{n}": n for n in range(len(FACTS))}, len(FACTS)
    )
    vectors = np.array([vector_of(text, encoder_pb2.ROLE_QUERY) for text in TEXTS])
    held_out = [
        HeldOut(TEXTS[n::folds], [[1], [2], [8]][n::folds], vectors[n::folds].astype(np.float32), prior)
        for n in range(folds)
    ]
    premises = np.array([vector_of(text) for text in FACTS], np.float32)
    return OutOfFold(FACTS, premises, held_out)


@pytest.mark.parametrize(
    "weights", [Weights(), Weights(0.3), Weights(0.3, 0.4), Weights(0.3, 0.4, 0.5), Weights(negative_feedback=0.5)]
)
async def test_what_is_tuned_is_what_retrieve_answers(index, weights: Weights) -> None:
    await index.client.build("science", facts())
    await index.client.put_explanations("science", EXPLAINED)
    answered = await index.client.retrieve(
        "science",
        TEXTS,
        k=len(FACTS),
        mode="hybrid",
        fusion=Fusion(lexical_weight=weights.lexical_weight),
        prior=weights.prior,
        negative_feedback=weights.negative_feedback,
    )
    for hits, ranked in zip(answered.results, _measured().rankings(weights), strict=True):
        assert [hit.id for hit in hits] == [f"f{n}" for n in ranked.ordinals]


def test_queries_are_the_same_in_any_number_of_folds() -> None:
    one, three = _measured(), _measured(3)
    assert one.queries == three.queries
    weights = Weights(0.2, 0.1, 0.3)
    np.testing.assert_array_equal(one.average_precisions(weights), three.average_precisions(weights))


def _peaked_at(best: Weights) -> Callable[[Weights], float]:
    def value(tried: Weights) -> float:
        return 1 - abs(tried.lexical_weight - best.lexical_weight) - abs(tried.prior - best.prior)

    return value


def test_the_weights_found_are_never_worse_than_those_it_begins_with() -> None:
    pytest.importorskip("optuna")
    value = _peaked_at(Weights(0.15, 0.07))  # where PUBLISHED is
    found = tune(value, trials=3, seed=0)
    assert found.value == found.published == value(PUBLISHED) == 1
    assert found.alone == value(Weights())
    assert tune(value, trials=5, seed=1) == tune(value, trials=5, seed=1)
