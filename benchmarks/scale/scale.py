"""Beyond one machine: `make bench NAME=scale`.

    make bench NAME=scale ARGS='--only quick'     2 M facts by Ray with an encoder that makes vectors up; workers killed
    make bench NAME=scale ARGS='--only minilm'    50,000 facts by Ray with MiniLM, and from a stream
    make bench NAME=scale ARGS='--only large'     10 M premises in float16 with IVF, beside bare FAISS: an hour, 30 GB
    make bench NAME=scale ARGS='--only conformance'   every mode on files and in milvus-lite: the same ids and scores

Facts are made of EntailmentBank's by a seed, some repeated, some with the text of another. All stays on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows
from benchmarks.scale.conformance import conformance
from benchmarks.scale.distributed import minilm, quick
from benchmarks.scale.large import large

PARTS = ("quick", "minilm", "large", "conformance")


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--facts", type=int, default=2_000_000, help="of the part quick")
    parser.add_argument("--compared", type=int, default=200_000, help="of the part quick, also built from a stream")
    parser.add_argument("--encoded", type=int, default=50_000, help="of the part minilm")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the part large")
    parser.add_argument("--queries", type=int, default=8, help="of the part conformance")
    given = parser.parse_args()
    rows = Rows("scale")
    sources = [candidate.text for candidate in entailmentbank().candidates()]
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        if "quick" in given.only:
            asyncio.run(quick(rows, Path(scratch), sources, given.facts, given.compared))
        if "minilm" in given.only:
            minilm(rows, Path(scratch), sources, given.encoded)
        if "large" in given.only:
            asyncio.run(large(rows, Path(scratch), given.rows))
        if "conformance" in given.only:
            asyncio.run(conformance(rows, Path(scratch), entailmentbank(), given.queries))
    rows.finish()


if __name__ == "__main__":
    main()
