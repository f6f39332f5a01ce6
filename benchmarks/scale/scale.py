"""Beyond one machine, and closer to the hardware: `make bench NAME=scale` runs all parts, ARGS='--only PART …' some.

    quick        2 M facts by Ray with an encoder that makes vectors up; workers killed; a quarter of an hour
    minilm       50,000 facts by Ray with MiniLM, and from a stream
    large        10 M premises in float16 with IVF, beside bare FAISS: an hour, 30 GB
    conformance  every mode on files and in milvus-lite: the same ids and scores
    search       calls of Search for each core-second of the server, beside an echo's
    encoder      what the encoder chooses on this CPU, beside each choice by hand
    start        `aeenc up` in an empty home until all services serve; two minutes
    training     steps of a job over 1 M premises: memory, time a premise; 5 GB of disk
    rival        `ours` beside sentence-transformers' trainer; half an hour

Facts are made of EntailmentBank's by a seed, some repeated, some with the text of another. All stays on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows
from benchmarks.scale.conformance import conformance
from benchmarks.scale.distributed import minilm, quick
from benchmarks.scale.large import large
from benchmarks.scale.precisions import precisions
from benchmarks.scale.rival import LOSSES, rival
from benchmarks.scale.search import ROUNDS, search
from benchmarks.scale.start import start
from benchmarks.scale.training import training


def texts() -> list[str]:
    """The facts that others are made of."""
    return [candidate.text for candidate in entailmentbank().candidates()]


def queries() -> list[str]:
    """The queries of train."""
    return [query.text for query in entailmentbank().queries("train")]


PARTS: dict[str, Callable[[Rows, Path, Any], None]] = {
    "quick": lambda rows, home, given: asyncio.run(quick(rows, home, texts(), given.facts, given.compared)),
    "minilm": lambda rows, home, given: minilm(rows, home, texts(), given.encoded),
    "large": lambda rows, home, given: asyncio.run(large(rows, home, given.rows, others=given.others)),
    "conformance": lambda rows, home, given: asyncio.run(conformance(rows, home, entailmentbank(), given.queries)),
    "search": lambda rows, home, given: asyncio.run(search(rows, home, given.rounds)),
    "encoder": lambda rows, _, given: asyncio.run(precisions(rows, given.texts)),
    "start": lambda rows, home, given: start(rows, home, given.starts),
    "training": lambda rows, home, given: training(rows, home, queries(), given.premises, given.steps),
    "rival": lambda rows, _, given: rival(
        rows, entailmentbank(), given.epochs, given.items, given.threads, given.against
    ),
}


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--facts", type=int, default=2_000_000, help="of the part quick")
    parser.add_argument("--compared", type=int, default=200_000, help="of the part quick, also built from a stream")
    parser.add_argument("--encoded", type=int, default=50_000, help="of the part minilm")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the part large")
    parser.add_argument("--others", action="store_true", help="usearch and milvus-lite in the part large, too")
    parser.add_argument("--queries", type=int, default=8, help="of the part conformance")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the part search")
    parser.add_argument("--texts", type=int, default=2048, help="of the part encoder, in a pass")
    parser.add_argument("--starts", type=int, default=3, help="of the part start")
    parser.add_argument("--premises", type=int, default=1_000_000, help="of the part training")
    parser.add_argument("--steps", type=int, default=6, help="of the part training")
    parser.add_argument("--epochs", type=int, default=5, help="of ours in the part rival")
    parser.add_argument("--threads", type=int, default=2, help="of both in the part rival")
    parser.add_argument("--items", type=int, default=0, help="queries an epoch of ours in the part rival; 0: all")
    parser.add_argument("--against", nargs="+", choices=LOSSES, default=LOSSES, help="losses in the part rival")
    given = parser.parse_args()
    rows = Rows.of("scale", given.only, PARTS)
    for name, part in PARTS.items():
        if name in given.only:
            with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
                part(rows, Path(scratch), given)
    rows.finish()


if __name__ == "__main__":
    main()
