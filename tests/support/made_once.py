"""Makes what takes seconds once for all worker processes of a run; each works on a copy of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], str]) -> tuple[Path, str]:
    """Returns a copy of the folder that `make` has filled, and what it returned.

    Paths that `make` has written into files stay those of the original, which is there to the end of the run.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    original, told = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            shutil.rmtree(original, ignore_errors=True)
            original.mkdir()
            told.write_text(make(original))
    copy = factory.mktemp(name) / "copy"
    return shutil.copytree(original, copy), told.read_text()
