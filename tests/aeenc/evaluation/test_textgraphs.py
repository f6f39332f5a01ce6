"""The reader of TextGraphs-2021: the sample, 29 kinds of damage with their places, and grades."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aeenc.errors import AeencError, InvalidArgument, NotFound
from aeenc.evaluation import RatedDataset, RatedQuery, RatedSet, load_data, read_textgraphs
from aeenc.exports import gold_judgements

SAMPLE = Path(__file__).parents[3] / "data" / "sample" / "textgraphs"
TABLE = "tables/KINDOF.tsv"
RATINGS = "wt-expert-ratings.dev.json"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "textgraphs"))


def test_the_sample_is_read_with_its_facts_and_grades():
    rated = read_textgraphs(SAMPLE, "dev")
    assert len(rated.facts) == 12
    assert rated.facts["rated-03"] == "a moth is a kind of insect"
    assert rated.facts["rated-08"] == "metal conducts heat well"
    assert rated.queries[0] == RatedQuery(
        "rated-q3",
        "Why do moths gather around a candle at night? the light attracts them",
        {"rated-11": 6.0, "rated-03": 5.0, "rated-04": 5.0, "rated-07": 0.0},
    )
    assert len(read_textgraphs(SAMPLE, "train").queries) == 2


def table(old: str, new: str):
    return lambda root: edit(root / TABLE, old, new)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def ratings(change):
    def apply(root: Path) -> None:
        told = json.loads((root / RATINGS).read_text())
        (root / RATINGS).write_text(json.dumps(change(told) or told))

    return apply


def document(**fields: object):
    return ratings(lambda told: told["rankingProblems"][1]["documents"][2].update(fields))


def problem(**fields: object):
    return ratings(lambda told: told["rankingProblems"][1].update(fields))


ROW = "a moth\tis a kind of\tinsect\t\trated-03"
DOCUMENT = RATINGS + ": rankingProblems[1].documents[2]"
DAMAGE = {
    "no tables": (lambda root: shutil.rmtree(root / "tables"), "tables has no *.tsv"),
    "no ratings": (lambda root: (root / RATINGS).unlink(), RATINGS + " does not exist"),
    "a table of another encoding": (lambda root: (root / TABLE).write_bytes(b"a\xff"), TABLE + ":1: byte 2 is"),
    "an empty table": (lambda root: (root / TABLE).write_text(""), TABLE + ":1: the header"),
    "no UID column": (table("[SKIP] UID", "[SKIP] ID"), TABLE + ":1: the header"),
    "no column of words": (table("SUBJECT\tIS\tKIND", "[SKIP] S\t[SKIP] I\t[SKIP] K"), TABLE + ":1: the header"),
    "a row too long": (table(ROW, ROW + "\tmore"), TABLE + ":4: 6 cells"),
    "a fact without UID": (table(ROW, "a moth\tis a kind of\tinsect"), TABLE + ":4: the fact has no UID"),
    "a fact without text": (table(ROW, "\t\t\t\trated-03"), TABLE + ":4: the fact has no text"),
    "one UID for two facts": (table("rated-03", "rated-01"), TABLE + ":4: UID rated-01 has another text"),
    "an open quotation mark": (table("a moth", '"a moth'), TABLE + ":4: a cell goes over"),
    "ratings of another encoding": (lambda root: (root / RATINGS).write_bytes(b"\xff"), RATINGS + ":1: byte 1 is not"),
    "no JSON": (lambda root: edit(root / RATINGS, ":", ""), RATINGS + ":2: not JSON (Expecting ':' delimiter)"),
    "another JSON": (ratings(lambda told: [1]), RATINGS + ": rankingProblems must be a list"),
    "no problem": (ratings(lambda told: {"rankingProblems": []}), RATINGS + ": rankingProblems must be a list"),
    "a problem that is text": (
        ratings(lambda told: told["rankingProblems"].append("q")),
        RATINGS + ": rankingProblems[2] is 'q'",
    ),
    "no qid": (problem(qid=None), RATINGS + ": rankingProblems[1].qid is 'None'"),
    "a qid twice": (problem(qid="rated-q3"), RATINGS + ": rankingProblems[1].qid is 'rated-q3', as in"),
    "no question": (problem(queryText=" "), RATINGS + ": rankingProblems[1].queryText is ' '"),
    "a question of the mark alone": (problem(queryText="[ANSWER]"), RATINGS + ": rankingProblems[1].queryText has no"),
    "no documents": (problem(documents=[]), RATINGS + ": rankingProblems[1].documents must be a list"),
    "a document that is a number": (problem(documents=[1]), RATINGS + ": rankingProblems[1].documents[0] is '1'"),
    "no uuid": (document(uuid=3), DOCUMENT + ".uuid is '3'"),
    "a uuid twice": (document(uuid="rated-05"), DOCUMENT + ".uuid is 'rated-05', which the query rates twice"),
    "an unknown uuid": (document(uuid="other"), DOCUMENT + ".uuid is 'other', which no table has"),
    "no relevance": (document(relevance=None), DOCUMENT + ".relevance is 'None'"),
    "relevance as text": (document(relevance="6"), DOCUMENT + ".relevance is '6'"),
    "relevance that is no number": (document(relevance=float("nan")), DOCUMENT + ".relevance: a grade must be"),
    "relevance below 0": (document(relevance=-1), DOCUMENT + ".relevance: a grade must be between 0 and 100, got -1"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_file_and_place(copy: Path, kind: str):
    damage, said = DAMAGE[kind]
    damage(copy)
    with pytest.raises(AeencError) as caught:
        read_textgraphs(copy, "dev")
    assert type(caught.value) is (NotFound if kind in ("no tables", "no ratings") else InvalidArgument)
    assert str(copy / said) in caught.value.message


def test_a_fact_that_no_table_has_is_read_from_the_ratings(copy: Path):
    document(uuid="other", docText="a wren is a bird")(copy)
    assert read_textgraphs(copy, "dev").facts["other"] == "a wren is a bird"


def test_empty_rows_short_rows_and_a_byte_order_mark_do_no_harm(copy: Path):
    path = copy / "tables" / "CAUSES.tsv"
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    path.write_text("\ufeff" + "\n".join([*lines, "", "\t\t"]) + "\n", encoding="utf-8")
    (copy / RATINGS).write_text("\ufeff" + (copy / RATINGS).read_text(), encoding="utf-8")
    assert read_textgraphs(copy, "dev") == read_textgraphs(SAMPLE, "dev")


def test_of_equal_queries_and_facts_the_highest_grade_counts():
    facts = {"1": "same", "2": "same", "3": "other"}
    rated = [{"1": 2.0, "2": 4.0, "3": 0.0}, {"1": 1.0, "3": 0.0}]
    queries = tuple(RatedQuery(str(n), "q", grades) for n, grades in enumerate(rated))
    dataset = RatedDataset({"dev": RatedSet(facts, (*queries, RatedQuery("none", "r", {"3": 0.0})))})
    assert dataset.queries("dev") == [("q", {"same": 4.0, "other": 0.0})]
    ids = {one.text: one.id for one in dataset.candidates()}
    assert ids == {"same": "1", "other": "3"}
    judged = gold_judgements(dataset, "dev")["q"]
    assert (judged.positives, judged.negatives) == ({"same": "1"}, {"other": "3"})


def test_facts_are_told_apart_by_text_over_all_splits():
    dataset = load_data(SAMPLE)
    assert dataset.splits == ("dev", "train")
    assert {one.text for one in dataset.candidates()} == set(read_textgraphs(SAMPLE, "dev").facts.values())
    with pytest.raises(NotFound, match="there are dev, train"):
        dataset.queries("test")
