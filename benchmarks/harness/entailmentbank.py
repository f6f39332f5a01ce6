"""The directory of EntailmentBank for all benchmarks: AEENC_BENCH_DATA, `data/entailmentbank`, or a sibling."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from aeenc.errors import NotFound
from aeenc.trees import Dataset
from benchmarks.harness.rows import ROOT


def directory(root: Path = ROOT) -> Path:
    """The directory of AEENC_BENCH_DATA; else where `aeenc data fetch` puts it; else the one beside the checkout."""
    if named := os.environ.get("AEENC_BENCH_DATA"):
        return Path(named)
    fetched = root / "data" / "entailmentbank"
    return fetched if fetched.is_dir() else root.parent / "shared" / "data" / "entailmentbank"


DATA = directory()


def check_there() -> None:
    """Ends the process when the data are not there."""
    if not DATA.is_dir():
        raise SystemExit(
            "there is no EntailmentBank; run `aeenc data fetch entailmentbank --to data/entailmentbank`, or name its "
            f"directory in AEENC_BENCH_DATA ({DATA} is none)"
        )


def need_split(dataset: Dataset, split: str) -> None:
    """Ends the process with status 2 when the data lack a split: training would take hours before it is missed."""
    try:
        dataset.trees(split)
    except NotFound as error:
        print(f"{error.message}; choose one of those, or name other data in AEENC_BENCH_DATA", file=sys.stderr)
        sys.exit(2)


def entailmentbank() -> Dataset:
    """The data; ends the process when they are not there."""
    check_there()
    return Dataset.load(DATA)
