"""`aeenc tune-retrieval`: what is tuned is what Retrieve answers, out of fold, and never worse than where it began."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aeenc import Fusion
from aeenc.errors import FailedPrecondition
from aeenc.v1 import encoder_pb2
from services.index.ranking.fusion import Prior
from services.index.ranking.stages import Call, Stages
from services.index.values import FEATURES, VECTOR_FEATURES, Explanation, SearchHits
from services.tuning import retrieval as tuning
from services.tuning.out_of_fold import RERANKED, HeldOut, OutOfFold, Weights, drawn, fit, reranked
from services.tuning.retrieval import (
    PUBLISHED,
    RERANK_WEIGHTS,
    Asked,
    Way,
    best_way,
    encoded,
    options_of,
    pair_scores,
    tune,
    tune_over_folds,
    tune_reranking,
)
from support.worlds.index_world import FACTS, facts, vector_of

EXPLAINED = [
    ("magnets pull iron nails", ["f0", "f1"]),
    ("a nail of iron sticks to a magnet", ["f1", "f2"]),
    ("frogs hunt insects", ["f8"]),
]
PREMISES = np.array([vector_of(text) for text in FACTS], np.float32)
TEXTS = ["metal conducts electricity and heat", FACTS[0], "frogs"]


def _folds(number: int) -> list[HeldOut]:
    known = {f"f{n}": n for n in range(len(FACTS))}
    prior = Prior.over([Explanation(text, tuple(ids)) for text, ids in EXPLAINED], known)
    vectors = np.array([vector_of(text, encoder_pb2.ROLE_QUERY) for text in TEXTS])
    return [
        HeldOut(TEXTS[n::number], [[1], [2], [8]][n::number], vectors[n::number].astype(np.float32), prior)
        for n in range(number)
    ]


def _measured(folds: int = 1) -> OutOfFold:
    return OutOfFold(FACTS, PREMISES, _folds(folds))


@pytest.mark.parametrize(
    ("mode", "weights", "names"),
    [
        ("hybrid", Weights(0.3, 0.4, 0.5), FEATURES),
        ("hybrid", Weights(), FEATURES),
        ("dense", Weights(), VECTOR_FEATURES),
        ("dense", Weights(prior=0.4, negative_feedback=0.5), VECTOR_FEATURES),
    ],
)
async def test_what_is_learned_is_what_retrieve_orders_by(index, mode, weights: Weights, names) -> None:
    """Each fold by weights of the other two: Retrieve is asked for its queries with those."""
    await index.client.build("science", facts())
    await index.client.put_explanations("science", EXPLAINED)
    learned = _measured(3).learn(weights, names)
    assert tuple(learned.features) == names
    ranked = iter(learned.rankings)
    for n, fold in enumerate(_folds(3)):
        others = OutOfFold(FACTS, PREMISES, [one for at, one in enumerate(_folds(3)) if at != n])
        features = others.learn(weights, names).features
        answered = await index.client.retrieve(
            "science",
            fold.texts,
            k=len(FACTS),
            mode=mode,
            fusion=Fusion(lexical_weight=weights.lexical_weight, features=features),
            prior=weights.prior,
            negative_feedback=weights.negative_feedback,
        )
        given = OutOfFold(FACTS, PREMISES, [fold]).ordered(weights, features)
        for hits, found, same in zip(answered.results, ranked, given, strict=False):
            assert [hit.id for hit in hits] == [f"f{one}" for one in found.ordinals]
            np.testing.assert_array_equal(found.ordinals, same.ordinals)
            np.testing.assert_allclose([hit.score for hit in hits], found.scores, atol=1e-5)


def test_features_learn_nothing_of_premises_that_are_not_judged() -> None:
    [fold] = _folds(1)
    others = [[n for n in range(len(FACTS)) if n not in gold] for gold in fold.gold]
    for unjudged, learns in (((), True), (others, False)):
        measured = OutOfFold(FACTS, PREMISES, [replace(fold, unjudged=unjudged)] * 2)
        assert any(measured.learn(Weights(0.3)).features.values()) == learns


def test_a_stage_that_only_long_texts_feel_is_felt_in_tuning_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def turned(_: Stages, call: Call, hits: list[SearchHits]) -> list[SearchHits]:
        return [
            SearchHits(found.ordinals[::-1], found.scores) if len(text.split()) > 20 else found
            for text, found in zip(call.query.texts, hits, strict=True)
        ]

    texts = ["frogs", " ".join(["metal conducts electricity and heat"] * 5)]
    vectors = np.array([vector_of(text, encoder_pb2.ROLE_QUERY) for text in texts], np.float32)
    fold = HeldOut(texts, [[8], [1]], vectors, _folds(1)[0].prior)
    measured = OutOfFold(FACTS, PREMISES, [fold])
    before = [hits.ordinals.tolist() for hits in measured.rankings(Weights(0.3))]
    stages = Stages.of
    monkeypatch.setattr(Stages, "of", lambda self, query: [*stages(self, query), partial(turned, self)])
    assert [hits.ordinals.tolist() for hits in measured.rankings(Weights(0.3))] == [before[0], before[1][::-1]]


async def test_what_is_re_ranked_is_what_retrieve_re_ranks(index, encoder) -> None:
    await index.client.build("science", facts())
    ranked, weight = [*_measured().rankings(Weights(0.3))], 0.1
    scores = [np.array([FACTS[n].count("e") for n in hits.ordinals], np.float32) for hits in ranked]
    answered = await index.client.retrieve(
        "science",
        TEXTS,
        k=len(FACTS),
        mode="hybrid",
        fusion=Fusion(lexical_weight=0.3),
        rerank=len(FACTS),
        rerank_weight=weight,
    )
    assert answered.rerank_versions == (encoder.servicer.cross_version,)
    for hits, own, before in zip(answered.results, reranked(ranked, scores, weight), ranked, strict=True):
        assert [hit.id for hit in hits] == [f"f{n}" for n in own.ordinals]
        assert own.ordinals.tolist() != before.ordinals.tolist()


def test_premises_behind_those_that_were_scored_stay_where_they_are() -> None:
    hits = SearchHits(np.array([4, 3, 2, 1]), np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    [found] = reranked([hits], [np.array([0.0, 1.0], np.float32)], 0.5)
    assert found.ordinals.tolist() == [3, 4, 2, 1]
    np.testing.assert_allclose(found.scores, [0.8, 0.4, 0.2, 0.1], rtol=1e-6)


def test_the_weight_of_a_cross_encoder_is_the_best_of_those_tried() -> None:
    measured = _measured(3)  # whose gold is 1, 2 and 8
    rankings = [SearchHits(np.array([5, gold, 7]), np.array([0.5, 0.3, 0.1], np.float32)) for gold in (1, 2, 8)]
    scores = [np.array([0.0, 1.0, 1.6], np.float32)] * 3  # gold is first from .3 on, behind the last one from .4 on
    assert tune_reranking(measured, rankings, scores) == (0.3, 1.0)
    useless = [-one for one in scores]
    assert tune_reranking(measured, rankings, useless) == (RERANK_WEIGHTS[0], 0.5)


def test_each_fold_is_scored_by_the_cross_encoder_that_has_not_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    gold = dict(zip(TEXTS, (1, 2, 8), strict=True))
    data: Any = {
        name: SimpleNamespace(candidates=lambda: [SimpleNamespace(text=text) for text in FACTS])
        for name in ("fold-0", "fold-1")  # of two queries, and of one
    }
    parts = dict(zip(data, _folds(2), strict=True))
    trained: list[dict[str, Any]] = []

    def train(_: Any, name: str, fold: Any, recipe: dict[str, Any]) -> str:
        assert fold is data[name]
        trained.append(recipe)
        return f"{'x' if recipe.get('mode') else 'q'} without {name}"

    def scored(_: Any, queries: list[str], rankings: list[SearchHits], texts: list[str], version: str) -> list[Any]:
        [name] = [name for name, part in parts.items() if part.texts == queries]
        assert (version, texts) == (f"x without {name}", FACTS)
        return [(hits.ordinals == gold[text]) * 9.0 for text, hits in zip(queries, rankings, strict=True)]

    def held_out(_: Any, fold: Any, texts: list[str], version: str) -> HeldOut:
        [name] = [name for name, one in data.items() if one is fold]
        assert version == f"q without {name}"
        return parts[name]

    stubs = {"train_without": train, "held_out_of": held_out, "pair_scores": scored}
    for stub, by in stubs.items():
        monkeypatch.setattr(tuning, stub, by)
    monkeypatch.setattr(tuning, "encoded", lambda *_, **__: PREMISES)
    client: Any = SimpleNamespace(trainer=SimpleNamespace(info=lambda: SimpleNamespace(default_space_id="s")))
    reports: list[tuple[int, int, str]] = []
    asked = Asked(
        "hybrid", {"epochs": 2}, trials=3, queries=0, seed=5, cross_recipe={"epochs": 4, "base_model": "mpnet"}
    )
    found = tune_over_folds(client, data, asked, lambda *told: reports.append(told))
    of_cross_encoders = [recipe for recipe in trained if "mode" in recipe]
    assert [(one["epochs"], one["base_model"], one["base_version"]) for one in of_cross_encoders] == [
        (4, "mpnet", "q without fold-0"),
        (4, "mpnet", "q without fold-1"),
    ]
    assert found.cross_encoders == {name: f"x without {name}" for name in data}
    assert reports == [(1, 4, "fold-0"), (2, 4, "fold-1"), (3, 4, "fold-0"), (4, 4, "fold-1")]
    way = found.ways["re-ranked"]
    assert way.map == 1.0 > found.ways["alone"].map
    before = max((found.ways[key] for key in ("tuned", "with features")), key=lambda one: one.map)
    assert re.fullmatch(rf"{re.escape(before.options)} --rerank 20 --rerank-weight [\d.]+", way.options)


def test_the_first_premises_of_each_query_are_scored_by_its_own_cross_encoder() -> None:
    asked: list[tuple[str, list[str], str]] = []

    def score(query: str, premises: list[str], *, version: str, truncate: bool) -> SimpleNamespace:
        assert truncate
        asked.append((query, premises, version))
        return SimpleNamespace(scores=[len(query)] * len(premises))

    def publish(version: str, **options: Any) -> SimpleNamespace:
        assert options["label"] == "fold", "no label that serves others moves"
        return SimpleNamespace(complete=version == "x1", rollouts=[SimpleNamespace(reason="too large")])

    client: Any = SimpleNamespace(registry=SimpleNamespace(publish=publish), encoder=SimpleNamespace(score=score))
    texts = [f"t{n}" for n in range(30)]
    rankings = [SearchHits(np.arange(30)[::step], np.zeros(30, np.float32)) for step in (1, -1)]
    scores = pair_scores(client, ["a", "bb"], rankings, texts, "x1")
    assert [own.tolist() for own in scores] == [[1.0] * RERANKED, [2.0] * RERANKED]
    assert sorted(asked) == [("a", texts[:RERANKED], "x1"), ("bb", texts[: -RERANKED - 1 : -1], "x1")]
    with pytest.raises(FailedPrecondition, match="does not serve x2 as label 'fold': too large"):
        pair_scores(client, ["a", "bb"], rankings, texts, "x2")


def test_queries_are_the_same_in_any_number_of_folds() -> None:
    one, three = _measured(), _measured(3)
    assert one.queries == three.queries
    weights = Weights(0.2, 0.1, 0.3)
    for first, second in zip(one.rankings(weights), three.rankings(weights), strict=True):
        np.testing.assert_array_equal(first.ordinals, second.ordinals)
    assert one.value(weights) == three.value(weights)


def test_drawn_queries_keep_their_gold_and_their_fold() -> None:
    whole = _folds(3)
    some = drawn(whole, 2, seed=1)
    assert sum(len(fold.texts) for fold in some) == 2
    for fold, part in zip(whole, some, strict=True):
        for text, gold, vector in zip(part.texts, part.gold, part.vectors, strict=True):
            at = list(fold.texts).index(text)
            assert gold == fold.gold[at]
            np.testing.assert_array_equal(vector, fold.vectors[at])
    assert [fold.texts for fold in drawn(whole, 0, seed=1)] == [fold.texts for fold in whole]


def _peaked_at(best: Weights) -> Callable[[Weights], float]:
    def value(tried: Weights) -> float:
        return 1 - abs(tried.lexical_weight - best.lexical_weight) - abs(tried.prior - best.prior)

    return value


def test_the_weights_found_are_never_worse_than_those_it_begins_with() -> None:
    pytest.importorskip("optuna")
    value = _peaked_at(Weights(0.15, 0.07))  # where PUBLISHED is
    found = tune(value, trials=3, seed=0)
    assert value(found) == value(PUBLISHED) == 1
    assert tune(_peaked_at(Weights()), trials=2, seed=0) == Weights()
    assert tune(value, trials=5, seed=1) == tune(value, trials=5, seed=1)


def test_without_words_no_prior_is_tried_either() -> None:
    pytest.importorskip("optuna")
    tried: list[Weights] = []

    def value(weights: Weights) -> float:
        tried.append(weights)
        return weights.prior + weights.negative_feedback

    found = tune(value, trials=20, seed=0, mode="dense")
    assert {(one.lexical_weight, one.prior) for one in tried} == {(0.0, 0.0)}
    assert tried[:2] == [Weights(), Weights(negative_feedback=PUBLISHED.negative_feedback)]
    assert found.negative_feedback > PUBLISHED.negative_feedback


def test_the_options_that_are_told_are_those_of_the_best_way() -> None:
    def best(**values: float) -> str:
        return best_way({key: Way(key, value, "") for key, value in values.items()})

    assert best(alone=0.79, published=0.7, tuned=0.81, ordered=0.77) == "tuned"
    assert best(alone=0.77, published=0.7, tuned=0.77, ordered=0.73) == "alone", "of equal ways the plainest"
    assert best(alone=0.77, published=0.7, tuned=0.78, ordered=0.79) == "ordered"


def test_options_name_only_what_differs_from_the_default_and_are_quoted_for_a_shell() -> None:
    assert options_of("dense", Weights()) == "--mode dense"
    assert options_of("hybrid", Weights(prior=0.1)) == "--mode hybrid --lexical-weight 0 --prior 0.1"
    told = options_of("dense", Weights(negative_feedback=0.2), {"first": 3.00001, "rank": -1.0})
    assert told == """--mode dense --negative-feedback 0.2 --features '{"first": 3.0, "rank": -1.0}'"""


@pytest.mark.parametrize(("role", "precision"), [("premise", None), ("query", "float32")])
def test_queries_are_encoded_in_float32_and_premises_as_their_space_says(role: str, precision: str | None):
    asked: list[dict[str, Any]] = []

    def encode_all(texts: list[str], **options: Any) -> list[SimpleNamespace]:
        asked.append(options)
        return [SimpleNamespace(vectors=np.zeros((len(texts), 2), np.float32))]

    client: Any = SimpleNamespace(encoder=SimpleNamespace(encode_all=encode_all))
    assert encoded(client, TEXTS, role=role).shape == (3, 2)
    assert [options["precision"] for options in asked] == [precision]


def test_the_weights_fitted_are_those_of_the_highest_likelihood() -> None:
    generator = np.random.default_rng(5)
    rows = generator.normal(size=(60, 8, len(FEATURES)))
    hidden = np.linspace(-1, 1, len(FEATURES))
    gold = np.zeros((60, 8), bool)
    gold[np.arange(60), (rows @ hidden + generator.gumbel(size=(60, 8))).argmax(axis=1)] = True
    found = fit(list(zip(rows, gold, strict=True)))
    weights = np.array([found[name] for name in FEATURES])
    assert np.corrcoef(weights, hidden)[0, 1] > 0.9

    def likelihood(tried: np.ndarray) -> float:
        sums = rows @ tried
        scaled = tried * (rows - rows.mean(axis=1, keepdims=True)).std(axis=(0, 1))
        return float(np.mean(sums[gold] - np.log(np.exp(sums).sum(axis=1)))) - 1e-3 * float(scaled @ scaled)

    for n in range(len(FEATURES)):
        for step in (-0.02, 0.02):
            assert likelihood(weights + step * np.eye(len(FEATURES))[n]) < likelihood(weights)


def test_weights_of_some_features_are_fitted_without_the_others() -> None:
    rows = np.random.default_rng(5).normal(size=(40, 8, len(FEATURES)))
    gold = rows[..., FEATURES.index("rank")] == rows[..., FEATURES.index("rank")].max(axis=1, keepdims=True)
    found = fit(list(zip(rows, gold, strict=True)), VECTOR_FEATURES)
    assert tuple(found) == VECTOR_FEATURES
    assert found["rank"] > 10 * abs(found["first"])
