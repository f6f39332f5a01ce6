"""Retrieve over small random worlds, beside what its stages are by definition: plain loops over float64."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc.calls.encoding import Encoded, EncodeOptions
from aeenc.values import Timings
from services.corpus.generation import Generation, PremiseRecord, Premises
from services.index.catalogue.served import ServedGeneration
from services.index.dense.batcher import SearchBatcher
from services.index.dense.exact import FlatIndex
from services.index.lexical.bm25 import COVERED, LexicalExecutor, LexicalIndex
from services.index.ranking import fusion, stages
from services.index.ranking.fusion import Prior
from services.index.ranking.stages import Retrieval, Stages
from services.index.values import FEATURES, VECTOR_FEATURES, Explanation, Scope, SearchHits, TextQuery
from services.kit.limits import Limits
from services.store.artifacts import Artifact
from support.worlds.index_world import unit

POOL, DEPTH, WIDE_DEPTH, FEEDBACK = 9, 6, 8, 3  # so small that small worlds reach them
PARTNERS = {"others": (4, 0.08), "many": (5, 0.3)}
WORDS = ["ice", "iron", "star", "leaf", "heat", "rock", "wave", "cell", "wind", "salt"]
Scores = dict[int, float]


@dataclass
class World:
    """Premises with vectors, words, splits and tags; explanations; queries with vectors."""

    premises: list[PremiseRecord]
    vectors: NDArray[np.float32]
    explanations: list[Explanation]
    texts: list[str]
    queries: NDArray[np.float32]

    def __post_init__(self) -> None:
        records, artifact = (
            Premises.of(self.premises),
            Artifact(Path(), "generation", "g1", {}, {}, "", datetime.now(UTC)),
        )
        generation = Generation(artifact, records, self.vectors, "c", "s", "q", self.vectors.shape[1])
        self.lexical = LexicalIndex.of([one.text for one in self.premises])
        self.served = ServedGeneration(generation, FlatIndex(self.vectors), self.lexical)
        self.prior = Prior.over(self.explanations, records.ordinal_by_id)

    @classmethod
    def of(cls, seed: int) -> World:
        rng = np.random.default_rng(seed)
        texts = [" ".join(rng.choice(WORDS, rng.integers(1, 5))) + f" n{n}" for n in range(24)]
        texts[7] = texts[3].upper()  # is not dropped as the text itself
        splits: list[tuple[str, ...]] = [("train",), ("dev",), (), ("train", "dev")]
        tags: list[tuple[str, ...]] = [(), ("a",), ("a", "b"), ("c",)]
        rows = [PremiseRecord(f"p{n}", text, (), splits[n % 4], tags[n // 2 % 4]) for n, text in enumerate(texts)]
        vectors = unit(rng.integers(-2, 3, size=(24, 5)) + rng.normal(size=(24, 5)) * 0.1)
        vectors[20:] = vectors[:4]  # ties
        told = [(" ".join(rng.choice(WORDS, 3)), tuple(f"p{n}" for n in rng.integers(0, 24, 3))) for _ in range(8)]
        asked = [texts[3], " ".join(rng.choice(WORDS, 3)), told[0][0].upper() + ".", "zebra"]
        return cls(rows, vectors, [Explanation(*one) for one in told], asked, unit(rng.normal(size=(4, 5))))

    async def answer(self, query: TextQuery) -> list[SearchHits]:
        async def encode(texts: Sequence[str], _key: EncodeOptions, _id: str, left_s: float | None) -> Encoded:
            assert left_s is not None
            assert 40 < left_s <= 50
            assert texts == [
                " ".join([text, *(self.premises[int(one[1:])].text for one in dict.fromkeys(of))])
                for text, of in itertools.zip_longest(query.texts, query.accepted, fillvalue=())
            ]
            return Encoded(self.queries, "q", "s", Timings(), 0, "float32")

        async def explanations(_: str) -> list[Explanation]:
            return self.explanations

        async def resolve(*_: str) -> ServedGeneration:
            return self.served

        opened = SimpleNamespace(find=lambda *_: None)
        catalogue: Any = SimpleNamespace(open=opened, resolve=resolve, explanations=SimpleNamespace(of=explanations))
        nobody: Any = None
        started = time.perf_counter()
        with closing(SearchBatcher()) as batcher, closing(LexicalExecutor()) as executor:
            batcher.start()
            made = Stages(batcher.search, executor.each, encode, nobody, asyncio.to_thread)
            found = await Retrieval(catalogue, made, Limits(k=query.scope.k)).retrieve(query, deadline_s=50)
        assert (found.version, found.precision) == (("", "") if "LEXICAL" in query.mode else ("q", "float32"))
        timings = found.timings
        assert (timings.encode_s > 0) == ("LEXICAL" not in query.mode)
        assert 0 < timings.compute_s + timings.encode_s <= timings.total_s < time.perf_counter() - started
        return found.hits


def _top(scores: Scores, k: int) -> Scores:
    return dict(sorted(scores.items(), key=lambda one: (-np.float32(one[1]), one[0]))[:k])


def _scaled(scores: Scores) -> Scores:
    least, most = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    return {n: (score - least) / (most - least) if most > least else 0.0 for n, score in scores.items()}


def _reciprocal(scores: Scores) -> Scores:
    return {n: 1 / (61 + sum(other > score for other in scores.values())) for n, score in scores.items()}


def _turned(vector: NDArray[Any], rows: NDArray[Any], share: float) -> NDArray[np.float64]:
    left = vector - share * rows.mean(axis=0) if len(rows) else vector
    return np.asarray(left / np.linalg.norm(left), np.float64)


@dataclass
class Definition:
    """What Retrieve answers for one text, by definition."""

    world: World
    query: TextQuery
    row: int

    def __post_init__(self) -> None:
        query, world = self.query, self.world
        self.text = query.texts[self.row]
        accepted = [int(one[1:]) for one in dict.fromkeys((query.accepted or [()] * 9)[self.row])]
        self.accepted_texts = [world.premises[n].text for n in accepted]
        scope = query.scope
        self.allowed = {
            n
            for n, one in enumerate(world.premises)
            if n not in accepted
            and not (query.drop_self and one.text == self.text)
            and one.id not in scope.exclude_ids
            and (not scope.splits or not one.splits or set(one.splits) & set(scope.splits))
            and (not scope.only_ids or one.id in scope.only_ids)
            and (not scope.before_id or n < int(scope.before_id[1:]))
            and (not scope.clauses or any(a <= set(one.tags) and not b & set(one.tags) for a, b in scope.clauses))
        }
        self.terms = world.lexical.terms(self.text, self.accepted_texts)
        self.encoded = _turned(world.queries[self.row], world.vectors[accepted], 0.5)

    def answer(self) -> Scores:
        query, k = self.query, self.query.scope.k
        vector = self.encoded
        if query.negative_feedback:
            first = self.ranked(vector, FEEDBACK)
            vector = _turned(vector, self.world.vectors[list(first)], query.negative_feedback)
        found = self.ranked(vector, max(k, self.depth) if query.features else k)
        return _top(self.ordered(found), k) if query.features and found else found

    def ranked(self, vector: NDArray[np.float64], k: int) -> Scores:
        query, pool = self.query, max(POOL, k)
        cosines = {n: float(self.world.vectors[n] @ vector) for n in self.allowed}
        scores = self.world.lexical.scores(self.terms).astype(float)
        by_words = {n: scores[n] for n in self.allowed if scores[n] > 0}
        if query.mode == "HYBRID":
            both = {*_top(cosines, pool), *_top(by_words, pool)}
            scale = _scaled if query.fusion == "min_max" else _reciprocal
            near, words = scale({n: cosines[n] for n in both}), scale({n: scores[n] for n in both})
            found = {n: (1 - query.lexical_weight) * near[n] + query.lexical_weight * words[n] for n in both}
        elif query.mode == "ITERATIVE_LEXICAL":
            allowed = np.isin(np.arange(24), list(self.allowed))
            hits = self.world.lexical.iterate(self.terms, k, allowed)
            return dict(zip(hits.ordinals.tolist(), hits.scores.tolist(), strict=True))
        else:
            found = by_words if query.mode == "LEXICAL" else cosines
        if not query.prior:
            return _top(found, k)
        found, bonus = _top(found, pool), self.bonus()
        scaled = _scaled(found)
        return _top({n: (1 - query.prior) * scaled[n] + query.prior * bonus.get(n, 0) for n in found}, k)

    def bonus(self) -> Scores:
        told = self.world.explanations
        near = LexicalIndex.of([one.text for one in told]).similarities(self.text)
        total: Scores = {}
        for one, similarity in zip(told, near.tolist(), strict=True):
            same = one.text.lower().rstrip(".") == self.text.lower().rstrip(".")
            for premise in set(one.premise_ids):
                total[int(premise[1:])] = total.get(int(premise[1:]), 0) + (0 if same else similarity)
        most = max(total.values()) or 1
        return {n: score / most for n, score in total.items()}

    def ordered(self, found: Scores) -> Scores:
        """The first `depth` by the weighted sum of their features, between 1 and the least score that one has."""
        first = list(found)[: self.depth]
        columns = self.features(first, [found[n] for n in first])
        sums = {
            n: sum(weight * columns[name][at] for name, weight in self.query.features.items())
            for at, n in enumerate(first)
        }
        least = found[first[-1]]
        return {**{n: least + (1 - least) * score for n, score in _top(_scaled(sums), self.depth).items()},
                **{n: score - 9 for n, score in list(found.items())[self.depth :]}}  # fmt: skip

    @property
    def depth(self) -> int:
        return WIDE_DEPTH if any(name.endswith("_many") for name in self.query.features) else DEPTH

    def features(self, first: list[int], scores: list[float]) -> dict[str, list[float]]:
        return self.features_given("others", first, scores) | self.features_given("many", first, scores)

    def features_given(self, kind: str, first: list[int], scores: list[float]) -> dict[str, list[float]]:
        partners, temperature = PARTNERS[kind]
        lexical, vectors = self.world.lexical, self.world.vectors.astype(float)
        others = {n: [m for m in first[:partners] if m != n] for n in first}
        likely = {n: np.exp((score - scores[0]) / temperature) for n, score in zip(first, scores, strict=True)}

        def mean(n: int, values: dict[int, float]) -> float:
            return sum(likely[m] * values[m] for m in others[n]) / (sum(likely[m] for m in others[n]) or 1)

        asked = dict(zip(self.terms.ids.tolist(), np.minimum(self.terms.weights, 1).tolist(), strict=True))
        rows = {n: dict(zip(*(of.tolist() for of in lexical.row(n)), strict=True)) for n in first}
        rarity = lexical.rarity.astype(float)
        wanted = sum(rarity[t] * weight for t, weight in asked.items()) or 1.0
        covered = {n: sum(rarity[t] * asked.get(t, 0) for t in rows[n]) for n in first}
        allowed = np.isin(np.arange(24), list(self.allowed))
        iterative = lexical.iterate(self.terms, self.depth, allowed).ordinals.tolist()

        def given(n: int, m: int) -> float:
            weights = {t: max(asked.get(t, 0), 1) if t not in asked else 2 * COVERED for t in rows[m]}
            return float(sum(weight * {**asked, **weights}.get(t, 0) for t, weight in rows[n].items()))

        best = {m: max([given(n, m) for n in first if n != m] or [0]) or 1 for m in first[:partners]}
        left = {m: self.encoded - 0.5 * vectors[m] for m in first}
        return {
            "first": scores,
            "rank": [-np.log(rank) for rank in range(1, len(first) + 1)],
            "iterative": [-np.log(iterative.index(n) + 1 if n in iterative else 3 * self.depth) for n in first],
            "query_covered": [covered[n] / wanted for n in first],
            "premise_covered": [covered[n] / (sum(rarity[t] for t in rows[n]) or 1) for n in first],
            "length": [float(len(rows[n])) for n in first],
            f"words_given_{kind}": [mean(n, {m: given(n, m) / best[m] for m in others[n]}) for n in first],
            f"left_by_{kind}": [
                mean(
                    n,
                    {
                        m: sum(rarity[t] * asked.get(t, 0) for t in rows[n] if t not in rows[m]) / wanted
                        for m in others[n]
                    },
                )
                for n in first
            ],
            f"vectors_given_{kind}": [
                mean(n, {m: float(vectors[n] @ left[m] / np.linalg.norm(left[m])) for m in others[n]}) for n in first
            ],
        }


SCOPES = [
    {},
    {"splits": ("dev", "none")},
    {"before_id": "p0"},
    {"only_ids": tuple(f"p{n}" for n in range(2, 24, 3))},
    {"before_id": "p9"},
    {"clauses": frozenset({(frozenset({"a"}), frozenset({"b"})), (frozenset({"c"}), frozenset())})},
    {"exclude_ids": ("p5", "gone"), "before_id": "p15", "splits": ("train",)},
    {"only_ids": ("p4",)},
]
ACCEPTED = (("p1", "p7"), (), ("p2",), ("p0", "p3", "p0"))
WAYS: list[dict[str, Any]] = [
    {},
    {"drop_self": False},
    {"negative_feedback": 0.4},
    {"prior": 0.3},
    {"accepted": ACCEPTED},
    {"accepted": ACCEPTED, "prior": 0.6, "negative_feedback": 0.2},
    *({"features": {name: 1.0}} for name in FEATURES),
    {"features": {name: (0.3 + 0.1 * n) * (-1) ** n for n, name in enumerate(FEATURES)}},
    {"features": {"first": 1.0, "vectors_given_others": 0.7}, "accepted": ACCEPTED, "prior": 0.2},
    {"features": {"first": 1.0, "vectors_given_others": 0.4, "vectors_given_many": 0.7}, "prior": 0.2},
    {"features": {"first": 2.0, "rank": 0.3}, "negative_feedback": 0.5, "drop_self": False},
]
MODES: list[dict[str, Any]] = [
    {"mode": "DENSE"},
    {"mode": "LEXICAL"},
    {"mode": "ITERATIVE_LEXICAL"},
    {"mode": "HYBRID"},
    {"mode": "HYBRID", "lexical_weight": 0.7},
    {"mode": "HYBRID", "fusion": "reciprocal_rank", "lexical_weight": 0.4},
]


def _fits(mode: dict[str, Any], way: dict[str, Any]) -> bool:
    if mode["mode"] == "HYBRID":  # features see of a fusion but its scores
        return len(mode) == 1 or len(way.get("features", ())) != 1
    if mode["mode"] == "DENSE":
        return set(way.get("features", ())) <= set(VECTOR_FEATURES)
    return not way.keys() & {"features", "negative_feedback", *(["prior"] if "ITER" in mode["mode"] else [])}


CASES = [{**mode, **way} for mode in MODES for way in WAYS if _fits(mode, way)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"POOL": POOL, "FEEDBACK": FEEDBACK}.items():
        monkeypatch.setattr(stages, name, value)
    for name, value in {"POOL": POOL, "DEPTH": DEPTH, "WIDE_DEPTH": WIDE_DEPTH, "PARTNERS": PARTNERS}.items():
        monkeypatch.setattr(fusion, name, value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.usefixtures("small")
async def test_retrieve_answers_what_its_stages_are_by_definition(case: dict[str, Any]) -> None:
    for seed, (scope, k) in enumerate(zip(SCOPES, (1, 5, 8, 12, 3, 7, 50, 30), strict=True)):
        world = World.of(seed)
        query = TextQuery(tuple(world.texts), Scope("c", k, **scope), **case)
        for row, hits in enumerate(await world.answer(query)):
            expected = Definition(world, query, row).answer()
            ordinals, scores = hits.ordinals.tolist(), hits.scores.tolist()
            assert len(ordinals) == len(expected)
            assert len(set(ordinals)) == len(ordinals)
            assert hits.exact
            if query.features:  # those that follow have scores of their own
                expected = {n: score for n, score in expected.items() if score > -2}
                assert all(one <= min(expected.values()) + 1e-4 for one in scores[len(expected) :])
                assert scores == sorted(scores, reverse=True)
            np.testing.assert_allclose(scores[: len(expected)], list(expected.values()), atol=2e-4)
            for n, score in zip(ordinals[: len(expected)], scores, strict=False):
                assert expected.get(n, score) == pytest.approx(score, abs=4e-4)
            if not query.features and query.mode != "ITERATIVE_LEXICAL":
                ties = zip(scores, ordinals, strict=True)
                assert list(zip(scores, ordinals, strict=True)) == sorted(ties, key=lambda one: (-one[0], one[1]))
