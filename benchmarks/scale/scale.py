"""Corpora beyond one process: `make bench NAME=scale` runs all parts, ARGS='--only PART …' some.

    quick        2 M facts by Ray with an encoder that makes vectors up; workers killed; a quarter of an hour
    large        10 M premises in float16 with IVF, beside bare FAISS: an hour, 30 GB
    conformance  every mode on files and in milvus-lite: the same ids and scores

Facts are made of EntailmentBank's by a seed, some repeated, some with the text of another. All stays on loopback.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import run_parts
from benchmarks.scale.conformance import conformance
from benchmarks.scale.distributed import quick
from benchmarks.scale.large import large


def texts() -> list[str]:
    """The facts that others are made of."""
    return [candidate.text for candidate in entailmentbank().candidates()]


async def in_folder(part: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Runs a part over a folder of its own."""
    rows, *others = arguments
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        await part(rows, Path(scratch), *others)


if __name__ == "__main__":
    run_parts(
        "scale",
        __doc__,
        {
            "quick": lambda rows, given: in_folder(quick, rows, texts(), given.facts, given.compared),
            "large": lambda rows, given: in_folder(large, rows, given.rows),
            "conformance": lambda rows, given: in_folder(conformance, rows, entailmentbank(), given.queries),
        },
        facts={"type": int, "default": 2_000_000, "help": "of the part quick"},
        compared={"type": int, "default": 200_000, "help": "of the part quick, also built from a stream"},
        rows={"type": int, "default": 10_000_000, "help": "of the part large"},
        queries={"type": int, "default": 8, "help": "of the part conformance"},
    )
