"""Graded re-ranking: what its table says of the paper's figures, and the order of its two stages."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.seeds import textgraphs
from benchmarks.seeds.textgraphs import PAPER, two_stages


def test_the_papers_figures_stand_under_a_heading_that_says_that_they_are_of_another_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    found = {"why": ["ice is cold", "iron is a metal"]}
    running = SimpleNamespace(retrieved=lambda: found, tf_idf=lambda: found, gold={"why": {"ice is cold": 6.0}})
    monkeypatch.setattr(textgraphs, "ladder", lambda *_, **__: nullcontext(running))
    monkeypatch.setattr(textgraphs, "HOME", tmp_path)
    monkeypatch.setattr(sys, "argv", ["textgraphs", str(tmp_path), "--only", "words"])
    textgraphs.main()
    heading, row, *_ = capsys.readouterr().out.splitlines()[2:]
    assert heading.index("paper") == row.index(PAPER["TF-IDF"])
    assert heading.partition("paper")[2] == " (dev), not comparable: gain 2^r - 1, missing facts at rank 10^6"


def test_what_the_first_stage_calls_relevant_is_ordered_by_rating_and_stands_first():
    relevant = {"q": {"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.4, "e": 0.1}}
    rated = {"q": {"e": 6.0, "c": 5.0, "a": 2.0, "d": 1.0, "b": 3.0}}
    assert two_stages(relevant, rated) == {"q": ["c", "b", "a", "d", "e"]}
