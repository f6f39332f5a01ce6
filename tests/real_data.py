"""EntailmentBank, for tests that need it: beside the checkout, or in AEENC_TEST_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ENTAILMENTBANK = (
    Path(os.environ.get("AEENC_TEST_DATA", Path(__file__).parents[2] / "shared" / "data")) / "entailmentbank"
)


def need(directory: Path) -> Path:
    """The directory; skips the test where it is not there."""
    if not directory.is_dir():
        pytest.skip(f"there is no data at {directory}; set AEENC_TEST_DATA to the folder that holds entailmentbank")
    return directory
