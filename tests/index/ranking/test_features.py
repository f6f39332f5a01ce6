"""Features of the first premises: what they are by definition, how weights are found, what Retrieve does with them."""

from __future__ import annotations

import numpy as np
import pytest

from aeenc import Fusion
from services.index.lexical.bm25 import COVERED, LexicalIndex, Terms
from services.index.ranking.fusion import DEPTH, EXPLAINED, PARTNERS, WIDE_DEPTH, FirstWords, features_of, order_by
from services.index.values import FEATURES, VECTOR_FEATURES, SearchHits
from services.tuning.out_of_fold import fit
from support.worlds.index_world import FACTS, facts

LEXICAL = LexicalIndex.of(FACTS)
TEXT = "iron conducts electricity near a magnet"
GENERATOR = np.random.default_rng(5)


def _unit(rows: int) -> np.ndarray:
    vectors = GENERATOR.normal(size=(rows, 16)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


VECTORS, QUERY = _unit(len(FACTS)), _unit(1)[0]
FIRST = SearchHits(np.array([2, 0, 1, 4]), np.array([1.0, 0.9, 0.5, 0.2], np.float32))


def _column(name: str, depth: int = WIDE_DEPTH) -> np.ndarray:
    words = FirstWords(LEXICAL.terms(TEXT), FIRST, LEXICAL, None, depth)
    return features_of(FIRST, words, QUERY, VECTORS[FIRST.ordinals], depth)[:, FEATURES.index(name)]


def _probability(at: int, kind: str) -> float:
    _, temperature = PARTNERS[kind]
    return float(np.exp((FIRST.scores[at] - FIRST.scores[0]) / temperature))


each_kind = pytest.mark.parametrize("kind", PARTNERS)


@each_kind
def test_words_given_others_is_the_mean_of_bm25_with_each_other_premise_told(kind: str) -> None:
    asked = set(LEXICAL.terms(TEXT).ids.tolist())
    expected = []
    for own in FIRST.ordinals:
        total = weight = 0.0
        for at, other in enumerate(FIRST.ordinals):
            told = set(LEXICAL.row(int(other))[0].tolist())
            joined = sorted(asked | told)
            weights = [2 * COVERED if term in asked & told else 1.0 for term in joined]
            scores = LEXICAL.scores(Terms(np.array(joined), np.array(weights, np.float32)))
            others = [scores[n] for n in FIRST.ordinals if n != other]
            if own != other:
                total += _probability(at, kind) * scores[own] / max(others)
                weight += _probability(at, kind)
        expected.append(total / weight)
    np.testing.assert_allclose(_column(f"words_given_{kind}"), expected, rtol=1e-5)


@each_kind
def test_vectors_given_others_is_the_mean_of_cosines_with_each_other_premise_taken_off(kind: str) -> None:
    expected = []
    for own in FIRST.ordinals:
        others = [(at, other) for at, other in enumerate(FIRST.ordinals) if other != own]
        left = [QUERY - EXPLAINED * VECTORS[other] for _, other in others]
        cosines = [float(VECTORS[own] @ one / np.linalg.norm(one)) for one in left]
        expected.append(np.average(cosines, weights=[_probability(at, kind) for at, _ in others]))
    np.testing.assert_allclose(_column(f"vectors_given_{kind}"), expected, rtol=1e-5)


@pytest.mark.parametrize(("kind", "given", "temperature"), [("others", 20, 0.08), ("many", 40, 0.3)])
def test_the_first_twenty_or_forty_premises_alone_count_as_given(kind: str, given: int, temperature: float) -> None:
    vectors, scores = _unit(42), np.linspace(1, 0.9, 42, dtype=np.float32)
    first = SearchHits(np.arange(42), scores)
    found = features_of(first, None, QUERY, vectors, WIDE_DEPTH)[41, FEATURES.index(f"vectors_given_{kind}")]
    left = QUERY - EXPLAINED * vectors[:given]
    cosines = (left @ vectors[41]) / np.linalg.norm(left, axis=1)
    weights = np.exp((scores[:given].astype(np.float64) - 1) / temperature)
    np.testing.assert_allclose(found, np.average(cosines, weights=weights), rtol=1e-5)


def test_shares_of_words_are_by_rarity_and_a_premise_without_a_word_of_the_query_has_none() -> None:
    covered, shares = _column("query_covered"), _column("premise_covered")
    assert covered[3] == shares[3] == 0  # the star
    assert 0 < covered[0] < 1
    assert 0 < shares[0] <= 1 + 1e-6
    np.testing.assert_array_equal(_column("first"), FIRST.scores)
    np.testing.assert_allclose(_column("rank"), -np.log([1, 2, 3, 4]))


def test_the_share_of_a_premise_is_of_all_its_words_however_frequent_they_are() -> None:
    lexical = LexicalIndex.of(["ice melts"] * 9 + ["ice"])
    first = SearchHits(np.array([0, 9]), np.array([1.0, 0.5], np.float32))
    found = features_of(
        first, FirstWords(lexical.terms("ice"), first, lexical, None, DEPTH), QUERY, VECTORS[[0, 1]], DEPTH
    )
    rare = lexical.rarity[lexical.row(0)[0]]
    assert rare.sum() < 1, "both words stand in nearly all"
    ice = float(lexical.rarity[lexical.terms("ice").ids[0]])
    np.testing.assert_allclose(found[:, FEATURES.index("premise_covered")], [ice / rare.sum(), 1], rtol=1e-5)


@pytest.mark.parametrize("depth", [DEPTH, WIDE_DEPTH])
def test_what_iterative_bm25_does_not_find_ranks_at_three_times_the_depth(depth: int) -> None:
    terms, allowed = LEXICAL.terms(TEXT), np.arange(len(FACTS)) != 4
    words, found = (
        FirstWords(terms, FIRST, LEXICAL, allowed, depth),
        LEXICAL.iterate(terms, depth, allowed).ordinals.tolist(),
    )
    ranks = np.exp(-features_of(FIRST, words, QUERY, VECTORS[FIRST.ordinals], depth)[:, FEATURES.index("iterative")])
    np.testing.assert_allclose(ranks, [*(found.index(n) + 1 for n in (2, 0, 1)), 3 * depth])


@each_kind
def test_left_by_others_counts_the_querys_words_that_another_premise_does_not_have(kind: str) -> None:
    wanted = LEXICAL.terms(TEXT).ids
    rows = [set(LEXICAL.row(int(own))[0].tolist()) & set(wanted.tolist()) for own in FIRST.ordinals]
    expected = []
    for at, own in enumerate(rows):
        others = [n for n in range(len(rows)) if n != at]
        left = [sum(float(LEXICAL.rarity[term]) for term in own - rows[n]) for n in others]
        expected.append(np.average(left, weights=[_probability(n, kind) for n in others]))
    np.testing.assert_allclose(_column(f"left_by_{kind}"), expected / LEXICAL.rarity[wanted].sum(), rtol=1e-5)


def test_one_premise_alone_has_features_too() -> None:
    one = FIRST.first(1)
    words = FirstWords(LEXICAL.terms("zebra"), one, LEXICAL, None, WIDE_DEPTH)
    found = features_of(one, words, QUERY, VECTORS[[2]], WIDE_DEPTH)
    assert np.isfinite(found).all()


def test_the_weights_found_are_those_of_the_highest_likelihood() -> None:
    rows = GENERATOR.normal(size=(60, 8, len(FEATURES)))
    hidden = np.linspace(-1, 1, len(FEATURES))
    gold = np.zeros((60, 8), bool)
    gold[np.arange(60), (rows @ hidden + GENERATOR.gumbel(size=(60, 8))).argmax(axis=1)] = True
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


def test_what_is_ordered_anew_stays_before_what_follows() -> None:
    hits = SearchHits(np.arange(6), np.array([1, 0.8, 0.6, 0.5, 0.5, 0.1], np.float32))
    features = np.zeros((3, len(FEATURES)))
    features[:, 0] = [1, 2, 3]
    ordered = order_by(hits, features, {"first": 1.0}, 6)
    assert ordered.ordinals.tolist() == [2, 1, 0, 3, 4, 5]
    assert ordered.scores[0] == 1
    assert (np.diff(ordered.scores) <= 0).all()


async def test_a_longer_list_by_features_begins_with_the_shorter_one(index) -> None:
    await index.client.build("science", facts())
    fusion = Fusion(features={"words_given_others": 1.0, "vectors_given_others": 1.0})
    short, long = [
        (await index.client.retrieve("science", [TEXT], k=k, mode="hybrid", fusion=fusion))[0] for k in (2, 8)
    ]
    assert [hit.id for hit in long][:2] == [hit.id for hit in short]


@pytest.mark.parametrize("mode", ["dense", "hybrid", "lexical", "iterative_lexical"])
async def test_a_filter_that_allows_nothing_gets_empty_lists_by_every_stage(index, mode: str) -> None:
    await index.client.build("science", facts())
    await index.client.put_explanations("science", [("iron conducts", ["f1", "f2"])])
    words = {"lexical", "iterative_lexical"}
    options = [{}, {"rerank": 5}]
    if mode not in words:
        names = FEATURES if mode == "hybrid" else VECTOR_FEATURES
        options += [{"fusion": Fusion(features={name: 1.0})} for name in names] + [{"negative_feedback": 0.5}]
    if mode != "iterative_lexical":
        options.append({"prior": 0.5})
    for chosen in options:
        found = await index.client.retrieve("science", [TEXT, "ice"], k=3, mode=mode, before_id="f0", **chosen)
        assert found.results == [[], []], chosen


def test_a_follower_as_good_as_the_least_stays_behind_what_is_ordered_anew() -> None:
    first = SearchHits(np.array([1, 3, 2, 0]), np.array([1.0, 0.9, 0.5, 0.5], np.float32))
    features = np.zeros((3, len(FEATURES)))
    features[:, 0] = [0.0, 1.0, 2.0]
    ordered = order_by(first, features, {"first": 1.0}, 4)
    assert (ordered.ordinals.tolist(), ordered.scores.tolist()) == ([2, 3, 1, 0], [1.0, 0.75, 0.5, 0.5])
    assert order_by(first, features, {"first": 1.0}, 3).ordinals.tolist() == [2, 3, 1]


def test_weights_of_some_features_are_fitted_without_the_others() -> None:
    rows = GENERATOR.normal(size=(40, 8, len(FEATURES)))
    gold = rows[..., FEATURES.index("rank")] == rows[..., FEATURES.index("rank")].max(axis=1, keepdims=True)
    found = fit(list(zip(rows, gold, strict=True)), VECTOR_FEATURES)
    assert tuple(found) == VECTOR_FEATURES
    assert found["rank"] > 10 * abs(found["first"])
