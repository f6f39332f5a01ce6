"""Metrics and TREC files against ir-measures, which runs trec_eval's code; and the comparison of two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, nDCG
from typer.testing import CliRunner

from aeenc import values
from aeenc.cli.main import app
from aeenc.errors import InvalidArgument
from aeenc.evaluation import (
    UNRANKED,
    difference_of,
    fuse,
    metrics_of,
    query_id,
    ranks_of,
    read_grades,
    read_run,
    write_qrels,
    write_run,
)
from aeenc.exports import write_pairs

PREMISES = 200
MEASURES = {"MAP": AP, "NDCG": nDCG, "NDCG@10": nDCG @ 10, "NDCG@50": nDCG @ 50}


def world(seed: int, *, depth: int = PREMISES, levels: int = 0):
    """Rankings and gold premises of 40 queries; with `levels`, scores tie."""
    generator = np.random.default_rng(seed)
    rankings, gold = [], []
    for n in range(40):
        scores = generator.normal(size=PREMISES).astype(np.float32)
        if levels:
            scores = np.round(scores * levels) / levels
        order = np.lexsort((np.arange(PREMISES), -scores))[:depth]
        rankings.append((f"query {n}", [(f"p {place}", float(scores[place])) for place in order]))
        gold.append((f"query {n}", [f"p {place}" for place in generator.permutation(PREMISES)[: 1 + n % 5]]))
    return rankings, gold


def written(folder: Path, rankings, gold) -> tuple[Path, Path]:
    run, qrels = folder / "run", folder / "qrels"
    write_run(run, rankings, "test")
    write_qrels(qrels, gold)
    return run, qrels


@pytest.mark.parametrize("depth", [PREMISES, 30], ids=["all", "cut"])
@pytest.mark.parametrize("levels", [0, 2], ids=["distinct", "ties"])
def test_metrics_are_those_of_trec_eval(tmp_path: Path, depth: int, levels: int):
    rankings, gold = world(1, depth=depth, levels=levels)
    run, qrels = written(tmp_path, rankings, gold)
    theirs = ir_measures.calc_aggregate(
        MEASURES.values(), ir_measures.read_trec_qrels(str(qrels)), ir_measures.read_trec_run(str(run))
    )
    places = [{name: rank for rank, (name, _) in enumerate(hits, start=1)} for _, hits in rankings]
    ranks = [
        np.array([own.get(name, UNRANKED) for name in names]) for own, (_, names) in zip(places, gold, strict=True)
    ]
    ours = metrics_of(ranks).to_dict()
    assert {name: ours[name] for name in MEASURES} == pytest.approx(
        {name: theirs[measure] for name, measure in MEASURES.items()}, abs=1e-6
    )
    pairs = [(own, name) for own, (_, names) in zip(places, gold, strict=True) for name in names]
    for k in (10, 20, 50):
        assert ours[f"Hit@{k}"] == pytest.approx(np.mean([own.get(name, UNRANKED) <= k for own, name in pairs]))


def compared(*words: object) -> tuple[Any, str]:
    """Runs `aeenc compare`; returns its answer and its notes."""
    ended = CliRunner().invoke(app, ["--json", "compare", *map(str, words)])
    assert ended.exit_code == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def test_files_that_were_written_are_read_as_the_same_ranking_with_or_without_a_byte_order_mark(tmp_path: Path):
    rankings, gold = world(2, levels=1)
    run, qrels = written(tmp_path, rankings, gold)
    for _ in range(2):
        read, relevant = read_run(run), read_grades(qrels)
        for text, hits in rankings:
            assert list(read[query_id(text)]) == [name.replace(" ", "%20") for name, _ in hits]
        assert [list(names) for names in relevant.values()] == [
            [name.replace(" ", "%20") for name in names] for _, names in gold
        ]
        for path in (run, qrels):
            path.write_text("\ufeff" + path.read_text(encoding="utf-8"), encoding="utf-8")
    del read[query_id("query 3")]
    assert (ranks_of(read, relevant)[3] == UNRANKED).all()


@pytest.mark.parametrize(
    ("read", "line", "said"),
    [
        (read_run, b"q Q0 d 1 0.5", ":2: 5 columns"),
        (read_run, b"q Q0 d one 0.5 tag", ":2: rank and score"),
        (read_run, b"q Q0 b 2 nan tag", ":2: the score is NaN"),
        (read_run, b"q Q0 caf\xe9 1 0.5 tag", ":2: byte 9 is not UTF-8; save the file as UTF-8"),
        (read_grades, b"q 0 d yes", ":2: the relevance"),
        (read_grades, b"q 0", ":2: 2 columns"),
        (read_grades, b"q 0 e nan", ":2: a grade"),
        (read_grades, b"q 0 e 1e9", ":2: a grade"),
        (read_grades, b"q 0 d 2", ":2: d has grade 2, and 1"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, read, line: bytes, said: str):
    file = tmp_path / "file"
    file.write_bytes((b"q Q0 d 1 inf tag\n" if read is read_run else b"q 0 d 1\n") + line + b"\n")
    with pytest.raises(InvalidArgument, match=said):
        read(file)


def test_qrels_without_a_relevant_document_are_refused(tmp_path: Path):
    (tmp_path / "qrels").write_text("q 0 d 0\n")
    with pytest.raises(InvalidArgument, match="no relevant"):
        read_grades(tmp_path / "qrels")


def better(rankings, gold):
    """The same rankings with each query's first gold premise at the top."""
    for (text, hits), (_, names) in zip(rankings, gold, strict=True):
        score = dict(hits)[names[0]]
        yield text, [(names[0], hits[0][1] + 1.0), *(hit for hit in hits if hit != (names[0], score))]


def test_two_runs_are_compared_by_a_paired_test(tmp_path: Path):
    rankings, gold = world(3)
    first, qrels = written(tmp_path, rankings, gold)
    second = tmp_path / "better.run"
    write_run(second, better(rankings, gold), "better")
    options = ["--qrels", qrels]
    found, _ = compared(first, second, *options)
    assert found["queries"] == 40
    assert found["second"]["MAP"] > found["first"]["MAP"] + 0.2
    assert found["p"]["MAP"] == pytest.approx(1 / 10_001), "no other assignment of signs is as extreme as the observed"
    assert compared(second, first, *options)[0]["p"] == found["p"], "it is two-sided"
    same, _ = compared(first, first, *options)
    assert same["first"] == same["second"]
    assert set(same["p"].values()) == {1.0}
    shown = CliRunner().invoke(app, ["compare", *map(str, [first, second, *options])]).stdout
    assert "better.run" in shown


@pytest.mark.parametrize(
    ("up", "down", "outcome"),
    [
        (13, 2, "BETTER"),  # p .004
        (12, 3, "NO_DIFFERENCE"),  # .018: what is called better is published by itself
        (3, 12, "WORSE"),  # .018: a loss is refused at a milder level
        (4, 11, "NO_DIFFERENCE"),  # .059
        (9, 0, "TOO_FEW"),
    ],
)
def test_better_needs_stronger_evidence_than_worse(up: int, down: int, outcome: str):
    ours = np.array([0.6] * up + [0.4] * down)
    found = difference_of(ours, np.full(up + down, 0.5))
    assert found.outcome == outcome, found


def test_a_file_that_breaks_off_while_it_is_written_leaves_the_old_one(tmp_path: Path):
    def broken(parts):
        yield parts[0]
        raise InvalidArgument("the index has gone")

    rankings, gold = world(3)
    pairs = [values.Pair(query=name, premise="p", sign=values.PairSign.POSITIVE) for name in ("one", "two")]
    write_pairs(tmp_path / "pairs", pairs)
    old = {path.name: path.read_bytes() for path in (*written(tmp_path, rankings, gold), tmp_path / "pairs")}
    for write in (
        lambda: write_run(tmp_path / "run", broken(rankings[::-1]), "test"),
        lambda: write_qrels(tmp_path / "qrels", broken(gold[::-1])),
        lambda: write_pairs(tmp_path / "pairs", broken(pairs[::-1])),
    ):
        with pytest.raises(InvalidArgument, match="has gone"):
            write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_compare_says_what_a_run_leaves_unanswered(tmp_path: Path):
    rankings, gold = world(3)
    run, qrels = written(tmp_path, rankings, gold)
    less = tmp_path / "less.run"
    write_run(less, rankings[:-1], "less")
    found, notes = compared(run, less, "--qrels", qrels)
    assert found["answered"] == {"first": 40, "second": 39}
    [note] = notes.splitlines()
    assert json.loads(note)["note"].startswith(f"{less} answers 39 of the 40 queries of {qrels}")


def test_runs_of_other_queries_than_the_qrels_are_refused(tmp_path: Path):
    rankings, gold = world(4)
    run, qrels = written(tmp_path, rankings, gold)
    other = tmp_path / "other.run"
    write_run(other, [("another query", [("p", 1.0)])], "other")
    ended = CliRunner().invoke(app, ["compare", str(run), str(other), "--qrels", str(qrels)])
    assert ended.exit_code == 2
    assert "answers no query" in ended.stderr


def test_fused_runs_are_those_of_a_naive_sum(tmp_path: Path):
    paths = []
    for seed in (5, 6, 7):
        paths.append(tmp_path / f"{seed}.run")
        write_run(paths[-1], world(seed, depth=60)[0], "test")
    out = tmp_path / "fused run"
    ended = CliRunner().invoke(app, ["--json", "fuse", *map(str, paths), "--out", str(out), "--tag", "three"])
    assert json.loads(ended.stdout) == {"runs": [str(path) for path in paths], "queries": 40, "out": str(out)}
    runs, fused = [read_run(path) for path in paths], read_run(out)
    for query, ranks in fused.items():
        naive = {name: sum(run[query].get(name, 61) for run in runs) for run in runs for name in run[query]}
        places = {name: [run[query].get(name, 10**6) for run in runs] for name in naive}
        assert list(ranks) == sorted(naive, key=lambda name: (naive[name], places[name]))
    first = out.read_text().splitlines()[0].split()
    best = next(iter(fuse(runs)[first[0]]))
    assert first[2:] == [best[0], "1", str(-best[1]), "three"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda words, folder: words[:1], "at least 2 runs"),
        (lambda words, folder: [*words, "--tag", "two words"], "without spaces"),
        (lambda words, folder: [words[0], str(folder / "other.run")], "run 2 of 2 does not answer query q-"),
    ],
)
def test_fusion_refuses_what_is_no_ensemble_and_writes_nothing(tmp_path: Path, change, said: str):
    run, _ = written(tmp_path, *world(8))
    write_run(tmp_path / "other.run", world(8)[0][1:], "test")
    words = change([str(run), str(run)], tmp_path)
    ended = CliRunner().invoke(app, ["fuse", *words, "--out", str(tmp_path / "out")])
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert not (tmp_path / "out").exists()
