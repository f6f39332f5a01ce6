"""`aeenc export task3` and `aeenc score-trees`: lists for provers, and the scores of what they built."""

from __future__ import annotations

import json
import sys

import pytest

from aeenc.evaluation import normalised
from aeenc.trees import Dataset, read_trees, record_from_tree
from aeenc.trees.files import parse_context
from support.small_trees import TRAIN, write_small_trees

FACTS = {
    "f1": "iron is magnetic",
    "f2": "A magnet pulls iron",
    "f3": "magnet pulls iron",
    "f4": "ice is light",
    "f5": "the magnet pulls the nail.",  # what a tree concludes, in other words
    "f6": "forces move things; objects",
}


@pytest.fixture
def trees(tmp_path):
    """The small trees with a fact file of which two facts are one, and one is a conclusion."""
    folder = write_small_trees(tmp_path / "trees")
    (folder / "supporting_data").mkdir()
    (folder / "supporting_data" / "worldtree_corpus_sentences_extended.json").write_text(json.dumps(FACTS))
    return folder


def lists_of(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        assert record["meta"]["triples"] == parse_context(record["context"])
        assert record["proof"] == ""
    return [(record["id"], list(record["meta"]["triples"].values())) for record in records]


@pytest.mark.parametrize("words", [(), ("--mode", "lexical"), ("--mode", "hybrid"), ("--mode", "iterative_lexical")])
async def test_a_list_has_facts_alone_each_once_and_no_conclusion(aeenc, fleet, trees, tmp_path, words):
    await aeenc("corpus", "build", "science", "--data", trees)  # with the premises of all trees
    to = tmp_path / "task_3.jsonl"
    ended = await aeenc("--json", "export", "task3", "science", "--data", trees, "--split", "train", "--to", to, *words)
    assert ended.code == 0, ended.stderr
    lists = lists_of(to)
    assert [name for name, _ in lists] == ["one", "two"]
    conclusions = {
        normalised(tree.texts[label]) for tree in Dataset.load(trees).trees("train") for label in tree.children
    }
    for _, sentences in lists:
        assert sentences
        assert set(sentences) <= set(FACTS.values())
        found = [normalised(text) for text in sentences]
        assert len(set(found)) == len(found)
        assert not conclusions & set(found)
    if not words:  # each premise has a cosine, so that all facts are in the list
        assert {len(sentences) for _, sentences in lists} == {4}
        assert ended.json["hypotheses"] == 2
        told = ended.json["leaves"]
        # of the first tree's leaves f1 and f2 are found, f2 by its words alone; of the other's none
        assert told["normalised"] == pytest.approx({"Recall@25": 1 / 3, "AllCorrect@25": 0})
        assert told["exact"] == pytest.approx({"Recall@25": 1 / 6, "AllCorrect@25": 0})
        assert "2 of 2 lists have fewer than 25 sentences" in ended.stderr


async def test_a_list_is_cut_and_may_go_to_stdout(aeenc, fleet, trees, capfd):
    await aeenc("corpus", "build", "science", "--data", trees)
    ended = await aeenc("export", "task3", "science", "--data", trees, "-k", 2, "--to", "-")
    assert ended.code == 0, ended.stderr
    [record] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (record["id"], len(record["meta"]["triples"])) == ("three", 2)
    assert "leaves by normalised text, 1.000, 1.000" in ended.stderr


@pytest.fixture
def files(tmp_path):
    """Gold trees and predictions for them: the first right, the second with a leaf too many."""
    gold, predicted = tmp_path / "gold.jsonl", tmp_path / "predicted.tsv"
    gold.write_text("".join(json.dumps(one) + "\n" for one in TRAIN))
    predicted.write_text(f"$proof$ = {TRAIN[0]['proof']}\n$proof$ = sent1 & sent2 -> hypothesis;\n")
    return predicted, gold


async def test_built_trees_are_scored_and_what_needs_a_similarity_is_named(aeenc, files, tmp_path):
    ended = await aeenc.json("score-trees", *files, "--by-tree", tmp_path / "scores.jsonl")
    assert ended == {
        "trees": 2,
        "leaves": {"P": 0.75, "R": 1.0, "F1": pytest.approx(5 / 6), "AllCorrect": 0.5},
        "steps": {"F1": 0.5, "AllCorrect": 0.5},
        "left_out": ["intermediates", "overall"],
    }
    one, two = map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())
    assert (one["id"], one["steps"]["F1"], two["id"], two["steps"]["F1"]) == ("one", 1, "two", 0)
    unwritten = await aeenc("--json", "score-trees", *files, "--by-tree", "/proc/none")
    assert (unwritten.code, unwritten.json) == (2, ended), "the means are told in any case"
    shown = await aeenc("score-trees", *files)
    assert "left out: intermediates and overall, which need --similarity" in shown.stdout


async def test_intermediates_are_judged_by_a_function_of_the_user(aeenc, files, tmp_path, monkeypatch):
    module = tmp_path / "cwd" / "judge_of_mine.py"
    module.write_text(
        "def equal(gold, predicted):\n    return [float(g == p) for g, p in zip(gold, predicted)]\n\nX = 1\n"
    )
    monkeypatch.delitem(sys.modules, "judge_of_mine", raising=False)
    ended = await aeenc.json("score-trees", *files, "--similarity", "judge_of_mine:equal")
    assert ended["intermediates"] == {"F1": 1.0, "AllCorrect": 1.0}
    assert ended["overall"] == {"AllCorrect": 0.5}
    assert "left_out" not in ended
    for name in ("judge_of_mine:none", "no_such_module:f", "judge_of_mine", ":", "judge_of_mine:X", "../x"):
        ended = await aeenc("--json", "score-trees", *files, "--similarity", name)
        assert (ended.code, f"--similarity {name}" in ended.error["message"]) == (2, True), ended.stderr


async def test_trees_that_nobody_built_score_nothing_and_are_counted(aeenc, files, tmp_path):
    _, gold = files
    built = tmp_path / "built.jsonl"
    built.write_text(json.dumps(record_from_tree(read_trees(gold)[0])) + "\n")
    ended = await aeenc.json("score-trees", built, gold)
    # both gold trees have one hypothesis, so that the one tree is a prediction for both
    assert ended["leaves"]["F1"] == 0.5
    built.write_text(json.dumps({"id": "two", "proof": "sent1 -> hypothesis;"}) + "\n")
    ended = await aeenc("--json", "score-trees", built, gold)
    assert ended.json["steps"] == {"F1": 0.5, "AllCorrect": 0.5}
    assert "1 of 2 gold trees have no step" in ended.stderr
