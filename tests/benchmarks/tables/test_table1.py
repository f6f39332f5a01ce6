"""`make table1`: which results are measured anew, which stand in one table, and what is said of the others."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aeenc.errors import Unavailable
from aeenc.trees import Dataset
from benchmarks.harness import entailmentbank
from benchmarks.tables import table1, table_records
from benchmarks.tables.by_tree import BY_QUERY, FACTS
from benchmarks.tables.table_records import Candidates, candidates_of, records
from benchmarks.tables.table_rows import BY_NAME, PRINTED, TEMPERATURES, tuned
from benchmarks.tables.table_text import MeasuredRow, deeper_metrics, markdown


@pytest.fixture
def make(monkeypatch, capsys, trees, tmp_path):
    """`make("--only", "bm25")` in results of its own; returns the exit status and what was printed."""
    for module in (table1, table_records):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    for module in (table1, entailmentbank):
        monkeypatch.setattr(module, "DATA", trees)
    monkeypatch.setattr(table1, "research", lambda _: pytest.fail("it starts services"))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["table1", *words])
        status = 0
        try:
            table1.main()
        except SystemExit as end:
            status = end.code
        return status, "".join(capsys.readouterr())

    return run


def page(tmp_path: Path) -> str:
    return (tmp_path / "results" / "table1-dev.md").read_text()


def test_a_result_names_its_candidates_and_is_not_measured_again(make, trees, tmp_path):
    assert make("--only", "bm25")[0] == 0
    record = json.loads((tmp_path / "results" / "table1-dev" / "bm25-0.json").read_bytes())
    assert Candidates(record["corpus"], record["candidates"]) == Candidates.of(Dataset.load(trees))
    assert {"day", "commit", "torch", "processor"} <= record["measured"].keys()
    assert FACTS in record["report"][BY_QUERY]
    written = (tmp_path / "results" / "table1-dev" / "bm25-0.json").read_text()
    assert f'"{FACTS}": [null]' in written, "a list is one line"
    kept = make("--only", "bm25")[1]
    assert "measured before, and kept: bm25 seed 0; --again measures them anew" in kept
    assert "bm25, seed 0\n" not in kept
    assert "bm25, seed 0\n" in make("--only", "bm25", "--again")[1]
    assert make("--again")[0] == 2


def test_a_result_among_other_candidates_is_measured_anew_and_that_is_said_before(make, trees_with_test, tmp_path):
    split = trees_with_test / "dataset" / "task_1" / "test.jsonl"
    kept = split.read_bytes()
    split.unlink()
    make("--only", "bm25")
    split.write_bytes(kept)
    listed = make("--list", "--only", "bm25")[1]
    assert re.search(r"seeds \[0\] left \(measured among 2 candidates", listed)
    status, said = make("--only", "bm25")
    assert status == 0
    assert re.search(
        r"bm25, seed 0: anew; its result is among 2 candidates .* not 3 candidates .*\nto keep those", said
    )
    assert "3 candidates" in page(tmp_path)


def test_results_among_different_candidates_never_stand_in_one_table(make, trees, request, tmp_path):
    make("--only", "bm25", "--only", "tf-idf")
    request.getfixturevalue("trees_with_test")
    said = make("--only", "tf-idf")[1]
    assert "left out: bm25, seed 0, among 2 candidates" in said
    assert "| tf-idf |" in page(tmp_path)
    assert "| bm25 |" not in page(tmp_path)
    assert re.search(r"- `bm25`: BM25 \(measured among 2 candidates", page(tmp_path))
    before = page(tmp_path)
    status, said = make("--render")
    assert (status, page(tmp_path)) == (2, before)
    assert re.search(r"results among 2 candidates .* and 3 candidates .*--corpus NAME", said)
    [first] = {one.candidates.corpus for one in records("dev") if one.row == "bm25"}
    assert make("--render", "--corpus", first)[0] == 0
    assert "| bm25 |" in page(tmp_path)
    assert "| tf-idf |" not in page(tmp_path)
    status, said = make("--render", "--corpus", "eval-0")
    assert status == 2
    assert "dev has no results of corpus 'eval-0'; it has results among 2 candidates" in said


def test_a_table_is_written_and_rows_are_listed_without_the_data(make, trees, tmp_path):
    make("--only", "bm25")
    before = page(tmp_path)
    trees.rename(tmp_path / "away")
    assert make("--render")[0] == 0
    assert page(tmp_path) == before
    assert make("--list", "--only", "bm25")[1].split()[-1] == "measured"


def test_a_split_that_is_not_there_ends_the_run_before_anything_is_trained(make):
    status, said = make("--only", "ours", "--split", "test")
    assert status == 2
    assert "no split 'test'; it has train, dev" in said


def test_a_row_that_fails_is_told_at_once_and_the_others_go_on(make, monkeypatch, tmp_path):
    def fails(*_):
        raise Unavailable("no words")

    broken = replace(BY_NAME["bm25"], offline=fails)
    monkeypatch.setattr(table1, "BY_NAME", {**BY_NAME, "bm25": broken})
    monkeypatch.setattr(table1, "at_hand", lambda base_model: f"{base_model} is not at hand")
    status, said = make("--only", "bm25", "--only", "tf-idf", "--only", "bert")
    assert status == 1
    assert said.index("bm25, seed 0: no words") < said.index("tf-idf, seed 0")
    assert "bert: bert-base-uncased is not at hand" in said
    assert "| tf-idf |" in page(tmp_path)


def test_where_nothing_is_measured_the_table_that_is_there_stays(make, tmp_path):
    make("--only", "bm25")
    (tmp_path / "results" / "table1-dev" / "bm25-0.json").unlink()
    before = page(tmp_path)
    status, said = make("--render")
    assert (status, page(tmp_path)) == (1, before)
    assert "nothing is measured; docs/results/table1-dev.md, .png stay as they were" in said


def test_every_printed_row_stands_below_ours_with_its_twelve_figures_and_what_they_are_over_sbert_and_the_best(
    make, tmp_path
):
    assert {row.printed for row in BY_NAME.values()} == {"", *PRINTED}
    assert len(PRINTED) == 14
    make("--only", "bm25")
    lines = page(tmp_path).splitlines()
    figures = ".335 | .525 | .446 | .476 | .487 | .493 | .496 | .628 | .726 | .766 | .793 | .810 | -5.9 | -13.7"
    assert f"| *TF-IDF, as printed* |  | {figures} |" in lines
    assert any(line.startswith("| *DPR's question encoder, [CLS], as printed* |") for line in lines), (
        "not measured here"
    )
    assert "as printed" not in page(tmp_path).split("Protocol `paper`")[0]


def test_unseen_queries_facts_alone_and_whole_trees_stand_beside_the_whole():
    counts = {"queries": 2, "pairs": 3, "candidates": 4}

    def report(n):
        trees = {"hypothesis_alone": {"Recall@25": 0.5, "AllCorrect@25": 0.125}}
        of_queries = {"AP": [0.25 * n, 0.75], FACTS: [None, 0.25 * n], "group": [0, 1], "unseen": [1, 0]}
        return {"strict": {"MAP": 0.5}, BY_QUERY: of_queries, "trees": trees, **counts}

    bare = {"strict": {"MAP": 0.5}, **counts}
    by_part_alone = {**bare, "parts": {"query unseen": {"strict": {"MAP": 0.25}}}}
    reports = {"A": [report(1), report(2)], "B": [bare], "C": [by_part_alone]}
    rows = [MeasuredRow(name.lower(), name, of_row, {}) for name, of_row in reports.items()]
    lines = markdown(rows, "dev", "nobody").split("## Unseen queries")[1].split("##")[0].splitlines()
    assert lines[-3:] == [
        "| A | a | .500 ± .000 | .375 ± .177 | .375 ± .177 | .500 ± .000 | .125 ± .000 |",
        "| C | c | .500 | .250 |  |  |  |",
        "",
    ]


def test_a_row_is_compared_with_the_row_that_it_names_by_tree():
    def report(ap: float) -> dict[str, object]:
        by_query = {"AP": [ap] * 5 + [0.5], "group": [0, 0, 1, 2, 3, 4], "unseen": [1] * 5 + [0]}
        return {"strict": {"MAP": ap}, BY_QUERY: by_query, "queries": 6, "pairs": 6, "candidates": 9}

    rows = [MeasuredRow(name, name, [report(ap)], {}, against="b") for name, ap in (("a", 0.25), ("b", 0.5))]
    lines = markdown(rows, "dev", "nobody").split("## Differences")[1].split("##")[0].splitlines()
    over_all, unseen = "-.208 | -.250 to -.100 | 0.1245", "-.250 | -.250 to -.250 | 0.1243"
    assert lines[-2:] == [f"| a | a | `b` | 1, 1 | {over_all} | {unseen} |", ""]
    bare = MeasuredRow("b", "b", [{"strict": {"MAP": 0.5}}], {})
    assert "-.250" not in markdown([rows[0], bare], "dev", "nobody")


def test_a_row_of_several_rounds_names_the_one_of_each_seed_that_dev_has_chosen():
    def report(best: int, rounds: int) -> dict[str, object]:
        by_round = {str(n): {} for n in range(rounds + 1)}
        counts = {"queries": 2, "pairs": 3, "candidates": 4}
        return {"strict": {"MAP": 0.5}, "best_round": best, "dev_by_round": by_round, **counts}

    rows = [MeasuredRow("a", "A", [report(1, 4), report(2, 4)], {}), MeasuredRow("b", "B", [report(1, 1)], {})]
    page = markdown(rows, "dev", "nobody")
    assert page.count("| A (best of 4 rounds on dev: 1, 2) | a |") == 2
    assert "| B | b | .500" in page


def test_a_row_of_hours_is_measured_only_where_it_is_named(make, monkeypatch):
    asked = []
    monkeypatch.setattr(table1, "measure_all", lambda todo, *_: asked.append([row.name for row, _ in todo]) or {})
    make()
    make("--only", "tml-literal")
    assert not {"tml-literal", "tml-grid"} & set(asked[0])
    assert {"tml-single", "ae-enc-no-reg"} <= set(asked[0])
    assert asked[1] == ["tml-literal"]
    assert "tml-literal" in make("--list")[1]


def test_what_only_some_seeds_have_says_of_how_many_it_is_and_f_stands_where_it_is_kept():
    reports = [{"paper": {"MAP": 0.5, "NDCG": 0.6}}, {"paper": {"MAP": 0.5}}]
    row = MeasuredRow("a", "A", reports, {})
    assert row.cells("paper", ["MAP", "NDCG", "Hit@10"]) == [".500 ± .000", ".600 (1 of 2)", ""]
    counts = {"queries": 1, "pairs": 1, "candidates": 2, "strict": {"MAP": 0.5}}
    with_f = MeasuredRow("b", "B", [{**counts, "paper": {"MAP": 0.4}, "f": 0.25}], {})
    assert "| B | b | .250 |" in markdown([with_f], "dev", "source")
    assert "the jump" not in markdown([MeasuredRow("c", "C", [{**counts, "paper": {"MAP": 0.4}}], {})], "dev", "source")


def test_metrics_at_the_depths_of_the_paper_are_of_the_ranks_and_0_is_not_ranked():
    found = deeper_metrics([[1, 35], [0], []])
    assert (found["Hit@10"], found["Hit@30"], found["Hit@40"]) == pytest.approx((1 / 3, 1 / 3, 2 / 3))
    both = 1 + 1 / np.log2(3)
    assert found["NDCG@30"] == pytest.approx(1 / both / 2)
    assert found["NDCG@40"] == pytest.approx((1 + 1 / np.log2(36)) / both / 2)


def test_all_results_of_this_repository_name_their_candidates():
    files = sorted(table_records.RESULTS.glob("table1-*/*.json"))
    for file in files:
        record = json.loads(file.read_bytes())
        assert re.fullmatch(r"eval-[0-9a-f]{8}", record["corpus"]), file
        assert record["candidates"] == record["report"]["candidates"], file
    for folder in {file.parent.name for file in files}:
        assert candidates_of(folder.removeprefix("table1-")), "all are among the same"


def test_the_temperature_of_a_loss_is_that_of_its_best_first_seed_on_dev():
    asked: list[tuple[str, float, int]] = []

    class Fake:
        def train(self, key, fields):
            asked.append((key, fields["temperature"], fields["seed"]))
            reached = {0.03: 0.4, 0.05: 0.6, 0.1: 0.5}[fields["temperature"]]
            return SimpleNamespace(
                progress=SimpleNamespace(best_validation_map=reached), version=f"{key} at {fields['temperature']}"
            )

        def serve(self, version):
            self.served = version

        def evaluate(self, split, *, retrieval=None):
            return {"strict": {"MAP": 0.61}}

    research = Fake()
    report = tuned("gist", {"loss": "LOSS_GIST"}, TEMPERATURES)(research, "dev", 2)
    assert {(key, seed) for key, _, seed in asked[:-1]} == {("table1-gist-0", 0)}
    assert [{"temperature": temperature} for _, temperature, _ in asked[:-1]] == TEMPERATURES
    assert asked[-1] == ("table1-gist-2", 0.05, 2)
    assert research.served == "table1-gist-2 at 0.05"
    assert report["chosen"] == {"temperature": 0.05}
    tries = {0.03: 0.4, 0.05: 0.6, 0.1: 0.5}
    assert report["dev_by_choice"] == [{"temperature": one, "MAP": found} for one, found in tries.items()]
