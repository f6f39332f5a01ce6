"""The script `aeenc`: runs the command line, or says what to install when its packages are missing."""

from __future__ import annotations

import sys

from aeenc.errors import install


def main() -> None:
    """Runs the command line. The exit status is 1 when its packages are missing."""
    try:
        from aeenc.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.exit(f"the command line needs {error.name}: {install('cli')}")
    run()
