"""Beyond one machine: `make bench NAME=scale`.

    make bench NAME=scale ARGS='--only quick'     2 M facts by Ray with an encoder that makes vectors up; workers killed
    make bench NAME=scale ARGS='--only minilm'    50,000 facts by Ray with MiniLM, and from a stream
    make bench NAME=scale ARGS='--only large'     10 M premises in float16 with IVF, beside bare FAISS: an hour, 30 GB
    make bench NAME=scale ARGS='--only start'     `aeenc up` in an empty home until all services serve, two minutes
    make bench NAME=scale ARGS='--only training'  steps of a job over 1 M premises: memory, time a premise; 5 GB of disk
    make bench NAME=scale ARGS='--only rival'     `ours` beside sentence-transformers' trainer: half an hour

Facts are made of EntailmentBank's by a seed, some repeated, some with the text of another. All stays on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows
from benchmarks.scale.distributed import minilm, quick
from benchmarks.scale.large import large
from benchmarks.scale.rival import LOSSES, rival
from benchmarks.scale.start import start
from benchmarks.scale.training import training

PARTS = ("quick", "minilm", "large", "start", "training", "rival")


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--facts", type=int, default=2_000_000, help="of the part quick")
    parser.add_argument("--compared", type=int, default=200_000, help="of the part quick, also built from a stream")
    parser.add_argument("--encoded", type=int, default=50_000, help="of the part minilm")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the part large")
    parser.add_argument("--starts", type=int, default=3, help="of the part start")
    parser.add_argument("--premises", type=int, default=1_000_000, help="of the part training")
    parser.add_argument("--steps", type=int, default=6, help="of the part training")
    parser.add_argument("--epochs", type=int, default=5, help="of ours in the part rival")
    parser.add_argument("--threads", type=int, default=2, help="of both in the part rival")
    parser.add_argument("--items", type=int, default=0, help="queries an epoch of ours in the part rival; 0: all")
    parser.add_argument("--against", nargs="+", choices=LOSSES, default=LOSSES, help="losses in the part rival")
    given = parser.parse_args()
    rows = Rows("scale")
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        if "start" in given.only:
            start(rows, Path(scratch), given.starts)
        if set(given.only) - {"start"}:
            _with_data(rows, Path(scratch), given)
    rows.finish()


def _with_data(rows: Rows, home: Path, given: argparse.Namespace) -> None:
    """Runs the parts that need EntailmentBank."""
    dataset = entailmentbank()
    sources = [candidate.text for candidate in dataset.candidates()]
    if "quick" in given.only:
        asyncio.run(quick(rows, home, sources, given.facts, given.compared))
    if "minilm" in given.only:
        minilm(rows, home, sources, given.encoded)
    if "large" in given.only:
        asyncio.run(large(rows, home, given.rows))
    if "training" in given.only:
        training(rows, home, [query.text for query in dataset.queries("train")], given.premises, given.steps)
    if "rival" in given.only:
        rival(rows, dataset, given.epochs, given.items, given.threads, given.against)


if __name__ == "__main__":
    main()
