"""Runs a room's tests for `mutants`, each time in a fork of a process that has read the libraries, which takes longest.

    python tests_run.py ◀── lines of JSON: [arguments of pytest, seconds, folder for notes or ""]
                        ──▶ lines: pytest's status, or -9 where time was up

Notes are of the lines of modules that tests run, in the fork or in processes that it starts: there this file is laid
before Python as `sitecustomize`. The folder has the paths of the modules in `modules`; each process adds a file of
lines `PATH LINE TEST (PHASE)`, each once, at the moment it is first run.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LIBRARIES = (
    "pytest", "hypothesis", "numpy", "torch", "onnxruntime", "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert", "grpc.aio", "redis", "structlog", "typer",
)  # fmt: skip
NOTES = "AEENC_LINES_RUN"  # a variable: the folder
OF_A_FUNCTION = 1  # a flag of code; neither modules nor classes have it


def trace(folder: str) -> None:
    """Notes lines from here on, in all threads to come."""
    modules = {os.path.realpath(path): path for path in Path(folder, "modules").read_text().splitlines()}
    seen: set[tuple[str, int, str]] = set()
    opened = Path.open  # tests replace it

    def line_run(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        key = (frame.f_code.co_filename, frame.f_lineno, test)
        if event == "line" and test and key not in seen:
            seen.add(key)
            # A test may limit the size of files, or of those open; an error here would end all notes to come.
            with contextlib.suppress(OSError), opened(Path(folder, f"{os.getpid()}.lines"), "a") as notes:
                notes.write(f"{modules[frame.f_code.co_filename]} {frame.f_lineno} {test}\n")
        return line_run

    def called(frame: FrameType, _: str, __: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        return line_run if code.co_filename in modules and code.co_flags & OF_A_FUNCTION else None

    threading.settrace(called)
    sys.settrace(called)


def fork(arguments: list[str], limit_s: float, notes: str) -> int:
    """Runs tests, their output in `tests.log`, and ends all that they left in their session."""
    if not (child := os.fork()):
        os.setsid()
        for stream, target in enumerate((os.devnull, "tests.log", "tests.log")):
            os.dup2(os.open(target, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if stream == 1 else os.O_APPEND)), stream)
        if notes:
            os.environ[NOTES] = notes
            os.environ["PYTHONPATH"] = notes + os.pathsep + os.environ["PYTHONPATH"]
            trace(notes)
        os._exit(importlib.import_module("pytest").main(arguments))
    ends = time.monotonic() + limit_s
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > ends:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(done[1])


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        print(fork(*json.loads(line)), flush=True)
elif os.environ.get(NOTES):
    trace(os.environ[NOTES])
