"""What the three further papers ask for: graded re-ranking, natural language inference, answer selection by analogy.

By default: the metrics of graded relevance against others, each sample by one command, and tests that are counted.

    make bench NAME=seeds                                     minutes; needs no data
    make bench NAME=seeds ARGS='--only crashes'               jobs killed by SIGKILL at random moments: most of an hour
    make bench NAME=seeds ARGS='--only tuning reranking'      hours; EntailmentBank (AEENC_BENCH_DATA)

A finished training is found again by the next run. `make nli DATA=dir` measures the four losses.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from itertools import permutations
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import numpy as np

from aeenc.evaluation import UNRANKED, Gain, graded_ndcg, oracle_ndcg
from benchmarks.harness.entailmentbank import DATA, check_there
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.seeds.textgraphs import average_precisions, fused, ladder
from services.index.values import LexicalSettings
from services.tuning.words import measured_on, tune

SAMPLE = ROOT / "data" / "sample" / "textgraphs"
ANSWERS = ROOT / "data" / "sample" / "answers"
KINDS = 20  # of damage


class Tests(NamedTuple):
    """Tests that show one thing: a function, a part of their names, and how many there must be at least."""

    shows: str
    function: str
    named: str = ""
    least: int = 1


_ANSWERS = "tests/aeenc/evaluation/test_answers.py::test_damage_is_named_with_file_and_line"
_JOBS = "tests/trainer/learning/test_job.py::test_a_job_that_was_killed_ends_with_the_same_weights_to_the_bit"
_SAME = "the same weights to the bit"
READERS = (
    Tests(
        "TextGraphs: kinds of damage named",
        "tests/aeenc/evaluation/test_textgraphs.py::test_damage_is_named_with_file_and_place",
        "",
        KINDS,
    ),
    Tests(
        "NLI: kinds of damage named",
        "tests/trainer/data/test_pair_sources.py::test_a_line_that_is_no_inference_is_named",
        "",
        KINDS,
    ),
    Tests("WikiQA: kinds of damage named", _ANSWERS, "train.tsv", KINDS),
    Tests("TrecQA: kinds of damage named", _ANSWERS, "train.xml", KINDS),
)
LOSSES = (
    Tests(
        "analogy: the loss is that of a loop in float64, to 1e-6",
        "tests/trainer/learning/test_analogy.py::test_the_loss_is_the_plain_formula",
        "",
        2,
    ),
)
RESUMED = (
    Tests(
        "A, cross-encoder: killed, resumed, and " + _SAME,
        "tests/trainer/learning/test_reranking.py::test_a_killed_job_ends_with_the_weights_of_one_that_was_left_alone",
    ),
    Tests("B, softmax: killed, resumed, and " + _SAME, _JOBS, "NLI_CLASSIFICATION"),
    Tests("B, ranking: killed, resumed, and " + _SAME, _JOBS, "MULTIPLE_NEGATIVES_RANKING"),
    Tests("B, GIST: killed, resumed, and " + _SAME, _JOBS, "GIST"),
    Tests(
        "C, transformer: killed, resumed, and " + _SAME,
        "tests/trainer/learning/test_analogy.py::test_a_job_that_was_killed_ends_with_the_same_weights_to_the_bit",
    ),
    Tests(
        "C, BiGRU: killed, resumed, and " + _SAME,
        "tests/trainer/models/test_word_vectors.py::test_analogies_train_it_and_leave_the_word_vectors_alone",
    ),
)
_KILLED = "tests/trainer/jobs/test_killed_jobs.py::test_jobs_killed_at_random_moments_end_with_the_same_weights"
CRASHES = tuple(
    Tests(f"{paper}: SIGKILL at random moments, and {_SAME}", f"{_KILLED}[{named}]", named)
    for paper, named in (
        ("A", "REGRESSION-CROSS_ENCODER"),
        ("B", "NLI_CLASSIFICATION-SINGLE"),
        ("C", "ANALOGY-SIAMESE"),
    )
)
BRIEF = ("metrics", "readers", "losses", "resumed", "sample", "answers")
LONG = ("crashes", "tuning", "reranking")
RANKINGS = 1000
ROUNDS = 10_000


def metrics(rows: Rows) -> None:
    """1,000 random rated rankings: linear gain against trec_eval, the others against all orders."""
    import ir_measures
    from ir_measures import Qrel, ScoredDoc, nDCG

    draw = np.random.default_rng(0)
    drawn = []
    for _ in range(RANKINGS):
        n = int(draw.integers(1, 7))
        grades = [float(grade) for grade in draw.integers(0, 7, size=n)]
        grades[0] = max(grades[0], 1.0)
        ranks = [int(rank) if draw.random() > 0.2 else UNRANKED for rank in draw.permutation(30)[:n] + 1]
        drawn.append((ranks, grades))
    qrels = [Qrel(f"q{q}", f"d{d}", int(g)) for q, (_, told) in enumerate(drawn) for d, g in enumerate(told)]
    run = []
    for q, (ranks, _) in enumerate(drawn):
        named = {rank: f"d{d}" for d, rank in enumerate(ranks) if rank < UNRANKED}
        run += [ScoredDoc(f"q{q}", named.get(rank, f"x{rank}"), 100.0 - rank) for rank in range(1, 31)]
    theirs = {one.query_id: one.value for one in ir_measures.iter_calc([nDCG], qrels, run)}
    worst = max(abs(graded_ndcg(*one) - theirs[f"q{q}"]) for q, one in enumerate(drawn))
    rows.at_most("NDCG, linear gain, 1,000 rankings: difference to trec_eval", worst, "", 1e-9)
    exact = all(_by_force(ranks, grades) for ranks, grades in drawn)
    rows.add("exponential gain and oracle NDCG: as by all orders", exact, "", "equal", exact)


def _by_force(ranks: list[int], grades: list[float]) -> bool:
    def dcg(order: list[float]) -> float:
        return math.fsum((2**grade - 1) / math.log2(place + 2) for place, grade in enumerate(order))

    ideal = max(dcg(list(order)) for order in permutations(grades))
    listed = [grade for rank, grade in zip(ranks, grades, strict=True) if rank < UNRANKED]
    own = math.fsum(
        (2**grade - 1) / math.log2(rank + 1) for rank, grade in zip(ranks, grades, strict=True) if rank < UNRANKED
    )
    best = max(dcg(list(order)) for order in permutations(listed)) if listed else 0.0
    found = graded_ndcg(ranks, grades, Gain.EXPONENTIAL), oracle_ndcg(ranks, grades, Gain.EXPONENTIAL)
    return found == (own / ideal, best / ideal)


def tested(rows: Rows, wanted: tuple[Tests, ...], *options: str) -> None:
    """Runs tests in one process, and counts for each row those that passed."""
    functions = dict.fromkeys(one.function for one in wanted)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "passed.xml"
        arguments = ["-q", "-p", "no:cacheprovider", "--show-capture=no", f"--junit-xml={path}", *options, *functions]
        subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False)
        cases = list(ET.parse(path).iter("testcase")) if path.is_file() else []
    for one in wanted:
        name = one.function.split("::")[1].partition("[")[0]
        module = one.function.partition("::")[0].removesuffix(".py").replace("/", ".")
        ran = [
            case
            for case in cases
            if case.get("classname") == module
            and (case.get("name") or "").partition("[")[0] == name
            and one.named in (case.get("name") or "")
        ]
        passed = sum(not len(case) for case in ran)  # a failure, an error or a skip is an element within
        rows.add(
            one.shows, passed, "tests", f"≥ {one.least}, of {len(ran)} all", passed == len(ran) and passed >= one.least
        )


def sample(rows: Rows) -> None:
    """The whole of it on the rated sample by one command."""
    command = [sys.executable, "-m", "benchmarks.seeds.textgraphs", str(SAMPLE), "--epochs", "1", "--seeds", "2"]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    rows.add("make textgraphs DATA=data/sample/textgraphs", ended.returncode, "status", "= 0", not ended.returncode)


def answers(rows: Rows) -> None:
    """Answer selection by averaged words, a BiGRU and a transformer, on the sample by one command."""
    command = [sys.executable, "-m", "benchmarks.seeds.analogy", str(ANSWERS), "--epochs", "1"]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    rows.add("make analogy, on the sample", ended.returncode, "status", "= 0", not ended.returncode)


def tuning(rows: Rows, trials: int) -> None:
    """I-BM25 tuned on 500 queries of train, over its defaults."""
    found = tune(measured_on(DATA, "train", "iterative", 500, 0), trials=trials, seed=0)
    dev = measured_on(DATA, "dev", "iterative", 0, 0)
    before, after = (dev.value(settings) for settings in (LexicalSettings(), found.settings))
    rows.note(f"I-BM25 tuned on train, {trials} trials: dev {dev.metric}", after, "", before)
    recalls = [dev.recall(settings) for settings in (LexicalSettings(), found.settings)]
    rows.note("the same: dev recall@200", recalls[1], "", recalls[0])


def reranking(rows: Rows, queries: int, epochs: int, items: int) -> None:
    """Regression cross-encoders over the first 200 of I-BM25, three seeds, and their ensemble."""
    with ladder(DATA, "dev", most=queries) as running:
        first = running.retrieved()
        versions = [running.train(seed, epochs=epochs, items_per_epoch=items) for seed in range(3)]
        running.serve(versions)
        orders = [running.retrieved(by=[version]) for version in versions]
        gold = running.gold
    before = np.array(average_precisions(first, gold))
    each = np.array([average_precisions(one, gold) for one in orders])
    gains = each.mean(axis=1) - before.mean()
    settings = f"{len(gold)} dev queries, {epochs} epochs of {items or 'all'} queries"
    rows.at_least(f"cross-encoder over I-BM25's 200, MAP gained, mean of 3 seeds ({settings})", gains.mean(), "", 0.04)
    rows.note("the same by seed", ", ".join(f"{gain:+.4f}" for gain in gains), "", float(before.mean()))
    together = np.array(average_precisions(fused(orders), gold)) - each.mean(axis=0)
    rows.note(f"ensemble of 3 over the mean of one, MAP {_interval(together)}", float(together.mean()), "")
    with_first = np.array(average_precisions(fused([first, *orders]), gold)) - before
    rows.note(
        f"I-BM25 and the 3 by the sum of ranks, over I-BM25 {_interval(with_first)}", float(with_first.mean()), ""
    )


def _interval(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    """The 95 % interval of a mean over queries, by the bootstrap."""
    draw = np.random.default_rng(0)
    means = [draw.choice(differences, len(differences)).mean() for _ in range(ROUNDS)]
    low, high = np.quantile(means, (0.025, 0.975))
    return f"[{low:+.4f}, {high:+.4f}]"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*BRIEF, *LONG], default=BRIEF)
    parser.add_argument("--queries", type=int, default=0, help="dev queries to re-rank, drawn; 0: all")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--items", type=int, default=0, help="training queries of an epoch; 0: all")
    parser.add_argument("--trials", type=int, default=60)
    given = parser.parse_args()
    rows, wanted = Rows(Path(__file__).stem), given.only
    if "metrics" in wanted:
        metrics(rows)
    if "sample" in wanted:
        sample(rows)
    for part, tests in {"readers": READERS, "losses": LOSSES, "resumed": RESUMED}.items():
        if part in wanted:
            tested(rows, tests)
    if "answers" in wanted:
        answers(rows)
    if "crashes" in wanted:
        tested(rows, CRASHES, "-m", "crash", "--timeout", "1800")
    if {"tuning", "reranking"} & {*wanted}:
        check_there()
    if "tuning" in wanted:
        tuning(rows, given.trials)
    if "reranking" in wanted:
        reranking(rows, given.queries, given.epochs, given.items)
    rows.finish()


if __name__ == "__main__":
    main()
