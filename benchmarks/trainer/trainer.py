"""The trainer and the evaluation: untrained and trained rows, speed. `make bench NAME=trainer`.

    untrained   the untrained systems against the published figures
    epochs      the wall time of 5 epochs of our recipe on all train trees
    table       the bars on the trained rows of Table 1, from docs/results (`make table1` measures them; --split)

Needs EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA; the bars are not meant for another
directory (--data).
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aeenc.trees import Dataset
from benchmarks.harness.entailmentbank import DATA
from benchmarks.harness.rows import Rows
from benchmarks.tables.research import VALIDATION, Research, research
from benchmarks.tables.table_records import Candidates, candidates_of, records
from benchmarks.tables.table_rows import BY_NAME, OURS
from benchmarks.tables.table_text import best_rounds
from benchmarks.tables.untrained import bm25, iterative_bm25, tf_idf

PARTS = ("untrained", "epochs", "table")
SERVED = {"untrained", "epochs"}
TOLERANCE = 0.003
NAMES = ("MAP", "NDCG", "NDCG@10", "NDCG@50", "Hit@10", "Hit@20", "Hit@50")
# docs/evaluation.md, dev
REFERENCE: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("TF-IDF", "strict"): (0.449, 0.618, 0.547, 0.592, 0.661, 0.742, 0.826),
    ("TF-IDF", "paper"): (0.339, 0.524, 0.447, 0.497, 0.645, 0.739, 0.825),
    ("MiniLM", "strict"): (0.494, 0.664, 0.596, 0.644, 0.705, 0.793, 0.874),
    ("MiniLM", "paper"): (0.370, 0.557, 0.487, 0.538, 0.695, 0.787, 0.874),
    ("BM25", "strict"): (0.445,),
    ("I-BM25", "strict"): (0.467,),
}
EPOCHS = 5
UNMEASURED = "not measured: make table1"
Figures = Mapping[str, Any]


def untrained(rows: Rows, running: Research) -> None:
    """Every published figure of an untrained system."""
    running.serve(running.pretrained())
    reports: dict[str, Figures] = {
        "TF-IDF": tf_idf(running.dataset, VALIDATION),
        "MiniLM": running.evaluate(VALIDATION),
        "BM25": bm25(running.dataset, VALIDATION),
        "I-BM25": iterative_bm25(running.dataset, VALIDATION),
    }
    for (system, protocol), expected in REFERENCE.items():
        for name, figure in zip(NAMES, expected, strict=False):
            found = reports[system][protocol][name]
            ok = abs(found - figure) <= TOLERANCE
            rows.add(f"{system}, {protocol}, {name}", found, name, f"{figure:.3f} ± {TOLERANCE}", ok)
    parts, trees = reports["MiniLM"]["parts"], reports["MiniLM"]["trees"]
    for name, part in parts.items():
        rows.note(
            f"MiniLM, strict, {name}", part["strict"]["MAP"], "MAP", f"{part['queries']} queries, {part['pairs']} pairs"
        )
    for name, level in trees.items():
        told = f"micro {level['Recall@25 micro']:.3f}, all correct {level['AllCorrect@25']:.3f}"
        rows.note(f"MiniLM, whole trees, {name.replace('_', ' ')}", level["Recall@25"], "R@25", told)


def epochs(rows: Rows, running: Research) -> None:
    """From the start of a job to its checkpoint, dev evaluations and export included."""
    started = time.monotonic()
    job = running.train(f"bench-epochs-{uuid.uuid4().hex[:8]}", {**OURS, "epochs": EPOCHS, "seed": 0})
    seconds = time.monotonic() - started
    told = f"{job.progress.queries} queries, {job.progress.steps} steps, dev MAP {job.progress.best_validation_map:.4f}"
    rows.at_most(f"{EPOCHS} epochs on all train trees", seconds, "s", 360.0, told)


def table(rows: Rows, split: str, candidates: Candidates | None) -> None:
    """The bars on rows of Table 1, means over the seeds that were measured among these candidates."""
    where = "" if split == VALIDATION else f", {split}"
    faithful, ours, full, ordered, untrained_figures = (
        _means(split, candidates, *one)
        for one in (
            ("ae-enc-iterative", "paper"),
            ("ours", "strict"),
            ("ours-full", "strict"),
            ("ours-ordered", "strict"),
            ("minilm", "paper"),
        )
    )
    for name, figures, metric, least in (
        ("faithful Iterative AE-Enc, paper", faithful, "Hit@10", 0.76),
        ("faithful Iterative AE-Enc, paper", faithful, "Hit@50", 0.92),
        ("faithful Iterative AE-Enc, paper", faithful, "MAP", untrained_figures.get("MAP")),
        ("our query encoder alone, strict", ours, "MAP", 0.570),
        ("our query encoder alone, strict", ours, "NDCG", 0.718),
        ("our query encoder alone, strict", ours, "Hit@10", 0.805),
        ("our query encoder alone, strict", ours, "Hit@50", 0.940),
        ("our full retrieval, strict", full, "MAP", 0.595),
        ("our full retrieval, strict", full, "Hit@10", 0.825),
        ("our full retrieval, premises ordered together, strict", ordered, "MAP", 0.620),
    ):
        row, value, told = f"{name}{where}: {metric}", figures.get(metric), figures.get("told", UNMEASURED)
        bar = "minilm: not measured" if least is None else f"≥ {least:g}"
        is_above = value is not None and least is not None and value >= least
        rows.add(row, value, metric, bar, ok=is_above, baseline=told)
    rows.note("the paper's Iterative AE-Enc (test), MAP", BY_NAME["ae-enc-iterative"].paper["MAP"], "MAP")


def _means(split: str, candidates: Candidates | None, name: str, protocol: str) -> dict[str, Any]:
    """The means of a row over its seeds; empty: it has no results."""
    found = [one for one in records(split) if one.row == name and one.candidates == candidates]
    reports = [one.report[protocol] for one in found]
    if not reports:
        return {}
    means = {metric: statistics.mean(report[metric] for report in reports) for metric in NAMES}
    spread = statistics.stdev([report["MAP"] for report in reports]) if len(reports) > 1 else 0.0
    told = [f"{len(reports)} of {len(BY_NAME[name].seeds)} seeds, sd of MAP {spread:.4f}"]
    told += filter(None, [best_rounds([one.report for one in found])])
    return {**means, "told": ", ".join(told)}


def main() -> None:
    """Runs all parts, or the one that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part; its results get a name of their own")
    parser.add_argument("--data", type=Path, default=DATA, help="directory in EntailmentBank's layout")
    parser.add_argument("--split", default=VALIDATION, help="the split whose Table 1 `table` reads")
    parser.add_argument("--corpus", default="", help="of `table`, where results are among several candidate sets")
    options = parser.parse_args()
    wanted = [options.only] if options.only else list(PARTS)
    name = f"trainer-{options.only}" if options.only else "trainer"
    candidates = None
    if "table" in wanted:
        candidates = candidates_of(options.split, options.corpus)
        name += "" if options.split == VALIDATION else f"-{options.split}"
    rows = Rows(name)
    if SERVED & set(wanted):
        Dataset.load(options.data)  # before anything is started
        with research(directory=options.data) as running:
            if "untrained" in wanted:
                untrained(rows, running)
            if "epochs" in wanted:
                epochs(rows, running)
    if "table" in wanted:
        table(rows, options.split, candidates)
    rows.finish()


if __name__ == "__main__":
    main()
