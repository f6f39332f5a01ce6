"""Processes whose clocks go wrong, by Debian's libfaketime: their wall clock is shifted, their monotonic one is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def find_library(scratch: Path) -> Path | None:
    """The installed library, or one that apt-get downloads into `scratch`; None: neither can be had."""
    if LIBRARY.exists():
        return LIBRARY
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "download", "libfaketime"], cwd=scratch, check=True, capture_output=True)
        [package] = scratch.glob("libfaketime_*.deb")
        subprocess.run(["dpkg", "-x", package, scratch], check=True, capture_output=True)
        return next(scratch.glob("usr/lib/*/faketime/libfaketime.so.1"))
    except (OSError, subprocess.CalledProcessError, ValueError, StopIteration):
        return None


def shifted(library: Path | None, seconds: int) -> dict[str, str]:
    """The environment of a process whose wall clock is so many seconds off."""
    if library is None:
        return {}
    return {"LD_PRELOAD": str(library), "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
