"""Commands that run beside a test, and the client for Node, which npm builds from its lock and its registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools import protos

TABLE = Path("tests", "support", "odd_inputs.json")  # its tests read it beside their repository


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


def built_client(root: Path, snippets: Sequence[str] = ()) -> Path:
    """Builds the client, its examples with these snippets beside them, and its tests; skips where npm is not."""
    if shutil.which("npm") is None:
        pytest.skip("Node and npm are not installed")
    folder = root / protos.TYPESCRIPT.relative_to(protos.ROOT)
    shutil.copytree(protos.TYPESCRIPT, folder, ignore=shutil.ignore_patterns("node_modules", "build", "dist"))
    (root / TABLE).parent.mkdir(parents=True)
    shutil.copyfile(protos.ROOT / TABLE, root / TABLE)
    for number, snippet in enumerate(snippets):
        (folder / "examples" / f"snippet{number}.ts").write_text(snippet)
    npm(folder, "ci", "--no-audit", "--no-fund")
    npm(folder, "run", "--silent", "examples")
    return folder


def npm(folder: Path, *arguments: str) -> None:
    """Runs npm in a folder; what it wrote is the failure."""
    done = subprocess.run(["npm", *arguments], cwd=folder, check=False, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
