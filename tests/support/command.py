"""A command that runs beside a test."""

from __future__ import annotations

import os
import subprocess
import sys
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


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code to its end, without gRPC's own handling of forks."""
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
    )
