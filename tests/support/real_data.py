"""EntailmentBank, for tests that need it: in AEENC_TEST_DATA, in the checkout's `data`, or beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def directory(root: Path = ROOT) -> Path:
    """`entailmentbank` in AEENC_TEST_DATA; else where `aeenc data fetch` puts it; else the one beside the checkout."""
    if folder := os.environ.get("AEENC_TEST_DATA"):
        return Path(folder) / "entailmentbank"
    fetched = root / "data" / "entailmentbank"
    return fetched if fetched.is_dir() else root.parent / "shared" / "data" / "entailmentbank"


ENTAILMENTBANK = directory()


def need(directory: Path) -> Path:
    """The directory; skips the test where it is not there."""
    if not directory.is_dir():
        pytest.skip(
            f"there is no data at {directory}; run `aeenc data fetch entailmentbank --to data/entailmentbank`, or set "
            "AEENC_TEST_DATA to the folder that holds entailmentbank"
        )
    return directory


def without_test(directory: Path, into: Path) -> Path:
    """The splits that the published figures are of, as links in `into`: what is fetched has test, too."""
    for file in need(directory).rglob("*.json*"):
        if file.stem != "test":
            link = into / file.relative_to(directory)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())
    return into
