"""Which refusals become negatives: a run records each as what it is, and what reads its pairs leaves some out."""

import random
from typing import Any

import pytest

from aeenc.oracle import Candidate
from aeenc.v1 import sampler_pb2, types_pb2
from aeenc.values import NegativeFilter, RunConfig
from services.sampler.acs.algorithm import ADDED, Known, KnownPair
from services.sampler.execution.sampling import left_out
from support.worlds.sampler_world import FACTS, SamplerWorld, brute_force, explains, finish, nearest, pair_set

POSITIVE = types_pb2.PAIR_SIGN_POSITIVE
Found = list[tuple[str, int, float]]  # premise, rank from 1, score


def naive(rules: NegativeFilter, most: int, accepted: Found, refused: Found) -> tuple[set[str], dict[str, str]]:
    """The definition, read one refusal at a time: the negatives, and the reasons of those left out by the filter."""
    kept: list[str] = []
    reasons: dict[str, str] = {}
    best = max((score for _, _, score in accepted), default=None)
    for premise, rank, score in sorted(refused, key=lambda one: one[1]):
        near = best is not None and (
            (rules.absolute_margin is not None and score > best - rules.absolute_margin)
            or (rules.relative_margin is not None and score > best - rules.relative_margin * abs(best))
        )
        if rank < rules.min_rank or (rules.max_rank and rank > rules.max_rank):
            reasons[premise] = "rank"
        elif near:
            reasons[premise] = "margin"
        elif not most or len(kept) < most:
            kept.append(premise)
    return set(kept), reasons


def test_what_is_left_out_is_what_the_definition_leaves_out():
    """Over 70,000 pairs in any order of knowing them; scores fall with the rank, as those of a query do."""
    draw = random.Random(5)
    pairs = 0
    while pairs < 70_000:
        scores = sorted((round(draw.uniform(-1, 1), 2) for _ in range(draw.randint(0, 40))), reverse=True)
        found = [Candidate(f"p{n}", f"fact {n}", n, score) for n, score in enumerate(scores, start=1)]
        states = {one.id: draw.choice([False] * 5 + [True] * 2 + [None]) for one in found}
        margins = [draw.choice([None, 0.0, 0.1, 0.5]) for _ in range(2)]
        rules = NegativeFilter(
            min_rank=draw.choice([0, 3]),
            max_rank=draw.choice([0, 20]),
            absolute_margin=margins[0],
            relative_margin=margins[1],
        )
        most = draw.choice([0, 0, 1, 4])
        order = draw.sample(found, len(found))
        known = Known({one.id: KnownPair(states[one.id], False, one) for one in order})
        reasons_given = left_out("q", known, RunConfig(max_negatives_per_query=most, negative_filter=rules))
        by_sign: dict[bool, Found] = {
            sign: [(one.id, one.rank, one.score) for one in found if states[one.id] is sign] for sign in (True, False)
        }
        refused = by_sign[False]
        negatives, reasons = naive(rules, most, by_sign[True], refused)
        assert {one for one, *_ in refused} - reasons_given.keys() == negatives
        assert {one: reason for one, reason in reasons_given.items() if reason != "cap"} == reasons
        pairs += len(found)


A, R = True, False


@pytest.mark.parametrize(
    ("fields", "most", "premises", "expected"),
    [
        pytest.param(
            {"absolute_margin": 0.1, "rewordings": True},
            0,
            [(A, "good", ADDED, 0.0, ""), (R, "a good", 1, -0.5, ""), (R, "far", 2, -0.05, "")],
            {"a good": "wording"},
            id="what was added sets no margin but makes a rewording",
        ),
        pytest.param(
            {"min_rank": 3, "absolute_margin": 0.1},
            2,
            [(A, "good", 1, -0.2, ""), (R, "far", 4, -0.5, ""), (R, "new", ADDED, 0.0, "")],
            {},
            id="a refusal without rank has no rank or score to be left out by",
        ),
        pytest.param(
            {},
            1,
            [(A, "good", 1, -0.2, ""), (R, "new", ADDED, 0.0, ""), (R, "far", 4, -0.5, "")],
            {"new": "cap"},
            id="the cap takes what was ranked first",
        ),
        pytest.param(
            {"absolute_margin": 0.1},
            0,
            [
                *((A, "a", 1, 0.5, "v"), (R, "near", 2, 0.45, "v"), (R, "far", 3, 0.2, "v")),
                *((A, "b", 1, 0.1, "w"), (R, "near b", 2, 0.05, "w"), (R, "far b", 3, -0.2, "w")),
                (R, "alone", 1, 0.9, "x"),
            ],
            {"near": "margin", "near b": "margin"},
            id="a margin compares scores of one query vector only",
        ),
        pytest.param(
            {},
            2,
            [(R, "first", 1, 0.2, "v"), (R, "second", 2, 0.9, "w"), (R, "third", 3, 0.95, "w")],
            {"third": "cap"},
            id="so does the cap, which goes by ranks",
        ),
        pytest.param(
            {},
            2,
            [(R, "z", 1, 0.2, "v"), (R, "m", 2, 0.1, "v"), (R, "a", 1, 0.9, "w"), (R, "b", 2, 0.8, "w")],
            {"m": "cap", "b": "cap"},
            id="of each vector as many stay",
        ),
        pytest.param(
            {},
            1,
            [(R, "z", 1, 0.2, "v"), (R, "a", 1, 0.9, "w")],
            {"a": "cap"},
            id="of equal ranks the one of the vector that came first, whatever their names and scores",
        ),
    ],
)
def test_which_refusals_are_left_out(fields: dict[str, Any], most: int, premises: list[tuple], expected: dict) -> None:
    known = Known({name: KnownPair(does, False, Candidate(name, name, *at), on) for does, name, *at, on in premises})
    config = RunConfig(max_negatives_per_query=most, negative_filter=NegativeFilter(**fields))
    assert left_out("query", known, config) == expected


def expected_pairs(rules: NegativeFilter, most: int = 0) -> tuple[set, set]:
    """Negatives and filtered pairs of a run by the definition: every query is read by all that any tree asked."""
    judged = {(q, p): sign for q, p, sign in brute_force()}
    negatives, filtered = set(), set()
    for query in {q for q, _ in judged}:
        found = [(p, rank, score) for rank, (_, p, score) in enumerate(nearest(query, FACTS), start=1)]
        accepted, refused = ([row for row in found if judged.get((query, row[0])) == sign] for sign in "+-")
        kept, reasons = naive(rules, most, accepted, refused)
        negatives |= {(query, premise, "-") for premise in kept}
        filtered |= {(query, premise, reason) for premise, reason in reasons.items()}
    return negatives, filtered


FILTERS: list[dict[str, Any]] = [
    {"min_rank": 2, "max_rank": 5},
    {"absolute_margin": 0.05},
    {"relative_margin": 0.04, "min_rank": 2},
]


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("fields", [{}, *FILTERS])
async def test_pairs_are_listed_as_the_filter_has_them_whatever_was_asked_together(
    by_wave_nodes, world: SamplerWorld, fields: dict, most: int
):
    negatives, filtered = expected_pairs(NegativeFilter(**fields), most)
    accepted, recorded = ({one for one in brute_force() if one[2] == sign} for sign in "+-")
    listed = {(q, p, "?") for q, p, _ in filtered} | negatives | accepted
    config = {"negative_filter": fields, "max_negatives_per_query": most}
    for run, pairs in await by_wave_nodes(1, 256, signs="+-?", **config):
        assert pairs == listed
        assert (run.progress.negatives, run.progress.skipped) == (len(recorded), 0)


@pytest.mark.parametrize("fields", FILTERS)
async def test_a_skipped_refusal_says_why(client, fields: dict):
    run = await finish(client, negative_filter=fields)
    skipped = [p async for p in client.list_pairs(run.id, sign=types_pb2.PAIR_SIGN_SKIPPED, page_size=7)]
    assert {(p.query, p.premise, p.reason) for p in skipped} == expected_pairs(NegativeFilter(**fields))[1]
    assert len(skipped) > 10


async def test_a_rewording_of_the_query_is_no_negative(client):
    text = next(f"fact {n}" for n in range(60) if not explains(f"A fact {n}!", f"fact {n}"))
    config = {"hypotheses": [("root", f"A {text}!")], "k": 60, "max_depth": 0}
    run = await finish(client, **config, negative_filter={"rewordings": True})
    skipped = [p async for p in client.list_pairs(run.id, sign=types_pb2.PAIR_SIGN_SKIPPED)]
    plain = await finish(client, **config)
    assert [(p.premise, p.reason) for p in skipped] == [(text, "wording")]
    assert run.progress.negatives == plain.progress.negatives


async def test_positives_only_records_nothing_else_and_nothing_filtered(client):
    run = await finish(client, negative_filter={"min_rank": 3}, collect=sampler_pb2.COLLECT_POSITIVES_ONLY)
    assert await pair_set(client, run.id, "+-?") == {pair for pair in brute_force() if pair[2] == "+"}
    assert run.progress.negatives == run.progress.skipped == 0
