"""Graded re-ranking: metrics against others, the rated sample by one command, and cross-encoders over I-BM25.

Needs EntailmentBank (AEENC_BENCH_DATA). `--only` picks rows; training takes most of an hour on a laptop, and is found
again by the next run.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import numpy as np

from aeenc.evaluation import UNRANKED, Gain, graded_ndcg, oracle_ndcg
from benchmarks.harness.entailmentbank import DATA, check_there
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.seeds.textgraphs import average_precisions, fused, ladder
from services.index.lexical.tuning import measured_on, tune
from services.index.values import LexicalSettings

SAMPLE = ROOT / "data" / "sample" / "textgraphs"
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


def sample(rows: Rows) -> None:
    """The whole of it on the rated sample by one command."""
    command = [sys.executable, "-m", "benchmarks.seeds.textgraphs", str(SAMPLE), "--epochs", "1", "--seeds", "2"]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    rows.add("make textgraphs DATA=data/sample/textgraphs", ended.returncode, "status", "= 0", not ended.returncode)


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
    parser.add_argument("--only", nargs="+", choices=["metrics", "sample", "tuning", "reranking"])
    parser.add_argument("--queries", type=int, default=0, help="dev queries to re-rank, drawn; 0: all")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--items", type=int, default=0, help="training queries of an epoch; 0: all")
    parser.add_argument("--trials", type=int, default=60)
    given = parser.parse_args()
    rows, wanted = Rows(Path(__file__).stem), given.only or ["metrics", "sample", "tuning", "reranking"]
    if "metrics" in wanted:
        metrics(rows)
    if "sample" in wanted:
        sample(rows)
    if {"tuning", "reranking"} & {*wanted}:
        check_there()
    if "tuning" in wanted:
        tuning(rows, given.trials)
    if "reranking" in wanted:
        reranking(rows, given.queries, given.epochs, given.items)
    rows.finish()


if __name__ == "__main__":
    main()
