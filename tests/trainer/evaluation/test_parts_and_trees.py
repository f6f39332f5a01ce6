"""Parts seen in training and whole trees, against their definitions read aloud."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from aeenc.evaluation import UNRANKED, metrics_of
from services.trainer.evaluation.parts import FIRST, GoldTree, RankedPremises, condensed, parts_seen, tree_level
from services.trainer.evaluation.protocol import EvaluationQuery, GoldStandard, evaluate

RNG = np.random.default_rng(5)
TEXTS = [f"t{n}" for n in range(80)]
ORDINALS = {text: n for n, text in enumerate(TEXTS)}


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_parts_rank_their_own_premises_as_if_the_others_were_no_candidates():
    premises = unit(RNG.normal(size=(80, 8)))
    queries = [
        EvaluationQuery(
            f"t{n}" if n % 2 else f"q{n}", tuple(dict.fromkeys(f"t{m % 80}" for m in (n, n + 5, n + 33, n * 7 + 1)))
        )
        for n in range(30)
    ]
    training = [EvaluationQuery(query.text, query.gold[:2]) for query in queries[:10]]
    training.append(EvaluationQuery("elsewhere", ("t50", "t51", "t52")))
    vectors = unit(RNG.normal(size=(30, 8)))
    report = evaluate(queries, vectors, premises, ORDINALS)
    parts = {part.kind: part for part in parts_seen(GoldStandard.of(queries, ORDINALS), report, training)}
    seen_premises = {premise for query in training for premise in query.gold}
    pairs = {(query.text, premise) for query in training for premise in query.gold}
    belongs = {
        "QUERY_SEEN": lambda query, _: query in {one.text for one in training},
        "QUERY_UNSEEN": lambda query, _: query not in {one.text for one in training},
        "PREMISE_SEEN": lambda _, premise: premise in seen_premises,
        "PREMISE_UNSEEN": lambda _, premise: premise not in seen_premises,
        "PAIR_SEEN": lambda query, premise: (query, premise) in pairs,
        "PAIR_UNSEEN": lambda query, premise: (query, premise) not in pairs,
    }
    assert set(parts) == set(belongs)
    for kind, wanted in belongs.items():
        kept = [EvaluationQuery(q.text, tuple(p for p in q.gold if wanted(q.text, p))) for q in queries]
        for protocol in ("strict", "paper"):
            ranks = []
            for query, whole, vector in zip(kept, queries, vectors, strict=True):
                left_out = set(whole.gold) - set(query.gold) | ({query.text} if protocol == "strict" else set())
                scores = premises @ vector
                ranking = [n for n in sorted(range(80), key=lambda n: (-scores[n], n)) if TEXTS[n] not in left_out]
                own = [rank for rank, n in enumerate(ranking, 1) if TEXTS[n] in query.gold]
                if own:
                    ranks.append(np.array(own))
            found = getattr(parts[kind], protocol)
            assert found.to_dict() == pytest.approx(metrics_of(ranks).to_dict(), abs=1e-6), (kind, protocol)
        assert parts[kind].queries == sum(bool(query.gold) for query in kept)
        assert parts[kind].pairs == sum(len(query.gold) for query in kept)


def test_a_part_without_a_pair_is_left_out():
    queries, premises = [EvaluationQuery("q", ("t1",))], unit(RNG.normal(size=(80, 8)))
    gold, report = GoldStandard.of(queries, ORDINALS), evaluate(queries, premises[:1], premises, ORDINALS)
    seen = parts_seen(gold, report, [EvaluationQuery("r", ("t2",))])
    assert [part.kind for part in seen] == ["QUERY_UNSEEN", "PREMISE_UNSEEN", "PAIR_UNSEEN"]


def test_what_was_not_found_stays_so_in_a_part():
    ranks = condensed(np.array([4, UNRANKED, 9]), np.array([True, True, False]))
    assert ranks.tolist() == [4, UNRANKED]


def test_a_part_of_many_gold_premises_takes_memory_by_their_number_alone():
    gold = 10_000
    tracemalloc.start()
    ranks = condensed(np.arange(1, gold + 1), np.arange(gold) % 2 == 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ranks.tolist() == list(range(1, gold // 2 + 1))
    assert peak < 100 * gold, "a table of those kept by those left out would take 25 MB"


def ranking(*premises: tuple[int, float]) -> RankedPremises:
    ordinals, scores = zip(*premises, strict=True)
    return RankedPremises(np.array(ordinals, np.int32), np.array(scores))


def test_trees_are_found_by_the_hypothesis_or_along_the_gold_tree():
    found = {
        "h": ranking(*((n, 1.0 - n / 100) for n in range(FIRST))),
        "i": ranking((60, 0.99), (5, 0.5), (61, 0.1)),
        "g": ranking((70, 0.3)),
    }
    trees = [GoldTree("h", ("i",), ("t0", "t60", "t61", "t24")), GoldTree("g", (), ("t70",))]
    alone = tree_level(trees, found, ORDINALS, along=False)
    assert (alone.recall_at_25, alone.all_correct_at_25) == (pytest.approx((2 / 4 + 1) / 2), 0.5)
    assert (alone.recall_at_25_micro, alone.trees, alone.leaves) == (pytest.approx(3 / 5), 2, 5)
    along = tree_level(trees, found, ORDINALS, along=True)
    # t60 takes a place among the first 25, so that the last of the hypothesis's own, t24, falls out; t61 stays below.
    assert along.recall_at_25 == pytest.approx((2 / 4 + 1) / 2)
    better = {**found, "i": ranking((60, 0.99), (24, 0.98), (61, 0.97))}
    assert tree_level(trees, better, ORDINALS, along=True).all_correct_at_25 == 1.0


def test_a_premise_of_two_lists_counts_by_its_better_score():
    lists = {"h": ranking(*((n, 0.9) for n in range(FIRST))), "i": ranking((79, 0.95), (0, 0.1))}
    level = tree_level([GoldTree("h", ("i",), ("t0", "t79"))], lists, ORDINALS, along=True)
    assert level.all_correct_at_25 == 1.0
