"""The script `aeenc`: the command line, or what to install where the SDK was installed without it."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line. Exit status 1 where its packages are missing."""
    try:
        from aeenc.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.exit(f"the command line needs {error.name}: install the SDK with it, pip install './clients/python[cli]'")
    run()
