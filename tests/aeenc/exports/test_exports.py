"""Pairs, triplets and BEIR's layout as files: what stands in them, and what is said of a file that cannot be read."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aeenc import values
from aeenc.errors import AlreadyExists, FailedPrecondition, InvalidArgument, InvalidTree
from aeenc.evaluation import gold_of, load_data
from aeenc.evaluation.trec import document_id, query_id, write_qrels, write_run
from aeenc.exports import (
    Judgements,
    conclusions_of,
    judgements_of,
    last_words,
    read_pairs,
    task3_record,
    task3_sentences,
    write_beir,
    write_pairs,
    write_pairs_as_beir,
    write_task3,
    write_triplets,
)
from aeenc.exports.pairs import pair_of, record_of
from aeenc.trees import Accessible, Dataset
from aeenc.trees.files import parse_context
from support.worlds.odd_judgements import draw, graded

SAMPLE = Path(__file__).parents[3] / "data" / "sample"
POSITIVE, NEGATIVE, SKIPPED = (
    values.PairSign.POSITIVE,
    values.PairSign.NEGATIVE,
    values.PairSign.SKIPPED,
)

words = st.text(st.characters(codec="utf-8"), max_size=20)
said = words.filter(str.strip)
provenances = st.builds(
    values.Provenance,
    run_id=words,
    node_id=words,
    rank=st.integers(0, 2**32 - 1),
    score=st.floats(-1, 1, width=32).map(abs),
    model_version=words,
    generation=words,
    oracle=words,
    annotator=words,
    judged_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    grade=st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda grade: grade + 0.0),  # no -0.0
    note=words,
    amended=st.booleans(),
)
pairs = st.builds(
    values.Pair,
    query=said,
    premise_id=words,
    premise=said,
    sign=st.sampled_from([POSITIVE, NEGATIVE, SKIPPED]),
    reason=words,
    provenance=provenances,
)


def pair(query: str, premise: str, sign: values.PairSign, *, premise_id: str | None = None) -> values.Pair:
    name = f"id-{premise}" if premise_id is None else premise_id
    return values.Pair(query=query, premise_id=name, premise=premise, sign=sign)


@settings(max_examples=30)
@given(pairs)
def test_a_pair_is_the_same_after_a_line_of_json(one: values.Pair):
    assert pair_of(json.loads(json.dumps(record_of(one)))) == one


def test_a_file_of_pairs_is_read_back(tmp_path: Path):
    some = [pair("q1", f"p{n}", (POSITIVE, NEGATIVE, SKIPPED)[n % 3]) for n in range(10)]
    target = tmp_path / "new" / "pairs.jsonl"
    assert write_pairs(target, some) == 10
    assert list(read_pairs(target)) == some
    assert {line["format_version"] for line in lines(target)} == {1}


def test_a_rank_is_whole_though_a_table_program_has_written_it():
    line = {"query": "q", "premise": "p", "sign": "positive"}
    assert pair_of({**line, "rank": 3.0}) == pair_of({**line, "rank": 3, "note": None, "judged_at": ""})


def test_a_grade_that_is_no_number_is_left_out_and_a_sign_without_a_meaning_is_none():
    odd = replace(pair("q", "p", POSITIVE), provenance=values.Provenance(grade=float("nan")))
    assert "grade" not in record_of(odd)
    assert {record_of(replace(odd, sign=values.PairSign(sign)))["sign"] for sign in (0, 3, 9)} == {"skipped"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"query": "q", "premise": "p"}', "sign: is None"),
        ('{"query": "q", "premise": "p", "sign": "maybe"}', "'maybe'"),
        ('{"query": "q", "premise": "p", "sign": "unspecified"}', "'unspecified'; give one of positive"),
        ('{"query": "q", "premise": "p", "sign": "positive", "grade": true}', "grade: is True"),
        ('{"query": " ", "premise": "p", "sign": "positive"}', "query: is ' '"),
        ('{"query": "q", "premise": 3, "sign": "positive"}', "premise: is 3"),
        ('{"query": "q", "premise": "p", "sign": "positive", "rank": 1.5}', "rank: is 1.5"),
        ('{"query": "q", "premise": "p", "sign": "positive", "rank": -1}', "rank: is -1"),
        (f'{{"query": "q", "premise": "p", "sign": "positive", "rank": {2**32}}}', "rank: is 4294967296"),
        ('{"query": "q", "premise": "p", "sign": "positive", "score": "high"}', "'high'"),
        ('{"query": "q", "premise": "p", "sign": "positive", "grade": NaN}', "grade: is nan"),
        (f'{{"query": "q", "premise": "p", "sign": "positive", "rank": 1{"0" * 400}}}', f"is 1{'0' * 56}...; give"),
        ('{"query": "q", "premise": "p", "sign": "positive", "score": 1e39}', "score: is 1e+39; write a finite"),
        (f'{{"query": "q", "premise": "p", "sign": "positive", "score": {2**128 - 2**103}}}', "score: is 340282356"),
        ('{"query": "q", "premise": "p", "sign": "positive", "annotator": 7}', "annotator: is 7"),
        ('{"query": "q", "premise": "p", "sign": "positive", "judged_at": "yesterday"}', "'yesterday'"),
        ('{"query": "q", "premise": "p", "sign": "positive", "amended": "yes"}', "amended: is 'yes'"),
        ('{"query": "q", "premise": "p", "sign": "positive", "format_version": 9}', "format_version is 9"),
        ('{"query": "q", "premise": "fire \\ud83d", "sign": "positive"}', "premise: has half a character"),
        ('{"query": "q", "premise": "p", "sign": "positive", "note": "\\ude00"}', "note: has half a character"),
        ('{"query": "q", "query": "r", "premise": "p", "sign": "positive"}', "'query' is there twice in one object"),
        ('["q", "p"]', "must be a JSON object"),
        ('{"query": ', "not JSON"),
        ('{"query": "\xff"}', "not UTF-8"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: str, told: str):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b'{"query": "q", "premise": "p", "sign": "positive"}\n\n' + line.encode("latin-1"))
    with pytest.raises(InvalidArgument) as caught:
        list(read_pairs(path))
    assert caught.value.message.startswith(f"{path}:3: ")
    assert told in caught.value.message


JUDGED = [
    pair("q1", "a", POSITIVE),
    pair("q1", "b", POSITIVE),
    pair("q1", "x", NEGATIVE),
    pair("q1", "y", NEGATIVE),
    pair("q1", "b", POSITIVE),  # said twice
    pair("q1", "c", POSITIVE),
    pair("q1", "c", NEGATIVE),  # a conflict
    pair("q1", "z", SKIPPED),
    pair("q2", "a", POSITIVE),
    pair("q3", "x", NEGATIVE),
]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_triplets_are_positives_times_negatives_without_conflicts(tmp_path: Path):
    written = write_triplets(tmp_path / "t.jsonl", JUDGED)
    assert (written.triplets, written.queries, written.one_sided, written.conflicts) == (4, 1, 2, 1)
    found = [(line["query"], line["positive"], line["negative"]) for line in lines(tmp_path / "t.jsonl")]
    assert found == [("q1", "a", "x"), ("q1", "a", "y"), ("q1", "b", "x"), ("q1", "b", "y")]
    assert (lines(tmp_path / "t.jsonl")[0]["positive_id"], lines(tmp_path / "t.jsonl")[0]["format_version"]) == (
        "id-a",
        1,
    )


def said_in(run: str, premise: str, sign: values.PairSign, *, amended: bool = False) -> values.Pair:
    return replace(pair("q", premise, sign), provenance=values.Provenance(run_id=run, amended=amended))


def test_the_last_word_on_a_pair_counts_in_its_own_run(tmp_path: Path):
    log = [
        said_in("r1", "a", POSITIVE),
        said_in("r1", "b", NEGATIVE),
        said_in("r1", "c", POSITIVE),
        said_in("r2", "b", NEGATIVE),
        said_in("r1", "a", NEGATIVE, amended=True),
        said_in("r1", "c", SKIPPED, amended=True),
        said_in("r1", "b", NEGATIVE, amended=True),
        said_in("r1", "b", POSITIVE, amended=True),
    ]
    assert list(last_words(log)) == [log[3], log[4], log[5], log[7]]
    by_query, conflicts = judgements_of(log)
    judged = by_query["q"]
    assert (judged.positives, judged.negatives) == ({}, {"a": "id-a"})
    assert conflicts == 1  # r2 still says no to b
    graded = replace(log[7], provenance=replace(log[7].provenance, grade=0.5))
    assert judgements_of([log[3], graded], grades=True) == ({"q": Judgements()}, 1)
    assert judgements_of([graded], grades=True)[0]["q"].grades == {"b": 0.5}
    written = write_triplets(tmp_path / "t.jsonl", [*log, said_in("r3", "d", POSITIVE)])
    assert [(line["positive"], line["negative"]) for line in lines(tmp_path / "t.jsonl")] == [("d", "a")]
    assert written.conflicts == 1


def test_a_few_triplets_of_a_query_are_drawn_from_the_seed(tmp_path: Path):
    many = [pair("q", f"p{n}", POSITIVE if n % 2 else NEGATIVE) for n in range(40)]
    drawn = []
    for seed in (1, 1, 2):
        written = write_triplets(tmp_path / "t.jsonl", many, per_query=10, seed=seed)
        drawn.append([(line["positive"], line["negative"]) for line in lines(tmp_path / "t.jsonl")])
        assert written.triplets == len(set(drawn[-1])) == 10
    assert drawn[0] == drawn[1] != drawn[2]


def test_beir_has_the_whole_corpus_and_only_what_was_judged(tmp_path: Path):
    corpus = [("id-a", "a"), ("id-x", "x"), ("id-unjudged", "u")]
    judged = [*JUDGED, pair("q1", "imported", POSITIVE, premise_id=""), pair("q1", "odd", NEGATIVE, premise_id="a\tb")]
    written = write_pairs_as_beir(tmp_path / "beir", corpus, judged, split="train")
    assert (written.queries, written.explains, written.refused, written.conflicts) == (3, 4, 4, 1)
    texts = {line["_id"]: line["text"] for line in lines(tmp_path / "beir" / "corpus.jsonl")}
    assert written.premises == len(texts)
    assert {"id-a", "id-x", "id-unjudged", "id-b", "id-y"} <= texts.keys()
    assert read_as_beir_does(tmp_path / "beir", "train")["q3"] == {"x": 0}


def test_beir_has_the_oracles_grades_where_they_are_asked_for(tmp_path: Path):
    def graded(name: str, grade: float, sign: values.PairSign = POSITIVE) -> values.Pair:
        return values.Pair(
            query="q", premise_id=name, premise=f"text {name}", sign=sign, provenance=values.Provenance(grade=grade)
        )

    told = [graded("a", 2), graded("a", 6), graded("b", 0), graded("c", 3, NEGATIVE), graded("d", 4)]
    told.append(graded("d", 4, NEGATIVE))
    scores = {}
    for grades in (False, True):
        folder = tmp_path / str(grades)
        write_pairs_as_beir(folder, [], told, split="train", grades=grades)
        lines = (folder / "qrels" / "train.tsv").read_text().splitlines()[1:]
        scores[grades] = {name: score for _, name, score in (line.split("\t") for line in lines)}
    assert scores == {False: {"a": "1", "b": "1", "c": "0"}, True: {"a": "6", "b": "1", "c": "0"}}
    with pytest.raises(InvalidArgument, match="between 0 and 100, got -1"):
        judgements_of([graded("a", -1)], grades=True)


@pytest.mark.parametrize(
    ("grade", "accessible", "said"),
    [
        (math.nan, Accessible(), "'q': 'a' has grade nan, and BEIR reads whole grades only"),
        (math.inf, Accessible(), "has grade inf"),
        (5.5, Accessible(), "has grade 5.5"),
        (1.0, Accessible(before_id="x"), r"accessible: has 'x' for 'q', .* none of the premises"),
        (1.0, Accessible(only_ids=("1", "x")), "accessible: has 'x' for 'q'"),
    ],
)
def test_what_beirs_layout_cannot_say_is_refused_by_name(
    tmp_path: Path, grade: float, accessible: Accessible, said: str
):
    judged = {"q": Judgements({"a": "1"}, grades={"a": grade})}
    with pytest.raises(InvalidArgument, match=said):
        write_beir(tmp_path / "beir", [("1", "a")], judged, split="dev", accessible={"q": accessible})
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_where_nothing_is_judged(tmp_path: Path):
    with pytest.raises(FailedPrecondition, match="judge some first"):
        write_pairs_as_beir(tmp_path / "beir", [("1", "a")], [pair("q", "a", SKIPPED)], split="dev")
    assert not (tmp_path / "beir").exists()
    assert write_pairs_as_beir(tmp_path / "beir", [("1", "a")], [pair("q", "a", NEGATIVE)], split="dev").refused == 1


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "beir").mkdir()
    (tmp_path / "beir" / "mine").write_text("kept")
    with pytest.raises(AlreadyExists, match="beir"):
        write_pairs_as_beir(tmp_path / "beir", [], JUDGED, split="train")
    assert [path.name for path in tmp_path.iterdir()] == ["beir"]
    with pytest.raises(InvalidArgument, match="split"):
        write_pairs_as_beir(tmp_path / "other", [], JUDGED, split="../train")


def read_as_beir_does(folder: Path, split: str) -> dict[str, dict[str, int]]:
    """Reads texts and grades by query as BEIR's loader does: the last text and the last grade of an id stand."""
    texts = []
    for name in ("corpus", "queries"):
        with (folder / f"{name}.jsonl").open(encoding="utf8") as lines:
            texts.append({one["_id"]: one["text"] for one in map(json.loads, lines)})
    grades: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / f"{split}.tsv").open(encoding="utf-8") as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_MINIMAL)
        next(rows)
        for query, premise, grade in rows:
            grades.setdefault(texts[1][query], {})[texts[0][premise]] = int(grade)
    return grades


def test_odd_judgements_are_read_back_from_beirs_files_with_their_texts_and_grades(tmp_path: Path):
    for number in range(200):
        corpus, pairs = draw(number)
        folder = tmp_path / str(number)
        written = write_pairs_as_beir(folder, corpus, pairs, split="dev", grades=True)
        assert read_as_beir_does(folder, "dev") == graded(pairs), number
        explained = {query: grades for query, grades in graded(pairs).items() if any(grades.values())}
        assert dict(gold_of(load_data(folder), "dev")) == explained, number
        with (folder / "corpus.jsonl").open(encoding="utf8") as lines:
            found = [json.loads(line) for line in lines]
        assert len({one["_id"] for one in found}) == len({one["text"] for one in found}) == written.premises


def test_a_premise_whose_id_has_another_text_gets_one_of_its_own_and_is_counted(tmp_path: Path):
    judged = [pair("q", "snow is frozen water", POSITIVE, premise_id="1"), pair("q", "b", NEGATIVE, premise_id="1")]
    written = write_pairs_as_beir(tmp_path / "beir", [("1", "ice is cold")], judged, split="dev")
    assert (written.premises, written.renamed) == (3, 2)
    assert read_as_beir_does(tmp_path / "beir", "dev") == {"q": {"snow is frozen water": 1, "b": 0}}


def test_odd_judgements_are_read_back_from_trecs_files_with_their_grades_and_ranks(tmp_path: Path):
    for number in range(200):
        corpus, pairs = draw(number)
        gold = {query: {premise: float(one) for premise, one in told.items()} for query, told in graded(pairs).items()}
        write_qrels(tmp_path / "qrels", gold.items())
        found: dict[str, dict[str, float]] = {}
        for one in ir_measures.read_trec_qrels(str(tmp_path / "qrels")):
            found.setdefault(one.query_id, {})[one.doc_id] = one.relevance
        assert found == {
            query_id(query): {document_id(name): told for name, told in grades.items()}
            for query, grades in gold.items()
        }
        ranked = [(query, [(name, 1.0) for name, _ in corpus if name]) for query in gold]
        write_run(tmp_path / "run", ranked, "tag")
        hits = list(ir_measures.read_trec_run(str(tmp_path / "run")))
        names = [document_id(name) for name, _ in corpus if name]
        for query, _ in ranked:
            own = sorted((one for one in hits if one.query_id == query_id(query)), key=lambda one: -one.score)
            assert [one.doc_id for one in own] == names


def test_a_list_for_provers_reads_back_and_a_sentence_like_labels_is_refused(tmp_path: Path) -> None:
    tree = Dataset.load(SAMPLE).trees("dev")[0]
    sentences = task3_sentences(
        ["The sun is hot.", "sun is hot", "ice: cold; light", tree.hypothesis], conclusions_of([tree])
    )
    assert sentences == ["The sun is hot.", "ice: cold; light"]
    assert parse_context(task3_record(tree, sentences)["context"]) == {"sent1": sentences[0], "sent2": sentences[1]}
    with pytest.raises(InvalidTree, match="reads like labels"):
        task3_record(tree, ["ice is sent7: cold"])
    with pytest.raises(ValueError, match="shorter"):
        write_task3(tmp_path / "task3.jsonl", [tree, tree], [sentences])
