"""Folders in BEIR's layout: read as rated facts, by every command that reads data, and the same out as in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aeenc.cli.main import app
from aeenc.errors import InvalidArgument, NotFound
from aeenc.evaluation import (
    RatedDataset,
    accessible_folded,
    accessible_of,
    gold_folded,
    gold_of,
    load_data,
    read_grades,
    read_run,
    splits_in,
    write_run,
)
from aeenc.exports import gold_judgements, write_beir
from aeenc.oracle import EXPLAINS, REFUSES, UNSEEN, Candidate, Task
from aeenc.oracles.gold import GoldOracle
from aeenc.trees import Accessible

CORPUS = [
    {"_id": "d1", "title": "Magnets", "text": "a magnet pulls iron"},
    {"_id": "d2", "title": "", "text": "iron is a metal"},
    {"_id": "d3", "text": "a nail is iron"},
    {"_id": "d4", "text": "iron is a metal"},
    {"_id": "empty", "title": " ", "text": ""},
]
QUERIES = [{"_id": "q1", "text": "why does a nail move?"}, {"_id": "q2", "text": "is a nail a metal?"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td3\t1\nq1\td4\t0\nq1\tempty\t0\nq2\td2\t1\n"


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    root = tmp_path / "beir"
    (root / "qrels").mkdir(parents=True)
    for name, records in (("corpus", CORPUS), ("queries", QUERIES)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (root / "qrels" / "dev.tsv").write_text(QRELS)
    (root / "qrels" / "test.tsv").write_text("q2 0 d3 -1\nq2 0 d2 1\n")  # TREC's columns
    return root


def test_a_folder_is_read_with_its_grades_and_titles(beir: Path):
    dataset = load_data(beir)
    assert isinstance(dataset, RatedDataset)
    assert splits_in(beir) == dataset.splits == ("dev", "test")
    assert [(one.id, one.text, one.aliases) for one in dataset.candidates()] == [
        ("d1", "Magnets a magnet pulls iron", ()),
        ("d2", "iron is a metal", ("d4",)),
        ("d3", "a nail is iron", ()),
    ]
    assert gold_of(dataset, "dev") == [
        ("why does a nail move?", {"Magnets a magnet pulls iron": 2, "a nail is iron": 1, "iron is a metal": 0}),
        ("is a nail a metal?", {"iron is a metal": 1}),
    ]
    assert gold_of(dataset, "test") == [("is a nail a metal?", {"a nail is iron": 0, "iron is a metal": 1})]
    assert dataset.hypotheses("dev") == [("q1", QUERIES[0]["text"]), ("q2", QUERIES[1]["text"])]
    with pytest.raises(NotFound, match="there are dev, test"):
        dataset.hypotheses("train")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("corpus.jsonl", '"_id": "d2"', '"id": "d2"', "corpus.jsonl:2: must be an object with `_id`"),
        ("corpus.jsonl", '"_id": "d2"', '"_id": "d1"', "corpus.jsonl:2: the _id 'd1' stands in an earlier line"),
        ("corpus.jsonl", '"a nail is iron"', "7", "corpus.jsonl:3: must be an object with `_id`"),
        ("corpus.jsonl", '"a nail is iron"', '"\\ud800"', "corpus.jsonl:3 has half a character"),
        ("queries.jsonl", '{"_id": "q1"', '["_id"', "queries.jsonl:1: not JSON"),
        ("queries.jsonl", "q2", "q3", "queries.jsonl has no text of query 'q2'"),
        ("qrels/dev.tsv", "q2\td2", "q2\td9", "corpus.jsonl has no text of 'd9'"),
        ("qrels/dev.tsv", "q1\td1\t2", "q1\td1\ttwo", "dev.tsv:2: the relevance must be a number"),
        ("qrels/dev.tsv", "q1\td1\t2", "q1\td1", "dev.tsv:2: 2 columns; such a file has 3 or 4"),
        ("qrels/dev.tsv", "q1\td1\t2", "q1\td1\t101", "dev.tsv:2: a grade must be"),
        ("queries.jsonl", '"q2"', '"q2", "before": 2', "query 'q2': `before` must be a corpus-id"),
        ("queries.jsonl", '"q2"', '"q2", "only": "d2"', "query 'q2': `before` must be a corpus-id, and `only` a list"),
        ("queries.jsonl", '"q2"', '"q2", "before": ""', "query 'q2': `before` must be a corpus-id"),
        ("queries.jsonl", '"q2"', '"q2", "only": []', "`only` a list of 1 to 1,024 of them; leave them out"),
        ("queries.jsonl", '"q2"', f'"q2", "only": {["d2"] * 1025}'.replace("'", '"'), "`only` a list of 1 to 1,024"),
        ("queries.jsonl", '"q2"', '"q2", "before": "d9"', "corpus.jsonl has no text of 'd9'"),
        ("queries.jsonl", '"q2"', '"q2", "before": "d4"', "'d2' explains query 'q2', whose `before` or `only`"),
        ("queries.jsonl", '"q2"', '"q2", "only": ["d1"]', "'d2' explains query 'q2', whose `before` or `only`"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(beir: Path, file: str, old: str, new: str, message: str):
    text = (beir / file).read_text()
    assert old in text
    (beir / file).write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidArgument, match=message.replace("[", r"\[")):
        load_data(beir)


def test_texts_and_grades_are_the_same_out_as_in(beir: Path, tmp_path: Path):
    written = tmp_path / "out"
    ended = CliRunner().invoke(app, ["export", "beir", "--data", str(beir), "--split", "dev", "--to", str(written)])
    assert ended.exit_code == 0, ended.stderr
    assert gold_of(load_data(written), "dev") == gold_of(load_data(beir), "dev")
    both = CliRunner().invoke(app, ["export", "beir", "run", "--data", str(beir), "--to", str(written)])
    assert (both.exit_code, "give either" in both.stderr) == (2, True)
    again = tmp_path / "again"
    corpus = [(one.id, one.text) for one in load_data(written).candidates()]
    write_beir(again, corpus, gold_judgements(load_data(written), "dev"), split="dev")
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/dev.tsv"):
        assert (again / file).read_bytes() == (written / file).read_bytes()


def test_what_may_explain_a_query_is_read_from_the_folder_and_written_to_one(beir: Path, tmp_path: Path):
    queries = beir / "queries.jsonl"
    queries.write_text(queries.read_text().replace('"q2"', '"q2", "before": "d3", "only": ["d4", "d1"]'))
    dataset, written = load_data(beir), tmp_path / "out"
    found = {"is a nail a metal?": Accessible("d3", ("d2", "d1"))}  # d4 is an alias of d2
    assert accessible_of(dataset, "dev") == accessible_of(dataset, "test") == found
    ended = CliRunner().invoke(app, ["export", "beir", "--data", str(beir), "--split", "dev", "--to", str(written)])
    assert ended.exit_code == 0, ended.stderr
    assert accessible_of(load_data(written), "dev") == found
    assert accessible_of(load_data("data/sample"), "train") == {}


def test_what_is_rated_above_0_explains(beir: Path):
    oracle = GoldOracle(load_data(beir), "dev")
    dataset = load_data(beir)
    candidates = tuple(Candidate(one.id, one.text, n, 0.5) for n, one in enumerate(dataset.candidates(), start=1))
    told = oracle.judge(Task("t", "run", "why does a nail move?", ("root",), (), candidates))
    assert [told[name].judgement for name in ("d1", "d2", "d3")] == [EXPLAINS, REFUSES, EXPLAINS]
    unknown = oracle.judge(Task("t", "run", "what else?", ("root",), (), candidates))
    assert {verdict.judgement for verdict in unknown.values()} == {UNSEEN}


def test_a_run_and_the_qrels_of_others_go_by_the_ids_of_the_folder(beir: Path, tmp_path: Path):
    ids = {text: name for name, text in load_data(beir).hypotheses("dev")}
    write_run(tmp_path / "run", [(QUERIES[0]["text"], [("d3", 0.5), ("d1", 0.25)])], "own", ids)
    assert read_run(tmp_path / "run") == {"q1": {"d3": 1, "d1": 2}}
    assert read_grades(beir / "qrels" / "dev.tsv")["q1"] == {"d1": 2, "d3": 1, "d4": 0, "empty": 0}
    other = tmp_path / "other"
    other.write_text("q1 Q0 d1 1 2.0 bm25\nq2 Q0 d2 1 1.0 bm25\n")
    words = ["compare", str(tmp_path / "run"), str(other), "--qrels", str(beir / "qrels" / "dev.tsv")]
    ended = CliRunner().invoke(app, ["--json", *words])
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["answered"] == {"first": 1, "second": 2}


def test_a_premise_that_says_the_same_as_others_has_the_highest_of_their_grades(beir: Path):
    candidates, standing = load_data(beir).candidates(), {"d1": "d1", "d2": "d2", "d3": "d2"}
    rated = {"a nail is iron": 3.0, "iron is a metal": 0, "Magnets a magnet pulls iron": 1}
    folded = list(gold_folded([("why?", rated), ("what?", ["a nail is iron"])], candidates, standing))
    assert folded[0] == ("why?", {"iron is a metal": 3.0, "Magnets a magnet pulls iron": 1})
    assert folded[1] == ("what?", {"iron is a metal": 1})


@pytest.mark.parametrize("standing", [{"d1": "d1", "d2": "d2"}, {"d1": "d1", "d2": "d2", "d3": "d9"}])
def test_a_candidate_that_a_folded_corpus_does_not_have_is_named(beir: Path, standing: dict[str, str]):
    candidates = load_data(beir).candidates()
    with pytest.raises(InvalidArgument, match=r"candidate 'd3' .* build"):
        list(gold_folded([("why?", ["a nail is iron"])], candidates, standing))
    with pytest.raises(InvalidArgument, match=r"candidate 'd3' .* build"):
        accessible_folded({"why?": Accessible(before_id="d2")}, candidates, standing)
