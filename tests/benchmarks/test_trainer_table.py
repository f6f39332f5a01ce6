"""`make bench NAME=trainer ARGS='--only table'`: which results it reads, and under which names it writes."""

import importlib.util
import json
import sys

import pytest

from benchmarks.harness import rows
from benchmarks.harness.rows import ROOT
from benchmarks.tables import table_records
from benchmarks.tables.table_records import Candidates, Record, write

METRICS = ("MAP", "NDCG", "NDCG@10", "NDCG@50", "Hit@10", "Hit@20", "Hit@50")
FIRST, SECOND = Candidates("eval-00000001", 10), Candidates("eval-00000002", 12)


@pytest.fixture
def bench(monkeypatch, capsys, tmp_path):
    """Runs the benchmark with results of its own; returns the exit status and what was printed."""
    monkeypatch.setattr(table_records, "RESULTS", tmp_path / "docs")
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    spec = importlib.util.spec_from_file_location("trainer_benchmark", ROOT / "benchmarks" / "trainer" / "trainer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["trainer", "--only", "table", *words])
        with pytest.raises(SystemExit) as end:
            module.main()
        return end.value.code, "".join(capsys.readouterr())

    return run


def keep(
    row: str,
    split: str,
    figure: float,
    *,
    seed: int = 0,
    candidates: Candidates = FIRST,
    paper: float | None = None,
    **told: object,
) -> None:
    strict, own = (dict.fromkeys(METRICS, one) for one in (figure, figure if paper is None else paper))
    report = {"strict": strict, "paper": own, "candidates": candidates.count, **told}
    write(Record(row, seed, candidates, report), split)


def test_rows_and_file_of_another_split_are_not_those_of_dev(bench, tmp_path):
    keep("ours", "dev", 0.9)
    keep("ours", "test", 0.25)
    bench()
    bench("--split", "test")
    dev, test = (json.loads((tmp_path / f"trainer-table{name}.json").read_bytes()) for name in ("", "-test"))
    assert ("our query encoder alone, strict: MAP", 0.9) in [(one["row"], one["value"]) for one in dev]
    assert ("our query encoder alone, strict, test: MAP", 0.25) in [(one["row"], one["value"]) for one in test]


def test_a_bar_that_was_not_measured_on_the_split_is_not_taken_from_dev(bench, tmp_path):
    keep("ae-enc-iterative", "test", 0.9)
    assert bench("--split", "test")[0] == 1
    [row] = [
        one
        for one in json.loads((tmp_path / "trainer-table-test.json").read_bytes())
        if one["row"] == "faithful Iterative AE-Enc, paper, test: MAP"
    ]
    assert (row["value"], row["bar"], row["ok"]) == (0.9, "minilm: not measured", False)


def test_means_are_never_over_results_among_different_candidates(bench, tmp_path):
    keep("ours", "dev", 0.5)
    keep("ours", "dev", 0.75, seed=1, candidates=SECOND)
    status, said = bench()
    assert status == 2
    assert "dev has results among 10 candidates (eval-00000001) and 12 candidates (eval-00000002)" in said
    bench("--corpus", SECOND.corpus)
    written = json.loads((tmp_path / "trainer-table.json").read_bytes())
    assert [one["value"] for one in written if one["row"] == "our query encoder alone, strict: MAP"] == [0.75]


def row_of(tmp_path, begins: str):
    written = json.loads((tmp_path / "trainer-table.json").read_bytes())
    [row] = [one for one in written if one["row"].startswith(begins)]
    return row


def test_a_row_of_several_rounds_says_which_of_them_dev_has_chosen(bench, tmp_path):
    by_round = {str(n): {} for n in range(5)}
    for seed, best in ((0, 1), (1, 2)):
        keep("ae-enc-iterative", "dev", 0.5, seed=seed, best_round=best, dev_by_round=by_round)
    bench()
    told = row_of(tmp_path, "faithful Iterative AE-Enc, paper: Hit@10")["baseline"]
    assert told == "2 of 3 seeds, sd of MAP 0.0000, best of 4 rounds on dev: 1, 2"
