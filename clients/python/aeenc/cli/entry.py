"""The script `aeenc`: runs the command line, or says what to install when its packages are missing."""

from __future__ import annotations

import atexit
import gc
import sys

from aeenc.errors import install

# What imports make lives until the end. The collector would go through it again and again, and as Python ends once
# more, for nothing: a third of the time of a short command.
CONTAINERS = 50_000


def main() -> None:
    """Runs the command line. The exit status is 1 when its packages are missing."""
    gc.set_threshold(CONTAINERS)
    atexit.register(gc.freeze)
    try:
        from aeenc.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.exit(f"the command line needs {error.name}: {install('cli')}")
    run()
