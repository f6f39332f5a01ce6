"""A large corpus in the index: recall, build time, throughput, memory, opening. `make bench NAME=index-large`.

A million premises take about ten minutes; `benchmarks/index/index-large.py --rows 50000` is a smaller one. Needs
EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import argparse

from benchmarks.harness.baselines import run
from benchmarks.harness.rows import Rows
from benchmarks.index.large import large


async def main(count: int) -> None:
    """Runs it."""
    rows = Rows("index-large")
    await large(rows, count)
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="premises of the corpus")
    run(main(parser.parse_args().rows))
