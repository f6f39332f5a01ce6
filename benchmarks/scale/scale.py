"""Corpora beyond one process: `make bench NAME=scale` runs all parts, ARGS='--only PART …' some.

    quick        2 M facts by Ray with an encoder that makes vectors up; workers killed; a quarter of an hour
    large        10 M premises in float16 with IVF, beside bare FAISS: an hour, 30 GB
    conformance  every mode on files and in milvus-lite: the same ids and scores

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
from benchmarks.scale.distributed import quick
from benchmarks.scale.large import large


def texts() -> list[str]:
    """The facts that others are made of."""
    return [candidate.text for candidate in entailmentbank().candidates()]


PARTS: dict[str, Callable[[Rows, Path, Any], None]] = {
    "quick": lambda rows, home, given: asyncio.run(quick(rows, home, texts(), given.facts, given.compared)),
    "large": lambda rows, home, given: asyncio.run(large(rows, home, given.rows)),
    "conformance": lambda rows, home, given: asyncio.run(conformance(rows, home, entailmentbank(), given.queries)),
}


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--facts", type=int, default=2_000_000, help="of the part quick")
    parser.add_argument("--compared", type=int, default=200_000, help="of the part quick, also built from a stream")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the part large")
    parser.add_argument("--queries", type=int, default=8, help="of the part conformance")
    given = parser.parse_args()
    rows = Rows.of("scale", given.only, PARTS)
    for name, part in PARTS.items():
        if name in given.only:
            with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
                part(rows, Path(scratch), given)
    rows.finish()


if __name__ == "__main__":
    main()
