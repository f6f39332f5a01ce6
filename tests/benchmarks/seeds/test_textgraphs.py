"""Graded re-ranking: what its table says of the paper's figures, ensembles, and the order of its two stages."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aeenc.evaluation import RatedDataset, RatedQuery, RatedSet
from benchmarks.seeds import page, textgraphs
from benchmarks.seeds.textgraphs import COLUMNS, PAPER, Ladder, fused, two_stages
from services.index.values import LexicalSettings


@pytest.mark.parametrize("tunes", [True, False], ids=["train", "dev alone"])
def test_the_tasks_measure_stands_first_beside_the_papers_figures_and_the_scorer_gets_every_id_of_a_fact(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tunes: bool
):
    found = {"why": ["iron is a metal", "ice is cold"]}
    facts = {"F1": "ice is cold", "f2": "iron is a metal", "f3": "ice is cold"}
    rated = RatedDataset({"dev": RatedSet(facts, (RatedQuery("Q_1", "why", {"F1": 6.0}),))})
    gold = {"why": {"ice is cold": 6.0, "it is dark": 1.0}}
    running = SimpleNamespace(
        retrieved=lambda: found, tf_idf=lambda: found, by_words=lambda *_, **__: found, gold=gold, dataset=rated
    )
    monkeypatch.setattr(textgraphs, "ladder", lambda *_, **__: nullcontext(running))
    monkeypatch.setattr(textgraphs, "HOME", tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    tuned = LexicalSettings(k1=0.25)
    monkeypatch.setattr(textgraphs, "measured_on", lambda *_: "train")
    monkeypatch.setattr(textgraphs, "tune", lambda measured, **_: {"train": tuned}[measured])
    monkeypatch.setattr(textgraphs, "splits_in", lambda _: ("dev", "train") if tunes else ("dev",))
    monkeypatch.setattr(sys, "argv", ["textgraphs", str(tmp_path)])
    if not tunes:
        with pytest.raises(SystemExit, match="has no split train, which all but words need; add --only words"):
            textgraphs.main()
    monkeypatch.setattr(sys, "argv", ["textgraphs", str(tmp_path), "--only", "words"])
    textgraphs.main()
    told = (tmp_path / "seeds.md").read_text()
    assert ("tuned on train: k1 0.25" in told) == tunes
    heading, _, *rows = [line[1:-1].split("|") for line in told.splitlines() if line.startswith("|")]
    assert [one.strip() for one in heading] == list(COLUMNS)
    ideal, lacked = 63 + 1 / np.log2(3), 1 / np.log2(10**6 + 1)
    name, figure, oracle, *_, paper = [one.strip() for one in rows[0]]
    assert (name, paper) == ("TF-IDF", PAPER["TF-IDF"])
    assert [figure, oracle] == [f"{(63 / np.log2(3) + lacked) / ideal:.4f}", f"{(63 + lacked) / ideal:.4f}"]
    papers = {row[0].strip(): row[-1].strip() for row in rows}
    assert papers == {"TF-IDF": ".5130", "BM25": "", "I-BM25": ".6669"} | ({"I-BM25 tuned": ".6785"} if tunes else {})
    written = tmp_path / f"predictions-{tmp_path.name}-dev" / "TF-IDF" / "predict.txt"
    assert written.read_text() == "q_1\tf2\nq_1\tF1\nq_1\tf3\n"


def test_what_the_first_stage_calls_relevant_is_ordered_by_rating_and_stands_first():
    relevant = {"q": {"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.4, "e": 0.1}}
    rated = {"q": {"e": 6.0, "c": 5.0, "a": 2.0, "d": 1.0, "b": 3.0}}
    assert two_stages(relevant, rated) == {"q": ["c", "b", "a", "d", "e"]}


def test_lists_count_by_their_weights_and_a_lacked_premise_stands_behind_the_last():
    lists = [{"q": ["a", "b", "c"]}, {"q": ["c", "a"]}]
    assert fused(lists, [1, 1]) == {"q": ["a", "c", "b"]}
    assert fused(lists, [1, 3]) == {"q": ["c", "a", "b"]}
    assert fused(lists, [1, 0]) == {"q": ["a", "b", "c"]}


def test_words_rank_by_their_settings_and_no_query_finds_its_own_text():
    facts = {"f1": "iron metal", "f2": "a metal such as iron is mined", "f3": "metal metal metal metal", "f4": "ice"}
    running = Ladder(None, RatedDataset({"dev": RatedSet(facts, ())}), "", {"iron metal": {}})
    for k1, best in ((0, "f2"), (50, "f3")):
        assert running.by_words(LexicalSettings(k1=k1, b=0), iterative=False)["iron metal"][0] == facts[best]
    assert facts["f1"] not in running.by_words(LexicalSettings(), iterative=True)["iron metal"]
