"""`make bench NAME=own-domain`: the ten domains are as large, as new to the encoder and as different as it says."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.domains.generators import GENERATORS, HYPOTHESES, JUDGED, domain

SEEDS = range(3)


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_facts_that_explain_a_test_were_not_learnt_from(name: str, seed: int):
    drawn = domain(name, seed)
    assert 300 <= len(drawn.facts) == len(set(drawn.facts)) <= 600
    assert (len(drawn.judged), len(drawn.test)) == (JUDGED, HYPOTHESES - JUDGED)
    hypotheses = {text for text, _ in drawn.explained}
    assert len(hypotheses) == HYPOTHESES
    assert not hypotheses & set(drawn.facts)
    gold = {fact for _, facts in drawn.test for fact in facts}
    assert gold <= set(drawn.facts)
    assert len(gold - drawn.seen) >= len(gold) / 2
    assert all(2 <= len(set(facts)) == len(facts) for _, facts in drawn.explained)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_draws_the_same_domain_again_and_another_seed_another(name: str):
    assert domain(name, 1) == domain(name, 1) != domain(name, 2)


def test_domains_share_no_fact():
    facts = [set(domain(name).facts) for name in GENERATORS]
    assert len(facts) == 10
    assert not any(one & other for one, other in itertools.combinations(facts, 2))
