"""`make own-text`: f, the rules that drop a query's own text, and what each query's own text is."""

import json
import sys

import pytest

from aeenc.trees import Dataset, Tree
from aeenc.trees.tree import Step
from benchmarks.tables import own_text
from benchmarks.tables.own_text import EXCLUDED, RULES, Query, f_of, queries_of, scored

CANDIDATE = Query(strict=[1], paper=[2], candidate=True)
ROOT = Query(strict=[1], paper=[1], candidate=False)


def test_f_is_0_with_own_text_first_and_1_where_it_is_dropped():
    queries = [CANDIDATE, ROOT]
    assert f_of(queries, 0.75) == 0.0
    assert f_of(queries, 1.0) == 1.0
    pushed_down = Query(strict=[1], paper=[1], candidate=True)
    assert scored([CANDIDATE, ROOT, pushed_down], lambda _: False)["f"] == pytest.approx(0.5)


def test_a_rule_drops_own_text_only_where_it_holds():
    below = Query(strict=[1], paper=[2], candidate=True, below_root=True)
    found = {name: scored([CANDIDATE, below], rule)["MAP"] for name, rule in RULES.items()}
    assert found["kept (protocol `paper`)"] == 0.5
    assert found["dropped (protocol `strict`)"] == 1.0
    assert found["dropped, except for children of roots"] == 0.75
    assert found["dropped for children of roots only"] == 0.75


def test_a_query_without_a_gold_premise_beside_its_own_text_counts_only_where_that_is_kept():
    alone = Query(strict=[], paper=[1], candidate=True)
    assert scored([CANDIDATE, alone], RULES["dropped (protocol `strict`)"])["MAP"] == 1.0
    assert scored([CANDIDATE, alone], RULES["kept (protocol `paper`)"])["MAP"] == 0.75


def test_each_query_knows_what_its_own_text_is(tmp_path):
    steps = (
        Step(("sent1",), "int2", "ice is made of water"),
        Step(("int2",), "int1", "ice weighs little"),
        Step(("int1",), "hypothesis", "ice floats"),
    )
    deep = Tree("one", "ice floats", {"sent1": "ice is frozen"}, steps)
    flat = Tree("2", "it swims", {"sent1": "ice weighs little"}, (Step(("sent1",), "hypothesis", "it swims"),))
    dataset = Dataset(tmp_path, {"f1": "ice is made of water"}, {"dev": [deep, flat]})
    found = dict(
        zip(
            [one.text for one in dataset.queries("dev")],
            queries_of(dataset, "dev", [([1], [2])] * 4),
            strict=True,
        )
    )
    assert {text for text, one in found.items() if one.candidate} == {"ice weighs little", "ice is made of water"}
    assert {text for text, one in found.items() if one.below_root} == {"ice weighs little"}
    assert {text for text, one in found.items() if one.shared} == {"ice weighs little"}
    assert {text for text, one in found.items() if one.fact} == {"ice is made of water"}


def test_what_is_measured_is_kept_and_the_page_is_written_of_it(monkeypatch, trees, tmp_path):
    monkeypatch.setattr(own_text, "RESULTS", tmp_path)
    monkeypatch.setattr(own_text, "entailmentbank", lambda: Dataset.load(trees))
    monkeypatch.setattr(own_text, "research", lambda: pytest.fail("it starts services"))
    monkeypatch.setattr(sys, "argv", ["own_text", "--only", "untrained"])
    kept = {"format_version": 1, "systems": {"untrained": [[[2], [2]]], EXCLUDED: [[[1], [1]]]}}
    (tmp_path / "own-text-dev.json").write_text(json.dumps(kept))
    own_text.main()
    page = (tmp_path / "own-text-dev.md").read_text()
    assert "0 of 1 queries are premises, too" in page
    assert "| untrained | 0.500 | 1.000 | 0.500 | 1.000 | nan |" in page
    assert page.count("| 0.500, 1.000, nan | 1.000, 1.000, nan |") == len(RULES)
    assert "| untrained | 0.500 | 0.500 |  |  |  |  |" in page
    assert f"| {EXCLUDED} | 1.000 | 1.000 |  | +0.500 | +0.500 to +0.500 | 1.0000 |" in page
