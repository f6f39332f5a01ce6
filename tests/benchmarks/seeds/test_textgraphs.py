"""The two stages of graded re-ranking: relevant ones by rating, then the others as the first stage has them."""

from __future__ import annotations

from benchmarks.seeds.textgraphs import two_stages


def test_what_the_first_stage_calls_relevant_is_ordered_by_rating_and_stands_first():
    relevant = {"q": {"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.4, "e": 0.1}}
    rated = {"q": {"e": 6.0, "c": 5.0, "a": 2.0, "d": 1.0, "b": 3.0}}
    assert two_stages(relevant, rated) == {"q": ["c", "b", "a", "d", "e"]}
