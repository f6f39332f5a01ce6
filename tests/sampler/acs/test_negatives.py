"""Which refusals become negatives: ranks, margins and rewordings are left out, and recorded with their reason."""

import random
from itertools import combinations, permutations

import pytest

from aeenc.v1 import sampler_pb2, types_pb2
from services.sampler.acs import algorithm
from services.sampler.acs.algorithm import PairState, RetrievedPremise, Rules
from services.sampler.acs.negatives import NegativeFilter, RefusalFilter
from support.worlds.sampler_world import FACTS, SamplerWorld, brute_force, explains, finish, nearest, pair_set


@pytest.mark.parametrize(
    ("rules", "best", "limit"),
    [
        (NegativeFilter(), 0.5, float("inf")),
        (NegativeFilter(absolute_margin=0.25), 0.5, 0.25),
        (NegativeFilter(relative_margin=0.5), 0.5, 0.25),
        (NegativeFilter(relative_margin=0.5), -0.5, -0.75),
        (NegativeFilter(absolute_margin=0.0, relative_margin=0.5), 0.5, 0.25),
        (NegativeFilter(absolute_margin=0.25), None, float("inf")),
    ],
)
def test_the_highest_score_kept_lies_a_margin_below_the_best_accepted(rules: NegativeFilter, best, limit: float):
    assert rules.limit(best) == limit


def test_a_decision_that_hangs_on_an_ancestor_is_put_off():
    rules = NegativeFilter(absolute_margin=0.1, rewordings=True)
    refusals = RefusalFilter(rules, "query", accepted=[("good", 0.6)], unsure=[("elder", 0.9)])
    assert refusals.reason("far", 5, 0.5) == (None, True)
    assert refusals.reason("near", 1, 0.7) == ("margin", False)  # would be kept, were the elder accepted
    assert refusals.reason("nearest", 1, 0.85) == ("margin", True)
    assert refusals.reason("the elder", 5, 0.1) == ("wording", False)
    assert refusals.reason("a good", 5, 0.1) == ("wording", True)
    alone = RefusalFilter(rules, "query", accepted=[], unsure=[("elder", 0.2)])
    assert alone.reason("near", 1, 0.7) == ("margin", False)
    assert alone.reason("far", 1, 0.05) == (None, True)


def expected_pairs(rules: NegativeFilter, max_negatives: int = 10**9) -> tuple[set, set]:
    """Negatives and filtered pairs by what brute force records: every query is judged on all that it was asked.

    Each refusal is judged on the premises up to its rank, and up to k. Of those that no tree asked about, being
    ancestors in all, nobody knows whether they explain the query. What is kept must be kept in either case.
    """
    judged = {(q, p): sign for q, p, sign in brute_force()}
    negatives, filtered = set(), set()
    for query in {q for q, _ in judged}:
        found = [(p, rank, score) for rank, (_, p, score) in enumerate(nearest(query, FACTS), start=1)]
        kept = 0
        for premise, rank, score in found:
            if judged.get((query, premise)) != "-":
                continue
            within = found[: max(6, rank)]
            accepted = [score for p, _, score in within if judged.get((query, p)) == "+"]
            unknown = [score for p, _, score in within if (query, p) not in judged]
            worlds = [[*accepted, *more] for n in range(len(unknown) + 1) for more in combinations(unknown, n)]
            in_window = rules.min_rank <= rank <= (rules.max_rank or FACTS)
            near = any(world and score > rules.limit(max(world)) for world in worlds)
            if near or not in_window:
                filtered.add((query, premise, "rank" if not in_window else "margin"))
            elif kept < max_negatives:
                kept += 1
                negatives.add((query, premise, "-"))
    return negatives, filtered


FILTERS = [
    {"min_rank": 2, "max_rank": 5},
    {"absolute_margin": 0.05},
    {"relative_margin": 0.04, "min_rank": 2},
]


@pytest.mark.parametrize("fields", FILTERS)
async def test_filtered_refusals_are_recorded_as_skipped_with_the_reason(world: SamplerWorld, fields: dict):
    negatives, filtered = expected_pairs(NegativeFilter(**fields))
    async with world.sampler() as client:
        run = await finish(client, negative_filter=fields)
        recorded = await pair_set(client, run.id, "+-?")
        skipped = [p async for p in client.list_pairs(run.id, sign=types_pb2.PAIR_SIGN_SKIPPED)]
    reasons = {(p.query, p.premise, p.reason) for p in skipped}
    # Only what hangs on an ancestor that another tree later asks about may be filtered first and kept after all.
    late = {(q, p) for q, p, _ in reasons - filtered}
    assert late <= {(q, p) for q, p, _ in negatives}
    assert len(late) <= len(filtered) // 10
    assert filtered <= reasons
    assert {pair for pair in recorded if pair[2] == "-"} == negatives
    assert {pair for pair in recorded if pair[2] == "+"} == {pair for pair in brute_force() if pair[2] == "+"}
    assert run.progress.filtered == len(skipped) > 10
    assert (run.progress.negatives, run.progress.skipped) == (len(negatives), 0)


@pytest.mark.parametrize("fields", FILTERS)
async def test_batching_changes_neither_filtered_nor_capped_negatives(by_wave_nodes, fields: dict):
    found = await by_wave_nodes(1, 5, 256, negative_filter=fields, max_negatives_per_query=2)
    recorded = [pairs for _, pairs in found]
    assert recorded == [recorded[0]] * 3
    negatives, _ = expected_pairs(NegativeFilter(**fields), max_negatives=2)
    kept = {pair for pair in recorded[0] if pair[2] == "-"}
    assert kept <= negatives
    assert len(negatives - kept) <= len(negatives) // 5  # the place of an ancestor may stay empty


async def test_a_rewording_of_the_query_is_no_negative(world: SamplerWorld):
    text = next(f"fact {n}" for n in range(60) if not explains(f"A fact {n}!", f"fact {n}"))
    config = {"hypotheses": [("root", f"A {text}!")], "k": 60, "max_depth": 0}
    async with world.sampler() as client:
        run = await finish(client, **config, negative_filter={"rewordings": True})
        skipped = [p async for p in client.list_pairs(run.id, sign=types_pb2.PAIR_SIGN_SKIPPED)]
        plain = await finish(client, **config)
    assert [(p.premise, p.reason) for p in skipped] == [(text, "wording")]
    assert run.progress.negatives == plain.progress.negatives - 1


async def test_positives_only_records_nothing_filtered(world: SamplerWorld):
    async with world.sampler() as client:
        run = await finish(client, negative_filter={"min_rank": 3}, collect=sampler_pb2.COLLECT_POSITIVES_ONLY)
        assert await pair_set(client, run.id, "-?") == set()
    assert run.progress.filtered == 0


def test_a_cap_leaves_room_for_what_an_ancestor_decides():
    rules = Rules(k=5, max_negatives_per_query=2, negatives=NegativeFilter(absolute_margin=0.1))
    scores = {"elder": 0.9, "good": 0.75, "near": 0.7, "nearer": 0.68, "far": 0.2}
    found = [RetrievedPremise(name, name, rank, score) for rank, (name, score) in enumerate(scores.items(), start=1)]
    refused = dict.fromkeys(("near", "nearer", "far"), PairState.REFUSED_UNKEPT)
    below = algorithm.conclude("q", found[1:], found, algorithm.Known(), {"good": PairState.LEAF, **refused}, rules)
    assert (below.negatives, [candidate.id for candidate, _ in below.filtered]) == ((), ["near", "nearer"])
    elsewhere = algorithm.conclude("q", found, found, below.known, {"elder": PairState.LEAF}, rules)
    assert [candidate.id for candidate in elsewhere.negatives] == ["near", "nearer"]
    without = algorithm.conclude("q", found, found, below.known, {"elder": PairState.REFUSED_UNKEPT}, rules)
    assert [candidate.id for candidate in without.negatives] == ["far"]


@pytest.mark.parametrize("cap", [0, 2, 4])
@pytest.mark.parametrize("margin", [None, 0.1])
def test_a_querys_negatives_do_not_depend_on_the_order_of_the_trees_in_which_it_occurs(cap: int, margin: float | None):
    rules = Rules(k=5, max_depth=3, max_negatives_per_query=cap, negatives=NegativeFilter(absolute_margin=margin))
    for seed in range(60):
        draw = random.Random(seed)
        found = [RetrievedPremise(f"p{n}", f"fact {n}", n, 0.9 - 0.04 * n - 0.01 * draw.random()) for n in range(1, 9)]
        truth = {
            one.id: draw.choice([*[PairState.REFUSED_UNKEPT] * 4, PairState.LEAF, PairState.SKIPPED]) for one in found
        }
        paths = [[one.text for one in draw.sample(found, draw.randint(0, 3))] for _ in range(4)]
        kept_in: set[frozenset[str]] = set()
        for order in permutations(paths):
            known = algorithm.Known()
            kept: list[str] = []
            for path in order:
                candidates = algorithm.choose(path, "q", found, rules.k)
                assert len(candidates) == rules.k
                answered = {one.id: truth[one.id] for one in candidates if one.id not in known.states}
                outcome = algorithm.conclude("q", candidates, found, known, answered, rules)
                known = outcome.known
                kept += [one.id for one in outcome.negatives]
            assert len(kept) == len(set(kept)) <= (cap or len(found))
            kept_in.add(frozenset(kept))
        assert len(kept_in) == 1, f"seed {seed}"


def test_what_was_filtered_is_kept_once_a_later_answer_allows_it_and_only_once():
    rules = Rules(k=3, negatives=NegativeFilter(absolute_margin=0.1))
    elder, good, near = (
        RetrievedPremise("e", "elder", 1, 0.9),
        RetrievedPremise("g", "good", 2, 0.6),
        RetrievedPremise("n", "near", 3, 0.55),
    )
    found = [elder, good, near]
    below = algorithm.conclude(
        "q", [good, near], found, algorithm.Known(), {"g": PairState.LEAF, "n": PairState.REFUSED_UNKEPT}, rules
    )
    assert (below.negatives, below.filtered) == ((), ((near, "margin"),))
    assert below.known.states["n"] is PairState.FILTERED
    elsewhere = algorithm.conclude("q", found, found, below.known, {"e": PairState.LEAF}, rules)
    assert (elsewhere.negatives, elsewhere.filtered) == ((near,), ())
    again = algorithm.conclude("q", found, found, elsewhere.known, {}, rules)
    assert (again.negatives, again.filtered, again.positives) == ((), (), ())
    refused = algorithm.conclude("q", found, found, below.known, {"e": PairState.REFUSED_UNKEPT}, rules)
    assert refused.filtered == ((elder, "margin"),)
    assert refused.negatives == ()
