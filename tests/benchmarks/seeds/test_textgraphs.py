"""Graded re-ranking: what its table says of the paper's figures, and the order of its two stages."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aeenc.evaluation import RatedDataset, RatedQuery, RatedSet
from benchmarks.seeds import textgraphs
from benchmarks.seeds.textgraphs import PAPER, two_stages


def test_the_tasks_measure_stands_first_beside_the_papers_figures_and_the_scorer_gets_every_id_of_a_fact(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    found = {"why": ["iron is a metal", "ice is cold"]}
    facts = {"F1": "ice is cold", "f2": "iron is a metal", "f3": "ice is cold"}
    rated = RatedDataset({"dev": RatedSet(facts, (RatedQuery("Q_1", "why", {"F1": 6.0}),))})
    gold = {"why": {"ice is cold": 6.0, "it is dark": 1.0}}
    running = SimpleNamespace(retrieved=lambda: found, tf_idf=lambda: found, gold=gold, dataset=rated)
    monkeypatch.setattr(textgraphs, "ladder", lambda *_, **__: nullcontext(running))
    monkeypatch.setattr(textgraphs, "HOME", tmp_path)
    monkeypatch.setattr(sys, "argv", ["textgraphs", str(tmp_path), "--only", "words"])
    textgraphs.main()
    heading, row, *_ = capsys.readouterr().out.splitlines()[2:]
    assert heading.index("paper") == row.index(PAPER["TF-IDF"])
    ideal, lacked = 63 + 1 / np.log2(3), 1 / np.log2(10**6 + 1)
    assert heading.split()[:3] == ["system", "TextGraphs", "oracle"]
    assert row.split()[1:3] == [f"{(63 / np.log2(3) + lacked) / ideal:.4f}", f"{(63 + lacked) / ideal:.4f}"]
    written = tmp_path / f"predictions-{tmp_path.name}-dev" / "TF-IDF" / "predict.txt"
    assert written.read_text() == "q_1\tf2\nq_1\tF1\nq_1\tf3\n"


def test_what_the_first_stage_calls_relevant_is_ordered_by_rating_and_stands_first():
    relevant = {"q": {"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.4, "e": 0.1}}
    rated = {"q": {"e": 6.0, "c": 5.0, "a": 2.0, "d": 1.0, "b": 3.0}}
    assert two_stages(relevant, rated) == {"q": ["c", "b", "a", "d", "e"]}
