"""A command that runs beside a test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Runs a command while the body runs, then kills what is left of it. Options are those of `Popen`.

    A thread of the test that reads from the command comes back by that, also where the test has failed or run out of
    time. An event loop waits for such threads when it ends, without a limit.
    """
    with subprocess.Popen([str(word) for word in command], **options) as process:
        try:
            yield process
        finally:
            process.kill()
