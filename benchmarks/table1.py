"""The paper's Table 1, measured here: `make table1`, one row by `make table1 ARGS='--only NAME'`.

Each measured row and seed is a JSON file in docs/results; a row that has one is not measured again. From the files come
docs/results/table1-SPLIT.md and .png. Needs EntailmentBank in `../shared/data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from aeenc.errors import AeencError
from aeenc.trees import Dataset
from harness.drawing import draw_table1
from harness.int8 import entailmentbank
from harness.research import Research, Unfinished, at_hand, research
from harness.rows import ROOT
from harness.table_rows import BY_NAME, PAPER, PAPER_SOURCE, ROWS, TableRow
from harness.table_text import Measured, markdown
from services.trainer.base_model import DEFAULT_NAME

RESULTS = ROOT / "docs" / "results"
FORMAT_VERSION = 1


def file_of(row: TableRow, split: str, seed: int) -> Path:
    """Where the result of a row and a seed is kept."""
    return RESULTS / f"table1-{split}" / f"{row.name}-{seed}.json"


def missing(rows: Sequence[TableRow], split: str, *, one_seed: bool) -> list[tuple[TableRow, int]]:
    """Rows and seeds without a result."""
    wanted = [(row, seed) for row in rows for seed in (row.seeds[:1] if one_seed else row.seeds)]
    return [(row, seed) for row, seed in wanted if not file_of(row, split, seed).is_file()]


def measure_all(todo: Sequence[tuple[TableRow, int]], dataset: Dataset, split: str) -> dict[str, str]:
    """Measures rows, one fleet a base model with its settings; returns why the others have no figures, by row."""
    reasons: dict[str, str] = {}
    for row, seed in todo:
        if row.offline is not None:
            _keep(row, seed, split, lambda row=row: row.offline(dataset, split))
    served = [(row, seed) for row, seed in todo if row.offline is None]
    for (base_model, settings), group in groupby(served, key=lambda one: (one[0].base_model, one[0].settings)):
        rows = list(group)
        reason = at_hand(base_model)
        if not reason:
            try:
                with research(base_model, **settings) as running:
                    reasons |= _measure_served(rows, running, split)
            except AeencError as error:
                print(f"no fleet of {base_model}: {error.message}", flush=True)
                reason = f"the services did not start ({error.code})"
        if reason:
            reasons |= {row.name: reason for row, _ in rows}
    return reasons


def _measure_served(rows: Sequence[tuple[TableRow, int]], running: Research, split: str) -> dict[str, str]:
    reasons = {}
    for row, seed in rows:
        try:
            _keep(row, seed, split, lambda row=row, seed=seed: row.measure(running, split, seed))
        except (Unfinished, AeencError) as error:
            reasons[row.name] = str(error).splitlines()[0]
            print(f"{row.name}, seed {seed}: {error}", flush=True)
    return reasons


def _keep(row: TableRow, seed: int, split: str, measure: Any) -> None:
    print(f"{row.name}, seed {seed}", flush=True)
    started = time.monotonic()
    report = measure()
    record = {
        "format_version": FORMAT_VERSION,
        "row": row.name,
        "title": row.title,
        "split": split,
        "seed": seed,
        "command": f"make table1 ARGS='--only {row.name} --split {split}'",
        "seconds": round(time.monotonic() - started, 1),
        "report": report,
    }
    path = file_of(row, split, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"  strict MAP {report['strict']['MAP']:.4f}, paper MAP {report['paper']['MAP']:.4f}", flush=True)


def write_table(split: str, reasons: dict[str, str]) -> None:
    """Writes the Markdown and the PNG from the results that are there."""
    measured = []
    for row in ROWS:
        files = [file_of(row, split, seed) for seed in row.seeds]
        reports = [json.loads(file.read_bytes())["report"] for file in files if file.is_file()]
        elsewhere = "" if row.base_model == DEFAULT_NAME else f"base model {row.base_model}, to be downloaded"
        reason = reasons.get(row.name, elsewhere)
        measured.append(Measured(row.name, row.title, reports, PAPER.get(row.name, {}), reason))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"table1-{split}.md").write_text(markdown(measured, split, PAPER_SOURCE))
    draw_table1([one for one in measured if one.reports], split, PAPER_SOURCE, RESULTS / f"table1-{split}.png")
    print(f"written: docs/results/table1-{split}.md, .png")


def main() -> None:
    """Measures what is missing, or the rows asked for, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME), metavar="NAME", help="a row; repeatable")
    parser.add_argument("--split", default="dev", help="the split that is evaluated; models are chosen on dev")
    parser.add_argument("--one-seed", action="store_true", help="the first seed of each row only")
    parser.add_argument("--list", action="store_true", help="say which rows there are and which are measured")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the table")
    options = parser.parse_args()
    rows = [BY_NAME[name] for name in options.only] if options.only else list(ROWS)
    todo = missing(rows, options.split, one_seed=options.one_seed)
    if options.list:
        for row in rows:
            left = [seed for one, seed in todo if one is row]
            print(f"{row.name:<20} {row.title:<60} {f'seeds {left} left' if left else 'measured'}")
        return
    reasons = {} if options.render else measure_all(todo, entailmentbank(), options.split)
    write_table(options.split, reasons)
    sys.exit(1 if reasons and options.only else 0)


if __name__ == "__main__":
    main()
