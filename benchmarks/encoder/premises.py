"""Premises in int8: how fast a corpus is encoded, and what it costs. `make bench NAME=premises`; three minutes.

Two fleets over EntailmentBank at once, each asked in turn: one with float32 premises, one whose trainer has
AEENC_TRAINER_PREMISE_PRECISION=int8. Nothing is trained; queries are float32 in both.
Needs EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.rows import Rows
from benchmarks.tables.research import Research, research

TEXTS, ROUNDS = 2_000, 5
SPLIT = "dev"


def encoded(fleet: Research, texts: Sequence[str]) -> tuple[NDArray[np.float32], float]:
    """Vectors (n, dim) of premises, and the seconds that they took."""
    started = time.perf_counter()
    parts = list(fleet.client.encoder.encode_all(texts, role="premise", truncate=True))
    return np.concatenate([part.vectors for part in parts]), time.perf_counter() - started


def main() -> None:
    """Prints the rows."""
    rows = Rows("premises")
    with tempfile.TemporaryDirectory() as folder:
        homes = [Path(folder) / name for name in ("float32", "int8")]
        with research(home=homes[0]) as float32, research(home=homes[1], premise_precision="int8") as int8:
            texts = [one.text for one in float32.dataset.candidates()][:TEXTS]
            took: dict[str, list[float]] = {"float32": [], "int8": []}
            for _ in range(ROUNDS):
                exact, seconds = encoded(float32, texts)
                took["float32"].append(seconds)
                quantised, seconds = encoded(int8, texts)
                took["int8"].append(seconds)
            maps = [one.evaluate(SPLIT, strict_only=True)["strict"]["MAP"] for one in (float32, int8)]
    rates = {name: len(texts) / statistics.median(seconds) for name, seconds in took.items()}
    rows.note("premises in float32", rates["float32"], "texts/s")
    rows.at_least("premises in int8, over float32", rates["int8"] / rates["float32"], "x", 1.5, rates["float32"])
    cosines = np.einsum("nd,nd->n", exact, quantised)
    rows.at_least("cosine to float32, mean", float(cosines.mean()), "", 0.99, float(cosines.min()))
    rows.at_least(f"untrained, strict MAP of {SPLIT}, premises in int8", maps[1], "", maps[0] - 0.002, maps[0])
    rows.finish()


if __name__ == "__main__":
    main()
