"""The paper's Table 1, measured here: `make table1`, one row by `make table1 ARGS='--only NAME'`.

Each measured row and seed is a JSON file in docs/results; a row that has one is measured again only by `--again`. From
the files come docs/results/table1-SPLIT.md and .png. Needs EntailmentBank in `data/entailmentbank` or AEENC_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from aeenc.errors import AeencError
from aeenc.trees import Dataset
from benchmarks.harness.entailmentbank import DATA, entailmentbank, need_split
from benchmarks.harness.rows import surroundings
from benchmarks.tables.drawing import draw_table1
from benchmarks.tables.research import Unfinished, at_hand, research
from benchmarks.tables.table_records import RESULTS, Candidates, Record, candidates_of, record_of, write
from benchmarks.tables.table_rows import BY_NAME, PAPER_SOURCE, ROWS, TableRow
from benchmarks.tables.table_text import MeasuredRow, markdown
from services.trainer.models.base_model import DEFAULT_NAME

Todo = Sequence[tuple[TableRow, int]]


def seeds_of(rows: Sequence[TableRow], *, one_seed: bool) -> Todo:
    """Rows with each of their seeds, or the first alone."""
    return [(row, seed) for row in rows for seed in (row.seeds[:1] if one_seed else row.seeds)]


def missing(wanted: Todo, split: str, candidates: Candidates | None) -> Todo:
    """Those without a result among these candidates; None: any will do."""
    found = [(one, record_of(one[0].name, split, one[1])) for one in wanted]
    return [one for one, record in found if record is None or candidates not in {None, record.candidates}]


def announce(todo: Todo, split: str, candidates: Candidates) -> None:
    """Says which results are replaced, before hours are spent on them."""
    found = [record for row, seed in todo if (record := record_of(row.name, split, seed))]
    replaced = [record for record in found if record.candidates != candidates]
    for record in replaced:
        print(f"{record.row}, seed {record.seed}: anew; its result is among {record.candidates}, not {candidates}")
    if replaced:
        print(
            f"to keep those {len(replaced)}, end this and name data with the same splits in AEENC_BENCH_DATA",
            flush=True,
        )


def measure_all(todo: Todo, dataset: Dataset, split: str, candidates: Candidates) -> dict[str, str]:
    """Measures rows, one fleet a base model with its settings; returns why the others have no figures, by row."""

    def measured(rows: Todo, measure: Callable[[TableRow, int], dict[str, Any]]) -> dict[str, str]:
        reasons = {}
        for row, seed in rows:
            try:
                _keep(row, seed, split, candidates, measure)
            except (Unfinished, AeencError) as error:
                reasons[row.name] = str(error).splitlines()[0]
                print(f"{row.name}, seed {seed}: {error}", flush=True)
        return reasons

    offline = [(row, seed) for row, seed in todo if row.offline is not None]
    reasons = measured(offline, lambda row, _: row.offline(dataset, split))
    served = [(row, seed) for row, seed in todo if row.offline is None]
    for (base_model, settings), group in groupby(served, key=lambda one: (one[0].base_model, one[0].settings)):
        rows = list(group)
        reason = at_hand(base_model)
        if not reason:
            try:
                with research(base_model, **settings) as running:
                    reasons |= measured(rows, lambda row, seed, to=running: row.measure(to, split, seed))
            except AeencError as error:
                print(f"no fleet of {base_model}: {error.message}", flush=True)
                reason = f"the services did not start ({error.code})"
        if reason:
            print(f"{', '.join(dict.fromkeys(row.name for row, _ in rows))}: {reason}", flush=True)
            reasons |= {row.name: reason for row, _ in rows}
    return reasons


def _keep(
    row: TableRow,
    seed: int,
    split: str,
    candidates: Candidates,
    measure: Callable[[TableRow, int], dict[str, Any]],
) -> None:
    print(f"{row.name}, seed {seed}", flush=True)
    started = time.monotonic()
    report = measure(row, seed)
    write(
        Record(row.name, seed, candidates, report),
        split,
        title=row.title,
        command=f"make table1 ARGS='--only {row.name} --split {split}'",
        seconds=round(time.monotonic() - started, 1),
        measured=surroundings(),
    )
    print(f"  strict MAP {report['strict']['MAP']:.4f}, paper MAP {report['paper']['MAP']:.4f}", flush=True)


def write_table(split: str, candidates: Candidates | None, reasons: dict[str, str]) -> bool:
    """Writes the Markdown and the PNG from the results among these candidates; False where there are none."""
    measured = []
    for row in ROWS:
        found = [one for seed in row.seeds if (one := record_of(row.name, split, seed))]
        others = [one for one in found if one.candidates != candidates]
        for one in others:
            print(f"left out: {one.row}, seed {one.seed}, among {one.candidates}, not {candidates}")
        command = f"`make table1 ARGS='--only {row.name}'`, hours" if row.long else ""
        elsewhere = command if row.base_model == DEFAULT_NAME else f"base model {row.base_model}, to be downloaded"
        reason = reasons.get(row.name, f"measured among {others[0].candidates}" if others else elsewhere)
        reports = [one.report for one in found if one.candidates == candidates]
        measured.append(MeasuredRow(row.name, row.title, reports, row.paper, reason, row.against))
    if not any(row.reports for row in measured):
        print(f"nothing is measured; docs/results/table1-{split}.md, .png stay as they were")
        return False
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"table1-{split}.md").write_text(markdown(measured, split, PAPER_SOURCE))
    draw_table1([one for one in measured if one.reports], split, PAPER_SOURCE, RESULTS / f"table1-{split}.png")
    print(f"written: docs/results/table1-{split}.md, .png")
    return True


def list_rows(rows: Sequence[TableRow], split: str, *, one_seed: bool) -> None:
    """Prints rows and which seeds are left to measure, among the candidates of the data if they are at hand."""
    candidates = Candidates.of(entailmentbank()) if DATA.is_dir() else None
    todo = missing(seeds_of(rows, one_seed=one_seed), split, candidates)
    for row in rows:
        left = [seed for one, seed in todo if one is row]
        others = {str(found.candidates) for seed in left if (found := record_of(row.name, split, seed))}
        told = f" (measured among {' and '.join(sorted(others))})" if others else ""
        print(f"{row.name:<20} {row.title:<60} {f'seeds {left} left{told}' if left else 'measured'}")


def main() -> None:
    """Measures what is missing, or the rows asked for, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME), metavar="NAME", help="a row; repeatable")
    parser.add_argument("--split", default="dev", help="the split that is evaluated; models are chosen on dev")
    parser.add_argument("--one-seed", action="store_true", help="the first seed of each row only")
    parser.add_argument("--again", action="store_true", help="measure rows that have a result, too; needs --only")
    parser.add_argument("--list", action="store_true", help="say which rows there are and which are measured")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the table")
    parser.add_argument("--corpus", default="", help="of `--render`, where results are among several candidate sets")
    options = parser.parse_args()
    if options.again and not options.only:
        parser.error("--again measures only what --only names: all rows take days")
    every = [row for row in ROWS if options.list or not row.long]
    rows = [BY_NAME[name] for name in options.only] if options.only else every
    if options.list:
        list_rows(rows, options.split, one_seed=options.one_seed)
        return
    reasons: dict[str, str] = {}
    if options.render:
        candidates = candidates_of(options.split, options.corpus)
    else:
        dataset = entailmentbank()
        need_split(dataset, options.split)
        candidates = Candidates.of(dataset)
        wanted = seeds_of(rows, one_seed=options.one_seed)
        todo = wanted if options.again else missing(wanted, options.split, candidates)
        if options.only and len(todo) < len(wanted):
            kept = ", ".join(f"{row.name} seed {seed}" for row, seed in wanted if (row, seed) not in todo)
            print(f"measured before, and kept: {kept}; --again measures them anew")
        announce(todo, options.split, candidates)
        reasons = measure_all(todo, dataset, options.split, candidates)
    written = write_table(options.split, candidates, reasons)
    sys.exit(1 if not written or (reasons and options.only) else 0)


if __name__ == "__main__":
    main()
