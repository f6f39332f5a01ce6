"""Trees that a job over runs holds back to judge its result by."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from services.corpus.generation import PremiseRecord, Premises
from services.trainer.jobs import runner
from services.trainer.jobs.training_set import JudgedPair, hold_back

FACTS = [f"fact {n}" for n in range(400)]
PREMISES = Premises.of([PremiseRecord(f"f{n}", text) for n, text in enumerate([*FACTS, "inner 0", "inner 1"])])


def trees(number: int, facts: int = 2) -> list[JudgedPair]:
    """Hypotheses that share a fact with the next one, and a refused fact each."""
    made = []
    for n in range(number):
        query = f"hypothesis {n}"
        made += [JudgedPair(query, "", FACTS[n + shift], "POSITIVE") for shift in range(facts)]
        made.append(JudgedPair(query, "", FACTS[n + 100], "NEGATIVE"))
    return made


@pytest.mark.parametrize(
    ("number", "held"), [(10, 0), (19, 0), (20, 10), (24, 12), (30, 15), (50, 15), (100, 20), (300, 60)]
)
def test_a_fifth_at_least_15_and_at_most_half_are_held_back(number: int, held: int):
    found = hold_back(trees(number), [], PREMISES, seed=0)
    assert len(found.queries) == held
    asked = {query.text for query in found.queries}
    assert not asked & {pair.query for pair in found.pairs}
    assert len({pair.query for pair in found.pairs}) == number - held
    assert hold_back(trees(number), [], PREMISES, seed=0) == found
    assert not held or hold_back(trees(number), [], PREMISES, seed=1) != found


def test_gold_in_a_folded_corpus_is_the_premise_that_stands_for_it(monkeypatch: pytest.MonkeyPatch):
    opened = SimpleNamespace(premises=PREMISES, is_folded=True, stored=lambda text: text.rstrip("!"))
    monkeypatch.setattr(runner, "open_generation", lambda *_: opened)
    job: Any = SimpleNamespace(config=SimpleNamespace(corpus="c", seed=0), generation="g")
    again = [replace(pair, premise=f"{pair.premise}!") for pair in trees(40)]
    assert runner.JobRunner._held_back(Mock(), job, again, []) == hold_back(trees(40), [], PREMISES, seed=0)


def test_no_node_of_a_tree_that_is_held_back_is_learnt_from():
    pairs = trees(40, facts=1)
    chains = []  # each hypothesis has an inner node, which has a leaf that was asked, too
    for n in range(40):
        chains.append(JudgedPair(f"hypothesis {n}", "", f"inner {n}", "POSITIVE"))
        chains.append(JudgedPair(f"inner {n}", "", FACTS[n + 200], "POSITIVE"))
        chains.append(JudgedPair(FACTS[n + 200], "", FACTS[n], "NEGATIVE"))
    stranger = [JudgedPair("stranger", "", f"inner {n}", "NEGATIVE") for n in range(40)]
    found = hold_back([*pairs, *chains, *stranger], [], PREMISES, seed=0)
    held = {int(text.split()[1]) for text in (query.text for query in found.queries) if text.startswith("hypothesis")}
    assert len(held) == 15
    gone = {text for n in held for text in (f"hypothesis {n}", f"inner {n}", FACTS[n + 200])}
    assert not gone & {pair.query for pair in found.pairs}
    assert not {f"inner {n}" for n in held} & {pair.premise for pair in found.pairs}
    assert {f"inner {n}" for n in held} < {query.text for query in found.queries}, "inner nodes are asked, too"
    assert {pair.query for pair in found.pairs} >= {f"hypothesis {n}" for n in range(40) if n not in held}


def test_data_sets_do_not_teach_what_is_held_back():
    pairs = trees(20)
    further = [JudgedPair(f"hypothesis {n}", "", FACTS[n + 300], "NEGATIVE") for n in range(20)]
    found = hold_back(pairs, [*further, JudgedPair("other", "", FACTS[0], "POSITIVE")], PREMISES, seed=0)
    assert not {query.text for query in found.queries} & {pair.query for pair in found.pairs}
    assert "other" in {pair.query for pair in found.pairs}


def test_what_was_refused_or_is_not_in_the_corpus_is_not_gold():
    pairs = trees(20)
    pairs += [JudgedPair(f"hypothesis {n}", "", FACTS[n], "NEGATIVE") for n in range(20)]
    pairs += [JudgedPair(f"hypothesis {n}", "", "unknown", "POSITIVE") for n in range(20)]
    pairs += [JudgedPair(f"hypothesis {n}", f"f{n + 300}", "", "POSITIVE") for n in range(20)]
    found = hold_back(pairs, [], PREMISES, seed=0)
    assert len(found.queries) == 10
    for text, gold in ((query.text, query.gold) for query in found.queries):
        n = int(text.split()[1])
        assert set(gold) == {FACTS[n + 1], FACTS[n + 300]}
    everything_tied = [*trees(40), *(JudgedPair("hypothesis 0", "", f"hypothesis {n}", "POSITIVE") for n in range(40))]
    assert hold_back(everything_tied, [], PREMISES, seed=0).queries == [], "one group of more than half"
